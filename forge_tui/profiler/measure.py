"""The passes over one phase, and what they say of every call: device time, host time, launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from forge_tui.models.load import LoadedModel
from forge_tui.models.phases import Phase
from forge_tui.profiler.activity import Activity, trace_activity
from forge_tui.profiler.calltree import Call, Row, align, common_top, self_times, totals_of
from forge_tui.profiler.passes import CpuClock, TimingListener, clock_for, time_model
from forge_tui.profiler.sites import Sites

#: passes that trace the GPU: two show whether they agree
_ACTIVITY_PASSES = 2
_HOST_PASSES = 3

UNTRACED = (
    "This machine does not let the GPU's activity be traced (CUPTI): times of calls hold the gaps between launches, "
    "and launches are not counted."
)
ONCE = "Only one trace of the GPU could be read, so nothing is known of how far the times repeat."
UNEQUAL = "The model does not make the same calls each time; times of single calls are rough."


@dataclass(slots=True)
class PhaseRun:
    """One phase, measured."""

    phase: Phase
    ms: float
    """Median time of one call, unprofiled."""
    busy_ms: float
    """Time of one call in which the device works."""
    rows: list[Row]
    overhead: float
    """Profiled over unprofiled time."""
    agreement: float
    """Share of the ten longest callables that two passes have in common."""
    warnings: list[str] = field(default_factory=list)

    @property
    def calls(self) -> list[Call]:
        """The calls of the rows."""
        return [row.call for row in self.rows]

    @property
    def launches(self) -> int:
        """Device kernels of one call."""
        return self.rows[0].launches

    @property
    def device_us(self) -> float:
        """Device time of one call: the sum of all own times."""
        return self.rows[0].total_us


def measure_phase(
    loaded: LoadedModel, phase: Phase, sites: Sites, *, repeats: int, timing_passes: int
) -> PhaseRun:
    """Time a phase unprofiled, then every call of it in several passes; whatever the model raises passes through."""
    clock = clock_for(loaded.device)
    ms = time_model(lambda: phase.run(loaded.module), clock, repeats=repeats)
    if loaded.device.type == "cuda":
        traced = [trace_activity(loaded, phase, sites) for _ in range(_ACTIVITY_PASSES)]
        known = [activity for activity in traced if activity is not None]
        if known:
            return _from_activity(loaded, phase, sites, ms, known)
    passes = [TimingListener(clock).run(loaded, phase, sites) for _ in range(timing_passes)]
    return _from_clock(phase, ms, passes, loaded.device.type == "cuda")


def _from_clock(phase: Phase, ms: float, passes: list[list[Call]], untraced: bool) -> PhaseRun:
    base = passes[0]
    parents = [call.parent for call in base]
    totals, same = align(base, [(calls, [call.total_us for call in calls]) for calls in passes])
    totals, own, overhead = self_times(parents, totals, ms * 1e3)
    rows = [
        Row(call, total, self_us, total, weight=phase.weight)
        for call, total, self_us in zip(base, totals, own, strict=True)
    ]
    agreement = common_top([(calls, _own_times(calls)) for calls in passes])
    warnings = [*([UNTRACED] if untraced else []), *([] if same else [UNEQUAL])]
    return PhaseRun(phase, ms, ms, rows, overhead, agreement, warnings)


def _own_times(calls: Sequence[Call]) -> list[float]:
    own = [call.total_us for call in calls]
    for call in calls:
        if call.parent >= 0:
            own[call.parent] -= call.total_us
    return own


def _from_activity(
    loaded: LoadedModel, phase: Phase, sites: Sites, ms: float, traced: Sequence[Activity]
) -> PhaseRun:
    first = traced[0]
    base = first.calls
    parents = [call.parent for call in base]
    own, same = align(base, [(a.calls, [work.us for work in a.works]) for a in traced])
    totals = totals_of(parents, own)
    launches = totals_of(parents, [float(work.launches) for work in first.works])
    # the host's side without the tracer, which makes every call slower
    settle = clock_for(loaded.device).settle
    host_ms = time_model(lambda: phase.run(loaded.module), CpuClock(), repeats=3, settle=settle)
    hosts = []
    for _ in range(_HOST_PASSES):
        settle()  # a full queue of launches would make the host wait
        hosts.append(TimingListener(CpuClock()).run(loaded, phase, sites))
    host, same_host = align(base, [(calls, [call.total_us for call in calls]) for calls in hosts])
    host, _, overhead = self_times(parents, host, host_ms * 1e3)
    rows = [
        Row(call, totals[i], own[i], host[i], round(launches[i]),
            {name: (count, work.name_us[name]) for name, count in work.names.items()}, phase.weight)
        for i, (call, work) in enumerate(zip(base, first.works, strict=True))
    ]  # fmt: skip
    agreement = common_top([(a.calls, [work.us for work in a.works]) for a in traced])
    busy_ms = median(a.busy_us for a in traced) / 1e3
    warnings = [*([] if same and same_host else [UNEQUAL]), *([ONCE] if len(traced) == 1 else [])]
    return PhaseRun(phase, ms, busy_ms, rows, overhead, agreement, warnings)
