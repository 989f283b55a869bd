"""Which groups of calls are targets: measured against their floor, captured, replayed, traced."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import torch

from forge_tui.core.errors import ForgeError
from forge_tui.core.records import Ceilings, Signature, Target
from forge_tui.models import capture
from forge_tui.models.attributes import variant
from forge_tui.models.callables import module_source_of, source_of
from forge_tui.models.load import LoadedModel
from forge_tui.models.resolve import caller
from forge_tui.profiler import stats
from forge_tui.profiler.capturing import Budget, Captured, Capturer
from forge_tui.profiler.families.siblings import families, unused_names
from forge_tui.profiler.floor import Floor, floor_of, headroom_ms
from forge_tui.profiler.measure import PhaseRun
from forge_tui.profiler.observe import Group, Observer
from forge_tui.profiler.sites import Sites
from forge_tui.profiler.verify import replay_fault

#: below this share of the model's device time a callable is not captured
MIN_SHARE = 0.001
#: targets with captured inputs, by headroom
MAX_CAPTURED = 64
#: a callable with more matrix products or convolutions inside is captured last: it is hardly one kernel
MAX_MATRIX_CALLS = 3
#: calls captured of each signature
MAX_CALLS = 4


#: bytes of captured inputs of one target, where it has more than one call
_TARGET_BYTES = {"cpu": 64 << 20, "cuda": 256 << 20}


@dataclass(slots=True)
class Measured:
    """A group with its place in the model's time."""

    group: Group
    calls: float
    """In one model call, weighted by phase."""
    time_us: float
    host_us: float
    launches: float
    share: float
    signature: Signature
    floor: Floor

    @property
    def headroom_ms(self) -> float:
        """What a perfect kernel would save in one model call."""
        return headroom_ms(self.calls, self.time_us, self.floor.floor_us)

    @property
    def capture_rank(self) -> tuple[bool, float]:
        """Low comes first: what is no large container, then by headroom, matrix work discounted."""
        return self.group.matrix_calls > MAX_MATRIX_CALLS, -self.headroom_ms * (0.25 if self.floor.flops else 1.0)


def device_ms(runs: Sequence[PhaseRun]) -> float:
    """Device time of one model call in ms: wall time on the CPU."""
    return sum(run.phase.weight * run.device_us for run in runs) / 1e3


def measure_groups(
    observer: Observer, runs: Sequence[PhaseRun], ceilings: Ceilings, device: torch.device
) -> dict[str, Measured]:
    """Time, floor and headroom of every group that has a signature and was timed."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for run in runs:
        for row in run.rows:
            if row.call.group is not None:
                found = sums[row.call.group]
                for i, value in enumerate((1.0, row.total_us, row.host_us, row.launches)):
                    found[i] += row.weight * value
    whole = device_ms(runs) or 1.0
    kind: Literal["cpu", "cuda"] = "cuda" if device.type == "cuda" else "cpu"
    measured: dict[str, Measured] = {}
    for key, group in observer.groups.items():
        if group.description is None or group.result is None or key not in sums:
            continue
        calls, total, host, launches = sums[key]
        signature = group.signature(device)
        measured[key] = Measured(
            group, calls, total / calls, host / calls, launches / calls, total / 1e3 / whole, signature,
            floor_of(signature, group.flops, ceilings, kind, group.read_bytes),
        )  # fmt: skip
    return measured


def find_targets(
    loaded: LoadedModel, sites: Sites, measured: dict[str, Measured], artifacts: Path, capture_bytes: int,
    runs: Sequence[PhaseRun],
) -> dict[str, Target]:  # fmt: skip
    """Targets by group, with their inputs captured; groups that turn out not to be one get their reason."""
    wanted: dict[str, tuple[Group, int]] = {}
    names = _names([item.group for item in measured.values() if not item.group.reason])
    enough = MIN_SHARE * device_ms(runs)

    def worth(item: Measured) -> bool:
        return item.share >= MIN_SHARE and item.headroom_ms >= enough

    # where sizes are to vary, one kernel serves all calls of a callable that is worth it, however rare some are
    worthy = {m.group.site.qualname for m in measured.values() if worth(m)} if loaded.spec.dynamic else set()
    for key, item in sorted(measured.items(), key=lambda pair: pair[1].capture_rank):
        group = item.group
        if group.reason:
            continue
        if not worth(item) and group.site.qualname not in worthy:
            group.reason = f"it has less than {MIN_SHARE:.1%} of the model's time to give"
        elif len(wanted) >= MAX_CAPTURED:
            group.reason = f"{MAX_CAPTURED} others have more to give"
        else:
            wanted[key] = (group, min(MAX_CALLS, group.calls))
    budget = Budget(capture_bytes, _TARGET_BYTES["cuda" if loaded.device.type == "cuda" else "cpu"])
    captured = Capturer(loaded, wanted, budget).run(sites)
    targets: dict[str, Target] = {}
    for key in wanted:
        item = measured[key]
        target = _target(item, names[key])
        if captured[key].refused:
            item.group.reason = captured[key].refused
            continue
        if not captured[key].calls or not captured[key].outputs:
            item.group.reason = "a second run of the model did not make this call again"
            continue
        reason = replay_fault(loaded, target, captured[key])
        if reason:
            item.group.reason = reason
            continue
        targets[key] = _finished(loaded, target, captured.pop(key), artifacts)
    return targets


def _target(item: Measured, name: str) -> Target:
    group, signature = item.group, item.signature
    instances = tuple(group.instances) if group.site.kind == "module" else ()
    return Target(
        id=target_id(group.site.qualname, signature, group.key), name=name, kind=group.site.kind,
        qualname=group.site.qualname, instances=instances, signature=signature, calls=max(1, round(item.calls)),
        time_us=item.time_us, share=item.share, floor_us=item.floor.floor_us, bound=item.floor.bound,
        headroom_ms=item.headroom_ms, bytes_moved=item.floor.bytes_moved, flops=item.floor.flops,
        source=source_of(group.site.module if group.site.module is not None else group.site.fn),
        module_source=module_source_of(group.site.module if group.site.module is not None else group.site.fn),
        host_us=item.host_us, launches=item.launches, phases=tuple(filter(None, group.phases)),
        variant=variant(group.site.module),
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
    graph, reason, statistics = None, "", {}
    try:
        from forge_tui.models.trace import trace_graph

        tensors = captured.tensors(0, loaded.device)
        statistics = stats.of_inputs(target.signature, tensors)
        graph = trace_graph(caller(target, loaded, captured.instances[0] or None), target.signature, tensors)
    except ForgeError as error:
        reason = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - tracing runs the model's code on tensors without values
        reason = f"{type(error).__name__}: {error}"
    return msgspec.structs.replace(target, graph=graph, graph_reason=reason, capture=f"captures/{name}",
                                   captured_calls=len(captured.calls), statistics=statistics)  # fmt: skip


def _names(groups: Sequence[Group]) -> dict[str, str]:
    """`RMSNorm`, `RMSNorm@2`: numbered in the order of first calls, whatever was timed, so that names stay."""
    seen: dict[str, int] = defaultdict(int)
    names: dict[str, str] = {}
    for group in sorted(groups, key=lambda g: g.order):
        seen[group.site.name] += 1
        number = seen[group.site.name]
        names[group.key] = group.site.name if number == 1 else f"{group.site.name}@{number}"
    return names


def with_families(targets: dict[str, Target], named: Sequence[str]) -> tuple[dict[str, Target], tuple[str, ...]]:
    """The targets with their families and dynamic dimensions, and names of dimensions that fit none."""
    found = families(list(targets.values()), named)
    joined = {
        key: msgspec.structs.replace(target, family=found[target.id][0], dynamic=found[target.id][1])
        for key, target in targets.items()
    }
    return joined, unused_names(named, found)
