"""What `run` and `report` say of a session in the end."""

from __future__ import annotations

import msgspec

from forge_tui.core.profiles import Baseline, PhaseTime, Profile, TargetBaselines, WhatIf
from forge_tui.core.records import Record, Under, Verdict
from forge_tui.core.timings import Timings


class TargetResult(Record, frozen=True, kw_only=True):
    """One line of the final report."""

    name: str
    signature: str
    calls: int
    share: float
    headroom_ms: float
    verdict: Verdict | None
    baseline_us: float | None
    best_us: float | None
    speedup: float | None
    speedup_ci: tuple[float, float] | None
    evaluations: int
    deployed: bool
    why_not: str = ""
    speedup_vs_eager: float | None = None
    speedup_vs_eager_ci: tuple[float, float] | None = None
    speedup_vs_best: float | None = None
    speedup_vs_best_ci: tuple[float, float] | None = None
    best_baseline: str = ""
    """The fastest right baseline that the best kernel was timed against."""
    timings: Timings | None = None
    """All sides of the best kernel's timing, with noise and clocks."""
    confirmed: bool | None = None
    """Whether the best kernel's file was right and faster once more, in fresh processes; None where not tried."""
    confirmed_speedup: float | None = None
    unsanitised: str = ""
    """Why the best kernel was not, or not wholly, run under a sanitizer; empty where it was, or was not confirmed."""
    resources: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """By kernel of the best one: registers, spill_bytes, smem_bytes, stack_bytes."""


class ProfileSummary(Record, frozen=True, kw_only=True):
    """What a report says of the profile; the call tree stays with `profile`."""

    model_ms: float
    busy_ms: float
    """Device time of one model call in which a kernel ran; on the CPU the same as `model_ms`."""
    idle_share: float
    """Share of the model's time in which the device waits for the next launch, 0 to 1."""
    launches: int
    overhead: float
    agreement: float
    phases: tuple[PhaseTime, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    target_baselines: tuple[TargetBaselines, ...] = ()
    what_ifs: tuple[WhatIf, ...] = ()
    target_names: dict[str, str] = msgspec.field(default_factory=dict)
    """By the ids that `target_baselines` and `what_ifs` name."""


class RunReport(Record, frozen=True, kw_only=True):
    """What `run --json` prints."""

    session: str
    model: str
    device: str
    under: Under
    baseline_ms: float | None
    deployed_ms: float | None
    speedup: float | None
    speedup_ci: tuple[float, float] | None
    speedup_vs_eager: float | None
    speedup_vs_best: float | None
    baselines_ms: dict[str, float]
    """Whole model by baseline name; `eager` is always there once measured."""
    baseline_failures: dict[str, str]
    max_abs_error: float | None
    targets: tuple[TargetResult, ...]
    evaluations: int
    cost_usd: float
    cost_is_lower_bound: bool
    """Whether some call had no known price."""
    stop_reason: str
    state: str
    elapsed_s: float
    warnings: tuple[str, ...] = ()
    isolation: str = ""
    """What kept compilers and kernels apart from the machine, `isolated: ...` or `not isolated: why`; empty before."""
    rent_usd: float = 0.0
    """What the machine cost meanwhile, at the rate that was given."""
    repaid_after_calls: int | None = None
    """Calls of the model after which what they save has paid for the search; None without a rate or a gain."""
    profile: ProfileSummary | None = None
    """None before the model was profiled."""
    profile_s: float = 0.0
    """Of `elapsed_s`, profiling."""
    search_s: float = 0.0
    """Of `elapsed_s`, what counted for `--minutes`."""


def summary(profile: Profile) -> ProfileSummary:
    """What a report says of a profile."""
    named = {w for what_if in profile.what_ifs for w in what_if.target_ids}
    named |= {t.target_id for t in profile.target_baselines}
    return ProfileSummary(
        model_ms=profile.model_ms, busy_ms=profile.busy_ms, idle_share=profile.idle_share, launches=profile.launches,
        overhead=profile.overhead, agreement=profile.agreement, phases=profile.phases, baselines=profile.baselines,
        target_baselines=profile.target_baselines, what_ifs=profile.what_ifs,
        target_names={t.id: t.name for t in profile.targets if t.id in named},
    )  # fmt: skip
