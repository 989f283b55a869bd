"""The evaluator on a real GPU: right kernels are timed, dishonest ones caught, a broken context is replaced."""

from __future__ import annotations

import re

import msgspec
import pytest
import pytest_asyncio
from evaluator_support import make_target, spec, workspace

from forge_tui.compiler.build import CommandCompiler
from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import Built, Node, Verdict
from forge_tui.evaluator.client import WorkerEvaluator
from forge_tui.evaluator.sanitizer import TOOLS

pytestmark = [pytest.mark.gpu, pytest.mark.asyncio(loop_scope="module")]

#: one warp a row; PART stands where the cheats differ
ROWS = """
//@launch rows grid=x_shape_0 block=32
#include "forge_target.h"
extern "C" __global__ void rows(FORGE_PARAMS) {
    const int64_t row = blockIdx.x, n = forge::x_shape_1;
    float sum = 0.0f;
    for (int64_t j = threadIdx.x; j < n; j += 32) { const float v = float(x[row * n + j]); sum += v * v; }
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float scale = rsqrtf(sum / n + float(forge::eps));
    PART
    for (int64_t j = threadIdx.x; j < n; j += 32) {
        out0[row * n + j] = TYPE(float(x[row * n + j]) * scale * float(weight[j]));
    }
}
"""
CHEATS = {
    "writes nothing": ("if (n) return;", Verdict.REJECTED, "never written"),
    "forgets rows": ("if (row >= 48) return;", Verdict.REJECTED, "in rows 48 to the end of 50: is the tail handled"),
    "changes an input": ("if (!row) ((TYPE*)x)[5] = TYPE(9.0f);", Verdict.REJECTED, "changes its input x"),
    "writes behind": ("if (!row) out0[n * 50] = TYPE(1.0f);", Verdict.REJECTED, "behind the end of out0"),
    "writes anywhere": ("if (!row) *(volatile int*)(1ull << 52) = 1;", Verdict.CRASHED, "CUDA_ERROR|illegal"),
    "never ends": ("while (*(volatile float*)workspace_flag == 0.0f) {}", Verdict.TIMED_OUT, "did not end within"),
    "traps": ("__trap();", Verdict.CRASHED, "CUDA_ERROR|launch failure|trap"),
}
FACTORIES = {"build": "float", "build_bf16": "__nv_bfloat16"}


def source(kind: str, part: str = "") -> str:
    """The kernel for a C type, with a part put in."""
    text = ROWS
    if "workspace_flag" in part:
        text = text.replace("//@launch", "//@workspace 16 zero\n//@launch").replace("PART", part)
        text = text.replace("workspace_flag", "workspace")
    return text.replace("PART", part).replace("TYPE", kind)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A workspace."""
    return workspace(tmp_path_factory.mktemp("gpu"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rooms(place):
    """Device, compiler, and by factory target and evaluator."""
    from forge_tui.profiler.device import describe

    device = describe("cuda:0", ceilings=False)
    compiler = CommandCompiler(device, place.builds)
    found = {}
    for factory in FACTORIES:
        evaluator = WorkerEvaluator(
            spec(factory), device, place, threads=2, seed=3, log_dir=place.logs / factory, timeout_s=15.0
        )
        found[factory] = (make_target(place, "norm", factory, device="cuda:0", floor_us=0.01), evaluator)
    yield compiler, found
    for _, evaluator in found.values():
        await evaluator.close()


async def built(compiler, target, text: str) -> Built:
    """The source compiled."""
    result = await compiler.build(target, text, {})
    assert isinstance(result, Built), result
    return result


@pytest.fixture
def confirmer(rooms, tmp_path):
    """Who confirms winners of the float32 model."""
    from forge_tui.engine.rooms import sanitizer
    from forge_tui.evaluator.confirm import WinnerConfirmer

    target, evaluator = rooms[1]["build"]
    return target, WinnerConfirmer(evaluator, evaluator._device, sanitizer(evaluator._device))


def node(text: str) -> Node:
    """A node of this source."""
    return Node(id=1, target_id="t", parent=None, edge="draft", proposer="x", source=text, language="cuda")


#: what each tool must find; the kernel itself is right
FAULTS = {
    "memcheck": ("if (!row) *(volatile TYPE*)(out0 + n * 50) = TYPE(1.0f);", "memcheck.*out0"),
    "racecheck": (("__shared__ volatile float s[64]; s[threadIdx.x] = sum; "
                  "if (s[threadIdx.x ^ 33] == 1.5f) out0[row * n] = TYPE(0.0f);"), "race in shared memory"),
    "initcheck": ("if (out0[row * n] == TYPE(1.5f)) return;", "uninitialized global memory read"),
}


async def test_an_honest_kernel_passes_the_sanitizer(rooms, confirmer, tmp_path):
    """Every pass is made and finds nothing, where the machine allows it."""
    target, made = confirmer
    await made._evaluator.open(target)
    why_not = await made._sanitizer.why_not(tmp_path)
    if why_not:
        pytest.skip(why_not)
    text = source("float")
    found = await made.sanitise(target, await built(rooms[0], target, text), node(text), 5)
    assert (found.passed, found.found, found.missing) == (TOOLS, "", "")


@pytest.mark.parametrize("tool", FAULTS)
async def test_the_sanitizer_finds_faults_that_do_not_show(rooms, confirmer, tmp_path, tool):
    """A write behind, a race between warps, a read of what was never written: named by tool and kernel."""
    target, made = confirmer
    await made._evaluator.open(target)
    why_not = await made._sanitizer.why_not(tmp_path)
    if why_not:
        pytest.skip(why_not)
    part, said = FAULTS[tool]
    text = source("float", part.replace("TYPE", "float"))
    if tool == "racecheck":
        text = text.replace("block=32", "block=64").replace("j += 32", "j += 64")
    found = await made.sanitise(target, await built(rooms[0], target, text), node(text), 5)
    assert re.search(said, found.found), found
    assert "rows" in found.found


async def test_counters_of_a_kernel(rooms, confirmer):
    """Ncu names the kernel with its time, rates, occupancy and registers, or says why it cannot."""
    target, made = confirmer
    await made._evaluator.open(target)
    try:
        text = await made.counters(target, await built(rooms[0], target, source("float")))
    except EnvironmentFault as error:
        pytest.skip(error.what)
    lines = text.splitlines()
    assert lines[0].startswith("rows: ")
    assert len(lines) <= 15
    assert re.search(r"of peak: SM \d+%, DRAM \d+%", text)
    assert re.search(r"occupancy: \d+%", text)
    assert re.search(r"\d+ registers a thread", text)


@pytest.mark.parametrize("factory", FACTORIES)
async def test_an_honest_kernel_is_faster_than_seven_launches(rooms, factory):
    """One launch against eager's chain is right, and faster with its whole interval."""
    compiler, found = rooms
    target, evaluator = found[factory]
    check = await evaluator.open(target)
    assert check.usable, check.reason
    result = await evaluator.evaluate(target, await built(compiler, target, source(FACTORIES[factory])), 5)
    assert result.verdict is Verdict.FASTER, result.reason
    assert result.error_vs_eager < 30
    assert result.speedup_ci[0] > 1


@pytest.mark.parametrize("name", CHEATS)
async def test_cheats_are_caught_and_the_next_kernel_is_right(rooms, name):
    """Each has its verdict and reason, whatever it did to the context; an honest kernel behind it is right."""
    compiler, found = rooms
    target, evaluator = found["build"]
    part, verdict, reason = CHEATS[name]
    result = await evaluator.evaluate(target, await built(compiler, target, source("float", part)), 6)
    assert result.verdict is verdict, result.reason
    assert any(word in result.reason for word in reason.split("|")), result.reason
    after = await evaluator.evaluate(target, await built(compiler, target, source("float")), 7)
    assert after.verdict.right, after.reason


async def test_a_time_below_the_floor_is_not_believed(rooms):
    """A floor above the kernel's time makes it a rejection, since L2 is cold."""
    compiler, found = rooms
    target, evaluator = found["build"]
    impossible = msgspec.structs.replace(target, floor_us=1e5)
    result = await evaluator.evaluate(impossible, await built(compiler, target, source("float")), 8)
    assert result.verdict is Verdict.REJECTED
    assert "Faster than the hardware allows" in result.reason


async def test_all_clocks_and_baselines_of_a_winner(rooms, place):
    """A winner has device and call time, both ratios, a second clock that agrees, and what compile would take."""
    from forge_tui.profiler.device import describe

    compiler, found = rooms
    target, _ = found["build"]
    other = WorkerEvaluator(spec("build"), describe("cuda:0", ceilings=False), place, threads=2, seed=3,
                            log_dir=place.logs / "compiled", timeout_s=60.0, compile_baseline=True)  # fmt: skip
    try:
        result = await other.evaluate(target, await built(compiler, target, source("float")), 9)
    finally:
        await other.close()
    assert result.verdict is Verdict.FASTER, result.reason
    sides = {side.name: side for side in result.timings.sides}
    assert set(sides) == {"candidate", "eager", "compile"}, result.timings.missing
    assert all(side.call_us > 0 for side in sides.values())
    assert sides["candidate"].device_us < sides["candidate"].call_us
    assert result.timings.vs_best.speedup <= result.timings.vs_eager.speedup
    assert result.timings.second_clock.startswith("wall time agrees with the events")
