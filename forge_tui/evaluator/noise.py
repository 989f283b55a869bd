"""What disturbs a timing, from readings of the machine taken while it runs: pure arithmetic on records and texts.

None in a reading is what the machine does not tell; it disturbs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: per cent of a GPU that others may use
_GPU_OTHERS = 10.0
#: cores that others may use beside the threads that are timed
_CPU_OTHERS = 0.3
#: a clock this far below the round's highest has dropped
_CLOCK_DROP = 0.05
#: reasons of the driver that are no disturbance
_HARMLESS = ("idle", "application clocks", "sync boost")


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the machine. `at` is monotonic seconds; `others` per cent of the GPU, or cores of the CPU."""

    at: float
    others: float | None = None
    sm_mhz: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] | None = None
    util_percent: float | None = None
    """Of the whole GPU, its own work too: says something of others only while nothing of ours runs."""


def gpu_reading(line: Mapping[str, Any], uuid: str, own_pids: Collection[int], at: float) -> Reading | None:
    """The reading of one GPU in a line of the telemetry sampler; None where it does not know the GPU."""
    for gpu in line.get("gpus", ()):
        if gpu.get("uuid") == uuid:
            break
    else:
        return None
    throttle = gpu.get("throttle")
    return Reading(
        at=at, others=_others(gpu.get("processes"), own_pids), sm_mhz=gpu.get("sm_mhz"),
        temperature_c=gpu.get("temperature_c"), util_percent=gpu.get("util_percent"),
        throttle=None if throttle is None else tuple(reason for reason in throttle if reason not in _HARMLESS),
    )  # fmt: skip


def _others(processes: Mapping[str, float] | None, own_pids: Collection[int]) -> float | None:
    """Per cent by other processes; None where process ids are those of another name space, or are withheld."""
    if processes is None:
        return None
    load = {int(pid): percent for pid, percent in processes.items()}
    if not set(own_pids) & load.keys():
        return None
    return sum(percent for pid, percent in load.items() if pid not in own_pids)


def gpu_marks(readings: Sequence[Reading]) -> tuple[str, ...]:
    """What disturbed a round on a GPU."""
    marks: list[str] = []
    clocks = [r.sm_mhz for r in readings if r.sm_mhz is not None]
    if clocks and min(clocks) < (1 - _CLOCK_DROP) * max(clocks):
        marks.append(f"the clock went from {max(clocks):.0f} down to {min(clocks):.0f} MHz")
    reasons = sorted({reason for r in readings for reason in r.throttle or ()})
    if reasons:
        marks.append(f"throttled ({', '.join(reasons)})")
    if gpu_busy(readings):
        marks.append(f"others used {most(readings):.0f}% of the GPU")
    return tuple(marks)


def gpu_busy(readings: Sequence[Reading]) -> bool:
    """Whether other processes use the GPU, by name."""
    return (most(readings) or 0.0) > _GPU_OTHERS


def gpu_idle_busy(reading: Reading) -> bool:
    """The same of a reading taken while nothing of ours runs, where process ids say nothing."""
    return reading.others is None and (reading.util_percent or 0.0) > _GPU_OTHERS


def most(readings: Sequence[Reading]) -> float | None:
    """Most load of others."""
    return max((r.others for r in readings if r.others is not None), default=None)


# ---- the CPU


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since the start of the machine: of our cores, and of our processes."""

    at: float
    busy: float
    steal: float
    own: float
    throttled: float = 0.0
    """Held back by the group's quota."""


def parse_stat(text: str, cores: Collection[int], ticks: int) -> tuple[float, float]:
    """Busy and stolen seconds of some cores from `/proc/stat`."""
    busy = steal = 0.0
    wanted = {f"cpu{core}" for core in cores}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name in wanted:
            user, nice, system, _, _, irq, soft, stolen = [int(v) for v in rest.split()[:8]]
            busy += user + nice + system + irq + soft
            steal += stolen
    return busy / ticks, steal / ticks


def parse_process(text: str, ticks: int, *, children: bool) -> float:
    """CPU seconds of one process from `/proc/PID/stat`, with those of children that it has waited for."""
    fields = text.rpartition(")")[2].split()
    return sum(int(v) for v in fields[11 : 15 if children else 13]) / ticks


def cpu_reading(before: CpuTimes, after: CpuTimes) -> Reading:
    """Load of others between two looks, in cores; what the hypervisor took counts as theirs."""
    span = max(1e-3, after.at - before.at)
    others = max(0.0, (after.busy - before.busy) - (after.own - before.own)) + (after.steal - before.steal)
    held = after.throttled - before.throttled > 0.01 * span
    return Reading(at=after.at, others=others / span, throttle=("CPU quota",) if held else ())


def cpu_busy(reading: Reading, cores: int, threads: int) -> bool:
    """Whether others take cores that the timed threads need."""
    return (reading.others or 0.0) > max(0, cores - threads) + _CPU_OTHERS


def cpu_marks(reading: Reading, cores: int, threads: int) -> tuple[str, ...]:
    """What disturbed a round on the CPU."""
    marks = []
    if cpu_busy(reading, cores, threads):
        marks.append(f"others used {reading.others:.1f} of {cores} cores")
    if reading.throttle:
        marks.append(f"throttled ({', '.join(reading.throttle)})")
    return tuple(marks)
