"""The second clock of a CUDA timing: what else may have run besides what the events saw.

Wall time around synchronised calls finds work behind the last event or on another stream; the GPU's own tracer (CUPTI,
through torch.profiler) sees every kernel of every stream, by name.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forge_tui.core.records import LaunchPlan
from forge_tui.evaluator.verify import Dishonest

Side = Callable[[list[Tensor]], list[Tensor]]

#: what the host's part of a call may differ between two sides, and what a busy device may exceed the events by
_SLACK_US = 30.0
_SLACK = 0.1
_WALL_ROUNDS = 8
_WALL_CALLS = (4, 50)
_WALL_US = 200.0
_TRACED_CALLS = 3
#: the tracer may lose what is near the edges of its window
_TRACES = 3
_WAITS = ("Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event", "Unknown")
_MEMSET = "Memset"
#: of the kernel that marks both ends of a trace; no kernel with a C name has it
_MARK = ("at::native", "FillFunctor")


class Misnamed(Dishonest):
    """As many kernels ran as the plan says, under other names.

    The tracer keeps names by the driver's handles, and does not notice when a module goes and another one gets its
    handles. Only in a process that unloaded nothing before is this a finding.
    """


@dataclass(frozen=True, slots=True)
class Seen:
    """One piece of work that the tracer saw, on whatever stream; nanoseconds."""

    name: str
    start: int
    end: int


def check(candidate: Side, eager: Side, buffers: Sequence[list[Tensor]], plan: LaunchPlan, us: float,
          device: torch.device) -> str:  # fmt: skip
    """Look at a candidate that takes `us` by the events with both second clocks; what was found, in words.

    Raises:
        Misnamed: what runs has names that the plan does not have, and is as much as it says.
        Dishonest: it works where the events do not see it, or what runs is not what was built.
    """
    calls = max(_WALL_CALLS[0], min(_WALL_CALLS[1], int(_WALL_US / max(us, 0.1))))
    sides = (candidate, eager)
    rounds: tuple[list[tuple[float, float]], ...] = ([], [])
    for _ in range(_WALL_ROUNDS):
        for side, found in zip(sides, rounds, strict=True):
            found.append(_round(side, buffers, calls, device))
    wrong = hidden(rounds[0], rounds[1], calls)
    if wrong:
        raise Dishonest(wrong)
    said = "wall time agrees with the events"
    inside: list[Seen] | None = None
    for _ in range(_TRACES):
        seen, events_us = _trace(candidate, buffers, device)
        inside = between_marks(seen)
        if inside is None:
            continue
        wrong = odd(plan, _TRACED_CALLS, inside, events_us)
        if not wrong or not _too_few(plan, _TRACED_CALLS, inside):
            break
    if wrong:
        raise (Misnamed if inside is not None and only_names(plan, _TRACED_CALLS, inside) else Dishonest)(wrong)
    if inside is None:
        # what we ran ourselves was not seen either
        return f"{said}; this machine does not let the GPU be traced"
    return f"{said}; the tracer saw {len(inside)} pieces of work in {_TRACED_CALLS} calls, all as planned"


def warm(device: torch.device) -> None:
    """Have the tracer started once, which takes seconds, before a candidate waits for it."""
    _trace(lambda inputs: inputs, [[]], device)


def hidden(candidate: Sequence[tuple[float, float]], eager: Sequence[tuple[float, float]], calls: int) -> str:
    """Why the walls of a candidate do not fit its events, or nothing. Rounds are (wall, events), microseconds.

    Both sides wait for the whole device; the least excess of several rounds is what launching costs.
    """
    excess, usual = (min(wall - events for wall, events in side) for side in (candidate, eager))
    events_us = min(events for _, events in candidate)
    if excess > max(usual, 0.0) + _SLACK_US + _SLACK * events_us:
        return (f"By the clock on the wall {calls} calls take {excess + events_us:.0f} us, by the events on the stream "
                f"{events_us:.0f} us: it works behind the last event, or on another stream.")  # fmt: skip
    return ""


def expected(plan: LaunchPlan, calls: int) -> Counter[str]:
    """How often each kernel of a plan runs in so many calls."""
    found: Counter[str] = Counter()
    for launch in plan.launches:
        if 0 not in launch.grid:
            found[launch.kernel] += calls
    return found


def odd(plan: LaunchPlan, calls: int, seen: Sequence[Seen], events_us: float) -> str:
    """What the tracer saw that the plan does not say, or nothing."""
    wanted = expected(plan, calls)
    memsets = calls if plan.workspace_zero and plan.workspace_bytes else 0
    names = Counter(item.name for item in seen if not item.name.startswith(_MEMSET))
    foreign = names - wanted
    if foreign:
        name, count = foreign.most_common(1)[0]
        what = f"ran {name[:80]} {count} times more than the plan says" if name in wanted else \
            f"ran {name[:80]}, which is not one of its kernels"  # fmt: skip
        return f"In {calls} calls the device {what}."
    if sum(item.name.startswith(_MEMSET) for item in seen) > memsets:
        return f"In {calls} calls the device set memory more often than the plan says."
    missing = wanted - names
    if missing:
        name, count = missing.most_common(1)[0]
        return f"In {calls} calls the device ran {name[:80]} {wanted[name] - count} times instead of {wanted[name]}."
    busy = busy_us(seen)
    if busy > events_us * (1 + _SLACK) + _SLACK_US:
        return (f"The device was busy for {busy:.0f} us in {calls} calls, the events on the stream saw "
                f"{events_us:.0f} us: it works where they do not look.")  # fmt: skip
    return ""


def _too_few(plan: LaunchPlan, calls: int, seen: Sequence[Seen]) -> bool:
    names = Counter(item.name for item in seen if not item.name.startswith(_MEMSET))
    return bool(expected(plan, calls) - names) and not names - expected(plan, calls)


def only_names(plan: LaunchPlan, calls: int, seen: Sequence[Seen]) -> bool:
    """Whether nothing but the names of kernels is not as the plan says."""
    wanted = expected(plan, calls)
    names = Counter(item.name for item in seen if not item.name.startswith(_MEMSET))
    return names != wanted and sorted(names.values()) == sorted(wanted.values())


def busy_us(seen: Sequence[Seen]) -> float:
    """Microseconds in which at least one of them ran."""
    total = last = 0
    for item in sorted(seen, key=lambda s: s.start):
        total += max(0, item.end - max(item.start, last))
        last = max(last, item.end)
    return total / 1e3


def between_marks(seen: Sequence[Seen]) -> list[Seen] | None:
    """What ran between the two marks; None where they were not both seen.

    The tracer may hand over work of before its window: nothing that began before the first mark belongs to the calls,
    for the device was idle then. Work that goes on behind the second one does.
    """
    marks = sorted((item for item in seen if all(part in item.name for part in _MARK)), key=lambda s: s.start)
    if len(marks) < 2:
        return None
    first, last = marks[-2:]
    return [item for item in seen if item.start >= first.start and item not in (first, last)]


def _round(side: Side, buffers: Sequence[list[Tensor]], calls: int, device: torch.device) -> tuple[float, float]:
    """Wall and event microseconds of some calls, the whole device waited for."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    begun = time.perf_counter_ns()
    start.record()
    for number in range(calls):
        side(buffers[number % len(buffers)])
    end.record()
    torch.cuda.synchronize(device)
    wall = (time.perf_counter_ns() - begun) / 1e3
    return wall, start.elapsed_time(end) * 1e3


def _trace(side: Side, buffers: Sequence[list[Tensor]], device: torch.device) -> tuple[list[Seen], float]:
    """All work on the device during some calls between two marks, and what events around the calls say."""
    mark = torch.zeros(1, device=device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as tracer:
            mark.fill_(1.0)
            start.record()
            for number in range(_TRACED_CALLS):
                side(buffers[number % len(buffers)])
            end.record()
            torch.cuda.synchronize(device)
            mark.fill_(2.0)
            torch.cuda.synchronize(device)
    results = tracer.profiler.kineto_results if tracer.profiler is not None else None
    seen = [
        Seen(event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
        for event in (results.events() if results is not None else [])
        if event.device_type() != torch.profiler.DeviceType.CPU and event.name() not in _WAITS
    ]
    return seen, start.elapsed_time(end) * 1e3
