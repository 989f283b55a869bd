"""`profile`: where a model spends its time, what a kernel could replace, and what that would give."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from forge_tui.cli import output
from forge_tui.cli.commands.run import check_numbers, gibibytes, locate
from forge_tui.cli.profile_view import Choice, as_text
from forge_tui.core.errors import ExitCode
from forge_tui.core.paths import Workspace
from forge_tui.core.profiles import Profile
from forge_tui.core.records import RunOptions
from forge_tui.engine import profiles
from forge_tui.engine.rooms import WorkerRooms
from forge_tui.models.spec import ModelRequest
from forge_tui.report.format import one_line
from forge_tui.targets.select import choose


@dataclass(frozen=True, slots=True)
class Shown:
    """How the profile is printed."""

    form: Literal["table", "json", "csv"] = "table"
    choice: Choice = field(default_factory=Choice)
    ranked: bool = False
    """CSV rows by size instead of in the tree's order."""
    trace: Path | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What is measured beside the call tree; what a saved profile has of it is not measured again."""

    fresh: bool = False
    baselines: bool = False
    what_if: bool = False
    top: int = 5
    """Targets, those first that the search would take first, whose baselines and ceilings are measured."""
    allow_tf32: bool = False


def profile(
    *, model: str, request: ModelRequest, device: str, workspace: str | None, threads: int, seed: int,
    capture_gb: float, measured: Measured, shown: Shown,
) -> int:  # fmt: skip
    """Profile a model in a worker, or take what is saved, and print it; returns the exit code."""
    from forge_tui.cli import profile_trace

    check_numbers(threads, seed)
    spec, resolved, place = locate(model, device, request, workspace)
    if shown.trace is not None:
        profile_trace.check_place(shown.trace)
    options = RunOptions(model=spec, device=resolved, workspace=str(place.root), threads=threads, seed=seed,
                         capture_bytes=gibibytes(capture_gb))  # fmt: skip
    found = asyncio.run(_measure(options, place, measured))
    if shown.trace is not None:
        profile_trace.write_trace(shown.trace, found, model)
        output.note(f"Wrote {shown.trace}; it opens in https://ui.perfetto.dev and chrome://tracing.")
    if shown.form == "json":
        output.document(found)
    elif shown.form == "csv":
        from forge_tui.cli.profile_csv import as_csv

        output.text(as_csv(found, shown.choice, ranked=shown.ranked))
    else:
        output.text(as_text(found, model, output.terminal_width(), shown.choice))
    for warning in found.warnings:
        output.note(f"warning: {one_line(warning)}")
    return int(ExitCode.OK)


async def _measure(options: RunOptions, place: Workspace, measured: Measured) -> Profile:
    """Each step is saved when it is done, so that an interrupt loses no more than the one at work."""
    place.prepare()
    rooms = WorkerRooms(options, place, "profile")
    found = None if measured.fresh else profiles.find(options, place)
    if found is None:
        output.note(f"Profiling {one_line(options.model.text)} on {options.device} ...")
        found = profiles.keep(await rooms.profile(), options, place)
    else:
        output.note("Reused the saved profile: nothing has changed since. --fresh measures again.")
    ids = _worth_measuring(found, measured.top)
    if measured.baselines and not _has_baselines(found, ids, allow_tf32=measured.allow_tf32):
        found = await rooms.baselines(found, ids, allow_tf32=measured.allow_tf32, on_progress=output.note)
        found = profiles.keep(found, options, place)
    if measured.what_if:
        if not ids:
            output.note("There is no target whose ceiling could be measured.")
        elif not _has_what_ifs(found, ids):
            found = profiles.keep(await rooms.what_if(found, ids, on_progress=output.note), options, place)
    return found


def _worth_measuring(found: Profile, most: int) -> list[str]:
    """What the search would take by headroom, so that nothing is measured twice as its own wrapper; else the largest.

    What-ifs do not count here: they would change what was chosen, and so be measured again.
    """
    chosen = choose(msgspec.structs.replace(found, what_ifs=()), max_targets=most)
    return [t.id for t in chosen or sorted(found.targets, key=lambda t: -t.headroom_ms)[:most]]


def _has_baselines(found: Profile, ids: list[str], *, allow_tf32: bool) -> bool:
    """Whether model and targets were timed, with TF32 only where it is allowed now."""
    with_tf32 = any("TF32" in b.name for b in found.baselines)
    same = found.device.kind == "cpu" or with_tf32 == allow_tf32
    return bool(found.baselines) and same and set(ids) <= {t.target_id for t in found.target_baselines}


def _has_what_ifs(found: Profile, ids: list[str]) -> bool:
    """Whether each target was tried alone, and these together."""
    tried = {frozenset(w.target_ids) for w in found.what_ifs}
    return {frozenset([key]) for key in ids} <= tried and (len(ids) == 1 or frozenset(ids) in tried)
