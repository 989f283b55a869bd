"""`report`: what a session came to."""

from __future__ import annotations

import contextlib

from forge_tui.cli import output
from forge_tui.core.errors import ExitCode, UsageError
from forge_tui.core.paths import workspace_for
from forge_tui.report import markdown as document
from forge_tui.report import text
from forge_tui.report.build import details, run_report
from forge_tui.store.reader import Reader


def report(*, session: str | None, workspace: str | None, markdown: bool, as_json: bool) -> int:
    """Print a report in one of its forms; returns the exit code."""
    place = workspace_for(None, workspace)
    with contextlib.closing(Reader.open(place)) as reader:
        info = reader.latest() if session is None else reader.session(session)
        if info is None:
            raise UsageError(f"There is no session in {place.root}.", "Start one with forge-tui run MODEL.")
        if as_json:
            output.document(run_report(reader, info.id))
        elif markdown:
            found = details(reader, info.id)
            output.text(document.render(found.report, found))
        else:
            output.text(text.render(run_report(reader, info.id)))
    return int(ExitCode.OK)
