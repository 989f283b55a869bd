"""`prompt` and `replies`: what models are asked, and what they answered."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

from forge_tui.cli import output
from forge_tui.core.errors import EnvironmentFault, ExitCode, UsageError
from forge_tui.core.paths import workspace_for
from forge_tui.core.records import Edge
from forge_tui.proposers.deskfiles import without_keys
from forge_tui.report.format import count
from forge_tui.store.reader import Reader


def prompt(
    *, session: str | None, target: str | None, edge: str | None, node: int | None, seed: int, workspace: str | None,
    as_json: bool, exact: bool = False, allow_remote: bool = False, local_only: bool = False,
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
    # as it is sent: without the values of keys, which a source may hold
    parts = {name: without_keys(getattr(made, name)) for name in ("system", "card", "request")}
    counts = {name: tokens.count(text) for name, text in parts.items()}
    true = {}
    if exact:
        from forge_tui.cli import counted

        true["tokens"] = counted.counts(made, options, place, allow_remote=allow_remote, local_only=local_only,
                                        as_json=as_json)  # fmt: skip
    if as_json:
        output.document({"session": info, "target": task.target.name, "edge": task.edge, "most_tokens": counts}
                        | true | parts)  # fmt: skip
        return int(ExitCode.OK)
    output.foreign("\n".join(parts.values()))
    whole = sum(counts.values())
    stable = counts["system"] + counts["card"]
    output.note(f"{task.edge} of {task.target.name}: at most {count(whole, 'token')}, {stable / whole:.0%} of them the "
                "same for every call about it.")  # fmt: skip
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
    several = f"{count(len(found), 'reply', 'replies')} of {name} {'is' if len(found) == 1 else 'are'} in {file}"
    given = "it" if len(found) == 1 else "them"
    output.note(f"{several}; forge-tui run MODEL --model {shlex.quote(f'replay:{file}')} gives {given}.")
    return int(ExitCode.OK)


def _session(reader: Reader, session: str | None) -> str:
    info = reader.latest() if session is None else reader.session(session)
    if info is None:
        raise UsageError("There is no session in this workspace.", "Start one with forge-tui run MODEL.")
    return info.id
