"""`cost`: what a session's model calls cost, and what they brought."""

from __future__ import annotations

import contextlib

from forge_tui.cli import output
from forge_tui.core.errors import ExitCode, UsageError
from forge_tui.core.paths import workspace_for
from forge_tui.report.costs import as_text, cost_report
from forge_tui.store.reader import Reader


def cost(*, session: str | None, workspace: str | None, as_json: bool) -> int:
    """Print the ledger summed up; returns the exit code."""
    place = workspace_for(None, workspace)
    with contextlib.closing(Reader.open(place)) as reader:
        info = reader.latest() if session is None else reader.session(session)
        if info is None:
            raise UsageError(f"There is no session in {place.root}.", "Start one with forge-tui run MODEL.")
        found = cost_report(reader, info.id)
    if as_json:
        output.document(found)
    else:
        output.text(as_text(found, output.terminal_width()))
    return int(ExitCode.OK)
