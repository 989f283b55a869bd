"""Device time of every call: kernels as the GPU's own tracer (CUPTI, through torch.profiler) saw them.

A kernel belongs to the innermost call that was open when the operator that launched it began. What runs on the device
is thus told apart from the gaps between launches, which events around a call cannot do.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from forge_tui.models.load import LoadedModel
from forge_tui.models.phases import Phase
from forge_tui.profiler.calltree import Call
from forge_tui.profiler.passes import Recorder
from forge_tui.profiler.sites import Site, Sites, is_step

_MARK = "forge#"
#: what the tracer reports on the device's lane and is no work of it
_WAITS = ("Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event", "Unknown")


@dataclass(frozen=True, slots=True)
class Span:
    """One call on the host's time line, in nanoseconds."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One piece of work on the device. Times in nanoseconds; `issued` is on the host's time line."""

    name: str
    issued: int
    start: int
    end: int


@dataclass(slots=True)
class Work:
    """What one call launched itself, its children left out."""

    us: float = 0.0
    launches: int = 0
    names: Counter[str] = field(default_factory=Counter)
    """Launches by kernel."""
    name_us: dict[str, float] = field(default_factory=dict)

    def add(self, kernel: Kernel) -> None:
        """Count one kernel."""
        us = (kernel.end - kernel.start) / 1e3
        self.us += us
        self.launches += 1
        self.names[kernel.name] += 1
        self.name_us[kernel.name] = self.name_us.get(kernel.name, 0.0) + us


@dataclass(slots=True)
class Activity:
    """One pass: calls, and the work of each by position."""

    calls: list[Call]
    works: list[Work]
    busy_us: float
    """Time in which at least one kernel ran."""


def attribute(spans: Iterable[Span], kernels: Iterable[Kernel]) -> dict[int, Work]:
    """Work by number of the call. `spans` nest; kernels outside of all of them belong to call 0."""
    found: dict[int, Work] = {}
    waiting = sorted(spans, key=lambda s: (s.start, -s.end))
    position = 0
    stack: list[Span] = []
    for kernel in sorted(kernels, key=lambda k: k.issued):
        while position < len(waiting) and waiting[position].start <= kernel.issued:
            while stack and stack[-1].end < waiting[position].start:
                stack.pop()
            stack.append(waiting[position])
            position += 1
        while stack and stack[-1].end < kernel.issued:
            stack.pop()
        found.setdefault(stack[-1].number if stack else 0, Work()).add(kernel)
    return found


def busy_us(kernels: Iterable[Kernel]) -> float:
    """Microseconds in which at least one of the kernels ran, whatever its stream."""
    total = last = 0
    for kernel in sorted(kernels, key=lambda k: k.start):
        total += max(0, kernel.end - max(kernel.start, last))
        last = max(last, kernel.end)
    return total / 1e3


class ActivityListener:
    """Marks every call on the tracer's time line."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self._open: dict[int, Any] = {}

    def enter(self, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Open the mark of a call."""
        del args, kwargs
        number = self.recorder.push(site)
        mark = self._open[number] = torch._C._profiler._RecordFunctionFast(f"{_MARK}{number}")  # noqa: SLF001
        mark.__enter__()
        return number

    def leave(self, token: int, result: Any) -> None:
        """Close the mark."""
        self._open.pop(token).__exit__(None, None, None)
        site = self.recorder.sites[token]
        assert site is not None
        self.recorder.pop(token, is_step(site, result))

    def abandon(self, token: int) -> None:
        """A call that raised is not kept."""
        self._open.pop(token).__exit__(None, None, None)
        self.recorder.pop(token, False)


def trace_activity(loaded: LoadedModel, phase: Phase, sites: Sites) -> Activity | None:
    """One traced call of a phase; None where the machine does not let the GPU be traced."""
    listener = ActivityListener()
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize(loaded.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the tracer warns of cycles that nobody asked for
        with torch.profiler.profile(activities=kinds) as tracer, sites.heard(listener):
            phase.run(loaded.module)
            torch.cuda.synchronize(loaded.device)
    results = tracer.profiler.kineto_results if tracer.profiler is not None else None
    spans, kernels = read_events(results.events() if results is not None else [])
    if not kernels:
        return None
    by_number = attribute(spans, kernels)
    recorder = listener.recorder
    # work of calls that are not kept is their parents'
    for number in range(len(recorder.sites) - 1, 0, -1):
        if not recorder.kept[number] and number in by_number:
            _merge(by_number.setdefault(recorder.parents[number], Work()), by_number.pop(number))
    calls, numbers = recorder.calls()
    works = [by_number.get(number, Work()) for number in numbers]
    return Activity(calls, works, busy_us(kernels))


def _merge(into: Work, other: Work) -> None:
    into.us += other.us
    into.launches += other.launches
    into.names.update(other.names)
    for name, us in other.name_us.items():
        into.name_us[name] = into.name_us.get(name, 0.0) + us


def read_events(events: Sequence[Any]) -> tuple[list[Span], list[Kernel]]:
    """Marks and kernels of a tracer's raw events."""
    spans: list[Span] = []
    issued: dict[int, int] = {}
    device: list[Any] = []
    for event in events:
        name = event.name()
        if event.device_type() != torch.profiler.DeviceType.CPU:
            if not _is_wait(event, name):
                device.append(event)
            continue
        start = event.start_ns()
        if name.startswith(_MARK):
            spans.append(Span(int(name[len(_MARK) :]), start, start + event.duration_ns()))
        if event.linked_correlation_id() == 0 and not name.startswith("cu"):
            issued[event.correlation_id()] = start
    kernels = []
    for event in device:
        start = event.start_ns()
        at = issued.get(event.linked_correlation_id(), -1)
        kernels.append(Kernel(event.name(), at, start, start + event.duration_ns()))
    return spans, kernels


def _is_wait(event: Any, name: str) -> bool:
    annotation = getattr(event, "is_user_annotation", None)
    return name in _WAITS or name.startswith(_MARK) or bool(annotation and annotation())
