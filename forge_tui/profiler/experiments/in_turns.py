"""Several ways to run one thing, timed in turns, so that a machine that drifts does so for all of them alike."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import Any

from forge_tui.models.collection import no_collection
from forge_tui.profiler.passes import Clock, CpuClock

#: calls with the weight that each has in one model call
Runs = Sequence[tuple[Callable[[], Any], float]]

#: a sample on the host's clock lasts at least this long; device events need no such thing
_SHORTEST_S = 0.002
_MOST_INNER = 2000
#: what no clock tells from nothing
_RESOLUTION_MS = 1e-6
_LEAST_ROUNDS = 4
_MOST_ROUNDS = 60
#: seconds of one call from which two rounds are enough
_SLOW_S = 1.0
#: seconds of one call up to which a call is made before each sample, so that what the switch left cold does not count
_QUICK_S = 0.1


@dataclass(frozen=True, slots=True)
class State:
    """One way to run: the calls, and what must be in force while they run."""

    runs: Runs
    entered: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext


def in_turns(
    states: Sequence[State], clock: Clock, *, budget_s: float = 4.0, before: Callable[[], None] | None = None
) -> list[float]:
    """Milliseconds of each state: the sum over the runs of weight times median.

    Samples are taken A B, B A, A B, ...; entering a state is not timed. The first state has the median of its samples;
    the others that median times the median of their ratios to the sample beside it, so drift of the machine cancels.
    `before` runs before every single call, outside of the timed part (it flushes a cache). Whatever the runs raise
    passes through.
    """
    count = len(states[0].runs)
    totals = [0.0] * len(states)
    with no_collection():
        for k in range(count):
            samples = _sample(states, k, clock, budget_s / count, before)
            base = median(samples[0])
            for i, state in enumerate(states):
                ratio = median(mine / first for mine, first in zip(samples[i], samples[0], strict=True))
                totals[i] += state.runs[k][1] * base * ratio
    return totals


def _sample(
    states: Sequence[State], k: int, clock: Clock, budget_s: float, before: Callable[[], None] | None
) -> list[list[float]]:
    once_s = [_once(state, k, clock, before) for state in states]
    alone = before is not None or not isinstance(clock, CpuClock)
    inner = [1 if alone else max(1, min(_MOST_INNER, int(_SHORTEST_S / max(s, 1e-7)))) for s in once_s]
    least = 2 if max(once_s) > _SLOW_S else _LEAST_ROUNDS
    samples: list[list[float]] = [[] for _ in states]
    end = time.perf_counter() + budget_s
    for number in range(_MOST_ROUNDS):
        order = range(len(states)) if number % 2 == 0 else range(len(states) - 1, -1, -1)
        for i in order:
            with states[i].entered():
                if once_s[i] < _QUICK_S and len(states) > 1:
                    states[i].runs[k][0]()
                samples[i].append(_timed(states[i].runs[k][0], clock, inner[i], before))
        if number + 1 >= least and time.perf_counter() > end:
            break
    return samples


def _once(state: State, k: int, clock: Clock, before: Callable[[], None] | None) -> float:
    """Seconds of one call, after two to warm up."""
    with state.entered():
        for _ in range(2):
            state.runs[k][0]()
        return _timed(state.runs[k][0], clock, 1, before) / 1e3


def _timed(run: Callable[[], Any], clock: Clock, inner: int, before: Callable[[], None] | None) -> float:
    """Milliseconds of one call, over `inner` in a row."""
    clock.settle()
    if before is not None:
        before()
    start = clock.mark()
    for _ in range(inner):
        run()
    end = clock.mark()
    clock.settle()
    return max(clock.between_us(start, end) / 1e3 / inner, _RESOLUTION_MS)
