"""What timing one candidate found beside its verdict: every side's times, noise, the second clock.

Times are microseconds a call.
"""

from __future__ import annotations

import msgspec


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Baseline over candidate from paired samples, with its 95% interval."""

    speedup: float
    low: float
    high: float


class SideTime(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a timing: `candidate`, `eager` or `compile`."""

    name: str
    us: float
    """Median on the clock that decides."""
    device_us: float | None = None
    """CUDA: one call in a replayed graph, no gaps between launches; short ones several in a graph, with a warm L2."""
    call_us: float | None = None
    """Calls back to back with the host's part, as a model pays them."""


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """What else went on while it was timed. None is what the machine does not tell."""

    marks: tuple[str, ...] = ()
    """What disturbed the round that counts; empty for a quiet one."""
    repeated: int = 0
    """Rounds before it that were thrown away."""
    waited_s: float = 0.0
    """Time that timing was held for others' load to end."""
    others: float | None = None
    """Most load by other processes: cores on the CPU, per cent of the GPU."""
    sm_mhz: tuple[float, float] | None = None
    """Lowest and highest clock."""
    temperature_c: float | None = None
    throttle: tuple[str, ...] | None = None


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """All sides of one timing."""

    decides: str
    """The clock that the verdict is by."""
    sides: tuple[SideTime, ...]
    vs_eager: Ratio
    vs_best: Ratio
    best: str
    """The fastest right baseline."""
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    """Baselines that were not timed, with the reason."""
    noise: Noise | None = None
    settled: bool = True
    """Whether the warm-up ended in stable times."""
    second_clock: str = ""
    """CUDA: what the second clock said; empty where there was no occasion to ask it."""
