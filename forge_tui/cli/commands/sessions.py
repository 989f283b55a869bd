"""`sessions`: what there is in a workspace."""

from __future__ import annotations

import contextlib
import time

from forge_tui.cli import output
from forge_tui.core.errors import ExitCode
from forge_tui.core.paths import workspace_for
from forge_tui.core.records import SessionInfo
from forge_tui.report.format import money, times
from forge_tui.report.table import Column, render
from forge_tui.store.reader import Reader

_LIVE = ("starting", "profiling", "searching", "deploying")


def sessions(*, workspace: str | None, as_json: bool) -> int:
    """List the sessions, oldest first; returns the exit code."""
    place = workspace_for(None, workspace)
    with contextlib.closing(Reader.open(place)) as reader:
        found = [(info, _speedup(reader, info)) for info in reader.sessions()]
    if as_json:
        output.document({"workspace": str(place.root), "sessions": [_as_document(*pair) for pair in found]})
    elif found:
        output.text(_as_table(found))
    else:
        output.note(f"There is no session in {place.root}. Start one with forge-tui run MODEL.")
    return int(ExitCode.OK)


def shown_state(info: SessionInfo) -> str:
    """The state as it is: a session whose engine is gone amid its work is `stopped`."""
    return "stopped" if info.state in _LIVE and not info.engine_pid else info.state


def _speedup(reader: Reader, info: SessionInfo) -> float | None:
    deployment = reader.deployment(info.id)
    return deployment.speedup if deployment else None


def _as_document(info: SessionInfo, speedup: float | None) -> dict[str, object]:
    return {
        "id": info.id, "state": shown_state(info), "engine_pid": info.engine_pid, "model": info.options.model.text,
        "device": info.options.device, "created_at": info.created_at, "updated_at": info.updated_at,
        "evaluations": info.evaluations, "max_evaluations": info.options.max_evaluations, "speedup": speedup,
        "cost_usd": info.cost_usd, "unpriced_calls": info.unpriced_calls, "elapsed_s": info.elapsed_s,
        "profile_s": info.profile_s, "search_s": info.search_s,
        "stop_reason": info.stop_reason, "error": info.error,
    }  # fmt: skip


def _as_table(found: list[tuple[SessionInfo, float | None]]) -> str:
    columns = [Column("session"), Column("state"), Column("model", 30), Column("device"),
               Column("tried", right=True), Column("speedup", right=True), Column("cost", right=True),
               Column("changed")]  # fmt: skip
    rows = [
        (info.id, shown_state(info), info.options.model.text, info.options.device, str(info.evaluations),
         times(speedup, 3), money(info.cost_usd) if info.cost_usd else "-",
         time.strftime("%m-%d %H:%M", time.localtime(info.updated_at)))
        for info, speedup in found
    ]  # fmt: skip
    return render(columns, rows, output.terminal_width())
