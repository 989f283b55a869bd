"""`record`: a landscape of one or several targets, for searches without compiler and device."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

from forge_tui.cli import output
from forge_tui.cli.commands.run import check_numbers, gibibytes, locate
from forge_tui.core.errors import ExitCode, ForgeError, UsageError
from forge_tui.core.records import RunOptions
from forge_tui.engine.recording import Recorded, Recording
from forge_tui.engine.rooms import WorkerRooms
from forge_tui.models.spec import ModelRequest


def record(
    *, model: str, output_file: Path, targets: list[str], device: str, workspace: str | None, limit: int | None,
    minutes: float, threads: int, seed: int, request: ModelRequest, capture_gb: float, as_json: bool,
) -> int:  # fmt: skip
    """Record every point of the template grid, or go on with it; returns the exit code."""
    check_numbers(threads, seed)
    if not output_file.expanduser().resolve().parent.is_dir():
        raise UsageError(f"There is no folder {output_file.parent}.", "Make it, or name another --output.")
    spec, resolved, place = locate(model, device, request, workspace)
    options = RunOptions(model=spec, device=resolved, workspace=str(place.root), threads=threads, seed=seed,
                         max_minutes=minutes, target_names=tuple(targets),
                         capture_bytes=gibibytes(capture_gb))  # fmt: skip
    rooms = WorkerRooms(options, place, "record", on_note=output.note)
    recording = Recording(rooms, options, place, output_file.expanduser().resolve(), output.note, limit=limit)
    try:
        found = asyncio.run(recording.run())
    except KeyboardInterrupt:
        raise ForgeError(
            f"Interrupted. {recording.new} new points are kept in {output_file}.", "The same command goes on.",
            exit_code=ExitCode.INTERRUPTED,
        ) from None  # fmt: skip
    if as_json:
        output.document(found)
    else:
        output.text(_as_text(found, output_file))
    return int(ExitCode.OK)


def _as_text(found: Recorded, file: Path) -> str:
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(found.verdicts.items()))
    lines = [f"{file}: {found.points} of {found.grid} points ({found.new} new in {found.seconds:.0f} s): {verdicts}"]
    lines += [f"  {name}: best {best:.2f}x" for name, best in found.best.items()]
    if found.complete:
        lines.append(f"  search it: forge-tui run --device {shlex.quote(f'sim:{file}')}")
    else:
        lines.append(f"  not complete: {found.reason}; the same command goes on")
    return "\n".join(lines)
