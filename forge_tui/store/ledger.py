"""Rows of money: written before a call is made, settled when it came back; to be called inside a durable step."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from forge_tui.core.errors import ExitCode, StoreError
from forge_tui.core.records import LlmCall
from forge_tui.store import codec
from forge_tui.store.connection import WriteConnection


def add(
    connection: WriteConnection, session: str, call: LlmCall, *, target_id: str, edge: str, node_id: int | None
) -> int:
    """A new row; returns its number."""
    return connection.insert(
        "llm_calls", ("session_id", "target_id", "edge", "node_id", "at", *codec.LLM_CALL),
        (session, target_id, edge, node_id, time.time(), *codec.llm_row(call)),
    )  # fmt: skip


def settle(connection: WriteConnection, session: str, number: int, call: LlmCall) -> None:
    """What became of an open call.

    Raises:
        StoreError: there is no such call, or it is settled already.
    """
    marks = ", ".join(f"{name} = ?" for name in codec.LLM_CALL)
    changed = connection.execute(
        f"UPDATE llm_calls SET {marks} WHERE id = ? AND session_id = ? AND state = 'open'",  # noqa: S608
        (*codec.llm_row(call), number, session),
    ).rowcount
    if changed != 1:
        raise StoreError(f"Call {number} of session {session} is not open.", exit_code=ExitCode.BUG)


def link(connection: WriteConnection, session: str, number: int, node_id: int) -> None:
    """The node that came of a call.

    Raises:
        StoreError: there is no such call, or it is open, or has a node.
    """
    changed = connection.execute(
        "UPDATE llm_calls SET node_id = ? WHERE id = ? AND session_id = ? AND node_id IS NULL AND state <> 'open'",
        (node_id, number, session),
    ).rowcount
    if changed != 1:
        raise StoreError(f"Call {number} of session {session} has no room for a node.", exit_code=ExitCode.BUG)


def settle_lost(connection: WriteConnection, session: str) -> list[LlmCall]:
    """Book the calls that an ended engine left open at what was set aside for them; returns them."""
    columns = ", ".join(codec.LLM_CALL)
    rows = connection.execute(
        f"SELECT id, {columns} FROM llm_calls WHERE session_id = ? AND state = 'open' ORDER BY id",  # noqa: S608
        (session,),
    ).fetchall()
    found = []
    for row in rows:
        call = codec.to_llm_call(row[1:])
        lost = booked(call, "lost", "The engine ended while this call was on its way.")
        settle(connection, session, row[0], lost)
        found.append(lost)
    return found


def booked(call: LlmCall, state: Any, error: str) -> LlmCall:
    """A call without an answer, at what was set aside for it."""
    return msgspec.structs.replace(
        call, state=state, error=error, cost_usd=call.reserved_usd, priced=call.reserved_usd is not None, exact=False
    )
