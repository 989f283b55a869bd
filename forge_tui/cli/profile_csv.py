"""A profile as CSV (RFC 4180): a header line, then one row a hotspot, with columns whose names stay as they are."""

from __future__ import annotations

import csv
import io

from forge_tui.cli.profile_view import KEYS, CallTree, Choice
from forge_tui.core.profiles import Hotspot, Profile

#: times in milliseconds of one model call, shares from 0 to 1; an empty cell is not known
COLUMNS = (
    "id", "parent", "depth", "kind", "name", "path", "calls", "total_ms", "self_ms", "share", "host_ms", "launches",
    "floor_ms", "floor_share", "headroom_ms", "bound", "target", "target_id", "reason", "signature",
)  # fmt: skip


def as_csv(found: Profile, choice: Choice, *, ranked: bool) -> str:
    """Every hotspot in the order of the call tree, or `ranked` by what the choice sorts by; at most `limit` rows."""
    tree = CallTree(found.hotspots).rows(Choice(sort=choice.sort, everything=True))
    if ranked:
        tree.sort(key=lambda row: -KEYS[choice.sort](row[1]))
    names = {t.id: t.name for t in found.targets}
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(COLUMNS)
    for depth, spot in tree[: choice.limit or None]:
        writer.writerow(_row(depth, spot, names.get(spot.target_id or "", "")))
    return stream.getvalue()


def _row(depth: int, spot: Hotspot, target: str) -> list[object]:
    known = spot.floor_ms > 0 and spot.total_ms > 0
    return [
        spot.id, "" if spot.parent is None else spot.parent, depth, spot.kind, spot.name, spot.path, spot.calls,
        spot.total_ms, spot.self_ms, spot.share, spot.host_ms, spot.launches, spot.floor_ms if known else "",
        min(1.0, spot.floor_ms / spot.total_ms) if known else "", spot.headroom_ms, spot.bound, target,
        spot.target_id or "", spot.reason, spot.signature,
    ]  # fmt: skip
