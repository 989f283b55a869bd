"""The tree of hotspots: rows of all phases under one root, each node with its floor, target or reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from forge_tui.core.profiles import Hotspot, HotspotKind, KernelTime
from forge_tui.core.records import Target
from forge_tui.models.load import LoadedModel
from forge_tui.profiler.calltree import Call, Node, Row, build_tree
from forge_tui.profiler.measure import PhaseRun
from forge_tui.profiler.observe import Observer
from forge_tui.profiler.passes import ROOT
from forge_tui.profiler.targets import Measured

#: kernels kept of one node
_MAX_KERNELS = 5
_LONGEST_NAME = 160

Label = tuple[HotspotKind, str, str]


def hotspots_of(
    loaded: LoadedModel, runs: Sequence[PhaseRun], reasons: Sequence[dict[int, str]], observer: Observer,
    measured: dict[str, Measured], targets: dict[str, Target],
) -> tuple[Hotspot, ...]:  # fmt: skip
    """The nodes, parents first and siblings by time. `reasons` has those of calls without a group, by phase."""
    rows, labels = _joined(runs, type(loaded.module).__name__)
    why: dict[tuple[str, str], str] = {}
    offset = len(rows) - sum(len(run.rows) for run in runs)
    for run, found in zip(runs, reasons, strict=True):
        for i, reason in found.items():
            why.setdefault(labels[offset + i][:2], reason)
        offset += len(run.rows)
    refused = {key: group.reason for key, group in observer.groups.items()}
    nodes = build_tree(rows, labels)
    whole = nodes[0].total_us or 1.0
    return tuple(_hotspot(node, whole, targets, measured, why, refused) for node in nodes)


def _joined(runs: Sequence[PhaseRun], model: str) -> tuple[list[Row], list[Label]]:
    """The rows of all phases under one root; a single phase without a name is the root itself."""
    if len(runs) == 1 and not runs[0].phase.name:
        return runs[0].rows, [_label(row, ("model", model, "")) for row in runs[0].rows]
    rows = [Row(Call(ROOT, -1), *(sum(r.phase.weight * getattr(r.rows[0], f) for r in runs) for f in
                                  ("total_us", "self_us", "host_us")))]  # fmt: skip
    rows[0].self_us = 0.0
    rows[0].launches = round(sum(r.phase.weight * r.launches for r in runs))
    labels: list[Label] = [("model", model, "")]
    for run in runs:
        offset = len(rows)
        for row in run.rows:
            parent = row.call.parent + offset if row.call.parent >= 0 else 0
            call = Call(row.call.key, parent, row.call.total_us, row.call.group)
            rows.append(Row(call, row.total_us, row.self_us, row.host_us, row.launches, row.kernels, row.weight))
            labels.append(_label(row, ("phase", run.phase.name, "")))
    return rows, labels


def _label(row: Row, root: Label) -> Label:
    return root if row.call.key == ROOT else cast("tuple[HotspotKind, str, str, str]", row.call.key)[:3]


def _hotspot(
    node: Node, whole_us: float, targets: dict[str, Target], measured: dict[str, Measured],
    reasons: dict[tuple[str, str], str], refused: dict[str, str],
) -> Hotspot:  # fmt: skip
    item = measured.get(node.group or "")
    target = targets.get(node.group or "")
    reason = ""
    if node.kind == "model":
        reason = "the whole model"
    elif node.kind == "phase":
        reason = "a phase of the model"
    elif target is None:
        # a call without a group has the reason of its kind; one that another run did not make again has none
        reason = refused.get(node.group or "") or reasons.get((node.kind, node.name), "it was not called again")
    floor_us = node.calls * item.floor.floor_us if item else 0.0
    return Hotspot(
        id=node.id, parent=node.parent, name=node.name, kind=node.kind, path=node.path, calls=round(node.calls),
        total_ms=node.total_us / 1e3, self_ms=node.self_us / 1e3, share=node.total_us / whole_us,
        headroom_ms=max(0.0, node.total_us - floor_us) / 1e3 if item else 0.0,
        target_id=target.id if target else None, reason=reason, floor_ms=floor_us / 1e3,
        bound=item.floor.bound if item else "", host_ms=node.host_us / 1e3, launches=round(node.launches),
        signature=item.signature.describe() if item else "", kernels=_kernels(node),
    )  # fmt: skip


def _kernels(node: Node) -> tuple[KernelTime, ...]:
    longest = sorted(node.kernels.items(), key=lambda pair: -pair[1][1])[:_MAX_KERNELS]
    return tuple(
        KernelTime(name=name[:_LONGEST_NAME], launches=round(count), total_ms=us / 1e3) for name, (count, us) in longest
    )
