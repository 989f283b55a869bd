"""The whole evaluator: verdicts, restarts, targets that cannot be judged, what is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from evaluator_support import CPU, build, evaluator, make_target, spec, workspace

from forge_tui.core.errors import ModelError
from forge_tui.core.paths import scratch_root
from forge_tui.core.records import Built, Verdict
from forge_tui.evaluator.client import WorkerEvaluator
from forge_tui.models.spec import parse_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

RIGHT = """
#include "forge_target.h"
#include <cmath>
extern "C" __attribute__((visibility("default"))) int forge_launch(FORGE_PARAMS) {
    for (int64_t r = 0; r < forge::x_shape_0; ++r) {
        float sum = 0;
        for (int64_t j = 0; j < 96; ++j) sum += x[r * 96 + j] * x[r * 96 + j];
        const float scale = 1.0f / std::sqrt(sum / 96 + float(forge::eps));
        for (int64_t j = 0; j < 96; ++j) out0[r * 96 + j] = x[r * 96 + j] * scale * weight[j];
    }
    return 0;
}
"""
SLOW = RIGHT.replace("return 0;", "for (volatile int i = 0; i < 3000000; ++i) {}\n    return 0;")
HANGS = RIGHT.replace("return 0;", "for (volatile int i = 0;; ++i) {}")
BREAKS = RIGHT.replace("return 0;", "*(volatile int*)8 = 1; return 0;")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A workspace."""
    return workspace(tmp_path_factory.mktemp("client"))


@pytest.fixture(scope="module")
def target(place):
    """The RMSNorm of the model."""
    return make_target(place, "norm")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(place):
    """An evaluator with a limit of two seconds."""
    found = evaluator(place, timeout_s=2.0)
    yield found
    await found.close()


def kernel(place, target, source: str) -> Built:
    """The source built."""
    return build(target, source, place.root / "built")


async def test_a_target_is_opened_once(made, target):
    """Opening says how fast eager is and how strict the judge is; again it is the same answer."""
    check = await made.open(target)
    assert check.usable
    assert check.reason == ""
    assert 1 < check.eager_us < 1e6
    assert check.tolerance.startswith("|out0 - ref| <= 1.9e-06 |ref| + ")
    assert await made.open(target) is check


async def test_a_right_kernel_is_measured(made, place, target):
    """Everything that a report wants is there, and consistent."""
    result = await made.evaluate(target, kernel(place, target, RIGHT), 4)
    assert result.verdict.right, result.reason
    assert result.samples
    assert result.sha256 == kernel(place, target, RIGHT).sha256
    assert 0 < result.max_abs_error < 1e-5
    assert 0 < result.error_vs_eager < 10
    assert result.speedup_ci[0] <= result.speedup <= result.speedup_ci[1]
    assert min(a for a, _ in result.samples) <= result.time_us <= max(a for a, _ in result.samples)
    assert min(b for _, b in result.samples) <= result.baseline_us <= max(b for _, b in result.samples)
    assert result.verify_s > 0
    assert result.timing_s > 0


async def test_a_slow_kernel_is_slower(made, place, target):
    """Milliseconds of idling are no win."""
    result = await made.evaluate(target, kernel(place, target, SLOW), 4)
    assert result.verdict is Verdict.SLOWER
    assert result.speedup < 0.5


async def test_bad_kernels_do_not_harm_the_next(made, place, target):
    """After a hang and a crash the same evaluator finds the right kernel right, in the same processes."""
    processes = (made._judge.pid, made._runner.pid)
    hung = await made.evaluate(target, kernel(place, target, HANGS), 4)
    assert hung.verdict is Verdict.TIMED_OUT
    assert hung.reason == "It did not end within 2 s while it was verified; does it loop for ever?"
    crashed = await made.evaluate(target, kernel(place, target, BREAKS), 4)
    assert crashed.verdict is Verdict.CRASHED
    assert "SIGSEGV" in crashed.reason
    assert (await made.evaluate(target, kernel(place, target, RIGHT), 4)).verdict.right
    assert (made._judge.pid, made._runner.pid) == processes


async def test_workers_that_are_killed_come_back(made, place, target):
    """An idle judge or runner that dies is started again without anyone noticing."""
    for worker in (made._runner, made._judge):
        os.kill(worker.pid, signal.SIGKILL)
        await worker._process.wait()
        assert (await made.evaluate(target, kernel(place, target, RIGHT), 5)).verdict.right


async def test_a_judge_that_dies_at_work_is_our_fault(made, place, target):
    """The candidate gets no verdict for it, and the next evaluation works."""
    request = made._judge.request

    async def dying(op, timeout_s, **fields):
        os.kill(made._judge.pid, signal.SIGSTOP)
        answer = asyncio.ensure_future(request(op, timeout_s, **fields))
        await asyncio.sleep(0.05)
        os.kill(made._judge.pid, signal.SIGKILL)
        return await answer

    made._judge.request = dying
    try:
        result = await made.evaluate(target, kernel(place, target, RIGHT), 6)
    finally:
        made._judge.request = request
    assert result.verdict is Verdict.INFRA
    assert "SIGKILL" in result.reason
    assert (await made.evaluate(target, kernel(place, target, RIGHT), 6)).verdict.right


async def test_a_runner_that_dies_at_work_is_the_candidates(made, place, target):
    """Whatever ends the process that runs a kernel is told as a crash, and the next one is right."""
    request = made._runner.request

    async def dying(op, timeout_s, **fields):
        if op != "verify":
            return await request(op, timeout_s, **fields)
        os.kill(made._runner.pid, signal.SIGKILL)
        return await request(op, timeout_s, **fields)

    made._runner.request = dying
    try:
        pid = made._runner.pid
        result = await made.evaluate(target, kernel(place, target, RIGHT), 7)
    finally:
        made._runner.request = request
    # the signal may come before or after the request is written: then a new process answered it
    assert result.verdict is Verdict.CRASHED or made._runner.pid != pid
    assert (await made.evaluate(target, kernel(place, target, RIGHT), 7)).verdict.right


async def test_a_file_changed_after_the_build_is_not_run(made, place, target, tmp_path):
    """Another file than was built is a fault of ours, not of the kernel."""
    built = kernel(place, target, RIGHT)
    other = tmp_path / "kernel.so"
    other.write_bytes(Path(built.path).read_bytes() + b"x")
    result = await made.evaluate(target, msgspec.structs.replace(built, path=str(other)), 8)
    assert result.verdict is Verdict.INFRA
    assert "sha256 differs" in result.reason


async def test_evaluations_asked_for_at_once_take_turns(made, place, target):
    """Two at a time give two verdicts, neither disturbed by the other."""
    right, hung = await asyncio.gather(
        made.evaluate(target, kernel(place, target, RIGHT), 9), made.evaluate(target, kernel(place, target, HANGS), 9)
    )
    assert right.verdict.right
    assert hung.verdict is Verdict.TIMED_OUT


async def test_a_time_below_the_floor_is_not_believed(made, place, target):
    """Faster than memory can be is a rejection, where the working set is larger than the caches."""
    impossible = msgspec.structs.replace(target, floor_us=1e6, bytes_moved=CPU.ceilings.cache_bytes * 2)
    result = await made.evaluate(impossible, kernel(place, target, RIGHT), 10)
    assert result.verdict is Verdict.REJECTED
    assert "Faster than the hardware allows" in result.reason
    assert "moving its 2097152 bytes takes 52.4 us at the very least." in result.reason
    assert result.speedup is not None
    cached = msgspec.structs.replace(target, floor_us=1e6)
    assert (await made.evaluate(cached, kernel(place, target, RIGHT), 10)).verdict.right


async def test_targets_that_cannot_be_judged(made, place, target):
    """A copy, a constant and a target without captured inputs are refused with the reason."""
    same = await made.open(make_target(place, "same"))
    assert not same.usable
    assert same.reason.startswith("A copy of x passes for its result")
    zeros = await made.open(make_target(place, "zeros"))
    assert not zeros.usable
    assert zeros.reason.startswith("A result of zeros passes for its result")
    gone = msgspec.structs.replace(target, id="gone", capture="captures/none")
    check = await made.open(gone)
    assert not check.usable
    assert "Profile again" in check.reason
    result = await made.evaluate(gone, kernel(place, target, RIGHT), 1)
    assert result.verdict is Verdict.INFRA


async def test_a_model_that_cannot_be_built_is_a_fault_of_its_author(place, target, tmp_path):
    """The sentence of the model's own fault comes through."""
    file = tmp_path / "broken.py"
    file.write_text("def build():\n    raise ValueError('no weights')\n")
    broken = WorkerEvaluator(
        parse_model(str(file)), CPU, place, threads=1, seed=0, log_dir=tmp_path, timeout_s=5
    )
    try:
        with pytest.raises(ModelError, match="no weights"):
            await broken.open(target)
    finally:
        await broken.close()


async def test_nothing_is_left_behind(place, target):
    """After closing there is no process and no folder of the evaluator."""
    other = WorkerEvaluator(spec(), CPU, place, threads=1, seed=0, log_dir=place.logs, timeout_s=5)
    await other.evaluate(target, kernel(place, target, RIGHT), 2)
    pids = (other._judge.pid, other._runner.pid)
    folder = other._scratch.folder
    assert folder.parent == scratch_root()
    assert list(folder.iterdir()) == []
    await other.close()
    assert not folder.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


async def test_the_engine_s_side_needs_no_torch():
    """Importing the client brings no torch into the engine."""
    code = "import sys, forge_tui.evaluator.client; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "False False", done.stderr
