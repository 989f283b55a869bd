"""Candidates on their way: compiled ahead of the device, evaluated one behind the other, none lost."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from forge_tui.core.records import Built, CompileFailure, Evaluation, Launch, LaunchPlan, Node, Verdict
from forge_tui.engine.pipeline import Pipeline, compiles_ahead, steps_at_once
from forge_tui.processes.quiet import Quiet
from forge_tui.search.simulate import DEVICE, target

CPU = msgspec.structs.replace(DEVICE, cores=4)
GPU = msgspec.structs.replace(CPU, name="cuda:0")
TARGET = target("norm")


class Rooms:
    """Compiler and evaluator that note what begins and ends, and go on when they are told."""

    def __init__(self, quiet: Quiet) -> None:
        self.quiet = quiet
        self.log: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    def open(self, *names: str) -> None:
        """Let these steps end."""
        for name in names:
            self.gates.setdefault(name, asyncio.Event()).set()

    async def _step(self, name: str) -> None:
        self.log.append(f"+{name}")
        await self.gates.setdefault(name, asyncio.Event()).wait()
        self.log.append(f"-{name}")

    async def build(self, target, source, tunables):
        await self._step(f"c{source}")
        if "broken" in source:
            return CompileFailure(verdict=Verdict.COMPILE_ERROR, reason="no")
        return Built(path="", sha256=source, language="cpp", plan=LaunchPlan(), compile_s=0.1)

    async def evaluate(self, target, built, seed):
        async with self.quiet.working():
            await self._step(f"v{built.sha256}")
        async with self.quiet.timing():
            await self._step(f"t{built.sha256}")
        return Evaluation(verdict=Verdict.FASTER, sha256=built.sha256)


def made(device) -> tuple[Rooms, Pipeline]:
    """Rooms and a pipeline through them."""
    quiet = Quiet(exclusive=device.kind == "cpu")
    rooms = Rooms(quiet)
    return rooms, Pipeline(rooms, rooms, quiet, device)


async def settle() -> None:
    """Let everything that can go on do so."""
    for _ in range(50):
        await asyncio.sleep(0)


def start(pipeline: Pipeline, *sources: str) -> list[asyncio.Task[Evaluation]]:
    """Candidates, one task each, numbered from 1."""
    return [asyncio.create_task(pipeline.run(TARGET, i, source, {}, 0)) for i, source in enumerate(sources, 1)]


async def test_the_next_candidates_compile_while_one_is_verified():
    """On the CPU three of four cores compile beside a verification; a timing waits for them and keeps others out."""
    rooms, pipeline = made(CPU)
    tasks = start(pipeline, "a", "b", "c", "d", "e")
    await settle()
    assert rooms.log == ["+ca", "+cb", "+cc"], "one core less than there are"
    rooms.open("ca")
    await settle()
    assert rooms.log[3:] == ["-ca", "+va", "+cd"], "the fourth compiles as soon as the first is being evaluated"
    rooms.open("va")
    await settle()
    assert rooms.log[6:] == ["-va"], "compilers still run, so nothing is timed"
    rooms.open("cb", "cc", "cd")
    await settle()
    assert rooms.log[7:] == ["-cb", "-cc", "-cd", "+ta"], "the fifth does not compile beside the timing"
    rooms.open("ta", "vb", "tb", "vc", "tc", "vd", "td", "ce", "ve", "te")
    found = await asyncio.gather(*tasks)
    assert [e.sha256 for e in found] == ["a", "b", "c", "d", "e"]
    begun = [entry for entry in rooms.log if entry.startswith("+t")]
    assert begun == ["+ta", "+tb", "+tc", "+td", "+te"], "in the order in which they were built"
    for at, entry in enumerate(rooms.log):
        if entry.startswith("+t"):
            assert rooms.log[at + 1] == f"-{entry[1:]}", "nothing begins or ends while one is timed"


async def test_on_a_gpu_compilers_never_wait_and_the_next_one_is_verified_meanwhile():
    """Two are evaluated at once: while one is timed compilers run, and no second one is timed or verified."""
    rooms, pipeline = made(GPU)
    tasks = start(pipeline, "a", "b", "c", "d")
    await settle()
    rooms.open("ca", "cb")
    await settle()
    assert rooms.log[:3] == ["+ca", "+cb", "+cc"]
    assert sorted(rooms.log[3:8]) == ["+cd", "+va", "+vb", "-ca", "-cb"]
    rooms.open("va")
    await settle()
    assert rooms.log[8:] == ["-va"], "the other one is still being verified"
    rooms.open("vb")
    await settle()
    assert rooms.log[9:] == ["-vb", "+ta"]
    rooms.open("cc", "cd")
    await settle()
    assert rooms.log[11:] == ["-cc", "-cd"], "compilers end beside a timing, a third evaluation does not begin"
    rooms.open("ta", "tb", "vc", "tc", "vd", "td")
    assert [e.sha256 for e in await asyncio.gather(*tasks)] == ["a", "b", "c", "d"]


async def test_a_stop_in_the_middle_leaves_nothing_held():
    """Candidates that are cancelled while they compile, wait or are evaluated give their places back."""
    rooms, pipeline = made(CPU)
    tasks = start(pipeline, "a", "b", "c", "d", "e")
    rooms.open("ca", "cb")
    await settle()
    assert "+va" in rooms.log
    for task in tasks:
        task.cancel()
    assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*tasks, return_exceptions=True))
    # what was stopped is evaluated again by the same means, as a resume does
    other = Pipeline(rooms, rooms, rooms.quiet, CPU)
    for pipe, names in ((pipeline, "xyzuvw"), (other, "abcde")):
        rooms.open(*(f"{stage}{name}" for stage in "cvt" for name in names))
        async with asyncio.timeout(5):
            found = await asyncio.gather(*start(pipe, *names))
        assert [e.sha256 for e in found] == list(names)


async def test_failures_and_duplicates_take_no_turn():
    """What does not compile, or is built already, never waits for the device and holds nobody up."""
    rooms, pipeline = made(CPU)
    first = start(pipeline, "a")
    rooms.open("ca")
    await settle()
    rooms.open("cbroken1")
    failed = await pipeline.run(TARGET, 7, "broken1", {}, 0)
    again = await pipeline.run(TARGET, 8, "a", {}, 0)
    assert (failed.verdict, again.verdict) == (Verdict.COMPILE_ERROR, Verdict.DUPLICATE)
    assert not first[0].done()
    rooms.open("va", "ta")
    assert (await first[0]).verdict is Verdict.FASTER


LAUNCHED = '//@tune BLOCK 128 256\n//@launch k grid=(1) block=(BLOCK)\nextern "C" __global__ void k(FORGE_PARAMS) {}\n'


async def test_the_same_code_launched_otherwise_is_no_duplicate():
    """A size of block that is in the launch alone leaves the machine code as it is; a resumed session knows both."""
    rooms, pipeline = made(GPU)

    async def build(target, source, tunables):
        launches = (Launch(kernel="k", grid=(1, 1, 1), block=(tunables["BLOCK"], 1, 1)),)
        return Built(path="", sha256="equal", language="cuda", plan=LaunchPlan(launches=launches), compile_s=0.1)

    rooms.build = build
    rooms.open("vequal", "tequal")
    found = [
        await pipeline.run(TARGET, 1, LAUNCHED, {"BLOCK": 128}, 0),
        await pipeline.run(TARGET, 2, LAUNCHED, {"BLOCK": 256}, 0),
        await pipeline.run(TARGET, 3, LAUNCHED.replace("{}", "{;}"), {"BLOCK": 256}, 0),
    ]
    assert [e.verdict for e in found] == [Verdict.FASTER, Verdict.FASTER, Verdict.DUPLICATE]
    assert found[2].reason == "Compiles to the same code as node 2."

    _, resumed = made(GPU)
    resumed._compiler.build = build
    resumed._evaluator.open("vequal", "tequal")
    node = Node(id=1, target_id=TARGET.id, parent=None, edge="draft", proposer="x", source=LAUNCHED, language="cuda",
                tunables={"BLOCK": 128}, key="k", evaluation=found[0])  # fmt: skip
    resumed.restore(TARGET, node)
    again = await resumed.run(TARGET, 2, LAUNCHED.replace("{}", "{;}"), {"BLOCK": 128}, 0)
    other = await resumed.run(TARGET, 3, LAUNCHED, {"BLOCK": 256}, 0)
    assert (again.verdict, again.reason) == (Verdict.DUPLICATE, "Compiles to the same code as node 1.")
    assert other.verdict is Verdict.FASTER


@pytest.mark.parametrize(("device", "cores", "ahead", "steps"), [
    (CPU, 0, 1, 2), (CPU, 1, 1, 2), (CPU, 2, 1, 2), (CPU, 16, 15, 3), (GPU, 1, 1, 3), (GPU, 16, 15, 4),
])  # fmt: skip
def test_how_many_compile_ahead(device, cores, ahead, steps):
    """Every core but one, at least one; few enough steps that the next ones are chosen knowing the last."""
    one = msgspec.structs.replace(device, cores=cores)
    assert (compiles_ahead(one), steps_at_once(one)) == (ahead, steps)


@pytest.mark.parametrize("in_order", [True, False])
async def test_equal_machine_code_is_known_by_the_older_candidate(in_order):
    """In order, the one that came first keeps the name, though its build takes longer; else the one built first."""
    rooms = Rooms(Quiet(exclusive=False))

    async def build(target, source, tunables):
        await rooms._step(f"c{source}")
        return Built(path="", sha256="same", language="cpp", plan=LaunchPlan(), compile_s=0.1)

    rooms.build = build
    pipeline = Pipeline(rooms, rooms, rooms.quiet, GPU, in_order=in_order)
    tasks = start(pipeline, "a", "b")
    await settle()
    rooms.open("cb")
    await settle()
    assert rooms.log == ["+ca", "+cb", "-cb", *([] if in_order else ["+vsame"])]
    rooms.open("ca", "vsame", "tsame")
    found = [(await task).verdict for task in tasks]
    assert found == ([Verdict.FASTER, Verdict.DUPLICATE] if in_order else [Verdict.DUPLICATE, Verdict.FASTER])
