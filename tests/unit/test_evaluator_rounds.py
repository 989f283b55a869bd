"""Noise: what counts as one, rounds that wait, are repeated or marked, a driver that hangs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import pytest
from targets_fixture import cpu_device, cuda_device

from forge_tui.core.timings import Noise
from forge_tui.evaluator import noise
from forge_tui.evaluator.noise import CpuTimes, Reading
from forge_tui.evaluator.rounds import NotQuiet, Rounds
from forge_tui.evaluator.watch import CpuWatch, GpuWatch, Round


class FakeWatch:
    """Plays back what is seen."""

    def __init__(self, busy=(), rounds=()):
        self.busies, self.rounds = list(busy), list(rounds)

    async def busy(self):
        return self.busies.pop(0) if self.busies else ""

    async def begin(self):
        pass

    async def end(self):
        return self.rounds.pop(0) if self.rounds else Round()


class Time:
    """A clock that sleeping moves."""

    now = 100.0

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds


def rounds(watch, device=None, **changes):
    """Rounds in made-up time, what they say, and how often they ran."""
    clock, said, ran = Time(), [], []
    made = Rounds(device or cuda_device(), watch, said.append, clock=clock, sleep=clock.sleep, **changes)

    async def once():
        ran.append(clock.now)
        return {"number": len(ran)}

    return lambda clear=lambda _: False: asyncio.run(made.run(once, clear)), said, ran, clock


def test_a_quiet_round_counts_at_once():
    """No waiting, no repetition, nothing said; facts are kept."""
    run, said, ran, _ = rounds(FakeWatch(rounds=[Round(sm_mhz=(1965.0, 1980.0), temperature_c=51.0, throttle=())]))
    reply, found = run()
    assert reply == {"number": 1}
    assert found == Noise(sm_mhz=(1965.0, 1980.0), temperature_c=51.0, throttle=())
    assert (said, len(ran)) == ([], 1)


def test_a_disturbed_round_is_repeated():
    """The first undisturbed round counts; two repetitions at most, then it is marked."""
    bad = Round(marks=("throttled (power brake)",))
    run, _, ran, _ = rounds(FakeWatch(rounds=[bad, Round()]))
    reply, found = run()
    assert (reply["number"], found.marks, found.repeated, len(ran)) == (2, (), 1, 2)
    run, _, ran, _ = rounds(FakeWatch(rounds=[bad, bad, bad, Round()]))
    reply, found = run()
    assert (reply["number"], found.marks, found.repeated, len(ran)) == (3, bad.marks, 2, 3)


def test_a_hopeless_candidate_is_not_timed_again():
    """Where the result is clear whatever disturbed it, the round counts, with its mark."""
    bad = Round(marks=("throttled (power brake)",))
    run, _, ran, _ = rounds(FakeWatch(rounds=[bad]))
    _, found = run(lambda reply: reply["number"] == 1)
    assert (found.marks, found.repeated, len(ran)) == (bad.marks, 0, 1)


def test_timing_is_held_while_others_load_the_gpu():
    """It says so once, goes on when they end, and knows how long it waited."""
    run, said, ran, _ = rounds(FakeWatch(busy=["other processes use 80% of it"] * 20))
    _, found = run()
    assert ran == [110.0]
    assert found.waited_s == 10.0
    assert said == ["Timing on cuda:0 waits: other processes use 80% of it.", "Timing on cuda:0 goes on after 10 s."]


def test_patience_with_others_ends():
    """On a GPU there is no timing then, with the reason."""
    run, said, ran, _ = rounds(FakeWatch(busy=["other processes use 80% of it"] * 1000), patience_s=30.0)
    with pytest.raises(NotQuiet, match=r"cuda:0 was not quiet for 30 s: other processes use 80% of it\."):
        run()
    assert ran == []
    assert len(said) == 1


def test_a_cpu_is_never_alone():
    """There the round is run and marked, not repeated, and the next ones do not wait for a while."""
    loud = Round(marks=("others used 1.5 of 2 cores",))
    watch = FakeWatch(busy=["other processes use 1.5 of 2 cores"] * 1000, rounds=[loud] * 9)
    run, said, ran, clock = rounds(watch, cpu_device(), patience_s=5.0)
    _, found = run()
    assert (found.marks, found.repeated, found.waited_s, len(ran)) == (loud.marks, 0, 5.0, 1)
    assert said[1].endswith("Close results stay inconclusive.")
    _, found = run()
    assert (found.waited_s, len(ran)) == (0.0, 2)
    clock.now += 400.0
    watch.busies = []
    _, found = run()
    assert (found.repeated, len(ran)) == (1, 4)


# ---- what is noise


def line(**gpu):
    """A line of the telemetry process."""
    return {"at": 1.0, "gpus": [{"uuid": "GPU-other", "sm_mhz": 1.0}, {"uuid": "GPU-1", **gpu}]}


def test_other_processes_are_told_from_ours_by_their_ids():
    """Ours do not count; where ours are not in the list, ids are of another name space and say nothing."""
    seen = noise.gpu_reading(line(processes={"7": 90.0, "8": 30.0, "9": 15.0}, sm_mhz=1980.0), "GPU-1", [7], 5.0)
    assert (seen.others, seen.sm_mhz, seen.at) == (45.0, 1980.0, 5.0)
    assert noise.gpu_marks([seen]) == ("others used 45% of the GPU",)
    for processes in ({"8": 30.0}, {}, None):
        assert noise.gpu_reading(line(processes=processes), "GPU-1", [7], 5.0).others is None
    assert noise.gpu_reading(line(), "GPU-2", [7], 5.0) is None


def test_withheld_fields_are_no_noise():
    """A GPU that tells nothing disturbs nothing."""
    reading = noise.gpu_reading(line(), "GPU-1", [7], 5.0)
    assert reading == Reading(at=5.0)
    assert noise.gpu_marks([reading, reading]) == ()
    assert not noise.gpu_idle_busy(reading)


def test_a_clock_that_drops_and_throttling_are_noise():
    """5% of the clock, and every reason but idling and settings."""
    clocks = [Reading(at=1.0, sm_mhz=mhz) for mhz in (1980.0, 1950.0)]
    assert noise.gpu_marks(clocks) == ()
    assert noise.gpu_marks([*clocks, Reading(at=2.0, sm_mhz=1500.0)]) == ("the clock went from 1980 down to 1500 MHz",)
    seen = noise.gpu_reading(line(throttle=["idle", "thermal slowdown"]), "GPU-1", [], 1.0)
    assert noise.gpu_marks([seen]) == ("throttled (thermal slowdown)",)
    assert noise.gpu_marks([noise.gpu_reading(line(throttle=["idle"]), "GPU-1", [], 1.0)]) == ()


def test_load_of_others_on_the_cpu():
    """Busy time that is not ours, on our cores; stolen time counts, and a quota that held us is said."""
    stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 0 50 900 7 5 5 40 0 0\ncpu1 10 0 0 0 0 0 0 0 0 0\n"
    stat += "cpu2 1 1 1 1 1 1 1 1 0 0\n"
    assert noise.parse_stat(stat, [0, 1], 100) == (1.7, 0.4)
    process = "12 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 30 20 0 0 0"
    assert noise.parse_process(process, 100, children=False) == 2.0
    assert noise.parse_process(process, 100, children=True) == 2.5
    before = CpuTimes(at=10.0, busy=100.0, steal=1.0, own=50.0)
    reading = noise.cpu_reading(before, CpuTimes(at=12.0, busy=103.0, steal=1.4, own=51.0, throttled=0.5))
    assert reading.others == pytest.approx(1.2)
    assert noise.cpu_marks(reading, 2, 2) == ("others used 1.2 of 2 cores", "throttled (CPU quota)")
    # beside two threads there is room on eight cores
    assert noise.cpu_marks(reading, 8, 2) == ("throttled (CPU quota)",)


def test_the_cpu_watch_finds_a_process_that_spins():
    """A real process beside this one takes a core: it is seen as others', and counted as ours where it is ours."""
    code = "import sys\nprint(flush=True)\nwhile True: pass"

    async def scene():
        spinning = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        try:
            await spinning.stdout.readline()
            watch = CpuWatch(1, list)
            await watch.begin()
            await asyncio.sleep(0.5)
            seen = await watch.end()
            ours = CpuWatch(1, lambda: [spinning.pid])._look().own - watch._look().own
        finally:
            spinning.kill()
            await spinning.wait()
        return seen.others, ours

    others, ours = asyncio.run(scene())
    assert others > 0.15
    assert ours > 0.05


def test_a_driver_that_hangs_does_not_hang_timing():
    """A telemetry process that never says anything, or nonsense, leaves everything unknown, and closing is quick."""
    scripts = ["import time\ntime.sleep(600)", "print('{')\nprint('[]')\nimport time\ntime.sleep(600)"]

    async def scene(script):
        watch = GpuWatch(cuda_device(), lambda: [os.getpid()], (sys.executable, "-c", script))
        assert await watch.busy() == ""
        await watch.begin()
        await asyncio.sleep(0.2)
        seen = await watch.end()
        await watch.close()
        return seen

    for script in scripts:
        begun = time.monotonic()
        assert asyncio.run(scene(script)) == Round()
        assert time.monotonic() - begun < 5


def test_the_gpu_watch_reads_lines():
    """Load of others, clocks, temperature and throttling of a round come from the process's lines."""
    device = cuda_device(uuid="GPU-1")
    gpu = {"uuid": "GPU-1", "sm_mhz": 1500.0, "temperature_c": 70.0, "throttle": ["power brake"],
           "processes": {str(os.getpid()): 50.0, "1": 33.0}}  # fmt: skip
    text = json.dumps({"gpus": [gpu]})
    script = f"import time\nwhile True:\n    print({text!r}, flush=True)\n    time.sleep(0.05)"

    async def scene():
        watch = GpuWatch(device, lambda: [os.getpid()], (sys.executable, "-c", script))
        await watch.begin()
        await watch.heard.wait()
        busy, seen = await watch.busy(), await watch.end()
        await watch.close()
        return busy, seen

    busy, seen = asyncio.run(scene())
    assert busy == "other processes use 33% of it"
    assert seen.marks == ("throttled (power brake)", "others used 33% of the GPU")
    assert (seen.sm_mhz, seen.temperature_c, seen.throttle) == ((1500.0, 1500.0), 70.0, ("power brake",))


def test_an_idle_gpu_that_is_busy_has_others_on_it():
    """Where ids say nothing, utilisation while nothing of ours runs does; it is looked at now and then."""
    gpu = {"uuid": "GPU-1", "util_percent": 60.0}
    script = f"import time\nwhile True:\n    print({json.dumps({'gpus': [gpu]})!r}, flush=True)\n    time.sleep(0.05)"

    async def scene():
        watch = GpuWatch(cuda_device(uuid="GPU-1"), lambda: [1], (sys.executable, "-c", script))
        await watch.begin()
        await watch.heard.wait()
        first = await watch.busy()
        watch._readings.clear()
        watch._reader.cancel()
        watch._readings.append(Reading(at=time.monotonic(), util_percent=3.0))
        quiet = await watch.busy()
        watch._readings.append(Reading(at=time.monotonic(), util_percent=90.0))
        soon = await watch.busy()
        await watch.close()
        return first, quiet, soon

    assert asyncio.run(scene()) == ("it is busy (60%) while nothing of this session runs on it", "", "")
