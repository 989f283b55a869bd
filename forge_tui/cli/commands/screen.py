"""No command: the screen, where there is a terminal to show it on."""

from __future__ import annotations

import os
import sys

from forge_tui.cli import output
from forge_tui.core.errors import ExitCode
from forge_tui.core.paths import workspace_for


def screen(*, workspace: str | None, usage: str) -> int:
    """Open the screen; without a terminal print the usage instead. Returns the exit code."""
    if not _on_terminal():
        output.note(usage)
        output.note("\nforge-tui: The screen needs a terminal; name a command.")
        return int(ExitCode.USAGE)
    from forge_tui.cli import settings
    from forge_tui.tui.app import run_screen

    place = workspace_for(None, workspace)
    settings.use_theme(settings.load(place))
    return run_screen(place, None)


def _on_terminal() -> bool:
    if os.environ.get("TERM", "") in ("", "dumb"):
        return False
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
