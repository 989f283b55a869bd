"""The final confirmation on the CPU: fresh processes, other seeds, AddressSanitizer; all for real."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from evaluator_support import CPU, build, evaluator, make_target, spec, workspace

from forge_tui.compiler import sanitised
from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import Evaluation, Node, Verdict
from forge_tui.engine.rooms import sanitizer
from forge_tui.evaluator.client import WorkerEvaluator
from forge_tui.evaluator.confirm import WinnerConfirmer
from forge_tui.evaluator.cpu_sanitizer import PASSES, CpuSanitizer, sentence
from forge_tui.evaluator.sanitizer import Sanitised
from forge_tui.processes import isolation

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: right, and faster than the chain of seven calls; PART stands where variants differ
RIGHT = """
#include "forge_target.h"
#include <cmath>
//@tune SKIP 0 1
extern "C" __attribute__((visibility("default"))) int forge_launch(FORGE_PARAMS) {
    for (int64_t r = 0; r < forge::x_shape_0; ++r) {
        float sum = 0;
        for (int64_t j = 0; j < 96; ++j) sum += x[r * 96 + j] * x[r * 96 + j];
        const float scale = 1.0f / std::sqrt(sum / 96 + float(forge::eps));
        for (int64_t j = 0; j < 96; ++j) out0[r * 96 + j] = x[r * 96 + j] * scale * weight[j];
    }
    PART
    return 0;
}
"""
PARTS = {
    "reads behind": ("if (x[forge::x_numel] == 1.5f) return 1;",
                     ("AddressSanitizer: heap-buffer-overflow, a read of 4 bytes in forge_launch, line 12, 0 bytes "
                     "behind x (19200 bytes).")),
    "writes before": ("out0[-1] = 0;", ("AddressSanitizer: heap-buffer-overflow, a write of 4 bytes in forge_launch, "
                                       "line 12, 4 bytes before out0 (19200 bytes).")),
    "odd address": ("if (*(const int64_t*)((const char*)x + 4 * SKIP + 1) == 3) return 1;",
                    ("UndefinedBehaviorSanitizer: line 12: load of misaligned address for type 'const int64_t', which "
                    "requires 8 byte alignment.")),
    "behind an array": ("volatile int a[4] = {}; if (a[4 + (int)forge::x_shape_1 - 96]) return 1;",
                        "UndefinedBehaviorSanitizer: line 12: index 4 out of bounds for type 'int [4]'."),
}  # fmt: skip


def source(part: str = "") -> str:
    """The kernel with a part put in."""
    return RIGHT.replace("PART", part)


def node(text: str, **tunables: int) -> Node:
    """A node of this source."""
    return Node(id=3, target_id="t", parent=None, edge="draft", proposer="x", source=text, language="cpp",
                tunables=tunables)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A workspace."""
    return workspace(tmp_path_factory.mktemp("confirm"))


@pytest.fixture(scope="module")
def target(place):
    """The RMSNorm of the model."""
    return make_target(place, "norm")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def confirmer(place):
    """As the engine makes it."""
    own = WorkerEvaluator(spec(), CPU, place, threads=2, seed=3, log_dir=place.logs / "confirm", timeout_s=20.0,
                          draws=77)  # fmt: skip
    made = WinnerConfirmer(own, CPU, sanitizer(CPU))
    yield made
    await made.close()


async def test_a_winner_is_confirmed_by_processes_of_its_own(place, target, confirmer, monkeypatch):
    """It is right and faster on other seeds, passes both sanitizers, and no runner meets two winners."""
    built = build(target, source(), place.root / "built")
    first = await confirmer.confirm(target, built, node(source()), 5)
    assert first.passed, first.reason
    assert first.speedup_ci[0] > 1
    assert (first.sanitised, first.unsanitised, first.sha256) == (PASSES, "", built.sha256)
    own = confirmer._evaluator
    assert own._seed != evaluator(place)._seed
    judge = own._judge.pid
    assert own._runner.running
    monkeypatch.setattr(own, "evaluate", _nobody)
    await confirmer.confirm(target, built, node(source()), 6)
    assert (own._runner.running, own._judge.pid) == (False, judge), "the next winner gets a runner of its own"


async def _nobody(*_):
    return Evaluation(verdict=Verdict.INFRA, reason="nobody is there")


@pytest.mark.parametrize("name", PARTS)
async def test_what_the_sanitizers_find_has_line_and_buffer(place, target, confirmer, name):
    """Reads and writes outside, misaligned loads, arrays that are left: told so that the author can mend it."""
    part, said = PARTS[name]
    text = source(part)
    found = await confirmer.sanitise(target, build(target, source(), place.root / "built"), node(text), 5)
    assert found.found == said
    assert found.log


async def test_a_finding_takes_the_win_away(place, target, confirmer, monkeypatch):
    """A kernel that verifies and times well is rejected for what the sanitizer saw."""
    async def found(*_):
        return Sanitised(found="AddressSanitizer: bad.", log="the report")

    async def faster(*_):
        return Evaluation(verdict=Verdict.FASTER, time_us=1.0, baseline_us=2.0, speedup=2.0, speedup_ci=(1.9, 2.1))

    monkeypatch.setattr(confirmer, "sanitise", found)
    monkeypatch.setattr(confirmer._evaluator, "evaluate", faster)
    built = build(target, source(), place.root / "built")
    result = await confirmer.confirm(target, built, node(source()), 5)
    assert (result.verdict, result.reason, result.log) == (Verdict.REJECTED, "AddressSanitizer: bad.", "the report")
    assert result.speedup is None

    async def slower(*_):
        return Evaluation(verdict=Verdict.SLOWER, time_us=2.0, baseline_us=1.9, speedup=0.95, speedup_ci=(0.94, 0.96))

    monkeypatch.setattr(confirmer._evaluator, "evaluate", slower)
    result = await confirmer.confirm(target, built, node(source()), 5)
    assert result.reason == "It is not faster: 0.950x, 95% interval 0.940 to 0.960."
    assert (result.verdict, result.speedup, result.passed) == (Verdict.SLOWER, 0.95, False)


async def test_a_source_does_not_see_that_it_is_watched(place, target, confirmer):
    """The macros by which compilers announce a sanitizer are not there, so the whole source is looked at."""
    text = source("#ifndef __SANITIZE_ADDRESS__\n    out0[-1] = 0;\n#endif")
    found = await confirmer.sanitise(target, build(target, source(), place.root / "built"), node(text), 5)
    assert "a write of 4 bytes in forge_launch, line 13" in found.found


async def test_tunables_and_both_sets_reach_the_program(place, target, confirmer):
    """A fault of one setting is found with that setting, and one that only fresh inputs bring, too."""
    text = source("if (SKIP) out0[-1] = 0;")
    built = build(target, source(), place.root / "built")
    assert (await confirmer.sanitise(target, built, node(text), 5)).passed == PASSES
    assert (await confirmer.sanitise(target, built, node(text, SKIP=1), 5)).found
    loaded = confirmer._evaluator
    path = place.root / "values.bin"
    from forge_tui.evaluator.sets import InputSet, Kind

    sizes = await loaded.write_inputs(target, [InputSet(kind=Kind.CAPTURED), InputSet(kind=Kind.FRESH, seed=9)], path)
    assert sizes == [[50 * 96 * 4, 96 * 4]] * 2
    data = path.read_bytes()
    assert len(data) == 2 * (19200 + 384)
    assert data[:19200] != data[19584 : 19584 + 19200]


async def test_what_cannot_be_sanitised_says_why(target, place, tmp_path):
    """No sanitizer, no build, a program that ends early or never starts: a sentence each, and no finding."""
    async def works():
        return ""

    async def lacks():
        return "g++ has no AddressSanitizer here."

    def program(text: str):
        async def make(target, source, tunables, built, folder, sets):
            (folder / "program").write_text(text)
            (folder / "program").chmod(0o755)
            return ""

        return make

    async def fails(*_):
        return "The build for AddressSanitizer failed: line 3: no."

    built = build(target, source(), place.root / "built")
    for build_it, ask, why in (
        (fails, lacks, "g++ has no AddressSanitizer here."),
        (fails, works, "The build for AddressSanitizer failed: line 3: no."),
        (program("#!/bin/sh\necho broken >&2\nexit 3\n"), works,
         "The run with AddressSanitizer ended with code 3 (broken)."),
        (program("#!/bin/sh\nexit 0\n"), works, "The run with AddressSanitizer ended with code 0."),
        (program("#!/nowhere/at/all\n"), works,
         "The program with AddressSanitizer cannot be started: No such file or directory."),
    ):
        made = CpuSanitizer(build_it, ask, sanitised.run_confined, "program", 2)
        found = await made.run(target, source(), {}, built, tmp_path / "in", 1, tmp_path)
        assert (found.missing, found.found, found.passed) == (why, "", ())
    assert await sanitised.build(CPU, target, source("this does not compile;"), {}, built.plan, tmp_path, 1) != ""


async def test_newer_compilers_word_it_differently():
    """`0 bytes after` is `0 bytes to the right of`; a fault outside of the source has no line."""
    report = ("==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x50c\nWRITE of size 8 at 0x50c\n"
              "    #0 0x1 in memset\n    #1 0x2 in forge_launch._omp_fn.0 /tmp/x/candidate.cpp:31\n"
              "0x50c is located 0 bytes after 64-byte region [0x4c0,0x50c)\n")  # fmt: skip
    assert sentence(report, "x 0x400\nout0 0x4c0\n") == (
        "AddressSanitizer: heap-buffer-overflow, a write of 8 bytes in forge_launch, line 31, 0 bytes behind out0 "
        "(64 bytes)."
    )
    assert sentence("==7==ERROR: AddressSanitizer: SEGV on unknown address 0x0\n", "") == "AddressSanitizer: SEGV."
    assert sentence("all is well\n", "done\n") == ""


async def test_counters_are_a_gpus(target, place, confirmer):
    """On the CPU the question is answered with one sentence."""
    with pytest.raises(EnvironmentFault, match="Hardware counters are read of CUDA kernels only"):
        await confirmer.counters(target, build(target, source(), place.root / "built"))


async def test_a_cancelled_confirmation_leaves_no_file(target, place, confirmer, tmp_path, monkeypatch):
    """What was written for the sanitizer goes with it."""
    from forge_tui.evaluator import confirm

    monkeypatch.setattr(confirm, "scratch_root", lambda: tmp_path)

    running = asyncio.Event()

    async def never(*_):
        running.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(confirmer._sanitizer, "run", never)
    task = asyncio.create_task(confirmer.sanitise(target, build(target, source(), place.root / "built"),
                                                  node(source()), 5))  # fmt: skip
    async with asyncio.timeout(60):
        await running.wait()
    assert list(tmp_path.glob("forge-sanitise-*/inputs.bin"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(tmp_path.iterdir()) == []


async def test_a_sanitised_kernel_is_kept_apart_from_the_machine(tmp_path):
    """The program that carries the candidate reads and writes its own folder, and looks at its own mappings."""
    if isolation.detect().means != "landlock":
        pytest.skip("needs Landlock")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    folder = tmp_path / "folder"
    folder.mkdir()
    tries = (f"read x < {outside / 'secret'}", f": > {outside / 'new'}", ": > own", "read x < /proc/self/maps")
    (folder / "program.sh").write_text("".join(f"( {what} ) && echo yes || echo no\n" for what in tries[:3]) + tries[3])
    done = await sanitised.run_confined(["/bin/sh", "program.sh"], folder, {}, 30.0)
    assert (done.stdout.split(), done.code) == (["no", "no", "yes"], 0), done.stderr
