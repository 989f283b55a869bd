"""Recorded replies of a session or a file, for the proposer that gives them again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from forge_tui.core.errors import UsageError
from forge_tui.core.files import UnreadableError, read_bytes
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Edge, Language, LlmCall, Node, Record
from forge_tui.proposers import longer, tools
from forge_tui.proposers.parse import TRUNCATED, parse_reply
from forge_tui.proposers.replay import PREFIX, Recorded, from_lines
from forge_tui.store.codec import LedgerEntry
from forge_tui.store.reader import Reader

_MAX_BYTES = 1 << 30
_HINT = "Say replay:SESSION, or replay:FILE of forge-tui replies --output."


def load(name: str, workspace: Workspace) -> list[Recorded]:
    """What `replay:SESSION_OR_FILE` means: a file, else a session of the workspace.

    Raises:
        UsageError: there is no such file or session, or it holds no reply.
        StoreError: the workspace cannot be read.
    """
    wanted = name.removeprefix(PREFIX)
    if not wanted.strip():
        raise UsageError("replay: names nothing.", _HINT)
    path = file_of(name)
    if path is not None:
        found = from_lines(_text(path), str(path))
    elif not workspace.database.exists():
        raise UsageError(f"There is no file {wanted}, and no session in {workspace.root}.", _HINT)
    else:
        with contextlib.closing(Reader.open(workspace)) as reader:
            found = of_session(reader, reader.session(wanted).id)
    if not found:
        raise UsageError(f"{wanted} has no recorded reply.")
    return found


def file_of(name: str) -> Path | None:
    """The file that `replay:NAME` means; None where it can only be a session."""
    wanted = name.removeprefix(PREFIX)
    with contextlib.suppress(RuntimeError, ValueError, OSError):
        path = Path(wanted).expanduser()
        if "/" in wanted or path.suffix == ".jsonl" or path.is_file():
            return path
    return None


def _text(path: Path) -> str:
    try:
        return read_bytes(path, _MAX_BYTES).decode()
    except UnreadableError as error:
        raise UsageError(f"{path} {error}.", _HINT) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text.", _HINT) from error


# ---- the ledger


class _Part(Record, frozen=True, kw_only=True):
    """A reply that was cut off, so far."""

    entry: LedgerEntry
    text: str


def of_session(reader: Reader, session: str) -> list[Recorded]:
    """The replies of a session's models, oldest first; one that was cut off together with how it went on."""
    nodes = {node.id: node for node in reader.nodes(session)}
    targets = {target.id: target.name for target in reader.targets(session)}
    device = reader.session(session).device
    language: Language = device.language if device is not None else "cpp"
    found: list[tuple[LedgerEntry, str]] = []
    cut: dict[tuple[str, ...], list[_Part]] = {}
    for entry in reader.llm_calls(session):
        call = entry.call
        if not call.reply or tools.read(call.reply)[1]:
            # what was tried before an answer is no answer
            continue
        node = nodes.get(entry.node_id) if entry.node_id is not None else None
        # ledgers of earlier layouts do not know the step
        step = str(call.seed) if call.seed else call.prompt
        parts = cut.setdefault((call.model, entry.target_id, entry.edge, step), [])
        text, part = _whole(entry, parts, node, nodes, language)
        if part is not None:
            parts.remove(part)
        if node is None and _is_cut(call, text, language):
            parts.append(_Part(entry=entry, text=text))
        else:
            found.append((entry, text))
    found += [(part.entry, part.text) for parts in cut.values() for part in parts]
    found = _in_order(found)
    return [_recorded(entry, text, language, nodes, targets) for entry, text in found]


def _in_order(found: list[tuple[LedgerEntry, str]]) -> list[tuple[LedgerEntry, str]]:
    """As they were asked for; kernels among them as they came, where several were on their way at once."""
    found = sorted(found, key=lambda one: one[0].id)
    kernels = iter(sorted((one for one in found if one[0].node_id is not None), key=lambda one: one[0].node_id or 0))
    return [one if one[0].node_id is None else next(kernels) for one in found]


def _is_cut(call: LlmCall, text: str, language: Language) -> bool:
    return longer.cut(call.finish) and parse_reply(text, language, call.finish).failure == TRUNCATED


def _whole(
    entry: LedgerEntry, parts: list[_Part], node: Node | None, nodes: dict[int, Node], language: Language
) -> tuple[str, _Part | None]:
    """The reply with the part that it goes on with, if any; where several could be it, the kernel tells them apart."""
    reply = entry.call.reply
    before = [part for part in parts if part.entry.call.attempt < entry.call.attempt]
    if not before:
        return reply, None
    base = _base(node, nodes)

    def source(text: str) -> str | None:
        return parse_reply(text, language, entry.call.finish, base).source

    # the same may have been asked once more, with more room
    ways = [(text, part) for part in before for text in _ways(part, reply)]
    if node is not None:
        same = [way for way in ways if source(way[0]) == node.source]
        return same[0] if same else (reply, before[0])
    return next((way for way in ways if source(way[0]) is not None), ways[1])


def _ways(part: _Part, reply: str) -> Iterator[str]:
    yield reply
    yield longer.joined({"messages": [{"content": longer.GO_ON}]}, part.text, reply)


def _base(node: Node | None, nodes: dict[int, Node]) -> str:
    if node is None:
        return ""
    shown = nodes.get(node.repairs if node.repairs is not None else node.parent if node.parent is not None else -1)
    return shown.source if shown is not None else ""


def _recorded(
    entry: LedgerEntry, text: str, language: Language, nodes: dict[int, Node], targets: dict[str, str]
) -> Recorded:
    node = nodes.get(entry.node_id) if entry.node_id is not None else None
    mended = nodes.get(node.repairs) if node is not None and node.repairs is not None else None
    return Recorded(
        target_id=entry.target_id, target=targets.get(entry.target_id, ""), edge=Edge(entry.edge),
        language=node.language if node is not None else language,
        prompt=entry.call.prompt, reply=text, source=node.source if node is not None else "",
        mended=mended.source if mended is not None else "", model=entry.call.model, finish=entry.call.finish,
    )  # fmt: skip
