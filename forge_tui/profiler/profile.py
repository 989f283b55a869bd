"""The whole profile of a loaded model: every phase measured, targets with captured inputs, the tree of hotspots."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from forge_tui.core.errors import ModelError
from forge_tui.core.profiles import PhaseTime, Profile
from forge_tui.core.records import Device
from forge_tui.models.faults import explain
from forge_tui.models.load import LoadedModel
from forge_tui.profiler.calltree import Call, occurrences
from forge_tui.profiler.discover import discover
from forge_tui.profiler.families.names import check_names
from forge_tui.profiler.families.resizing import with_siblings
from forge_tui.profiler.hotspots import hotspots_of
from forge_tui.profiler.measure import UNEQUAL, PhaseRun, measure_phase
from forge_tui.profiler.observe import Observer
from forge_tui.profiler.others import Others
from forge_tui.profiler.passes import TooManyCalls
from forge_tui.profiler.sites import Sites
from forge_tui.profiler.targets import find_targets, measure_groups, with_families

#: captured inputs of all targets together, unless asked otherwise
CAPTURE_BYTES = 2 << 30


#: Python frames: wrapped calls take more of the stack than the model's own do
_DEPTH = 3000


@contextlib.contextmanager
def deep_calls() -> Iterator[None]:
    """Room for the profile's own frames, so that a model just below the recursion limit stays below it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@deep_calls()
def profile_model(
    loaded: LoadedModel, device: Device, artifacts: Path, *, repeats: int = 7, timing_passes: int = 5,
    capture_bytes: int = CAPTURE_BYTES,
) -> Profile:  # fmt: skip
    """Profile one call of every phase; captured inputs go below `artifacts`.

    Raises:
        ModelError: the model's forward raised.
        UsageError: a name of `--dynamic` cannot name a dimension.
        StoreError: captured inputs cannot be written.
    """
    check_names(loaded.spec.dynamic)
    warnings = list(loaded.warnings)
    observer = Observer(loaded)
    reasons: list[dict[int, str]] = []
    with failing(loaded):
        sites = Sites(loaded, discover(loaded))
        versions = _input_versions(loaded)
        others = Others()
        runs = [measure_phase(loaded, p, sites, repeats=repeats, timing_passes=timing_passes) for p in loaded.phases]
        busy = others.cores() if loaded.device.type == "cpu" else 0.0
        if _input_versions(loaded) != versions:
            warnings.append("The model writes into its own inputs, so each call sees other values than the one before.")
        for run in runs:
            observed = observer.run(run.phase, sites)
            if [c.key for c in observed] != [c.key for c in run.calls]:
                run.warnings.append(UNEQUAL)
            reasons.append(_join(run.calls, observed, observer))
    warnings += dict.fromkeys(text for run in runs for text in run.warnings)
    assert device.ceilings is not None
    measured = measure_groups(observer, runs, device.ceilings, loaded.device)
    with failing(loaded):
        targets = find_targets(loaded, sites, measured, artifacts, capture_bytes, runs)
    targets, unused = with_families(targets, loaded.spec.dynamic)
    with failing(loaded):
        targets, unmade = with_siblings(loaded, targets, artifacts, loaded.spec.dynamic)
    warnings += unmade
    warnings += [f"No dimension of a target is {name} (--dynamic)." for name in unused]
    model_ms = sum(run.phase.weight * run.ms for run in runs)
    return Profile(
        device=device, model_ms=model_ms, overhead=_mean([run.overhead for run in runs], runs),
        hotspots=hotspots_of(loaded, runs, reasons, observer, measured, targets), targets=tuple(targets.values()),
        warnings=tuple(warnings), phases=tuple(_phase_time(run) for run in runs),
        busy_ms=sum(run.phase.weight * run.busy_ms for run in runs),
        launches=round(sum(run.phase.weight * run.launches for run in runs)),
        agreement=_mean([run.agreement for run in runs], runs), others=busy,
    )  # fmt: skip


def _phase_time(run: PhaseRun) -> PhaseTime:
    return PhaseTime(name=run.phase.name, weight=run.phase.weight, ms=run.ms, busy_ms=run.busy_ms,
                     launches=run.launches)  # fmt: skip


def _mean(values: Sequence[float], runs: Sequence[PhaseRun]) -> float:
    """Mean over phases, by their share of the model's time."""
    times = [run.phase.weight * run.ms for run in runs]
    return sum(v * t for v, t in zip(values, times, strict=True)) / (sum(times) or 1.0)


@contextlib.contextmanager
def failing(loaded: LoadedModel) -> Iterator[None]:
    """What the model's code raises inside, as a `ModelError`."""
    what = "The workload" if loaded.has_workload else f"The forward of {type(loaded.module).__name__}"
    try:
        yield
    except TooManyCalls as error:
        hint = "Profile a shorter one: fewer tokens, steps or layers."
        raise ModelError(f"One call of the model makes {error}.", hint) from error
    except BaseException as error:
        raise explain(error, loaded.spec, f"{what} failed") from error


def _input_versions(loaded: LoadedModel) -> list[int]:
    leaves = pytree.tree_leaves([(phase.args, phase.kwargs) for phase in loaded.phases])
    return [t._version for t in leaves if isinstance(t, torch.Tensor)]  # noqa: SLF001


def _join(timed: Sequence[Call], observed: Sequence[Call], observer: Observer) -> dict[int, str]:
    """Give the timed calls the groups of the observed ones; reasons of calls without a group, by position.

    Calls are matched by callable and number.
    """
    by_number = {number: i for i, number in enumerate(occurrences(observed))}
    reasons: dict[int, str] = {}
    for i, (call, number) in enumerate(zip(timed, occurrences(timed), strict=True)):
        j = by_number.get(number)
        if j is not None:
            call.group = observed[j].group
            if j in observer.reason_of:
                reasons[i] = observer.reason_of[j]
    return reasons
