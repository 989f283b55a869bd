"""`profile`: where a model spends its time, and what a kernel could replace."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator

import msgspec

from forge_tui.cli import output
from forge_tui.cli.commands.run import resolve_device
from forge_tui.cli.table import Column, render, terminal_width
from forge_tui.core.errors import ExitCode
from forge_tui.core.paths import workspace_for
from forge_tui.core.profiles import Hotspot, Profile
from forge_tui.core.records import RunOptions
from forge_tui.engine.check import profile_cached
from forge_tui.engine.rooms import WorkerRooms
from forge_tui.models.spec import is_example, parse_model
from forge_tui.report.format import one_line, time_ms, time_us

#: hotspots below this share of the model's time are left out of the table, not of the JSON
_LEAST_SHARE = 0.005


def profile(
    *, model: str, device: str, workspace: str | None, threads: int, seed: int, dtype: str | None, as_json: bool
) -> int:  # fmt: skip
    """Profile a model in a worker and print what was found; returns the exit code."""
    spec = parse_model(model, dtype)
    resolved = resolve_device(device)
    if is_example(spec) and dtype is None and resolved.startswith("cuda"):
        spec = msgspec.structs.replace(spec, dtype="bfloat16")
    place = workspace_for(None if is_example(spec) else spec.path, workspace)
    options = RunOptions(model=spec, device=resolved, workspace=str(place.root), threads=threads, seed=seed)
    found = asyncio.run(profile_cached(WorkerRooms(options, place, "profile"), options, place, fresh=True))
    if as_json:
        output.document(found)
    else:
        output.text(as_text(found, model, terminal_width()))
        for warning in found.warnings:
            output.note(f"warning: {one_line(warning)}")
    return int(ExitCode.OK)


def as_text(found: Profile, model: str, width: int = 0) -> str:
    """The call tree, then the targets by headroom; lines cut at `width` unless that is 0."""
    device = found.device
    head = f"{one_line(model)} on {device.name} ({one_line(device.model)}): {time_ms(found.model_ms)} a call"
    tree = [Column("where the time goes", 38), Column("calls", right=True), Column("total", right=True),
            Column("share", right=True), Column("headroom", right=True), Column("target, or why not", 60)]  # fmt: skip
    names = {t.id: t.name for t in found.targets}
    rows = [
        ("  " * depth + spot.name, str(spot.calls), time_ms(spot.total_ms), f"{100 * spot.share:.1f}%",
         time_ms(spot.headroom_ms) if spot.headroom_ms else "-", names.get(spot.target_id or "", spot.reason))
        for depth, spot in _walk(found.hotspots)
    ]  # fmt: skip
    lines = [head, "", render(tree, rows, width), ""]
    if not found.targets:
        return "\n".join([*lines, "There is no target that a kernel could replace."])
    columns = [Column("target", 30), Column("calls", right=True), Column("a call", right=True),
               Column("floor", right=True), Column("share", right=True), Column("headroom", right=True),
               Column("bound"), Column("signature", 90)]  # fmt: skip
    ranked = sorted(found.targets, key=lambda t: -t.headroom_ms)
    lines.append(render(columns, [
        (t.name, str(t.calls), time_us(t.time_us), time_us(t.floor_us), f"{100 * t.share:.1f}%", time_ms(t.headroom_ms),
         t.bound, t.signature.describe())
        for t in ranked
    ], width))  # fmt: skip
    return "\n".join(lines)


def _walk(hotspots: tuple[Hotspot, ...]) -> Iterator[tuple[int, Hotspot]]:
    """Depth first, the longest first."""
    children: dict[int | None, list[Hotspot]] = defaultdict(list)
    ids = {spot.id for spot in hotspots}
    for spot in hotspots:
        children[spot.parent if spot.parent in ids else None].append(spot)
    stack = [(0, spot) for spot in sorted(children[None], key=lambda s: s.total_ms)]
    while stack:
        depth, spot = stack.pop()
        if spot.share < _LEAST_SHARE and depth:
            continue
        yield depth, spot
        stack += [(depth + 1, child) for child in sorted(children[spot.id], key=lambda s: s.total_ms)]
