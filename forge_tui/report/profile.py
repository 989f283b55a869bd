"""Tables of what a profile holds beside the call tree: targets, kernels, phases, baselines, what-ifs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from forge_tui.core.profiles import Baseline, Hotspot, PhaseTime, Profile, TargetBaselines, WhatIf, short_kernel
from forge_tui.core.records import Target
from forge_tui.core.reports import ProfileSummary
from forge_tui.report.format import number, one_line, percent, span, time_us, times
from forge_tui.report.table import Column, Table

_SHORT = {"compile max-autotune-no-cudagraphs": "max-autotune", "compile reduce-overhead": "reduce-overhead",
          "graph": "CUDA graph"}  # fmt: skip
_MODES = {"eager": "eager", "compile": "torch.compile", "graph": "CUDA graph"}
#: a difference below this share of the model's time is said to be none
_NOTHING = 0.0005


def profile_tables(found: ProfileSummary | None, *, cuda: bool) -> list[Table]:
    """What a report shows of a profile: phases, baselines, what-ifs, as far as they were measured."""
    if found is None:
        return []
    tables = (
        phases(found.phases, launches=cuda), baselines(found.baselines),
        target_baselines(found.target_baselines, found.target_names), what_ifs(found.what_ifs, found.target_names),
    )  # fmt: skip
    return [table for table in tables if table is not None]


def phases(found: Sequence[PhaseTime], *, launches: bool) -> Table | None:
    """The phases with their weights; None where there is but one."""
    if len(found) < 2:
        return None
    whole = sum(p.weight * p.ms for p in found)
    columns = [Column("phase", 30, least=12), Column("weight", right=True), Column("a call", right=True),
               Column("share", right=True)]  # fmt: skip
    rows = [[p.name, number(p.weight), span(p.ms), percent(p.weight * p.ms / whole if whole else 0.0)]
            for p in found]  # fmt: skip
    if launches:
        columns += [Column("GPU busy", right=True), Column("idle", right=True), Column("launches", right=True)]
        for row, p in zip(rows, found, strict=True):
            idle = max(0.0, 1 - p.busy_ms / p.ms) if p.ms else 0.0
            row += [span(p.busy_ms), percent(idle), str(p.launches)]
    return Table("Phases", tuple(columns), tuple(map(tuple, rows)))


def targets(profile: Profile, limit: int = 0) -> Table | None:
    """The targets, most headroom first; None where there are none."""
    ranked = sorted(profile.targets, key=lambda t: -t.headroom_ms)
    shown = ranked[:limit] if limit else ranked
    families = {t.family for t in ranked if t.family and sum(o.family == t.family for o in ranked) > 1}
    numbers = {family: f"{at}" for at, family in enumerate(sorted(families, key=lambda f: _first(ranked, f)), 1)}
    columns = (
        Column("target", 40, least=14), Column("calls", right=True, drop=2), Column("a call", right=True),
        Column("floor", right=True, drop=4), Column("% floor", right=True, drop=5),
        Column("share", right=True, drop=3), Column("headroom", right=True), Column("bound", drop=6),
        Column("family", right=True, drop=8), Column("varies", 40, least=8, drop=7),
        Column("signature", 90, least=20, drop=1),
    )  # fmt: skip
    rows = tuple(
        (t.name, str(t.calls), time_us(t.time_us), time_us(t.floor_us), percent(t.floor_share), percent(t.share),
         span(t.headroom_ms), t.bound, numbers.get(t.family, ""), _dynamic(t), t.signature.describe())
        for t in shown
    )  # fmt: skip
    keep = [i for i, column in enumerate(columns) if column.head not in ("family", "varies") or any(r[i] for r in rows)]
    left = len(ranked) - len(shown)
    notes = (f"{left} more with less headroom.",) if left else ()
    table = Table("Targets", tuple(columns[i] for i in keep), tuple(tuple(r[i] for i in keep) for r in rows), notes)
    return table if rows else None


def _first(ranked: Sequence[Target], family: str) -> int:
    return next(at for at, t in enumerate(ranked) if t.family == family)


def _dynamic(target: Target) -> str:
    return ", ".join(f"{d.name}={'|'.join(map(str, d.sizes[:4]))}{'...' if len(d.sizes) > 4 else ''}"
                     for d in target.dynamic)  # fmt: skip


def kernels(hotspots: Sequence[Hotspot], limit: int = 10) -> Table | None:
    """The device kernels of all callables by name, longest first; None on the CPU."""
    launches: dict[str, int] = defaultdict(int)
    total: dict[str, float] = defaultdict(float)
    longest: dict[str, tuple[float, str]] = {}
    for spot in hotspots:
        for kernel in spot.kernels:
            launches[kernel.name] += kernel.launches
            total[kernel.name] += kernel.total_ms
            longest[kernel.name] = max(longest.get(kernel.name, (0.0, "")), (kernel.total_ms, spot.name))
    whole = max((s.total_ms for s in hotspots if s.parent is None), default=0.0)
    ranked = sorted(total, key=lambda name: (-total[name], name))
    rows = tuple(
        (short_kernel(one_line(name)), str(launches[name]), span(total[name]),
         percent(total[name] / whole if whole else 0.0), longest[name][1])
        for name in ranked[: limit or None]
    )  # fmt: skip
    columns = (Column("kernel", 100, least=24), Column("launches", right=True), Column("total", right=True),
               Column("share", right=True), Column("most in", 30, least=10, drop=1))  # fmt: skip
    left = len(ranked) - len(rows)
    return Table("Kernels", columns, rows, (f"{left} more that take less.",) if left else ()) if rows else None


def baselines(found: Sequence[Baseline]) -> Table | None:
    """Ways to run the whole model, and how much faster than eager each is."""
    if not found:
        return None
    eager = next((b.ms for b in found if b.name == "eager"), None)
    columns = (Column("the model, run by", 60, least=16), Column("time", right=True), Column("over eager", right=True),
               Column("set-up", right=True, drop=1), Column("difference", right=True, drop=2))  # fmt: skip
    rows = tuple(
        (b.name, "failed" if b.ms is None else span(b.ms), "-" if b.failure else times(_over(eager, b.ms)),
         f"{b.setup_s:.1f} s" if b.setup_s else "-", "-" if b.max_abs_error is None else f"{b.max_abs_error:.2g}")
        for b in found
    )  # fmt: skip
    notes = tuple(f"{b.name}: {b.failure}" for b in found if b.failure)
    return Table("Baselines of the model", columns, rows, notes)


def target_baselines(found: Sequence[TargetBaselines], names: Mapping[str, str]) -> Table | None:
    """One row a target, one column a way to run it."""
    ways = list(dict.fromkeys(b.name for t in found for b in t.baselines))
    if not ways:
        return None
    columns = [Column("target", 40, least=14)]
    columns += [Column(_SHORT.get(way, way), 24, right=True, drop=at) for at, way in enumerate(ways)]
    rows, notes = [], []
    for entry in found:
        name = names.get(entry.target_id, entry.target_id)
        by_way = {b.name: b for b in entry.baselines}
        rows.append((name, *(_cell(by_way.get(way)) for way in ways)))
        notes += [f"{name}, {b.name}: {b.failure}" for b in entry.baselines if b.failure]
    return Table("Baselines of the targets", tuple(columns), tuple(rows), tuple(notes))


def _cell(baseline: Baseline | None) -> str:
    if baseline is None:
        return "-"
    return "failed" if baseline.ms is None or baseline.failure else span(baseline.ms)


def what_ifs(found: Sequence[WhatIf], names: Mapping[str, str]) -> Table | None:
    """What the model gains where targets cost their floor: a row a target, the sum line `together` last."""
    if not found:
        return None
    modes = [mode for mode in _MODES if any(w.mode == mode for w in found)]
    sets = sorted(dict.fromkeys(w.target_ids for w in found if w.target_ids), key=lambda ids: len(ids) > 1)
    by_key: dict[tuple[str, tuple[str, ...]], WhatIf] = {(w.mode, w.target_ids): w for w in found}
    columns = [Column("at its floor", 40, least=16)]
    columns += [Column(_MODES[mode], right=True) for mode in modes]
    as_it_is = [next((w.base_ms for w in found if w.mode == mode and w.base_ms is not None), None) for mode in modes]
    rows = [("nothing: the model as it is", *map(span, as_it_is))]
    notes = []
    for ids in sets:
        label = names.get(ids[0], ids[0]) if len(ids) == 1 else f"together: {len(ids)} targets"
        rows.append((label, *(_gain(by_key.get((mode, ids))) for mode in modes)))
    for w in found:
        if w.failure:
            what = names.get(w.target_ids[0], w.target_ids[0]) if len(w.target_ids) == 1 else "together"
            notes.append(f"{what if w.target_ids else 'the model'}, {_MODES[w.mode]}: {w.failure}")
    return Table("What if: time saved in the whole model", tuple(columns), tuple(rows), tuple(dict.fromkeys(notes)))


def _gain(what_if: WhatIf | None) -> str:
    if what_if is None:
        return "-"
    if what_if.ms is None or what_if.base_ms is None:
        return "failed"
    change, share = what_if.base_ms - what_if.ms, (what_if.base_ms - what_if.ms) / (what_if.base_ms or 1.0)
    if abs(share) < _NOTHING:
        return "none"
    return f"{span(change)} {percent(share)}" if change > 0 else f"loses {span(-change)} {percent(-share)}"


def _over(base: float | None, ms: float | None) -> float | None:
    return base / ms if base is not None and ms else None
