"""What screens, reports and the engine read: a connection that cannot write."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from forge_tui.core.errors import StoreError, UsageError
from forge_tui.core.paths import Workspace
from forge_tui.core.profiles import Hotspot, Profile
from forge_tui.core.records import Deployment, Device, Event, Node, RunOptions, SessionInfo, Target, ToolUse, Verdict
from forge_tui.store import codec
from forge_tui.store.faults import as_store_errors, code_of
from forge_tui.store.lease import LEASE, Lease
from forge_tui.store.version import OLDEST_READABLE, check_not_newer, missing, read_version

_BUSY_S = 5.0
_SESSION = f"""
SELECT s.id, s.options, s.state, s.created_at, s.updated_at, s.device, s.stop_reason, s.error, s.elapsed_s,
    (SELECT count(*) FROM evaluations e WHERE e.session_id = s.id AND e.verdict <> '{Verdict.INFRA}'),
    (SELECT coalesce(sum(c.cost_usd), 0.0) FROM llm_calls c WHERE c.session_id = s.id),
    (SELECT count(*) FROM llm_calls c WHERE c.session_id = s.id AND c.priced = 0),
    {", ".join("l." + name for name in LEASE)}
FROM sessions s LEFT JOIN leases l ON l.session_id = s.id
"""  # noqa: S608 - no user text in it
_NODE = ", ".join("n." + name for name in codec.NODE)


class Reader:
    """Reads a workspace's database; one for each thread. While a step is being written it sees what was before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = _connect(path)

    @classmethod
    def open(cls, workspace: Workspace) -> Reader:
        """Open the workspace's database for reading.

        Raises:
            StoreError: there is none, or it is damaged, another program's, or of another version.
        """
        path = workspace.database
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise missing(path) from error
        except OSError as error:
            raise StoreError(f"The workspace {path.parent} cannot be read: {error.strerror}.",
                             "Name another folder with --workspace.") from error  # fmt: skip
        with as_store_errors(path):
            reader = cls(path)
        try:
            reader._check_version()
        except BaseException:
            reader.close()
            raise
        return reader

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def data_version(self) -> int:
        """A number that differs after another connection wrote."""
        return int(self._rows("PRAGMA data_version")[0][0])

    # ---- sessions

    def sessions(self) -> list[SessionInfo]:
        """Every session, oldest first."""
        return [_to_session(row) for row in self._rows(_SESSION + "ORDER BY s.created_at, s.rowid")]

    def session(self, session_id: str) -> SessionInfo:
        """One session, by its id or by the beginning of only one id.

        Raises:
            UsageError: there is none, or more than one; the sentence lists what there is.
        """
        ids = [row[0] for row in self._rows("SELECT id FROM sessions ORDER BY created_at, rowid")]
        found = _resolve(session_id, ids, self._path.parent)
        rows = self._rows(_SESSION + "WHERE s.id = ?", found)
        return _to_session(rows[0])

    def latest(self) -> SessionInfo | None:
        """The session that was worked on last, None where there is none."""
        rows = self._rows(_SESSION + "ORDER BY s.updated_at DESC, s.created_at DESC, s.rowid DESC LIMIT 1")
        return _to_session(rows[0]) if rows else None

    # ---- what is known of the model

    def profile(self, session_id: str) -> Profile | None:
        """The profile with its hotspots and targets, None before there is one."""
        with self._snapshot():
            rows = self._rows("SELECT record FROM profiles WHERE session_id = ?", session_id)
            if not rows:
                return None
            targets = self._rows("SELECT record FROM targets WHERE session_id = ? ORDER BY position", session_id)
            hotspots = self.hotspots(session_id)
        fields = json.loads(rows[0][0]) | {"targets": [json.loads(row[0]) for row in targets]}
        return msgspec.structs.replace(msgspec.convert(fields, Profile), hotspots=tuple(hotspots))

    def targets(self, session_id: str) -> list[Target]:
        """The targets, the one with the most headroom first."""
        rows = self._rows(
            "SELECT record FROM targets WHERE session_id = ? ORDER BY headroom_ms DESC, position", session_id
        )
        return [codec.load(row[0], Target) for row in rows]

    def hotspots(self, session_id: str) -> list[Hotspot]:
        """The call tree, in the profile's order."""
        there = {row[1] for row in self._rows("PRAGMA table_info(hotspots)")}
        columns = [name for name in codec.HOTSPOT if name in there]
        sql = f"SELECT {', '.join(columns)} FROM hotspots WHERE session_id = ? ORDER BY position"  # noqa: S608
        return [codec.to_hotspot(row, columns) for row in self._rows(sql, session_id)]

    # ---- the tree

    def _evaluation(self) -> str:
        """The columns of an evaluation; what an older layout lacks is empty."""
        there = {row[1] for row in self._rows("PRAGMA table_info(evaluations)")}
        return ", ".join(f"e.{name}" if name in there else "''" for name in codec.EVALUATION)

    def nodes(self, session_id: str, target_id: str | None = None, sources: bool = True) -> list[Node]:
        """The nodes of a session, or of one target, oldest first, with evaluations but without samples.

        Without `sources` every source is empty.
        """
        columns = _NODE if sources else _NODE.replace("n.source", "''")
        sql = f"SELECT {columns}, {self._evaluation()}, {self._confirmed()} WHERE n.session_id = ?"
        values: tuple[Any, ...] = (session_id,)
        if target_id is not None:
            sql, values = sql + " AND n.target_id = ?", (session_id, target_id)
        return [_to_node(row) for row in self._rows(sql + " ORDER BY n.id", *values)]

    def faster_elsewhere(self, session_id: str, target_id: str, identity: str, most: int) -> list[tuple[str, Node]]:
        """The fastest kernels of a target in other sessions on an equal device, each with its session; sources differ.

        The target's id follows from the callable and its inputs, so equal ids are equal work.
        """
        places = [s.id for s in self.sessions() if s.id != session_id and s.device and s.device.identity == identity]
        found: list[tuple[str, Node]] = []
        for place in places:
            right = [n for n in self.nodes(place, target_id) if n.evaluation and n.evaluation.verdict is Verdict.FASTER]
            found += [(place, node) for node in right]
        found.sort(key=lambda f: (-(f[1].evaluation.speedup or 0.0) if f[1].evaluation else 0.0, f[0], f[1].id))
        chosen: dict[str, tuple[str, Node]] = {}
        for place, node in found:
            chosen.setdefault(node.source, (place, node))
        return list(chosen.values())[:most]

    def node(self, session_id: str, node_id: int) -> Node:
        """One node with everything, samples included.

        Raises:
            UsageError: there is no such node.
        """
        sql = f"SELECT {_NODE}, {self._evaluation()}, {self._confirmed()} WHERE n.session_id = ? AND n.id = ?"
        with self._snapshot():
            rows = self._rows(sql, session_id, node_id)
            samples = self._rows(
                "SELECT candidate_us, baseline_us FROM samples WHERE session_id = ? AND node_id = ? ORDER BY i",
                session_id, node_id,
            )  # fmt: skip
        if not rows:
            raise UsageError(f"Session {session_id} has no node {node_id}.")
        return _to_node(rows[0], samples)

    def steps(self, session_id: str) -> list[dict[str, Any]]:
        """The steps that were decided and had no source when the engine last wrote, oldest first."""
        sql = "SELECT record FROM steps WHERE session_id = ? ORDER BY position"
        return [json.loads(row[0]) for row in self._rows(sql, session_id)]

    def _confirmed(self) -> str:
        """The confirmation's column with the joins; nothing in layouts that had none."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'confirmations'"):
            return f"NULL FROM nodes n {_join()}"
        more = "LEFT JOIN confirmations c ON c.session_id = n.session_id AND c.node_id = n.id"
        return f"c.record FROM nodes n {_join()} {more}"

    def tool_uses(self, session_id: str) -> list[ToolUse]:
        """What models tried before they answered, oldest first; none in a file of an older layout."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'tool_uses'"):
            return []
        columns = ("call_id", "target_id", "tool", "source", "verdict", "answer", "seconds")
        sql = f"SELECT {', '.join(columns)} FROM tool_uses WHERE session_id = ? ORDER BY id"  # noqa: S608
        return [ToolUse(**dict(zip(columns, row, strict=True))) for row in self._rows(sql, session_id)]

    def llm_calls(self, session_id: str) -> list[codec.LedgerEntry]:
        """The ledger: every call, those on their way included, oldest first."""
        there = {row[1] for row in self._rows("PRAGMA table_info(llm_calls)")}
        columns = [name for name in codec.LLM_CALL if name in there]
        sql = f"SELECT id, target_id, edge, node_id, at, {', '.join(columns)} FROM llm_calls WHERE session_id = ?"  # noqa: S608
        rows = self._rows(sql + " ORDER BY id", session_id)
        return [
            codec.LedgerEntry(id=row[0], target_id=row[1], edge=row[2], node_id=row[3], at=row[4],
                              call=codec.to_llm_call(row[5:], columns))
            for row in rows
        ]  # fmt: skip

    # ---- deployment and events

    def deployment(self, session_id: str) -> Deployment | None:
        """The in-model gate's last result, None before there is one."""
        last = "SELECT id, record FROM deployments WHERE session_id = ? ORDER BY id DESC LIMIT 1"
        with self._snapshot():
            rows = self._rows(last, session_id)
            if not rows:
                return None
            decisions = self._rows("SELECT record FROM decisions WHERE deployment_id = ? ORDER BY position", rows[0][0])
        return codec.to_deployment(rows[0][1], [row[0] for row in decisions])

    def events(self, session_id: str, after: int = 0, limit: int = 1000) -> list[Event]:
        """At most `limit` events with an id above `after`, oldest first."""
        rows = self._rows(
            "SELECT id, at, kind, data FROM events WHERE session_id = ? AND id > ? ORDER BY id LIMIT ?",
            session_id, after, limit,
        )  # fmt: skip
        return [Event(id=row[0], session=session_id, at=row[1], kind=row[2], data=json.loads(row[3])) for row in rows]

    def last_event_id(self, session_id: str) -> int:
        """The newest event's id, 0 where there is none."""
        return int(self._rows("SELECT coalesce(max(id), 0) FROM events WHERE session_id = ?", session_id)[0][0])

    # ---- helpers

    def _check_version(self) -> None:
        with as_store_errors(self._path):
            try:
                found = read_version(self._connection, self._path)
            except sqlite3.OperationalError as error:
                if not self._mend(error):
                    raise
                found = read_version(self._connection, self._path)
        if found == 0:
            raise missing(self._path)
        check_not_newer(found)
        if found < OLDEST_READABLE:
            raise StoreError(
                f"The workspace's database was written by an older Forge TUI (schema {found}).",
                "The next forge-tui run or resume with this workspace brings it up to date.",
            )

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        with as_store_errors(self._path):
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.OperationalError as error:
                if not self._mend(error):
                    raise
                return self._connection.execute(sql, values).fetchall()

    def _mend(self, error: sqlite3.OperationalError) -> bool:
        """Have SQLite finish what a killed writer left behind, where only a writing connection may."""
        if code_of(error) not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN) or self._connection.in_transaction:
            return False
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_S)) as db:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        frozen = not os.access(self._path.parent, os.W_OK) and not _pending(self._path)
        before, self._connection = self._connection, _connect(self._path, immutable=frozen)
        before.close()
        return True

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Several reads of one state."""
        self._rows("SELECT 1 FROM meta")
        with as_store_errors(self._path):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("COMMIT")


def _connect(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """A read-only connection. `immutable` reads a folder that nobody can write without the files of a log."""
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}"
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _pending(path: Path) -> bool:
    """Whether a log or journal beside the file holds something."""
    for suffix in ("-wal", "-journal"):
        with contextlib.suppress(OSError):
            if path.with_name(path.name + suffix).stat().st_size:
                return True
    return False


def _join() -> str:
    return "LEFT JOIN evaluations e ON e.session_id = n.session_id AND e.node_id = n.id"


def _to_node(row: Sequence[Any], samples: Sequence[tuple[float, float]] = ()) -> Node:
    width = len(codec.NODE)
    return codec.to_node(row[:width], codec.to_evaluation(row[width:-1], samples, row[-1]))


def _to_session(row: Sequence[Any]) -> SessionInfo:
    lease = Lease.from_row(tuple(row[12:])) if row[12] is not None else None
    alive = lease is not None and lease.alive(time.time())
    return SessionInfo(
        id=row[0], options=codec.load(row[1], RunOptions), state=row[2], created_at=row[3], updated_at=row[4],
        device=codec.load(row[5], Device) if row[5] else None, stop_reason=row[6],
        error=json.loads(row[7]) if row[7] else None, elapsed_s=row[8], evaluations=row[9], cost_usd=row[10],
        unpriced_calls=row[11], engine_pid=lease.pid if lease and alive else 0,
        heartbeat_at=lease.heartbeat_at if lease else 0.0,
    )  # fmt: skip


def _resolve(wanted: str, ids: list[str], folder: Path) -> str:
    if wanted in ids:
        return wanted
    begun = [name for name in ids if wanted and name.startswith(wanted)]
    if len(begun) == 1:
        return begun[0]
    if not ids:
        raise UsageError(f"There is no session in {folder}.", "Start one with forge-tui run MODEL.")
    if begun:
        raise UsageError(f"Several sessions begin with {wanted!r}: {_listing(begun)}.", "Name one of them.")
    from difflib import get_close_matches

    close = get_close_matches(wanted, ids, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]}? " if close else ""
    there = f"Sessions are {_listing(ids)}." if len(ids) > 1 else f"The only session is {ids[0]}."
    raise UsageError(f"There is no session {wanted!r} in {folder}.", hint + there)


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[-12:])
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12} older ones"
