"""Times of the whole model in two states, in turns; and host times of single calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from forge_tui.deploy.messages import Comparison, HostTimes
from forge_tui.deploy.stats import speedup
from forge_tui.models.collection import no_collection

_MIN_SAMPLE_S = 0.002
_MIN_PAIRS = 8
_MIN_PAIRS_SLOW = 5
_SLOW_S = 1.0
_MAX_PAIRS = 200
_TIGHT = 0.01
_HOST_S = 0.25
_HOST_CALLS = 300


def synchroniser(device: torch.device) -> Callable[[], None]:
    """Waits until the device is idle; nothing to wait for on the CPU."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


def timed(run: Callable[[], Any], sync: Callable[[], None], repeats: int) -> float:
    """Seconds of one run, over `repeats` in a row."""
    sync()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    sync()
    return (time.perf_counter() - start) / repeats


#: calls with the weight that each has in one model call
Runs = Sequence[tuple[Callable[[], Any], float]]


def timed_runs(runs: Runs, sync: Callable[[], None], repeats: int) -> float:
    """Seconds of one model call: every run `repeats` times in a row, its time times its weight."""
    return sum(weight * timed(run, sync, repeats) for run, weight in runs)


def compare(
    runs: Runs, first: Callable[[], None], second: Callable[[], None], sync: Callable[[], None],
    budget_s: float,
) -> Comparison:  # fmt: skip
    """Time `runs` in two states, A B, B A, A B, ... until the interval of the speedup is tight or the time is over.

    `first` and `second` switch to a state, outside of the timed part. The number of samples is decided by the width of
    the interval and the time, never by which side of 1 it lies on. There are at least 8 pairs, however long they take
    (5, where a run takes over a second).
    """
    repeats, least = 1, _MIN_PAIRS
    for state in (first, second):
        state()
        timed_runs(runs, sync, 1)
        start = time.perf_counter()
        timed_runs(runs, sync, 1)
        once = time.perf_counter() - start
        repeats = max(repeats, int(_MIN_SAMPLE_S / max(once, 1e-7)) + 1)
        least = _MIN_PAIRS_SLOW if once > _SLOW_S else least
    pairs: list[tuple[float, float]] = []
    deadline = time.perf_counter() + budget_s
    with no_collection():
        while len(pairs) < _MAX_PAIRS:
            times = {}
            for name in ("ab" if len(pairs) % 2 == 0 else "ba"):
                (first if name == "a" else second)()
                times[name] = timed_runs(runs, sync, repeats) * 1e3
            pairs.append((times["a"], times["b"]))
            if len(pairs) < least:
                continue
            if time.perf_counter() > deadline:
                break
            if len(pairs) % 4 == 0:
                mid, low, high = speedup(pairs)
                if high - low < _TIGHT * mid:
                    break
    mid, low, high = speedup(pairs)
    return Comparison(speedup=mid, ci=(low, high), samples=pairs)


def host_times(guarded: Callable[[], Any], original: Callable[[], Any], sync: Callable[[], None]) -> HostTimes:
    """Median microseconds until each of two calls returns, in turns and with an empty queue before every few calls."""
    found: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad(), no_collection():
        for call in (guarded, original):
            call()
        deadline = time.perf_counter() + _HOST_S
        while (len(found[0]) < _HOST_CALLS and time.perf_counter() < deadline) or not found[0]:
            for call, times in zip((guarded, original), found, strict=True):
                sync()
                for _ in range(4):
                    start = time.perf_counter()
                    call()
                    times.append((time.perf_counter() - start) * 1e6)
        sync()
    return HostTimes(guarded_us=statistics.median(found[0]), original_us=statistics.median(found[1]))
