"""What the deployment worker answers."""

from __future__ import annotations

from forge_tui.core.records import Record


class Prepared(Record, frozen=True, kw_only=True):
    """The original model ran."""

    model_ms: float
    """A first estimate of the time of one model call."""
    tolerance: str
    """The allowed difference in words, and where it comes from."""
    incomparable: str = ""
    """Why outputs cannot be compared at all (then nothing is deployed)."""


class Difference(Record, frozen=True, kw_only=True):
    """Outputs against the original model's."""

    max_abs: float
    rms: float
    within: bool
    why: str = ""
    """What is beyond the limit, in words."""


class Served(Record, frozen=True, kw_only=True):
    """Who served the calls of one target during one model call."""

    calls: int
    fallbacks: int
    reasons: dict[str, int]
    fault: str = ""
    """The failure of a launch, if there was one."""


class Check(Record, frozen=True, kw_only=True):
    """One model call with some kernels in; `served` in the order asked."""

    difference: Difference
    served: list[Served]


class Comparison(Record, frozen=True, kw_only=True):
    """Two states of the model timed in turns; `speedup` is of the first over the second."""

    speedup: float
    ci: tuple[float, float]
    samples: list[tuple[float, float]]
    """Paired milliseconds (first, second)."""

    def words(self) -> str:
        """`1.001x, interval 0.996 to 1.006`."""
        return f"{self.speedup:.3f}x, interval {self.ci[0]:.3f} to {self.ci[1]:.3f}"


class HostTimes(Record, frozen=True, kw_only=True):
    """Time until a call returns, microseconds; on the CPU the kernel is in it."""

    guarded_us: float | None = None
    original_us: float | None = None


class CompileResult(Record, frozen=True, kw_only=True):
    """The original model under torch.compile, against eager in the same process."""

    comparison: Comparison | None
    failure: str = ""
