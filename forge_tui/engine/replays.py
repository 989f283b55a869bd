"""Recorded replies of a session or a file, for the proposer that gives them again."""

from __future__ import annotations

import contextlib
from pathlib import Path

from forge_tui.core.errors import UsageError
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Edge
from forge_tui.proposers.replay import PREFIX, Recorded, from_lines
from forge_tui.store.reader import Reader


def load(name: str, workspace: Workspace) -> list[Recorded]:
    """What `replay:SESSION_OR_FILE` means: a file, else a session of the workspace.

    Raises:
        UsageError: there is no such file or session, or it holds no reply.
        StoreError: the workspace cannot be read.
    """
    wanted = name.removeprefix(PREFIX)
    if not wanted:
        raise UsageError("replay: names nothing.", "Say replay:SESSION, or replay:FILE of forge-tui replies --output.")
    path = Path(wanted).expanduser()
    if path.is_file():
        try:
            found = from_lines(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {error}.") from error
    else:
        with contextlib.closing(Reader.open(workspace)) as reader:
            found = of_session(reader, reader.session(wanted).id)
    if not found:
        raise UsageError(f"{wanted} has no recorded reply.")
    return found


def of_session(reader: Reader, session: str) -> list[Recorded]:
    """The replies of a session's models, oldest first."""
    nodes = {node.id: node for node in reader.nodes(session)}
    targets = {target.id: target.name for target in reader.targets(session)}
    device = reader.session(session).device
    found = []
    for entry in reader.llm_calls(session):
        if not entry.call.reply:
            continue
        node = nodes.get(entry.node_id) if entry.node_id is not None else None
        mended = nodes.get(node.repairs) if node is not None and node.repairs is not None else None
        found.append(Recorded(
            target_id=entry.target_id, target=targets.get(entry.target_id, ""), edge=Edge(entry.edge),
            language=node.language if node is not None else device.language if device is not None else "cpp",
            prompt=entry.call.prompt, reply=entry.call.reply, source=node.source if node is not None else "",
            mended=mended.source if mended is not None else "", model=entry.call.model,
        ))  # fmt: skip
    return found
