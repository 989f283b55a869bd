"""Timing passes: the whole model unprofiled, and every call of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Protocol

import torch

from forge_tui.models.load import LoadedModel
from forge_tui.models.phases import Phase
from forge_tui.profiler.calltree import Call
from forge_tui.profiler.sites import Site, Sites, is_step

ROOT = "model"
#: a generate loop of millions of calls must not fill the memory
MAX_CALLS = 300_000


class TooManyCalls(BaseException):
    """The model makes more calls than are kept; no `except Exception` of the model's may swallow it."""


class Clock(Protocol):
    """Marks moments; their distances are read afterwards."""

    def mark(self) -> Any:
        """A moment."""

    def settle(self) -> None:
        """Wait until all marks are in the past."""

    def between_us(self, start: Any, end: Any) -> float:
        """Microseconds between two marks."""


class CpuClock:
    """Wall time."""

    def mark(self) -> float:
        """A moment."""
        return time.perf_counter()

    def settle(self) -> None:
        """Nothing runs behind the caller's back."""

    def between_us(self, start: float, end: float) -> float:
        """Microseconds between two marks."""
        return (end - start) * 1e6


class CudaClock:
    """Events on the current stream: device time, read after one synchronisation."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """A moment."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        """Wait until all marks are in the past."""
        torch.cuda.synchronize(self._device)

    def between_us(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Microseconds between two marks."""
        return float(start.elapsed_time(end)) * 1e3


def clock_for(device: torch.device) -> Clock:
    """The clock that sees this device's time."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()


def time_model(
    run: Callable[[], Any], clock: Clock, *, repeats: int, limit_s: float = 20.0,
    settle: Callable[[], None] | None = None,
) -> float:  # fmt: skip
    """Median time of one model call in milliseconds: two to warm up, then `repeats`, fewer past the limit.

    `settle` waits for the device between the calls where the clock itself does not look at it.
    """
    settle = settle or clock.settle
    for _ in range(2):
        run()
    settle()
    end_at = time.perf_counter() + limit_s
    samples: list[float] = []
    for _ in range(max(1, repeats)):
        start = clock.mark()
        run()
        end = clock.mark()
        settle()
        samples.append(clock.between_us(start, end) / 1e3)
        if time.perf_counter() > end_at:
            break
    return median(samples)


class Recorder:
    """Keeps the calls of one pass in order, children behind parents."""

    def __init__(self) -> None:
        self.sites: list[Site | None] = [None]
        self.parents: list[int] = [-1]
        self.kept: list[bool] = [True]
        self._stack: list[int] = [0]

    def push(self, site: Site) -> int:
        """A call begins; its number."""
        number = len(self.sites)
        if number >= MAX_CALLS:
            raise TooManyCalls(f"more than {MAX_CALLS} calls")
        self.sites.append(site)
        self.parents.append(self._stack[-1])
        self.kept.append(False)
        self._stack.append(number)
        return number

    def pop(self, number: int, keep: bool) -> None:
        """A call ended; what does not give tensors is not kept."""
        self._stack.pop()
        self.kept[number] = keep

    def calls(self) -> tuple[list[Call], list[int]]:
        """The kept calls with parents renumbered, and their numbers in the pass."""
        new: dict[int, int] = {}
        found: list[Call] = []
        numbers: list[int] = []
        for number, (site, kept) in enumerate(zip(self.sites, self.kept, strict=True)):
            if not kept:
                continue
            parent = self.parents[number]
            while parent > 0 and not self.kept[parent]:
                parent = self.parents[parent]
            new[number] = len(found)
            numbers.append(number)
            key = (site.kind, site.name, site.path, site.qualname) if site else ROOT
            found.append(Call(key=key, parent=new[parent] if parent >= 0 else -1))
        return found, numbers


class TimingListener:
    """Marks the start and end of every call."""

    def __init__(self, clock: Clock) -> None:
        self.recorder = Recorder()
        self._clock = clock
        self._starts: list[Any] = [None]
        self._ends: list[Any] = [None]

    def enter(self, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Mark the start."""
        del args, kwargs
        number = self.recorder.push(site)
        self._ends.append(None)
        self._starts.append(self._clock.mark())
        return number

    def leave(self, token: int, result: Any) -> None:
        """Mark the end."""
        self._ends[token] = self._clock.mark()
        site = self.recorder.sites[token]
        assert site is not None
        self.recorder.pop(token, is_step(site, result))

    def abandon(self, token: int) -> None:
        """A call that raised is not kept."""
        self.recorder.pop(token, False)

    def run(self, loaded: LoadedModel, phase: Phase, sites: Sites) -> list[Call]:
        """The calls of one call of a phase with their times."""
        with sites.heard(self):
            self._starts[0] = self._clock.mark()
            phase.run(loaded.module)
            self._ends[0] = self._clock.mark()
        self._clock.settle()
        calls, numbers = self.recorder.calls()
        for call, number in zip(calls, numbers, strict=True):
            call.total_us = self._clock.between_us(self._starts[number], self._ends[number])
        return calls
