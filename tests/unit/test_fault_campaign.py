"""One evaluator outlives kernels of every kind, and each verdict is as if it were the first."""

from __future__ import annotations

import tempfile

import pytest
from campaign import Campaign, files, mixed
from evaluator_support import CPU, build, make_target, spec, workspace
from fault_sources import CPU as FAULTS
from fault_sources import CUDA, CUDA_GOOD, GOOD, WRONG

from forge_tui.compiler.build import CommandCompiler
from forge_tui.core.records import Built, CompileFailure
from forge_tui.evaluator.client import WorkerEvaluator


async def campaign(device, name: str, faults, place, monkeypatch, timeout_s: float) -> Campaign:
    """Run them on one evaluator; everything it must not leave is looked for."""
    temporary = place.root / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    target = make_target(place, "norm", device=name, floor_us=0.01)
    evaluator = WorkerEvaluator(spec(), device, place, threads=2, seed=3, log_dir=place.logs, timeout_s=timeout_s)
    compiler = CommandCompiler(device, place.builds, timeout_s=4.0 if device.kind == "cpu" else 30.0)
    made = Campaign(target, evaluator, compiler, lambda source: build(target, source, place.root / "built"))
    before = files(place)
    try:
        assert (await evaluator.open(target)).usable
        await made.run(faults)
    finally:
        await made.close(place.logs)
    assert made.problems == []
    assert files(place) == before
    return made


async def test_a_row_of_faults_leaves_every_verdict_right(tmp_path, monkeypatch):
    """Crashes, exits, floods and files between good and wrong kernels: verdicts as expected, nothing left behind."""
    chosen = ("segfault", "illegal instruction", "stack overflow", "exit", "abort", "address space", "output",
              "file at load", "forks", "kills its group", "template recursion", "reads a file")  # fmt: skip
    bad = [fault for fault in FAULTS if fault.name in chosen]
    assert len(bad) == len(chosen)
    row = [*bad[:6], WRONG, *bad[6:], GOOD]
    made = await campaign(CPU, "cpu", row, workspace(tmp_path / "place"), monkeypatch, 2.0)
    descriptors, grown = made.growth()
    assert descriptors <= 0
    assert grown < 32 << 20
    assert sum(made.counts.values()) == 14


def test_a_campaign_has_every_kind_about_as_often():
    """No fault is left out of a long row, and good kernels stand between bad ones."""
    row = mixed([GOOD, WRONG], FAULTS, 200, 1)
    counts = {fault.name: sum(f.name == fault.name for f in row) for fault in FAULTS}
    assert max(counts.values()) - min(counts.values()) <= 1
    assert min(counts.values()) >= 3
    assert sum(f in (GOOD, WRONG) for f in row) == 66
    assert all(row[i] in (GOOD, WRONG) for i in range(2, 200, 3))


@pytest.mark.gpu
async def test_a_gpu_outlives_a_row_of_faults(tmp_path, monkeypatch):
    """After every device error, hang and refusal the next kernel on the GPU is right."""
    from forge_tui.profiler.device import describe

    row = [kernel for fault in CUDA for kernel in (fault, CUDA_GOOD)]
    device = describe("cuda:0", ceilings=False)
    await campaign(device, "cuda:0", row, workspace(tmp_path / "place"), monkeypatch, 15.0)


@pytest.mark.slow
@pytest.mark.gpu
async def test_every_cuda_fault_passes_the_compiler_room(tmp_path):
    """What is expected to fail on the device is not stopped before it."""
    from forge_tui.profiler.device import describe

    place = workspace(tmp_path)
    target = make_target(place, "norm")
    compiler = CommandCompiler(describe("cuda:0", ceilings=False), place.builds)
    for fault in CUDA:
        found = await compiler.build(target, fault.source, {})
        if isinstance(found, CompileFailure):
            assert not fault.problem(found.verdict, found.reason), found
        else:
            assert isinstance(found, Built)
