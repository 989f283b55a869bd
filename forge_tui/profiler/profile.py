"""The whole profile of a loaded model: times, groups, targets with captured inputs, hotspots."""

from __future__ import annotations

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import msgspec
import torch

from forge_tui.core.errors import ForgeError
from forge_tui.core.profiles import Hotspot, Profile
from forge_tui.core.records import Ceilings, Device, Signature, Target
from forge_tui.models import capture
from forge_tui.models.callables import source_of
from forge_tui.models.faults import explain
from forge_tui.models.load import LoadedModel
from forge_tui.models.resolve import caller
from forge_tui.profiler.calltree import Call, Kind, Node, build_tree, merge_passes, occurrences, self_times
from forge_tui.profiler.capturing import Captured, Capturer
from forge_tui.profiler.floor import Floor, floor_of, headroom_ms
from forge_tui.profiler.observe import Group, Observer
from forge_tui.profiler.passes import ROOT, TimingListener, TooManyCalls, clock_for, time_model
from forge_tui.profiler.sites import Sites
from forge_tui.profiler.verify import replay_fault

#: below this share of the model's time a callable is not captured
MIN_SHARE = 0.001
#: targets with captured inputs, by headroom
MAX_CAPTURED = 64
#: a callable with more matrix products or convolutions inside is captured last: it is hardly one kernel
MAX_MATRIX_CALLS = 3
#: calls captured of each signature
MAX_CALLS = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes of captures in bytes: of one call, of one target (where it has more than one call), of all together."""

    call: int
    target: int
    total: int


_LIMITS = {
    "cpu": Limits(call=1 << 30, target=64 << 20, total=2 << 30),
    "cuda": Limits(call=4 << 30, target=256 << 20, total=8 << 30),
}


@dataclass(slots=True)
class _Measured:
    """A group with its place in the model's time."""

    group: Group
    time_us: float
    share: float
    signature: Signature
    floor: Floor
    headroom_ms: float

    @property
    def capture_rank(self) -> tuple[bool, float]:
        """Low comes first: what is no large container, then by headroom, matrix work discounted."""
        return self.group.matrix_calls > MAX_MATRIX_CALLS, -self.headroom_ms * (0.25 if self.floor.flops else 1.0)


def profile_model(
    loaded: LoadedModel, device: Device, artifacts: Path, *, repeats: int = 7, timing_passes: int = 5
) -> Profile:
    """Profile one model call; captured inputs go below `artifacts`.

    Raises:
        ModelError: the model's forward raised.
        StoreError: captured inputs cannot be written.
    """
    sites, clock = Sites(loaded), clock_for(loaded.device)
    warnings: list[str] = []
    with _forward(loaded):
        versions = _input_versions(loaded)
        model_ms = time_model(loaded.run, clock, repeats=repeats)
        if _input_versions(loaded) != versions:
            warnings.append("The model writes into its own inputs, so each call sees other values than the one before.")
        passes = [TimingListener(clock).run(loaded, sites) for _ in range(timing_passes)]
        observer = Observer(loaded)
        calls = observer.run(sites)
    totals, same = merge_passes(passes)
    if not same or [c.key for c in calls] != [c.key for c in passes[0]]:
        warnings.append("The model does not make the same calls each time; times of single calls are rough.")
    _join(passes[0], calls, observer)
    timed = passes[0]
    totals, selfs, overhead = self_times([c.parent for c in timed], totals, model_ms * 1e3)
    assert device.ceilings is not None
    measured = _measure(observer, timed, totals, model_ms, device.ceilings, loaded.device)
    targets = _targets(loaded, sites, measured, artifacts, model_ms)
    hotspots = _hotspots(timed, totals, selfs, observer, targets, measured, loaded)
    return Profile(device=device, model_ms=model_ms, overhead=overhead, hotspots=hotspots,
                   targets=tuple(targets.values()), warnings=tuple(warnings))  # fmt: skip


@contextlib.contextmanager
def _forward(loaded: LoadedModel) -> Iterator[None]:
    what = "The workload" if loaded.has_workload else f"The forward of {type(loaded.module).__name__}"
    try:
        yield
    except TooManyCalls as error:
        raise explain(error, loaded.spec, "The profile stopped") from error
    except (Exception, SystemExit) as error:
        raise explain(error, loaded.spec, f"{what} failed") from error


def _input_versions(loaded: LoadedModel) -> list[int]:
    leaves = torch.utils._pytree.tree_leaves([(p.args, p.kwargs) for p in loaded.phases])  # noqa: SLF001
    return [t._version for t in leaves if isinstance(t, torch.Tensor)]  # noqa: SLF001


def _join(timed: Sequence[Call], observed: Sequence[Call], observer: Observer) -> None:
    """Give the timed calls the groups of the observed ones, by callable and number of the call."""
    by_number = {number: i for i, number in enumerate(occurrences(observed))}
    reasons: dict[int, str] = {}
    for i, (call, number) in enumerate(zip(timed, occurrences(timed), strict=True)):
        j = by_number.get(number)
        if j is not None:
            call.group = observed[j].group
            if j in observer.reason_of:
                reasons[i] = observer.reason_of[j]
    observer.reason_of = reasons


def _measure(
    observer: Observer, timed: Sequence[Call], totals_us: Sequence[float], model_ms: float, ceilings: Ceilings,
    device: torch.device,
) -> dict[str, _Measured]:  # fmt: skip
    """Time, floor and headroom of every group that has a signature."""
    times: dict[str, list[float]] = defaultdict(list)
    for call, total in zip(timed, totals_us, strict=True):
        if call.group is not None:
            times[call.group].append(total)
    found: dict[str, _Measured] = {}
    for key, group in observer.groups.items():
        if group.description is None or group.result is None or key not in times:
            continue
        mean = sum(times[key]) / len(times[key])
        signature = group.signature(device)
        kind: Literal["cpu", "cuda"] = "cuda" if device.type == "cuda" else "cpu"
        floor = floor_of(signature, group.flops, ceilings, kind, group.read_bytes)
        found[key] = _Measured(group, mean, group.calls * mean / 1e3 / model_ms, signature, floor,
                               headroom_ms(group.calls, mean, floor.floor_us))  # fmt: skip
    return found


def _targets(
    loaded: LoadedModel, sites: Sites, measured: dict[str, _Measured], artifacts: Path,
    model_ms: float,
) -> dict[str, Target]:  # fmt: skip
    """Targets by group, with their inputs captured; groups that turn out not to be one get their reason."""
    limits = _LIMITS["cuda" if loaded.device.type == "cuda" else "cpu"]
    wanted: dict[str, tuple[Group, int]] = {}
    names = _names([item.group for item in measured.values() if not item.group.reason])
    left = limits.total
    for key, item in sorted(measured.items(), key=lambda pair: pair[1].capture_rank):
        group, size = item.group, sum(i.spec.nbytes for i in item.signature.inputs)
        if group.reason:
            continue
        if item.share < MIN_SHARE or item.headroom_ms < MIN_SHARE * model_ms:
            group.reason = f"it has less than {MIN_SHARE:.1%} of the model's time to give"
        elif size > min(limits.call, left):
            group.reason = f"its inputs of {size / 1e6:.0f} MB are too large to capture"
        elif len(wanted) >= MAX_CAPTURED:
            group.reason = f"{MAX_CAPTURED} others have more to give"
        else:
            count = max(1, min(MAX_CALLS, group.calls, min(limits.target, left) // max(1, size)))
            wanted[key] = (group, count)
            left -= count * size
    with _forward(loaded):
        captured = Capturer(loaded, wanted).run(sites)
    targets: dict[str, Target] = {}
    for key in wanted:
        item = measured[key]
        target = _target(item, names[key])
        if not captured[key].calls or not captured[key].outputs:
            item.group.reason = "a second run of the model did not make this call again"
            continue
        reason = replay_fault(loaded, target, captured[key])
        if reason:
            item.group.reason = reason
            continue
        targets[key] = _finished(loaded, target, captured[key], artifacts)
    return targets


def _target(item: _Measured, name: str) -> Target:
    group, signature = item.group, item.signature
    instances = tuple(group.instances) if group.site.kind == "module" else ()
    return Target(
        id=target_id(group.site.qualname, signature, group.key), name=name, kind=group.site.kind,
        qualname=group.site.qualname, instances=instances, signature=signature, calls=group.calls,
        time_us=item.time_us, share=item.share, floor_us=item.floor.floor_us, bound=item.floor.bound,
        headroom_ms=item.headroom_ms, bytes_moved=item.floor.bytes_moved, flops=item.floor.flops,
        source=source_of(group.site.module if group.site.module is not None else group.site.fn),
    )  # fmt: skip


def target_id(qualname: str, signature: Signature, group: str) -> str:
    """Equal in every run for the same callable, signature and constants; alignment and device do not count."""
    plain = msgspec.structs.replace(
        signature, device="", inputs=tuple(msgspec.structs.replace(i, align=1) for i in signature.inputs)
    )
    return hashlib.sha256(f"{qualname}\n{plain.to_json()}\n{group}".encode()).hexdigest()[:16]


def _finished(loaded: LoadedModel, target: Target, captured: Captured, artifacts: Path) -> Target:
    """The target with graph and captured inputs."""
    folder = artifacts / "captures"
    name = capture.save_by_content(folder, captured.calls)
    graph, reason = None, ""
    try:
        from forge_tui.models.trace import trace_graph

        tensors = [t.to(loaded.device) for t in captured.calls[0]]
        graph = trace_graph(caller(target, loaded, captured.instances[0] or None), target.signature, tensors)
    except ForgeError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - tracing runs the model's code on tensors without values
        reason = f"{type(error).__name__}: {error}"
    return msgspec.structs.replace(target, graph=graph, graph_reason=reason, capture=f"captures/{name}",
                                   captured_calls=len(captured.calls))  # fmt: skip


def _names(groups: Sequence[Group]) -> dict[str, str]:
    """`RMSNorm`, `RMSNorm@2`: numbered in the order of first calls, whatever was timed, so that names stay."""
    seen: dict[str, int] = defaultdict(int)
    names: dict[str, str] = {}
    for group in sorted(groups, key=lambda g: g.order):
        seen[group.site.name] += 1
        number = seen[group.site.name]
        names[group.key] = group.site.name if number == 1 else f"{group.site.name}@{number}"
    return names


def _hotspots(
    timed: Sequence[Call], totals_us: Sequence[float], selfs_us: Sequence[float], observer: Observer,
    targets: dict[str, Target], measured: dict[str, _Measured], loaded: LoadedModel,
) -> tuple[Hotspot, ...]:  # fmt: skip
    root: tuple[Kind, str, str] = ("model", type(loaded.module).__name__, "")
    labels: list[tuple[Kind, str, str]] = [
        root if call.key == ROOT else cast("tuple[Kind, str, str, str]", call.key)[:3] for call in timed
    ]
    nodes = build_tree(timed, labels, totals_us, selfs_us)
    reasons: dict[tuple[str, str], str] = {}
    for i, reason in observer.reason_of.items():
        reasons.setdefault(labels[i][:2], reason)
    whole = sum(selfs_us) or 1.0
    refused = {key: group.reason for key, group in observer.groups.items()}
    return tuple(_hotspot(node, whole, targets, measured, reasons, refused) for node in nodes)


def _hotspot(
    node: Node, whole_us: float, targets: dict[str, Target], measured: dict[str, _Measured],
    reasons: dict[tuple[str, str], str], refused: dict[str, str],
) -> Hotspot:  # fmt: skip
    item = measured.get(node.group or "")
    target = targets.get(node.group or "")
    reason = ""
    if node.kind == "model":
        reason = "the whole model"
    elif target is None:
        # a call without a group has the reason of its kind; one that another run did not make again has none
        reason = refused.get(node.group or "") or reasons.get((node.kind, node.name), "it was not called again")
    return Hotspot(
        id=node.id, parent=node.parent, name=node.name, kind=node.kind, path=node.path, calls=node.calls,
        total_ms=node.total_us / 1e3, self_ms=node.self_us / 1e3, share=node.total_us / whole_us,
        headroom_ms=max(0.0, node.total_us - node.calls * item.floor.floor_us) / 1e3 if item else 0.0,
        target_id=target.id if target else None, reason=reason,
    )  # fmt: skip
