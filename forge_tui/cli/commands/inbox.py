"""`inbox`: prompts that wait for a person, and replies by hand."""

from __future__ import annotations

import contextlib
import shlex
import time
from pathlib import Path
from typing import Literal

from forge_tui.cli import drafts, output
from forge_tui.core.errors import ExitCode, StoreError, UsageError
from forge_tui.core.paths import Workspace, workspace_for
from forge_tui.core.records import SessionInfo
from forge_tui.engine.limits import how_to_go_on
from forge_tui.proposers.desk import Desk, Entry, read
from forge_tui.proposers.deskfiles import without_keys
from forge_tui.report.format import duration
from forge_tui.report.table import Column, render
from forge_tui.store.reader import Reader

#: of the search that a prompt is of; unknown where the database cannot be read
Search = Literal["running", "not running", "over", "gone", "unknown"]


def listed(*, workspace: str | None, everything: bool, as_json: bool) -> int:
    """List the prompts that wait for a reply; returns the exit code."""
    place = workspace_for(None, workspace)
    desk = Desk(place.root)
    found = [(entry, desk.state(entry)) for entry in desk.entries()]
    if not everything:
        found = [(entry, state) for entry, state in found if state != "taken"]
    sessions, now = _sessions(place), time.time()
    if as_json:
        output.document({"inbox": str(desk.folder), "prompts": [
            {"number": e.number, "session": e.session, "search": _search(sessions, e), "target": e.target,
             "edge": e.edge, "state": state, "at": e.at, "age_s": max(0.0, now - e.at),
             "prompt": str(desk.prompt_path(e)), "reply": str(desk.reply_path(e)), "fault": _fault(desk, e),
             "drafts": [str(path) for path in desk.drafts(e)]} for e, state in found
        ]})  # fmt: skip
        return int(ExitCode.OK)
    if not found:
        output.note(f"No prompt waits in {desk.folder}. forge-tui run MODEL --model inbox asks.")
        return int(ExitCode.OK)
    columns = [Column("number", right=True), Column("target", 30, least=8), Column("kind"), Column("state"),
               Column("session", least=8), Column("age", right=True)]  # fmt: skip
    rows = [
        (str(e.number), e.target, str(e.edge), state, _label(sessions, e), duration(max(0.0, now - e.at)))
        for e, state in found
    ]  # fmt: skip
    output.text(render(columns, rows, output.terminal_width()))
    for entry, _ in found:
        if fault := _fault(desk, entry):
            output.note(f"{desk.reply_path(entry)} {fault}; prompt {entry.number} waits for another reply.")
        for path in desk.drafts(entry):
            output.note(f"A draft for prompt {entry.number}, not handed in, is {path}.")
    own = "" if workspace is None else f" (each with --workspace {shlex.quote(workspace)})"
    output.note("forge-tui inbox show NUMBER prints a prompt, copy NUMBER puts it into the clipboard, "
                f"reply NUMBER FILE hands in a reply{own}.")  # fmt: skip
    return int(ExitCode.OK)


def _fault(desk: Desk, entry: Entry) -> str:
    return "" if entry.taken else desk.fault(entry)


def _sessions(place: Workspace) -> dict[str, SessionInfo] | None:
    """By name; None where they cannot be read."""
    if not place.database.exists():
        return {}
    try:
        with contextlib.closing(Reader.open(place)) as reader:
            return {info.id: info for info in reader.sessions()}
    except StoreError as error:
        output.note(str(error))
        return None


def _search(sessions: dict[str, SessionInfo] | None, entry: Entry) -> Search:
    if sessions is None:
        return "unknown"
    info = sessions.get(entry.session)
    if info is None:
        return "gone"
    if info.state in ("done", "deploying"):
        return "over"
    return "running" if info.engine_pid else "not running"


def _label(sessions: dict[str, SessionInfo] | None, entry: Entry) -> str:
    search = _search(sessions, entry)
    return entry.session if search in ("running", "unknown") else f"{entry.session} ({search})"


def show(*, number: int, workspace: str | None, copy: bool) -> int:
    """Print a prompt, or send it to the clipboard; returns the exit code."""
    desk = Desk(workspace_for(None, workspace).root)
    entry = desk.entry(number)
    text = desk.prompt(entry)
    if not copy:
        output.foreign(text)
        return int(ExitCode.OK)
    from forge_tui.tui import clipboard

    done = clipboard.Copied(desk.prompt_path(entry), clipboard.send(text, _to_terminal))
    output.note(done.sentence())
    return int(ExitCode.OK)


def _to_terminal(sequence: str) -> None:
    with open("/dev/tty", "w", encoding="utf-8") as terminal:
        terminal.write(sequence)


def reply(*, number: int, file: str | None, workspace: str | None, force: bool, replace: bool) -> int:
    """Hand in a reply from a file, from stdin (`-`), or from `$EDITOR`; returns the exit code."""
    place = workspace_for(None, workspace)
    desk = Desk(place.root)
    entry = desk.entry(number)
    if _search(_sessions(place), entry) == "gone":
        raise UsageError(f"There is no session {entry.session} in {place.root} any more, so nobody reads replies to "
                         f"prompt {number}.")  # fmt: skip
    # who put it into its place by hand may ask whether it is right
    placed = file is not None and _same(file, desk.reply_path(entry))
    # before anybody writes for nothing
    desk.check_open(entry, replace=replace or placed)
    with drafts.written(desk, entry, file) as given:
        text = without_keys(given)
        found = read(entry, text)
        if found.source is None and not force:
            what = {"truncated": "The reply ends in its middle.", "empty": "The reply is empty."}
            raise UsageError(what.get(found.failure, found.failure),
                             "Hand in another one, or say --force to count it as an attempt that failed.")  # fmt: skip
        if not placed:
            desk.answer(entry, text, replace=replace)
    if text != given and not placed:
        output.note("A key in the reply was masked.")
    output.note(f"The reply to prompt {number} is in {desk.reply_path(entry)}.")
    return _say_who_reads(_sessions(place), entry)


def _same(file: str, path: Path) -> bool:
    try:
        return path.samefile(file)
    except OSError:
        return False


def _say_who_reads(sessions: dict[str, SessionInfo] | None, entry: Entry) -> int:
    """Whether a search goes on with the reply; the exit code says if that takes a decision."""
    search = _search(sessions, entry)
    if sessions is not None and search == "over":
        info = sessions[entry.session]
        why = f": {info.stop_reason}" if info.stop_reason else "."
        raise UsageError(f"The search of session {entry.session} is over, so nobody reads it now{why}",
                         f"The reply stays where it is; {how_to_go_on(info)}.")  # fmt: skip
    if search == "not running":
        output.note(f"No search runs now; forge-tui resume {entry.session} goes on with it.")
    return int(ExitCode.OK)
