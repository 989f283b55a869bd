"""Small callables as targets, and their kernels built and called; shared by the tests of the templates."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from forge_tui.contract import directives, header, lint, plan
from forge_tui.core.records import Device, KernelInput, KernelOutput, Signature, Target, TensorSpec
from forge_tui.models.trace import trace_graph

CPU = Device(name="cpu", model="test", arch="test", cores=2, threads=2)
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared")


def spec(tensor: torch.Tensor) -> TensorSpec:
    """The spec of a tensor."""
    return TensorSpec(
        shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."), strides=tuple(tensor.stride())
    )


def results(call: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs of a callable as a list."""
    with torch.no_grad():
        out = call(*inputs)
    return list(out) if isinstance(out, tuple | list) else [out]


def make_target(call: Callable[..., Any], inputs: Sequence[torch.Tensor], name: str = "f") -> Target:
    """A target with signature and graph."""
    outputs = results(call, inputs)
    signature = Signature(
        inputs=tuple(KernelInput(name=f"x{n}", spec=spec(t), source="arg", path=f"x{n}") for n, t in enumerate(inputs)),
        outputs=tuple(KernelOutput(name=f"out{n}", spec=spec(t)) for n, t in enumerate(outputs)),
        scalars=(), call={}, result={},
    )  # fmt: skip
    graph = trace_graph(lambda tensors: results(call, tensors), signature, inputs)
    return Target(
        id=name, name=name, kind="function", qualname=f"test:{name}", instances=(), signature=signature, calls=1,
        time_us=1.0, share=1.0, floor_us=0.1, bound="memory", headroom_ms=1.0, bytes_moved=1, flops=1, graph=graph,
    )  # fmt: skip


def build_cpp(folder: Path, kernels: Sequence[tuple[Target, str, dict[str, int]]], flags: Sequence[str] = FLAGS
              ) -> list[Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]]:  # fmt: skip
    """Compile sources side by side, one library each, and give a callable for each."""
    jobs, calls = [], []
    for number, (target, source, tunables) in enumerate(kernels):
        place = folder / f"k{number}"
        place.mkdir(parents=True)
        (place / "forge_target.h").write_text(header.render(target, CPU))
        (place / "kernel.cpp").write_text(source)
        lint.check(source, "cpp")
        chosen = directives.parse(source).chosen(tunables)
        workspace = plan.make(source, target, CPU, chosen).workspace_bytes
        defines = [f"-D{key}={value}" for key, value in chosen.items()]
        files = [f"-I{place}", str(place / "kernel.cpp"), "-o", str(place / "kernel.so")]
        command = ["g++", *flags, *defines, *files]
        jobs.append((subprocess.Popen(command, stderr=subprocess.PIPE, text=True), source))
        if len(jobs) % 2 == 0:
            _wait(jobs[-2:])
        calls.append((target, place / "kernel.so", workspace))
    _wait(jobs)
    return [_caller(*call) for call in calls]


def _wait(jobs: Sequence[tuple[subprocess.Popen[str], str]]) -> None:
    for process, source in jobs:
        _, error = process.communicate() if process.stderr and not process.stderr.closed else ("", "")
        assert process.returncode == 0, f"{error[:3000]}\n{source}"


def _caller(target: Target, library: Path, workspace: int) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    entry = ctypes.CDLL(str(library)).forge_launch
    scratch = torch.empty(max(workspace, 1), dtype=torch.uint8)

    def call(inputs: Sequence[torch.Tensor], outputs: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
        outs = outputs if outputs is not None else [
            torch.empty_strided(o.spec.shape, o.spec.strides, dtype=getattr(torch, o.spec.dtype))
            for o in target.signature.outputs
        ]  # fmt: skip
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*inputs, *outs, scratch)]
        assert entry(*pointers, ctypes.c_int64(0)) == 0
        return outs

    return call


_EPS = {torch.float32: 1e-6, torch.float64: 1e-13, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def widened(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Floating inputs in float64."""
    return [t.double() if t.is_floating_point() else t for t in inputs]


def assert_right(
    call: Callable[..., Any], inputs: Sequence[torch.Tensor], got: Sequence[torch.Tensor], what: str = ""
) -> None:
    """Compare with eager, within a tolerance that the dtype and the float64 reference give."""
    eager = results(call, inputs)
    try:
        exact = results(call, widened(inputs))
    except RuntimeError:
        exact = eager
    for number, (mine, want, wide) in enumerate(zip(got, eager, exact, strict=True)):
        assert mine.dtype == want.dtype
        if not want.is_floating_point():
            assert torch.equal(mine, want), f"{what}: output {number} differs"
            continue
        eps = _EPS[want.dtype]
        reference = wide.double()
        assert torch.equal(mine.isnan(), want.isnan()), f"{what}: NaN in other places"
        finite = reference.isfinite() & want.isfinite()
        assert torch.equal(mine.double()[~finite].nan_to_num(7.0), want.double()[~finite].nan_to_num(7.0)), what
        away = (mine.double() - reference)[finite].abs()
        eager_away = (want.double() - reference)[finite].abs()
        scale = reference[finite].abs().max().item() if finite.any() else 0.0
        allowed = 4 * eps * (reference[finite].abs() + 0.02 * scale) + 2 * eager_away.max() if finite.any() else 0.0
        worst = (away - allowed).max().item() if finite.any() else -1.0
        far = f"{away.max().item():.3g} away, eager {eager_away.max().item():.3g}" if finite.any() else ""
        assert worst <= 0, f"{what}: output {number} is {far}"
