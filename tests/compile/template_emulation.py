"""CUDA template kernels run on the CPU by a small emulation, so that their meaning is tested without a GPU."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from forge_tui.contract import directives, header, plan
from forge_tui.core.records import Device, Target

GPU = Device(name="cuda:0", model="test", arch="sm_90a", sms=132, smem_optin=232448)
_HEADERS = Path(__file__).parent / "cuda_emulation"


def build_emulated(folder: Path, kernels: Sequence[tuple[Target, str, dict[str, int]]]
                   ) -> list[Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]]:  # fmt: skip
    """Compile sources as C++ with the emulation, one library for all, and give a callable for each."""
    parts, calls = [], []
    for number, (target, source, tunables) in enumerate(kernels):
        chosen = directives.parse(source).chosen(tunables)
        launches = plan.make(source, target, GPU, chosen)
        names = ", ".join([*(name for name, _, _ in header.parameters(target.signature)), "workspace", "dims"])
        (folder / f"target{number}.h").write_text(header.render(target, GPU).replace("#pragma once", ""))
        text = source.replace('"forge_target.h"', f'"target{number}.h"').replace("__shared__", "static")
        defines = [f"#define {key} {value}" for key, value in chosen.items()]
        for name in {launch.kernel for launch in launches.launches}:
            text = text.replace(f" {name}(FORGE_PARAMS)", f" {name}_{number}(FORGE_PARAMS)")
        body = [
            f"    emulated::launch({l.grid[0]}, {l.grid[1]}, {l.block[0]}, [&] {{ {l.kernel}_{number}({names}); }});"
            for l in launches.launches
        ]
        entry = [f'extern "C" void run_{number}(FORGE_PARAMS) {{', *body, "}"]
        unit = ['#include "cuda_emulation.h"', *defines, text, *entry]
        (folder / f"kernel{number}.cpp").write_text("\n".join(unit))
        parts.append(f"kernel{number}.cpp")
        calls.append((target, f"run_{number}", launches.workspace_bytes))
    library = folder / "all.so"
    command = ["g++", "-O1", "-std=c++20", "-fPIC", "-w", f"-I{_HEADERS}", f"-I{folder}"]
    for start in range(0, len(parts), 2):
        jobs = [subprocess.Popen([*command, "-c", str(folder / part), "-o", str(folder / f"{part}.o")],
                                 stderr=subprocess.PIPE, text=True) for part in parts[start : start + 2]]  # fmt: skip
        for job, part in zip(jobs, parts[start:], strict=False):
            _, error = job.communicate()
            assert job.returncode == 0, f"{error[:3000]}\n{(folder / part).read_text()}"
    objects = [str(folder / f"{part}.o") for part in parts]
    subprocess.run(["g++", "-shared", *objects, "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    return [_caller(target, loaded[name], workspace) for target, name, workspace in calls]


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
