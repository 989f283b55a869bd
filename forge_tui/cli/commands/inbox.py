"""`inbox`, `prompt` and `replies`: what models are asked, and replies by hand."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from forge_tui.cli import output
from forge_tui.core.errors import EnvironmentFault, ExitCode, UsageError
from forge_tui.core.paths import Workspace, workspace_for
from forge_tui.core.records import Edge
from forge_tui.proposers.desk import MAX_REPLY_BYTES, Desk, Entry
from forge_tui.proposers.parse import parse_reply
from forge_tui.report.table import Column, render
from forge_tui.store.reader import Reader


def listed(*, workspace: str | None, everything: bool, as_json: bool) -> int:
    """List the prompts that wait for a reply; returns the exit code."""
    place = workspace_for(None, workspace)
    desk = Desk(place.root)
    found = [(entry, desk.state(entry)) for entry in desk.entries()]
    if not everything:
        found = [(entry, state) for entry, state in found if state != "taken"]
    if as_json:
        output.document({"inbox": str(desk.folder), "prompts": [
            {"number": e.number, "session": e.session, "target": e.target, "edge": e.edge, "state": state, "at": e.at,
             "prompt": str(desk.prompt_path(e)), "reply": str(desk.reply_path(e))} for e, state in found
        ]})  # fmt: skip
        return int(ExitCode.OK)
    if not found:
        output.note(f"No prompt waits in {desk.folder}. forge-tui run MODEL --model inbox asks.")
        return int(ExitCode.OK)
    live = _live(place)
    columns = [Column("number", right=True), Column("target", 30), Column("edge"), Column("state"), Column("session"),
               Column("asked")]  # fmt: skip
    rows = [
        (str(e.number), e.target, str(e.edge), state, e.session if e.session in live else f"{e.session} (not running)",
         time.strftime("%m-%d %H:%M", time.localtime(e.at))) for e, state in found
    ]  # fmt: skip
    output.text(render(columns, rows, output.terminal_width()))
    output.note("forge-tui inbox show NUMBER prints a prompt, forge-tui inbox reply NUMBER FILE hands in a reply.")
    return int(ExitCode.OK)


def _live(place: Workspace) -> set[str]:
    """Sessions that an engine runs."""
    if not place.database.exists():
        return set()
    with contextlib.closing(Reader.open(place)) as reader:
        return {info.id for info in reader.sessions() if info.engine_pid}


def show(*, number: int, workspace: str | None, copy: bool) -> int:
    """Print a prompt, or send it to the clipboard; returns the exit code."""
    desk = Desk(workspace_for(None, workspace).root)
    text = desk.prompt(desk.entry(number))
    if not copy:
        output.text(text)
        return int(ExitCode.OK)
    from forge_tui.tui.clipboard import copy as to_clipboard

    done = to_clipboard(text, f"prompt-{number}.md", _to_terminal)
    output.note(done.sentence())
    return int(ExitCode.OK)


def _to_terminal(sequence: str) -> None:
    with contextlib.suppress(OSError), open("/dev/tty", "w", encoding="utf-8") as terminal:
        terminal.write(sequence)


def reply(*, number: int, file: str | None, workspace: str | None, force: bool) -> int:
    """Hand in a reply from a file, from stdin (`-`), or from `$EDITOR`; returns the exit code."""
    desk = Desk(workspace_for(None, workspace).root)
    entry = desk.entry(number)
    text = _from_editor(entry) if file is None else _from_file(file)
    found = parse_reply(text, entry.language, "", entry.base)
    if found.source is None and not force:
        what = {"truncated": "The reply ends in its middle.", "empty": "The reply is empty."}
        raise UsageError(what.get(found.failure, found.failure),
                         "Hand in another one, or say --force to count it as an attempt that failed.")  # fmt: skip
    desk.answer(entry, text)
    output.note(f"The reply to prompt {number} is in {desk.reply_path(entry)}.")
    return int(ExitCode.OK)


def _from_file(file: str) -> str:
    try:
        data = sys.stdin.buffer.read(MAX_REPLY_BYTES + 1) if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_REPLY_BYTES:
        raise UsageError(f"The reply has more than {MAX_REPLY_BYTES >> 20} MiB.")
    return data.decode("utf-8", "replace")


def _from_editor(entry: Entry) -> str:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    if not editor or not sys.stdin.isatty():
        raise UsageError("Missing argument 'FILE'.", "Name a file, say - for stdin, or set EDITOR.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{entry.name}.reply.md"
        path.write_text("", encoding="utf-8")
        try:
            done = subprocess.run([*shlex.split(editor), str(path)], check=False)
        except (OSError, ValueError) as error:
            raise EnvironmentFault(f"The editor {editor!r} cannot be started: {error}.", "Set EDITOR.") from error
        if done.returncode:
            raise UsageError(f"The editor ended with code {done.returncode}; nothing was handed in.")
        return path.read_bytes().decode("utf-8", "replace")


def prompt(
    *, session: str | None, target: str | None, edge: str | None, node: int | None, seed: int, workspace: str | None,
    as_json: bool, count: bool = False, allow_remote: bool = False, local_only: bool = False,
) -> int:  # fmt: skip
    """Print the exact prompt that a model would get; returns the exit code."""
    from forge_tui.engine.asking import EDGES, task_of
    from forge_tui.proposers import tokens, trial
    from forge_tui.proposers.prompt import render as rendered

    place = workspace_for(None, workspace)
    if edge is not None and edge not in EDGES:
        raise UsageError(f"There is no edge {edge!r}.", f"Edges are {', '.join(EDGES)}.")
    with contextlib.closing(Reader.open(place)) as reader:
        info = _session(reader, session)
        task = task_of(reader, info, target, Edge(edge) if edge else None, node, seed)
        options = reader.session(info).options
    made = rendered(task, trial.checked_book(options))
    parts = {"system": made.system, "card": made.card, "request": made.request}
    counts = {name: tokens.count(text) for name, text in parts.items()}
    exact = {}
    if count:
        from forge_tui.cli import counted

        exact["tokens"] = counted.counts(made, options, place, allow_remote=allow_remote, local_only=local_only,
                                         as_json=as_json)  # fmt: skip
    if as_json:
        output.document({"session": info, "target": task.target.name, "edge": task.edge, "most_tokens": counts}
                        | exact | parts)  # fmt: skip
        return int(ExitCode.OK)
    output.text(made.text)
    whole = sum(counts.values())
    stable = counts["system"] + counts["card"]
    output.note(f"{task.edge} of {task.target.name}: at most {whole} tokens, {stable / whole:.0%} of them the same for "
                "every call about it.")  # fmt: skip
    return int(ExitCode.OK)


def replies(*, session: str | None, file: Path | None, workspace: str | None) -> int:
    """Write the recorded replies of a session for `--model replay:FILE`; returns the exit code."""
    from forge_tui.engine.replays import of_session
    from forge_tui.proposers.replay import to_lines

    place = workspace_for(None, workspace)
    with contextlib.closing(Reader.open(place)) as reader:
        name = _session(reader, session)
        found = of_session(reader, name)
    if not found:
        raise UsageError(f"Session {name} has no recorded reply.")
    if file is None:
        output.text(to_lines(found))
        return int(ExitCode.OK)
    try:
        file.write_text(to_lines(found), encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"{file} cannot be written: {error.strerror}.") from error
    output.note(f"{len(found)} replies of {name} are in {file}; forge-tui run MODEL --model replay:{file} gives them.")
    return int(ExitCode.OK)


def _session(reader: Reader, session: str | None) -> str:
    info = reader.latest() if session is None else reader.session(session)
    if info is None:
        raise UsageError("There is no session in this workspace.", "Start one with forge-tui run MODEL.")
    return info.id
