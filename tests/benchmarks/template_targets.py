"""Every template variant on every target of a model, checked against the original and timed: one line each.

Usage: python tests/benchmarks/template_targets.py example:NAME [...] [--device cuda:0] [--tune]

Profiles the model, writes each variant of each template that fits a target, builds it, launches it on captured inputs,
compares the outputs with the original callable's on the same inputs, and prints microseconds of both and their ratio
(CUDA events on warm caches; for a first look, the search measures properly). With --tune every setting one step away
from the defaults as well. Ends with the number of variants that failed.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from forge_tui.compiler.build import CommandCompiler
from forge_tui.contract import tune
from forge_tui.core.paths import Workspace
from forge_tui.core.ports import Task
from forge_tui.core.records import Built, Device, Edge, Target
from forge_tui.launch.kernel import allocate_outputs, load_kernel
from forge_tui.models import capture
from forge_tui.models.load import LoadedModel, load_model
from forge_tui.models.resolve import caller
from forge_tui.models.spec import ModelRequest, parse_model
from forge_tui.profiler import client
from forge_tui.proposers.templates import TemplateProposer
from forge_tui.targets.select import choose


def median_us(call: Callable[[], object], device: str, rounds: int = 15) -> float:
    """Median time of a call in microseconds."""
    times = []
    for _ in range(rounds + 3):
        if device.startswith("cuda"):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
        else:
            started = time.perf_counter()
            call()
            times.append((time.perf_counter() - started) * 1e6)
    return sorted(times[3:])[rounds // 2]


def variants(target: Target, device: Device) -> list[tuple[str, str]]:
    """(family, source) of every draft that the templates have for a target."""
    from forge_tui.core.records import Node

    proposer, nodes, found = TemplateProposer(), [], []
    while True:
        task = Task(target=target, device=device, edge=Edge.DRAFT, parent=None, failed=None, best=None, lineage=(),
                    nodes=tuple(nodes), seed=0)  # fmt: skip
        if not proposer.can(task):
            return found
        proposal = asyncio.run(proposer.propose(task))
        if proposal.source is None:
            return found
        found.append((proposal.family, proposal.source))
        nodes.append(Node(id=len(nodes) + 1, target_id=target.id, parent=None, edge=Edge.DRAFT, proposer="templates",
                          source=proposal.source, language=device.language, family=proposal.family))  # fmt: skip


def check(target: Target, device: Device, place: Workspace, compiler: CommandCompiler, loaded: LoadedModel,
          *, tunes: bool) -> tuple[int, int]:  # fmt: skip
    """Print one line for each variant; returns how many there were and how many failed."""
    inputs = capture.load(place.captures / Path(target.capture).name, 0, device.name, loaded)
    original = caller(target, loaded)
    with torch.no_grad():
        wanted = original(inputs)
        eager = median_us(lambda: original(inputs), device.name)
    count = failed = 0
    for family, source in variants(target, device):
        settings = [{}, *(tune.neighbours(source, {}) if tunes else [])]
        for setting in settings:
            count += 1
            label = f"  {target.name:<24} {family:<34} {setting or ''}"
            built = asyncio.run(compiler.build(target, source, setting))
            if not isinstance(built, Built):
                failed += 1
                print(f"{label} {built.verdict}: {built.reason}\n{built.log[:600]}")
                continue
            outputs = allocate_outputs(target.signature, device.name)
            for out in outputs:
                out.fill_(float("nan") if out.is_floating_point() else 77)
            size = built.plan.workspace_bytes
            workspace = torch.empty(size, dtype=torch.uint8, device=device.name) if size else None
            try:
                kernel = load_kernel(built, target.signature, device.name)
                kernel.launch(inputs, outputs, workspace)
                if device.kind == "cuda":
                    torch.cuda.synchronize()
            except Exception as error:
                print(f"{label} {type(error).__name__}: {error}")
                return count, failed + 1
            worst = max(relative(a, b) for a, b in zip(outputs, wanted, strict=True))
            us = median_us(lambda: kernel.launch(inputs, outputs, workspace), device.name)  # noqa: B023
            bad = not worst < 0.02
            failed += bad
            print(f"{label} {us:9.1f} us, eager {eager:9.1f}, {eager / us:6.2f}x, floor {target.floor_us:8.1f}, "
                  f"error {worst:.1e} {'WRONG' if bad else ''}")  # fmt: skip
    if not count:
        print(f"  {target.name:<24} no template fits {target.graph_reason}")
    return count, failed


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """Norm of the difference over the norm of the reference; nan where either has one."""
    wide_a, wide_b = a.double(), b.double()
    return float((wide_a - wide_b).norm() / wide_b.norm().clamp_min(1e-30))


def main() -> None:
    """Check the models named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--targets", type=int, default=12)
    arguments = parser.parse_args()
    total = wrong = 0
    for text in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            place = Workspace(Path(folder))
            place.prepare()
            spec = parse_model(text, ModelRequest(dtype="bfloat16" if arguments.device.startswith("cuda") else None))
            profile = asyncio.run(client.profile(spec, arguments.device, place, threads=0, seed=0,
                                                 log=Path(folder) / "log", timeout_s=400))  # fmt: skip
            print(f"\n{text}: {profile.model_ms:.2f} ms, overhead {profile.overhead:.2f}, {profile.device.model} "
                  f"{profile.device.arch}, {profile.device.ceilings}")  # fmt: skip
            loaded = load_model(spec, arguments.device)
            compiler = CommandCompiler(profile.device, place.builds)
            for target in choose(profile, max_targets=arguments.targets):
                print(f"  -- {target.name} calls {target.calls} {target.time_us:.1f} us share {target.share:.3f} "
                      f"headroom {target.headroom_ms:.3f} ms {target.bound} "
                      f"{target.signature.describe()[:100]}")  # fmt: skip
                count, failed = check(target, profile.device, place, compiler, loaded, tunes=arguments.tune)
                total, wrong = total + count, wrong + failed
    print(f"\n{total} variants, {wrong} failed")


if __name__ == "__main__":
    main()
