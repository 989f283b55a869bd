"""Two evaluations in one evaluator, on workers that only say what they were asked and answer when they are told."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest
from evaluator_support import CPU, spec, workspace

from forge_tui.core.errors import EnvironmentFault, WorkerDied
from forge_tui.core.records import Built, LaunchPlan, Verdict
from forge_tui.evaluator import client as module
from forge_tui.evaluator.client import WorkerEvaluator
from forge_tui.evaluator.rounds import Rounds
from forge_tui.evaluator.sharing import SharedLease
from forge_tui.evaluator.watch import Round
from forge_tui.processes.quiet import Quiet
from forge_tui.search.simulate import target

GPU = msgspec.structs.replace(CPU, name="cuda:0", uuid="GPU-of-this-test", ceilings=None)
TARGET = msgspec.structs.replace(target("norm"), captured_calls=1, floor_us=0.0)
ANSWERS = {
    "open": {"usable": True, "reason": "", "tolerance": "", "kinds": ["captured", "fresh", "normal"], "eager_us": 20.0,
             "remarks": [], "left_out": {}},
    "verify": {"runs": []},
    "compare": {"wrong": "", "judged": 1, "max_abs_error": 0.0, "error_vs_eager": None},
    "compile": {"runs": []},
    "time": {"kept": [], "samples": {"candidate": [1.0] * 40, "eager": [2.0] * 40}, "inner": 1},
}


class Worker:
    """A worker process that notes requests and answers each when its gate opens; one at a time, as a real one."""

    def __init__(self, name: str, log: list[str], gates: dict[str, asyncio.Event]) -> None:
        self.name, self.log, self.gates = name, log, gates
        self.running, self.pid, self.stops = True, 1, 0
        self.faults: dict[str, Exception] = {}
        self.replies: dict[str, dict[str, object]] = {}
        self._turn = asyncio.Lock()
        self._asked: Counter[str] = Counter()

    async def request(self, op, timeout_s, **fields):
        async with self._turn:
            self._asked[op] += 1
            name = f"{self.name} {op} {self._asked[op]}"
            self.log.append(f"+{name}")
            if op != "open":
                await self.gates.setdefault(name, asyncio.Event()).wait()
            self.log.append(f"-{name}")
            if name in self.faults:
                self.pid += 1
                raise self.faults[name]
            return dict(self.replies.get(name, ANSWERS[op]))

    async def stop(self):
        self.stops += 1
        self.pid += 1

    def log_tail(self):
        return ""


class Silence:
    """Nobody else is on the machine."""

    async def busy(self):
        return ""

    async def begin(self):
        return None

    async def end(self):
        return Round()

    async def close(self):
        return None


class Fixture:
    """An evaluator on such workers."""

    def __init__(self, place, device, **options) -> None:
        self.log: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.quiet = Quiet(exclusive=device.kind == "cpu")
        self.evaluator = WorkerEvaluator(spec(), device, place, threads=1, seed=1, log_dir=place.logs, timeout_s=5.0,
                                         quiet=self.quiet, **options)  # fmt: skip
        self.evaluator._watch = Silence()
        self.evaluator._rounds = Rounds(device, Silence(), lambda _: None)
        self.judge = self.evaluator._judge = Worker("judge", self.log, self.gates)
        self.runner = self.evaluator._runner = Worker("runner", self.log, self.gates)

    def start(self, sha256: str) -> asyncio.Task:
        """Evaluate a file."""
        built = Built(path="", sha256=sha256, language="cpp", plan=LaunchPlan(), compile_s=0.0)
        return asyncio.create_task(self.evaluator.evaluate(TARGET, built, 3))

    async def open(self, *names: str) -> list[str]:
        """Let requests end; returns what happened since the last time."""
        for name in names:
            self.gates.setdefault(name, asyncio.Event()).set()
        before = len(self.log)
        for _ in range(50):
            await asyncio.sleep(0.001)
        return self.log[before:]


@pytest.fixture(autouse=True)
def own_leases(tmp_path, monkeypatch):
    """Other tests and sessions of this machine hold nothing up here."""
    monkeypatch.setenv("FORGE_TUI_LEASES", str(tmp_path))


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """On a GPU, whose lease is this test's own."""
    monkeypatch.setattr(module, "_LEASE_S", 1.0)
    return Fixture(workspace(tmp_path / "w"), GPU)


async def test_the_next_one_runs_while_the_judge_compares(gpu):
    """The second candidate is run while the first is compared; nothing at all runs while one is timed."""
    first, second = gpu.start("a"), gpu.start("b")
    assert await gpu.open() == ["+judge open 1", "-judge open 1", "+runner open 1", "-runner open 1",
                                "+runner verify 1"]  # fmt: skip
    assert await gpu.open("runner verify 1") == ["-runner verify 1", "+judge compare 1", "+runner verify 2"]
    assert await gpu.open("judge compare 1") == ["-judge compare 1"], "no timing beside the second's verification"
    # a timing that waits is not overtaken by more work on the device
    assert await gpu.open("runner verify 2") == ["-runner verify 2", "+runner time 1"]
    assert await gpu.open("runner time 1") == ["-runner time 1", "+judge compare 2"]
    everything = [f"judge compare {i}" for i in (2, 3, 4)] + ["runner time 2"]
    await gpu.open(*everything)
    assert [(await task).verdict for task in (first, second)] == [Verdict.FASTER, Verdict.FASTER]
    timed = [i for i, entry in enumerate(gpu.log) if entry.startswith("+runner time")]
    assert all(gpu.log[i + 1] == f"-{gpu.log[i][1:]}" for i in timed)
    assert (await first).sha256 == "a"


async def test_a_crash_between_the_stages_of_another_is_its_own(gpu):
    """The second candidate takes the runner down; the first goes on in a new one, which is told its target again."""
    first, second = gpu.start("a"), gpu.start("b")
    await gpu.open()
    gpu.runner.faults["runner verify 2"] = WorkerDied("The worker ended with signal SIGKILL.", signal=9)
    await gpu.open("runner verify 1", "judge compare 1")
    happened = await gpu.open("runner verify 2")
    assert happened[:4] == ["-runner verify 2", "+runner open 2", "-runner open 2", "+runner time 1"]
    assert (await second).verdict is Verdict.CRASHED
    await gpu.open("runner time 1", "judge compare 2")
    assert (await first).verdict is Verdict.FASTER


async def test_a_context_that_the_compiled_original_loses_harms_no_candidate(tmp_path, monkeypatch):
    """Its runner goes and the reason is kept; the candidate keeps its verdict and the next one meets a new runner."""
    monkeypatch.setattr(module, "_LEASE_S", 1.0)
    gpu = Fixture(workspace(tmp_path / "w"), GPU, compile_baseline=True)
    gpu.runner.replies["runner compile 1"] = {"crashed": "an illegal memory access was encountered"}
    for stage in ("verify", "time", "compile"):
        await gpu.open(*(f"runner {stage} {i}" for i in range(9)))
    await gpu.open(*(f"judge compare {i}" for i in range(9)))
    found = await gpu.start("a")
    assert found.verdict is Verdict.FASTER
    assert found.timings.missing == {"compile": "an illegal memory access was encountered"}
    assert gpu.runner.stops == 1
    before = len(gpu.log)
    assert (await gpu.start("b")).verdict is Verdict.FASTER
    assert gpu.log[before : before + 2] == ["+runner open 2", "-runner open 2"]


async def test_where_the_compiled_original_decides_nothing_is_concluded_without_it(tmp_path, monkeypatch):
    """Another candidate takes the runner along, with the compiled original in it: that comes back, and is timed."""
    monkeypatch.setattr(module, "_LEASE_S", 1.0)
    gpu = Fixture(workspace(tmp_path / "w"), GPU, under="compile")
    eager = {"candidate": [1.0] * 40, "eager": [0.5] * 40}
    gpu.runner.replies["runner time 1"] = ANSWERS["time"] | {"samples": eager}
    gpu.runner.replies["runner time 2"] = ANSWERS["time"] | {"samples": eager | {"compile": [2.0] * 40}}
    for stage in ("verify", "compile", "time"):
        await gpu.open(*(f"runner {stage} {i}" for i in range(9)))
    await gpu.open(*(f"judge compare {i}" for i in range(9)))
    ensure = gpu.evaluator._compiled.ensure

    async def once(*args):
        """The runner that holds it ends before the timing has its turn."""
        monkeypatch.setattr(gpu.evaluator._compiled, "ensure", ensure)
        await ensure(*args)
        await gpu.runner.stop()

    monkeypatch.setattr(gpu.evaluator._compiled, "ensure", once)
    found = await gpu.start("a")
    assert [name for name in gpu.log if name.startswith("+runner")][-4:] == [
        "+runner open 2", "+runner time 1", "+runner compile 2", "+runner time 2",
    ]  # fmt: skip
    assert (found.verdict, found.baseline_us) == (Verdict.FASTER, 2.0)


async def test_waiting_for_another_is_no_time_of_its_own(gpu):
    """The seconds of the stages leave out what the other candidate had the device for."""
    first, second = gpu.start("a"), gpu.start("b")
    await gpu.open()
    await asyncio.sleep(0.3)
    await gpu.open("runner verify 1", "runner verify 2", "judge compare 1", "judge compare 2")
    await asyncio.sleep(0.3)
    await gpu.open("runner time 1", "runner time 2", "judge compare 3", "judge compare 4")
    found = await asyncio.gather(first, second)
    assert [round(e.verify_s, 1) >= 0.3 for e in found] == [True, False]
    assert sorted(round(e.timing_s, 1) >= 0.3 for e in found) == [False, True]


async def test_cancelled_work_lets_the_next_one_in(gpu):
    """An evaluation that is stopped in any stage holds neither device nor lease."""
    for gates in ([], ["runner verify 1"], ["runner verify 2", "judge compare 1"]):
        task = gpu.start("a")
        await gpu.open(*gates)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    for stage in ("verify", "time"):
        await gpu.open(*(f"runner {stage} {i}" for i in range(9)))
    await gpu.open(*(f"judge compare {i}" for i in range(9)))
    async with asyncio.timeout(5):
        assert (await gpu.start("b")).verdict is Verdict.FASTER


async def test_on_the_cpu_compilers_wait_for_the_timing_alone(tmp_path):
    """A compiler may run beside the verification, and not beside the timing."""
    cpu = Fixture(workspace(tmp_path / "w"), CPU)
    task = cpu.start("a")
    await cpu.open()
    async with asyncio.timeout(1), cpu.quiet.compiling():
        assert await cpu.open("runner verify 1", "judge compare 1") == [
            "-runner verify 1", "+judge compare 1", "-judge compare 1",
        ], "not timed while a compiler runs"  # fmt: skip
    assert await cpu.open() == ["+runner time 1"]
    compiling = asyncio.create_task(cpu.quiet.compiling().__aenter__())
    await cpu.open()
    assert not compiling.done()
    await cpu.open("runner time 1", "judge compare 2")
    assert (await task).verdict is Verdict.FASTER
    async with asyncio.timeout(1):
        await compiling


class Held:
    """A lease that counts how often it is taken."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fault: Exception | None = None

    async def __aenter__(self):
        if self.fault is not None:
            raise self.fault
        self.log.append("+")

    async def __aexit__(self, *_):
        self.log.append("-")


async def _user(shared: SharedLease, name: str, log: list[str], done: asyncio.Event) -> None:
    async with shared.hold():
        log.append(name)
        await done.wait()


async def test_a_lease_is_shared_and_handed_back_in_time():
    """Two users hold it once; after its turn the next user waits until it was given back, and takes it anew."""
    held, now = Held(), [asyncio.Event() for _ in range(3)]
    for turn_s, entered, taken in ((1e9, ["a", "b", "c"], "+"), (0.0, ["a"], "+")):
        held.log.clear()
        shared, log = SharedLease(lambda: held, turn_s=turn_s), []
        for event in now:
            event.clear()
        tasks = []
        for name, event in zip("abc", now, strict=True):
            tasks.append(asyncio.create_task(_user(shared, name, log, event)))
            await asyncio.sleep(0.005)
        assert (log, "".join(held.log)) == (entered, taken)
        for event in now:
            event.set()
        await asyncio.gather(*tasks)
        assert log == ["a", "b", "c"]
        assert "".join(held.log) == "+-" * (3 if turn_s == 0.0 else 1)


async def test_a_lease_that_is_refused_can_be_asked_for_again():
    """The fault reaches the one that asked, and the next one may have more luck."""
    held = Held()
    shared = SharedLease(lambda: held)
    held.fault = EnvironmentFault("It is in use.")
    with pytest.raises(EnvironmentFault):
        async with shared.hold():
            raise AssertionError("not to be entered")
    held.fault = None
    async with shared.hold():
        assert held.log == ["+"]
    assert held.log == ["+", "-"]


@pytest.mark.parametrize(
    ("reply", "verdict", "speedup"),
    [
        ({"fault": "GPU memory ran out"}, Verdict.FASTER, 2.0),
        ({"rejected": "It changes its input x."}, Verdict.REJECTED, None),
    ],
)
async def test_a_second_timing_that_fails(tmp_path, monkeypatch, reply, verdict, speedup):
    """Through us: what the first one said stands, without the compiled original; through the candidate: no times."""
    monkeypatch.setattr(module, "_LEASE_S", 1.0)
    made = Fixture(workspace(tmp_path / "w"), GPU, compile_baseline=True)
    made.runner.replies["runner time 2"] = reply
    task = made.start("a")
    names = [f"judge compare {i}" for i in range(1, 6)] + ["runner verify 1", "runner compile 1"]
    await made.open(*names, "runner time 1", "runner time 2")
    found = await task
    assert (found.verdict, found.speedup) == (verdict, speedup)
    assert "-runner time 2" in made.log
    if speedup:
        assert found.timings.missing == {"compile": "The kernel could not be timed: GPU memory ran out."}
    else:
        assert (found.timings, found.time_us, found.samples) == (None, None, ())


async def test_inputs_of_this_evaluation_must_be_judged(gpu):
    """Where only what every candidate meets could be compared, there is no verdict on this one."""
    gpu.judge.replies["judge compare 1"] = ANSWERS["compare"] | {"judged": 0}
    task = gpu.start("a")
    await gpu.open("runner verify 1", "judge compare 1")
    found = await task
    assert found.verdict is Verdict.INFRA
    assert found.reason.startswith("The original gives no results to judge by")
