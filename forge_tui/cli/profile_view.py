"""A profile as text: what the model does, its call tree, targets, kernels, baselines and what-ifs."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from forge_tui.core.profiles import Hotspot, Profile
from forge_tui.report import profile as tables
from forge_tui.report.format import count, one_line, percent, span, time_ms, time_us, times
from forge_tui.report.table import Column, Table, render

Sort = Literal["total", "self", "headroom", "calls", "host"]
KEYS: Mapping[Sort, Callable[[Hotspot], float]] = {
    "total": lambda s: s.total_ms, "self": lambda s: s.self_ms, "headroom": lambda s: s.headroom_ms,
    "calls": lambda s: s.calls, "host": lambda s: s.host_ms,
}  # fmt: skip
#: callables whose part is below this share of the largest are left out of the tree
_LEAST_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows are shown, in which order."""

    sort: Sort = "total"
    limit: int = 0
    """Most rows of a table; 0 for no limit."""
    everything: bool = False
    """Whether small callables are shown too."""


@dataclass(slots=True)
class CallTree:
    """The hotspots with their children; what is shown of them is chosen by `rows`."""

    hotspots: Sequence[Hotspot]
    children: dict[int | None, list[Hotspot]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        ids = {spot.id for spot in self.hotspots}
        for spot in self.hotspots:
            self.children[spot.parent if spot.parent in ids else None].append(spot)

    def rows(self, choice: Choice) -> list[tuple[int, Hotspot]]:
        """(depth, hotspot) depth first, the largest first; parents of what is shown are shown as well."""
        key = KEYS[choice.sort]
        order = [spot for _, spot in self._walk(lambda _: 0.0)]
        parents = {child.id: spot for spot in order for child in self.children[spot.id]}
        largest: dict[int, float] = {}
        for spot in reversed(order):
            largest[spot.id] = max([key(spot), *(largest[child.id] for child in self.children[spot.id])])
        most = max(largest.values(), default=0.0)
        kept = [s for s in order if choice.everything or key(s) >= _LEAST_SHARE * most or s.parent is None]
        if choice.limit and len(kept) > choice.limit:
            kept = sorted(kept, key=lambda s: -key(s))[: choice.limit]
        shown: set[int] = set()
        for spot in kept:
            at: Hotspot | None = spot
            while at is not None and at.id not in shown:
                shown.add(at.id)
                at = parents.get(at.id)
        return [(depth, spot) for depth, spot in self._walk(lambda s: largest[s.id]) if spot.id in shown]

    def _walk(self, value: Callable[[Hotspot], float]) -> list[tuple[int, Hotspot]]:
        stack = [(0, spot) for spot in sorted(self.children[None], key=value)]
        found = []
        while stack:
            depth, spot = stack.pop()
            found.append((depth, spot))
            stack += [(depth + 1, child) for child in sorted(self.children[spot.id], key=value)]
        return found


def as_text(found: Profile, model: str, width: int = 0, choice: Choice | None = None) -> str:
    """Everything the profile holds; lines of at most `width` characters unless that is 0."""
    choice = choice or Choice()
    names = {t.id: t.name for t in found.targets}
    cuda = found.device.kind == "cuda"
    tree, hidden = _tree(found, names, choice)
    parts = [_head(found, model, width), _render(tree, width, titled=False)]
    if hidden:
        below = f", below {percent(_LEAST_SHARE)} of the largest; --all shows them"
        parts[-1] += f"\n{count(hidden, 'callable')} not shown{'' if choice.limit else below}."
    optional = [
        tables.phases(found.phases, launches=cuda),
        tables.targets(found, choice.limit),
        tables.kernels(found.hotspots, choice.limit or (0 if choice.everything else 10)),
        tables.baselines(found.baselines),
        tables.target_baselines(found.target_baselines, names),
        tables.what_ifs(found.what_ifs, names),
    ]
    if not found.targets:
        optional[1] = None
        whole = "What the model's forward does itself is none: move it to a module or a function that it calls."
        said = f"There is no target that a kernel could replace. {whole}"
        parts.append("\n".join(textwrap.wrap(said, width) if width else [said]))
    parts[1:1] = [_render(optional[0], width)] if optional[0] else []
    parts += [_render(table, width) for table in optional[1:] if table]
    return "\n\n".join(parts)


def _head(found: Profile, model: str, width: int) -> str:
    device = found.device
    lines = [f"{one_line(model)} on {device.name} ({one_line(device.model)}): {span(found.model_ms)} a call"]
    facts = []
    if device.kind == "cuda" and found.busy_ms:
        facts.append(f"GPU busy {time_ms(found.busy_ms)}, idle {percent(found.idle_share)} of the time")
        facts.append(count(found.launches, "launch", "launches"))
    facts.append(f"{times(found.overhead)} the time while profiled")
    facts.append(f"two passes agree on {percent(found.agreement).replace('.0%', '%')} of the longest callables")
    lines.append("; ".join(facts))
    if found.disturbed:
        lines.append(f"Times are too long: other processes used {found.others:.1f} of {count(device.cores, 'core')} "
                     "meanwhile. --fresh measures again.")  # fmt: skip
    return "\n".join(part for line in lines for part in (textwrap.wrap(line, width) if width else [line]))


def _tree(found: Profile, names: Mapping[str, str], choice: Choice) -> tuple[Table, int]:
    cuda = found.device.kind == "cuda"
    shown = CallTree(found.hotspots).rows(choice)
    columns = [
        Column("where the time goes", 44, least=22), Column("calls", right=True, drop=3), Column("total", right=True),
        Column("self", right=True, drop=4), Column("share", right=True), Column("host", right=True, drop=7),
        Column("launches", right=True, drop=6), Column("% floor", right=True, drop=2),
        Column("headroom", right=True, drop=1), Column("bound", drop=5),
        Column("target, or why not", 80, least=20),
    ]  # fmt: skip
    # one unit for the whole column, so that it can be read down
    time = time_ms if found.model_ms >= 1 else lambda ms: time_us(1e3 * ms)
    rows = [
        ("  " * depth + spot.name, str(spot.calls), time(spot.total_ms), time(spot.self_ms), percent(spot.share),
         time(spot.host_ms), str(spot.launches), reached(spot), time(spot.headroom_ms) if spot.headroom_ms else "-",
         spot.bound or "-", names.get(spot.target_id or "", spot.reason))
        for depth, spot in shown
    ]  # fmt: skip
    # on the CPU host time and launches say nothing that the time does not
    keep = [i for i, column in enumerate(columns) if cuda or column.head not in ("host", "launches")]
    table = Table("Call tree", tuple(columns[i] for i in keep), tuple(tuple(row[i] for i in keep) for row in rows))
    return table, len(found.hotspots) - len(shown)


def reached(spot: Hotspot) -> str:
    """How much of its floor a callable reaches, `-` where there is no floor."""
    return percent(min(1.0, spot.floor_ms / spot.total_ms)) if spot.floor_ms > 0 and spot.total_ms > 0 else "-"


def _render(table: Table, width: int, *, titled: bool = True) -> str:
    lines = [table.title, ""] if titled else []
    lines.append(render(table.columns, table.rows, width))
    for note in table.notes:
        lines += textwrap.wrap(one_line(note), width, subsequent_indent="  ") if width else [one_line(note)]
    return "\n".join(lines)
