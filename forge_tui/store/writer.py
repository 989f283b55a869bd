"""What the engine writes: one transaction a step, with its event, idempotent by key."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from forge_tui.core.errors import ExitCode, StoreError
from forge_tui.core.events import Kind
from forge_tui.core.paths import Workspace
from forge_tui.core.profiles import Profile
from forge_tui.core.records import (
    Confirmation,
    Deployment,
    Device,
    Edge,
    Evaluation,
    LlmCall,
    Node,
    RunOptions,
    SessionInfo,
    SessionState,
    ToolUse,
    Verdict,
)
from forge_tui.store import codec, ledger
from forge_tui.store.connection import WriteConnection
from forge_tui.store.faults import as_store_errors
from forge_tui.store.lease import LEASE, Lease, started, this_host
from forge_tui.store.naming import next_session_id


class Store:
    """The writer of a workspace's database. Not shared between threads.

    Verdicts, money and the session's state are on the disk when a method returns; events alone may be lost with the
    power, never with the process. Every method raises StoreError where the file cannot be written (full, read-only,
    locked, damaged) or where another engine has the session; then nothing of the step is written.
    """

    def __init__(self, connection: WriteConnection, workspace: Workspace) -> None:
        self._connection = connection
        self._workspace = workspace
        self._tokens: dict[str, str] = {}

    @classmethod
    def open(cls, workspace: Workspace) -> Store:
        """Open the workspace's database, making or upgrading it.

        Raises:
            StoreError: it cannot be written, is damaged, another program's, or a newer version's.
        """
        workspace.prepare()
        return cls(WriteConnection(workspace.database), workspace)

    @property
    def workspace(self) -> Workspace:
        """Where the database lies."""
        return self._workspace

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know about where the database lies."""
        return self._connection.warnings

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Make several steps one transaction: all of them are kept, or none."""
        with self._connection.transaction(durable=True):
            yield

    def close(self) -> None:
        """Give back the leases that are left, and close the file."""
        for session in list(self._tokens):
            self.release(session)
        self._connection.close()

    # ---- sessions and who writes them

    def create_session(self, options: RunOptions) -> SessionInfo:
        """A new session, named after the model: `tiny-llm-1`, `tiny-llm-2`, ..."""
        now = time.time()
        with self._connection.transaction(durable=True):
            taken = [row[0] for row in self._connection.execute("SELECT id FROM sessions")]
            session = next_session_id(options.model, taken)
            self._connection.insert(
                "sessions", ("id", "model", "options", "state", "created_at", "updated_at"),
                (session, codec.clean(options.model.text), codec.dump(options), "starting", now, now),
            )  # fmt: skip
            self._append(session, Kind.STATE, {"state": "starting", "text": ""})
        return SessionInfo(id=session, options=options, state="starting", created_at=now, updated_at=now)

    def set_options(self, session: str, options: RunOptions) -> None:
        """Give a session other limits, before it goes on."""
        with self._step(session):
            self._connection.execute("UPDATE sessions SET options = ? WHERE id = ?", (codec.dump(options), session))

    def acquire(self, session: str, pid: int) -> None:
        """Become the one writer of a session; a lease whose process is dead is taken over.

        Raises:
            StoreError: another engine has it.
        """
        token = self._tokens.get(session) or secrets.token_hex(8)
        with self._step(session):
            self._connection.execute("DELETE FROM leases WHERE session_id = ?", (session,))
            self._connection.insert("leases", ("session_id", *LEASE),
                                    (session, token, pid, started(pid), this_host(), time.time()))  # fmt: skip
        self._tokens[session] = token

    def heartbeat(self, session: str) -> None:
        """Say that the engine lives.

        Raises:
            StoreError: the session was taken over.
        """
        with self._connection.transaction(durable=False):
            self._check_lease(session)
            self._connection.execute("UPDATE leases SET heartbeat_at = ? WHERE session_id = ?", (time.time(), session))

    def release(self, session: str) -> None:
        """Give the session back. Never raises for a full disk: the lease of an ended process counts for nothing."""
        token = self._tokens.pop(session, None)
        if token is not None:
            with contextlib.suppress(StoreError), self._connection.transaction(durable=True):
                self._connection.execute("DELETE FROM leases WHERE session_id = ? AND token = ?", (session, token))

    def set_state(
        self, session: str, state: SessionState, *, stop_reason: str = "", error: dict[str, Any] | None = None
    ) -> None:
        """The session's state, with why it ended, or the fault (`what`, `hint`, `exit_code`) that ended it."""
        with self._step(session):
            self._connection.execute(
                "UPDATE sessions SET state = ?, stop_reason = ?, error = ? WHERE id = ?",
                (state, codec.clean(stop_reason), None if error is None else codec.dump(error), session),
            )
            self._append(session, Kind.STATE, {"state": state, "text": stop_reason})
            if error is not None:
                self._append(session, Kind.FAILED, error)

    def add_elapsed(self, session: str, seconds: float) -> None:
        """Add engine time to the session's."""
        with self._step(session):
            self._connection.execute("UPDATE sessions SET elapsed_s = elapsed_s + ? WHERE id = ?", (seconds, session))

    # ---- what is known of the model

    def save_device(self, session: str, device: Device) -> None:
        """The machine that the session is measured on."""
        with self._step(session):
            self._connection.execute("UPDATE sessions SET device = ? WHERE id = ?", (codec.dump(device), session))

    def save_profile(self, session: str, profile: Profile) -> None:
        """The profile with its hotspots and targets; another one replaces it while there are no nodes.

        Raises:
            StoreError: the session has nodes of another profile.
        """
        bare = msgspec.structs.replace(profile, hotspots=(), targets=())
        targets = [
            (session, t.id, place, codec.clean(t.name), t.kind, codec.clean(t.qualname), t.signature.describe(),
             t.calls, t.time_us, t.share, t.floor_us, t.headroom_ms, codec.dump(t))
            for place, t in enumerate(profile.targets)
        ]  # fmt: skip
        with self._step(session):
            if self._same_profile(session, codec.dump(bare), targets):
                return
            if self._one("SELECT 1 FROM nodes WHERE session_id = ? LIMIT 1", session):
                raise _bug(f"Session {session} has kernels of another profile.")
            for table in ("hotspots", "targets", "profiles"):
                self._connection.execute(f"DELETE FROM {table} WHERE session_id = ?", (session,))  # noqa: S608
            self._connection.insert("profiles", ("session_id", "model_ms", "overhead", "record"),
                                    (session, profile.model_ms, profile.overhead, codec.dump(bare)))  # fmt: skip
            self._connection.insert_many("hotspots", ("session_id", "position", *codec.HOTSPOT), [
                (session, place, *codec.hotspot_row(h)) for place, h in enumerate(profile.hotspots)
            ])  # fmt: skip
            self._connection.insert_many("targets", (
                "session_id", "id", "position", "name", "kind", "qualname", "signature", "calls", "time_us", "share",
                "floor_us", "headroom_ms", "record",
            ), targets)  # fmt: skip
            self._append(session, Kind.PROFILED, {
                "model_ms": profile.model_ms, "hotspots": len(profile.hotspots), "targets": len(profile.targets),
            })  # fmt: skip

    def _same_profile(self, session: str, record: str, targets: list[tuple[Any, ...]]) -> bool:
        if self._one("SELECT record FROM profiles WHERE session_id = ?", session) != (record,):
            return False
        rows = self._connection.execute("SELECT record FROM targets WHERE session_id = ? ORDER BY position", (session,))
        return [row[0] for row in rows] == [target[-1] for target in targets]

    # ---- the tree

    def next_node_id(self, session: str) -> int:
        """The number of the next node: 1, 2, ..."""
        with as_store_errors(self._connection.path):
            row = self._one("SELECT coalesce(max(id), 0) + 1 FROM nodes WHERE session_id = ?", session)
        return int(row[0])

    def add_node(self, session: str, node: Node) -> None:
        """A candidate that is about to be evaluated; with its evaluation, if it has one.

        Raises:
            StoreError: another node has that number.
        """
        row = codec.node_row(node)
        with self._step(session):
            columns = ", ".join(codec.NODE)
            known = self._one(f"SELECT {columns} FROM nodes WHERE session_id = ? AND id = ?", session, node.id)  # noqa: S608
            if known is None:
                self._connection.insert("nodes", ("session_id", *codec.NODE, "created_at"),
                                        (session, *row, time.time()))  # fmt: skip
                self._append(session, Kind.NODE_ADDED, {
                    "node": node.id, "target": node.target_id, "parent": node.parent, "edge": node.edge,
                    "proposer": node.proposer, "idea": node.idea,
                })  # fmt: skip
            elif list(known) != row:
                raise _bug(f"Node {node.id} of session {session} is there already, and another one.")
            if node.evaluation is not None:
                self.set_evaluation(session, node.id, node.evaluation)

    def set_evaluation(self, session: str, node_id: int, evaluation: Evaluation) -> None:
        """The verdict on a node, with its timing samples. A verdict `infra` may be replaced, no other.

        Raises:
            StoreError: there is no such node, or it has another verdict.
        """
        row = codec.evaluation_row(evaluation)
        samples = [(float(candidate), float(baseline)) for candidate, baseline in evaluation.samples]
        where = (session, node_id)
        with self._step(session):
            target = self._one("SELECT target_id FROM nodes WHERE session_id = ? AND id = ?", *where)
            if target is None:
                raise _bug(f"Session {session} has no node {node_id}.")
            known = self._known_evaluation(session, node_id)
            if known == (row, samples):
                return
            if known is not None and known[0][0] != Verdict.INFRA:
                raise _bug(f"Node {node_id} of session {session} has another verdict already: {known[0][0]}.")
            for table in ("samples", "evaluations"):
                self._connection.execute(f"DELETE FROM {table} WHERE session_id = ? AND node_id = ?", where)  # noqa: S608
            self._connection.insert("evaluations", ("session_id", "node_id", *codec.EVALUATION, "at"),
                                    (*where, *row, time.time()))  # fmt: skip
            self._connection.insert_many("samples", ("session_id", "node_id", "i", "candidate_us", "baseline_us"), [
                (*where, i, *pair) for i, pair in enumerate(samples)
            ])  # fmt: skip
            self._append(session, Kind.NODE_EVALUATED, {
                "node": node_id, "target": target[0], "verdict": evaluation.verdict, "reason": evaluation.reason,
                "speedup": codec.number(evaluation.speedup),
            })  # fmt: skip

    def save_steps(self, session: str, steps: Sequence[Mapping[str, Any]]) -> None:
        """The steps that were decided and have no source yet, oldest first, in place of what was kept before."""
        with self._connection.transaction(durable=False):
            self._check_lease(session)
            self._connection.execute("DELETE FROM steps WHERE session_id = ?", (session,))
            self._connection.insert_many("steps", ("session_id", "position", "record"), [
                (session, place, codec.dump(step)) for place, step in enumerate(steps)
            ])  # fmt: skip

    def confirm(self, session: str, node_id: int, confirmation: Confirmation) -> None:
        """What the final confirmation of a winner came to; a later one of the same node replaces it.

        Raises:
            StoreError: the node was not found faster, or the confirmation says nothing (`infra`).
        """
        where = (session, node_id)
        row = codec.confirmation_row(confirmation)
        with self._step(session):
            known = self._one(
                "SELECT n.target_id, e.verdict FROM nodes n JOIN evaluations e ON e.session_id = n.session_id AND "
                "e.node_id = n.id WHERE n.session_id = ? AND n.id = ?", *where,
            )  # fmt: skip
            if known is None or known[1] != Verdict.FASTER or confirmation.verdict is Verdict.INFRA:
                raise _bug(f"Node {node_id} of session {session} cannot be confirmed.")
            columns = ", ".join(codec.CONFIRMATION)
            before = self._one(f"SELECT {columns} FROM confirmations WHERE session_id = ? AND node_id = ?", *where)  # noqa: S608
            if before is not None and list(before) == row:
                return
            self._connection.execute("DELETE FROM confirmations WHERE session_id = ? AND node_id = ?", where)
            self._connection.insert("confirmations", ("session_id", "node_id", *codec.CONFIRMATION, "at"),
                                    (*where, *row, time.time()))  # fmt: skip
            self._append(session, Kind.NODE_CONFIRMED, {
                "node": node_id, "target": known[0], "verdict": confirmation.verdict, "reason": confirmation.reason,
                "speedup": codec.number(confirmation.speedup), "unsanitised": confirmation.unsanitised,
            })  # fmt: skip

    def _known_evaluation(self, session: str, node_id: int) -> tuple[list[Any], list[tuple[float, float]]] | None:
        columns = ", ".join(codec.EVALUATION)
        row = self._one(f"SELECT {columns} FROM evaluations WHERE session_id = ? AND node_id = ?", session, node_id)  # noqa: S608
        if row is None:
            return None
        samples = self._connection.execute(
            "SELECT candidate_us, baseline_us FROM samples WHERE session_id = ? AND node_id = ? ORDER BY i",
            (session, node_id),
        )
        return list(row), samples.fetchall()

    def add_llm_call(
        self, session: str, call: LlmCall, *, target_id: str, edge: Edge | str, node_id: int | None
    ) -> int:  # fmt: skip
        """One call that is over into the ledger; returns its number. `node_id` is the node that comes of it, if any."""
        with self._step(session):
            number = ledger.add(
                self._connection, session, call, target_id=target_id, edge=str(edge), node_id=node_id
            )  # fmt: skip
            self._say_call(session, call)
        return number

    def open_llm_call(self, session: str, call: LlmCall, *, target_id: str, edge: Edge | str) -> int:
        """A call that is about to be made, with what it may cost at most; returns its number."""
        call = msgspec.structs.replace(call, state="open", cost_usd=None, priced=call.reserved_usd is not None)
        with self._step(session):
            return ledger.add(self._connection, session, call, target_id=target_id, edge=str(edge), node_id=None)

    def settle_llm_call(self, session: str, number: int, call: LlmCall) -> None:
        """What became of an open call.

        Raises:
            StoreError: it is not open.
        """
        with self._step(session):
            ledger.settle(self._connection, session, number, call)
            self._say_call(session, call)

    def link_llm_call(self, session: str, number: int, node_id: int) -> None:
        """The node that came of a settled call.

        Raises:
            StoreError: it is open, or has a node already.
        """
        with self._step(session):
            ledger.link(self._connection, session, number, node_id)

    def add_tool_use(self, session: str, use: ToolUse) -> None:
        """What a model tried before it answered."""
        with self._step(session):
            self._connection.insert(
                "tool_uses",
                ("session_id", "call_id", "target_id", "at", "tool", "source", "verdict", "answer", "seconds"),
                (session, use.call_id, use.target_id, time.time(), use.tool, codec.clean(use.source), use.verdict,
                 codec.clean(use.answer), use.seconds),
            )  # fmt: skip

    def settle_lost_calls(self, session: str) -> list[LlmCall]:
        """Settle what an ended engine left open at what was set aside for it."""
        with self._step(session):
            return ledger.settle_lost(self._connection, session)

    def _say_call(self, session: str, call: LlmCall) -> None:
        self._append(session, Kind.LLM_CALL, {
            "model": call.model, "cost_usd": codec.number(call.cost_usd),
            "tokens": call.prompt_tokens + call.completion_tokens, "state": call.state,
        })  # fmt: skip

    # ---- deployment and events

    def save_deployment(self, session: str, deployment: Deployment) -> None:
        """The in-model gate's result; a later one of the same session stands beside it and counts."""
        record = codec.dump(deployment)
        bare = msgspec.structs.replace(deployment, decisions=())
        with self._step(session):
            if self._last_deployment(session) == record:
                return
            number = self._connection.insert(
                "deployments", ("session_id", "at", "baseline_ms", "deployed_ms", "speedup", "record"),
                (session, time.time(), deployment.baseline_ms, deployment.deployed_ms, deployment.speedup,
                 codec.dump(bare)),
            )  # fmt: skip
            self._connection.insert_many("decisions", (
                "deployment_id", "position", "target_id", "node_id", "deployed", "why_not", "record",
            ), [(number, place, *codec.decision_row(d)) for place, d in enumerate(deployment.decisions)])  # fmt: skip
            self._append(session, Kind.DEPLOYED, {
                "baseline_ms": deployment.baseline_ms, "deployed_ms": deployment.deployed_ms,
                "speedup": deployment.speedup,
            })  # fmt: skip

    def _last_deployment(self, session: str) -> str | None:
        row = self._one("SELECT id, record FROM deployments WHERE session_id = ? ORDER BY id DESC LIMIT 1", session)
        if row is None:
            return None
        decisions = self._connection.execute(
            "SELECT record FROM decisions WHERE deployment_id = ? ORDER BY position", (row[0],)
        )
        return codec.dump(codec.to_deployment(row[1], [d[0] for d in decisions]))

    def event(self, session: str, kind: Kind | str, data: Mapping[str, Any]) -> int:
        """Append what happened; returns the event's number, higher than every earlier one's."""
        with self._connection.transaction(durable=False):
            self._check_lease(session)
            return self._append(session, kind, data)

    # ---- helpers

    @contextlib.contextmanager
    def _step(self, session: str) -> Iterator[None]:
        """A durable transaction on a session that is ours, or nobody's."""
        with self._connection.transaction(durable=True):
            self._check_lease(session)
            changed = self._connection.execute(
                "UPDATE sessions SET updated_at = ? WHERE id = ?", (time.time(), session)
            ).rowcount
            if not changed:
                raise _bug(f"There is no session {session}.")
            yield

    def _check_lease(self, session: str) -> None:
        row = self._one(f"SELECT {', '.join(LEASE)} FROM leases WHERE session_id = ?", session)  # noqa: S608
        ours = self._tokens.get(session)
        if ours is not None:
            if row is None or row[0] != ours:
                self._tokens.pop(session, None)
                raise StoreError(f"Session {session} was taken over by another engine.",
                                 "Look at it with forge-tui; this engine ends.")  # fmt: skip
            return
        if row is not None:
            lease = Lease.from_row(row)
            if lease.alive(time.time()):
                raise StoreError(
                    f"Session {session} is being run by another engine (process {lease.pid} on "
                    f"{lease.host.split()[0]}).",
                    "Follow it with forge-tui, or end it there first.",
                )

    def _append(self, session: str, kind: Kind | str, data: Mapping[str, Any]) -> int:
        return self._connection.insert("events", ("session_id", "at", "kind", "data"),
                                       (session, time.time(), str(kind), codec.dump(dict(data))))  # fmt: skip

    def _one(self, sql: str, *values: Any) -> Any:
        return self._connection.execute(sql, values).fetchone()


def _bug(what: str) -> StoreError:
    """A step that the engine must never take."""
    return StoreError(what, exit_code=ExitCode.BUG)
