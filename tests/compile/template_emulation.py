"""CUDA template kernels run on the CPU by a small emulation, so that their meaning is tested without a GPU."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from forge_tui.contract import directives, facts, header, plan
from forge_tui.core.records import Device, Target

GPU = Device(name="cuda:0", model="test", arch="sm_90a", sms=132, smem_optin=232448)
_PER_UNIT = 24
_HEADERS = Path(__file__).parent / "cuda_emulation"


def build_emulated(folder: Path, kernels: Sequence[tuple[Target, str, dict[str, int]]]
                   ) -> list[Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]]:  # fmt: skip
    """Compile sources as C++ with the emulation, a few libraries for all, and give a callable for each."""
    units = [_unit(folder, number, *kernel) for number, kernel in enumerate(kernels)]
    libraries = []
    running: list[subprocess.Popen[str]] = []
    for start in range(0, len(units), _PER_UNIT):
        path = folder / f"unit{start}.cpp"
        path.write_text("\n".join(['#include "cuda_emulation.h"', *units[start : start + _PER_UNIT]]))
        command = ["g++", "-O0", "-std=c++20", "-fPIC", "-shared", "-w", f"-I{_HEADERS}", f"-I{folder}", str(path)]
        libraries.append(path.with_suffix(".so"))
        running.append(subprocess.Popen([*command, "-o", str(libraries[-1])], stderr=subprocess.PIPE, text=True))
        if len(running) == 2:
            _finish(running.pop(0))
    while running:
        _finish(running.pop(0))
    loaded = [ctypes.CDLL(str(library)) for library in libraries]
    calls = []
    for number, (target, source, tunables) in enumerate(kernels):
        chosen = directives.parse(source).chosen(tunables)
        workspace = plan.make(source, target, GPU, chosen).workspace_bytes
        calls.append(_caller(target, loaded[number // _PER_UNIT][f"run_{number}"], workspace))
    return calls


def _finish(job: subprocess.Popen[str]) -> None:
    _, error = job.communicate()
    assert job.returncode == 0, error[:4000]


def _unit(folder: Path, number: int, target: Target, source: str, tunables: dict[str, int]) -> str:
    """One kernel in a namespace of its own, with a function that launches it."""
    chosen = directives.parse(source).chosen(tunables)
    launches = plan.make(source, target, GPU, chosen).launches
    names = ", ".join([*(name for name, _, _ in facts.parameters(target.signature)), "workspace", "dims"])
    (folder / f"target{number}.h").write_text(header.render(target, GPU).replace("#pragma once", ""))
    text = source.replace('"forge_target.h"', f'"target{number}.h"')
    for name in {launch.kernel for launch in launches}:
        text = text.replace(f" {name}(FORGE_PARAMS)", f" {name}_{number}(FORGE_PARAMS)")
    body = [
        f"    emulated::launch({step.grid[0]}, {step.grid[1]}, {step.block[0]}, "
        f"[&] {{ {step.kernel}_{number}({names}); }});"
        for step in launches
    ]
    macros = [*chosen, "FORGE_PARAMS", "LANES", "VEC"]
    return "\n".join([
        f"namespace kernel{number} {{", *(f"#define {key} {value}" for key, value in chosen.items()), text,
        f'extern "C" void run_{number}(FORGE_PARAMS) {{', *body, "}", "}", *(f"#undef {name}" for name in macros),
    ])  # fmt: skip


def _caller(target: Target, entry: object, workspace: int) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    def call(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        outs = [
            torch.empty_strided(o.spec.shape, o.spec.strides, dtype=getattr(torch, o.spec.dtype))
            for o in target.signature.outputs
        ]
        scratch = torch.full((workspace // 4 + 16,), float("nan"))
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*inputs, *outs, scratch)]
        entry(*pointers, ctypes.c_int64(0))
        return outs

    return call
