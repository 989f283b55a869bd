"""Targets of the evaluator's tests: modules of a small model, their inputs captured, kernels built by plain g++."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from forge_tui.contract import directives, header, plan
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Built, Ceilings, Device, ModelSpec, Signature, Target
from forge_tui.evaluator.client import WorkerEvaluator
from forge_tui.evaluator.judge import Judge
from forge_tui.evaluator.opened import Cache, OpenTarget, tensors_bytes
from forge_tui.models import capture
from forge_tui.models.calls import describe_call, describe_result
from forge_tui.models.held import Holders
from forge_tui.models.load import load_model
from forge_tui.models.snapshot import Copier
from forge_tui.models.spec import parse_model

MODEL = Path(__file__).parent / "fixtures" / "models_eval" / "norms.py"
CPU = Device(
    name="cpu", model="test", arch="test", cores=2, threads=2,
    ceilings=Ceilings(copy_gbps=10.0, matmul_tflops={}, launch_us=1.0, cache_bytes=1 << 20),
)  # fmt: skip
#: little optimisation: cheats must reach the machine code as they are written
FLAGS = ("-O1", "-std=c++17", "-march=native", "-fopenmp", "-fPIC", "-fvisibility=hidden", "-w")


def spec(factory: str = "build", model: Path = MODEL) -> ModelSpec:
    """The model file of these tests."""
    return parse_model(f"{model}:{factory}")


def make_target(
    workspace: Workspace, path: str, factory: str = "build", calls: int = 2, device: str = "cpu", model: Path = MODEL,
    **changes: object,
) -> Target:  # fmt: skip
    """A module of the model as a target, with inputs of some calls captured."""
    loaded = load_model(spec(factory, model), device)
    module = loaded.module.get_submodule(path)
    seen: list[tuple] = []
    handle = module.register_forward_hook(lambda _, args, out: seen.append((args, out)))
    generator = torch.Generator().manual_seed(7)
    for _ in range(calls):
        loaded.run()
        (phase,) = loaded.phases
        args = tuple(torch.randn(a.shape, generator=generator).to(a) for a in phase.args)
        loaded.phases = (dataclasses.replace(phase, args=args),)
    handle.remove()
    described = [describe_call(module.forward, args, {}, module) for args, _ in seen]
    result = describe_result(seen[0][1], described[0].tensors)
    signature = Signature(
        inputs=described[0].inputs, outputs=result.outputs, scalars=described[0].scalars, call=described[0].call,
        result=result.result, device=device,
    )  # fmt: skip
    copier = Copier(Holders(loaded))
    name = capture.save_by_content(workspace.captures, [copier.take(d.tensors) for d in described])
    fields: dict[str, object] = {
        "id": f"{factory}-{path}", "name": type(module).__name__, "kind": "module",
        "qualname": f"norms:{type(module).__name__}", "instances": (path,), "signature": signature, "calls": 1,
        "time_us": 20.0, "share": 0.5, "floor_us": 1.0, "bound": "memory", "headroom_ms": 0.02,
        "bytes_moved": 2 * 50 * 96 * 4, "flops": 0, "capture": f"captures/{name}", "captured_calls": calls,
    }  # fmt: skip
    return Target(**(fields | changes))


def build(target: Target, source: str, folder: Path, include: Path = Path()) -> Built:
    """Compile a source without the compiler room's checks; OpenMP's symbols stay undefined as there."""
    shared = folder / target.id
    prepare(target, shared)
    place = shared / hashlib.sha256(source.encode()).hexdigest()[:16]
    library = place / "kernel.so"
    chosen = directives.parse(source).chosen({})
    if not library.exists():
        place.mkdir(parents=True)
        (place / "kernel.cpp").write_text(source)
        defines = [f"-D{k}={v}" for k, v in chosen.items()]
        done = subprocess.run(
            ["g++", *FLAGS, *defines, "-I..", f"-I{include}", "-include", "../first.h", "-c", "kernel.cpp",
             "-o", "kernel.o"], cwd=place, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        subprocess.run(["g++", "-shared", "kernel.o", "-o", "kernel.so"], cwd=place, check=True)
    return Built(
        path=str(library), sha256=hashlib.sha256(library.read_bytes()).hexdigest(), language="cpp",
        plan=plan.make(source, target, CPU, chosen), compile_s=0.0,
    )  # fmt: skip


def prepare(target: Target, shared: Path) -> None:
    """The target's header, precompiled with what most kernels include."""
    if not shared.exists():
        shared.mkdir(parents=True)
        (shared / "forge_target.h").write_text(header.render(target, CPU))
        (shared / "first.h").write_text('#include "forge_target.h"\n#include <cmath>\n#include <cstring>\n')
        subprocess.run(["g++", *FLAGS, "-x", "c++-header", "first.h", "-o", "first.h.gch"], cwd=shared, check=True)


def evaluator(
    workspace: Workspace, factory: str = "build", timeout_s: float = 20.0, model: Path = MODEL
) -> WorkerEvaluator:
    """An evaluator on the CPU."""
    return WorkerEvaluator(
        spec(factory, model), CPU, workspace, threads=2, seed=3, log_dir=workspace.logs, timeout_s=timeout_s,
        patience_s=0.0,
    )  # fmt: skip


class _OneTarget:
    """Stands for the targets of a model: one callable with its captured inputs."""

    device = torch.device("cpu")
    cache_bytes = 1 << 24

    def __init__(self, opened: OpenTarget) -> None:
        self._opened = opened

    def open(self, _: dict[str, object]) -> OpenTarget:
        """The one there is."""
        return self._opened


def judge_of(
    call: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]], target: Target, *captured: list[torch.Tensor]
) -> tuple[Judge, dict[str, object]]:
    """A judge in this process of a plain function with these captured calls, and what to ask it with."""
    opened = OpenTarget(target, call, list(captured), Cache(1 << 24, tensors_bytes))
    return Judge(_OneTarget(opened), 5), {}


def workspace(folder: Path) -> Workspace:
    """A prepared workspace."""
    made = Workspace(folder)
    made.prepare()
    return made


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """Equal bit by bit, strides too."""
    return all(
        a.stride() == b.stride() and a.dtype == b.dtype and torch.equal(a.nan_to_num(7), b.nan_to_num(7))
        for a, b in zip(one, other, strict=True)
    )
