"""The stable facts of a target for its template: source, header, tensors with their statistics, times."""

from __future__ import annotations

from typing import Any

from forge_tui.contract import dims, header
from forge_tui.core.errors import ContractError
from forge_tui.core.records import Device, InputStats, Node, Target
from forge_tui.core.timings import SideTime
from forge_tui.proposers.tokens import cap
from forge_tui.proposers.words import microseconds

#: tokens
CAP_PYTHON, CAP_HEADER, CAP_TENSORS = 1300, 1100, 700
#: of the file around the callable, where a person lets it be sent
CAP_MODULE = 2500

#: where the header's support functions begin, which the contract describes
_SUPPORT = "// ---- forge::"
_SIDES = {"eager": "the original", "compile": "the original under torch.compile"}


def values(
    target: Target, device: Device, nodes: tuple[Node, ...] = (), *, whole_module: bool = False
) -> dict[str, Any]:
    """What the target card's template uses, as `target`."""
    sides = _sides(nodes)
    baseline = min((side.us for side in sides), default=_baseline(nodes))
    return {"target": {
        "name": target.name, "qualname": target.qualname, "source": cap(target.source.strip(), CAP_PYTHON),
        "module": cap(target.module_source.strip(), CAP_MODULE) if whole_module else "",
        "sizes": [dims.words(target, sibling) for sibling in target.siblings],
        "tensors": cap("\n".join(_tensors(target)), CAP_TENSORS), "header": _header(target, device),
        "profile_us": microseconds(target.time_us), "calls": target.calls, "share": f"{target.share:.1%}",
        "launches": round(target.launches), "floor_us": microseconds(target.floor_us), "bound": target.bound,
        "bytes": target.bytes_moved, "flops": target.flops,
        "sides": [{"name": _SIDES.get(side.name, side.name), "time": microseconds(side.us)} for side in sides],
        "to_beat": microseconds(baseline or target.time_us),
    }}  # fmt: skip


def _tensors(target: Target) -> list[str]:
    signature = target.signature
    lines = []
    for kind, items in (("input", signature.inputs), ("output", signature.outputs)):
        for item in items:
            spec = item.spec
            order = "" if spec.contiguous else " (not row-major)"
            text = f"- {kind} {item.name}: {spec.dtype}, shape {list(spec.shape)}, strides {list(spec.strides)}{order}"
            seen = target.statistics.get(item.name) if kind == "input" else None
            lines.append(text + (f"; {_seen(seen)}" if seen else ""))
    return lines + [f"- constant {s.name} = {s.value!r}" for s in signature.scalars]


def _seen(stats: InputStats) -> str:
    """`seen: -3.1 to 3.2, mean 0.01, std 1.0`; the hidden inputs have others."""
    if stats.low == stats.high:
        text = f"seen: {stats.low:.4g} everywhere"
    else:
        text = f"seen: {stats.low:.3g} to {stats.high:.3g}, mean {stats.mean:.3g}, std {stats.std:.3g}"
    if stats.zeros >= 0.01 and stats.low != stats.high:
        text += f", {stats.zeros:.0%} zeros"
    if stats.finite < 1:
        text += f", {1 - stats.finite:.2%} not finite"
    return text


def _header(target: Target, device: Device) -> str:
    """The generated header without its support functions, which the contract describes."""
    try:
        text = header.render(target, device)
    except ContractError as error:
        return f"// not available: {error.what}"
    return cap(text.split(_SUPPORT, 1)[0].strip(), CAP_HEADER)


def _sides(nodes: tuple[Node, ...]) -> list[SideTime]:
    """The baselines beside the oldest right kernel: later ones would change the card for their noise alone."""
    found = next((n.evaluation.timings for n in nodes if n.evaluation and n.evaluation.timings), None)
    return [side for side in found.sides if side.name != "candidate"] if found else []


def _baseline(nodes: tuple[Node, ...]) -> float | None:
    """The original's time beside the oldest right kernel."""
    return next((n.evaluation.baseline_us for n in nodes if n.evaluation and n.evaluation.baseline_us), None)
