"""Sessions whose kernels a real LiteLLM client fetches from a local server: money, faults, stops, kills."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import Any

import msgspec
import pytest
from fault_server import REPLY, FaultServer, Play, serving
from test_engine_sessions import OPTIONS, FakeRooms, Session

from forge_tui.core.events import Kind
from forge_tui.core.records import LlmCall
from forge_tui.engine import bench
from forge_tui.proposers import llm
from forge_tui.proposers.streaming import Patience
from forge_tui.store.writer import Store

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the")
ONE, OTHER = "openai/made-up", "anthropic/made-up"
PRICE = (1.0, 2.0)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up keys; rests that a test can wait for."""
    monkeypatch.setenv("OPENAI_API_KEY", "none-at-all")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none-at-all")
    monkeypatch.setattr(bench, "REST_S", 0.05)


@pytest.fixture
def session(tmp_path):
    """An empty workspace."""
    return Session(tmp_path / ".forge")


class LlmRooms(FakeRooms):
    """The simulated rooms with real models."""

    def __init__(self, server: FaultServer, **behaviour: Any) -> None:
        super().__init__(fast=True, **behaviour)
        self.server = server
        self.price: Any = PRICE

    def proposer(self, name: str) -> llm.LlmProposer:
        return llm.LlmProposer(
            name, api_base=self.server.base_for(name), price=self.price, sleep=lambda s: asyncio.sleep(0.001),
            patience=Patience(first_s=5.0, reasoning_first_s=5.0, stall_s=5.0),
        )  # fmt: skip


def kernels(number: int, body: Any) -> Play:
    """A new kernel every time."""
    return Play(text=REPLY.replace("return 0;", f"return 0; // {number}"))


def asked(**changes: Any) -> Any:
    """Options with one model."""
    fields = {"proposers": (ONE,), "max_evaluations": 6, "usd_per_percent": 1e9,
              "transfer": False} | changes
    return msgspec.structs.replace(OPTIONS, **fields)


def ledger(session: Session) -> list[LlmCall]:
    """The session's rows."""
    with contextlib.closing(session.reader) as reader:
        return [entry.call for entry in reader.llm_calls(session.id)]


def events(session: Session, kind: Kind) -> list[dict[str, Any]]:
    """Data of every event of a kind."""
    with contextlib.closing(session.reader) as reader:
        return [event.data for event in reader.events(session.id) if event.kind == kind]


async def until(condition: Any, limit_s: float = 20.0) -> None:
    """Wait for something that shows in the store."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - another process's view
            await asyncio.sleep(0.02)


async def test_the_budget_holds_for_calls_in_parallel(session):
    """What is spent and set aside never passes the budget; the search ends and says why, and every row has its node."""
    async with serving() as server:
        server.script = kernels
        rooms = LlmRooms(server)
        await session.run(rooms, options=asked(max_usd=0.05, max_evaluations=500))
    rows = ledger(session)
    with contextlib.closing(session.reader) as reader:
        info, entries = reader.session(session.id), reader.llm_calls(session.id)
        nodes = {node.id: node for node in reader.nodes(session.id)}
    assert len(rows) == len(server.completed) == len(server.requests) > 4
    assert info.cost_usd == pytest.approx(math.fsum(row.cost_usd or 0 for row in rows))
    # as much as could be was spent: what is left does not pay for another call
    reserved = rows[-1].reserved_usd
    assert 0.05 - max(row.reserved_usd for row in rows) * 1.5 < info.cost_usd <= 0.05
    assert "of the budget of $0.0500 are spent, and one more model call may cost" in info.stop_reason
    assert reserved is not None
    assert all(entry.node_id in nodes for entry in entries)
    assert all(nodes[e.node_id].cost_usd == e.call.cost_usd for e in entries)


async def test_a_stop_cancels_calls_within_a_second_and_books_them(session):
    """Calls on their way end with the stop; the ledger has them at what was set aside; the next engine goes on."""
    async with serving() as server:
        server.script = lambda number, body: Play("slow") if number >= 3 else kernels(number, body)
        engines: list[Any] = []
        running = asyncio.create_task(session.run(LlmRooms(server), options=asked(), meanwhile=engines.append))
        await until(lambda: session.id is not None and server.open > 0
                    and sum(row.state == "done" for row in ledger(session)) == 3)  # fmt: skip
        began = time.monotonic()
        engines[0].ask_stop()
        await running
        assert time.monotonic() - began < 1.5
        rows = ledger(session)
        cancelled = [row for row in rows if row.state == "cancelled"]
        # one may have been cancelled before it was sent
        assert len(rows) >= len(server.requests) > 3
        assert cancelled
        async with asyncio.timeout(1):
            await server.idle.wait()
        assert all((row.cost_usd, row.exact) == (row.reserved_usd, False) for row in cancelled)
        assert {row.state for row in rows} == {"done", "cancelled"}
        before = len(rows)
        with contextlib.closing(session.reader) as reader:
            assert reader.session(session.id).state == "interrupted"
            had = len(reader.nodes(session.id))
        server.script = kernels
        await session.run(LlmRooms(server), options=asked())
        with contextlib.closing(session.reader) as reader:
            assert len(reader.nodes(session.id)) == 6
        assert len(ledger(session)) - before == 6 - had


async def test_a_killed_engines_call_is_booked_and_replies_are_not_paid_twice(session):
    """A row left open counts as spent at what was set aside; nodes there are not asked for again."""
    async with serving() as server:
        server.script = kernels
        await session.run(LlmRooms(server), options=asked(max_evaluations=3))
        first = len(server.requests)
        with contextlib.closing(Store.open(session.workspace)) as store:
            store.acquire(session.id, 1)
            store.set_state(session.id, "interrupted")
            call = LlmCall(model=ONE, prompt="p", reply="", reserved_usd=0.25)
            store.open_llm_call(session.id, call, target_id="x", edge="draft")
            store.release(session.id)
        await session.run(LlmRooms(server), options=asked(max_evaluations=5, max_usd=10.0))
    rows = ledger(session)
    (lost,) = [row for row in rows if row.state == "lost"]
    assert (lost.cost_usd, lost.exact, lost.priced) == (0.25, False, True)
    assert first == 3
    assert len(server.requests) == 5
    with contextlib.closing(session.reader) as reader:
        assert reader.session(session.id).cost_usd == pytest.approx(math.fsum(row.cost_usd or 0 for row in rows))
    said = [data["text"] for data in events(session, Kind.LOG)]
    assert any(text.startswith("1 model call was on the way when the engine ended") for text in said)


async def test_a_reply_that_came_is_used_by_the_next_engine(session):
    """The engine ends between a cut-off reply and its second half: the first is neither asked nor paid for again."""
    cut = Play(text=REPLY[:95], finish="length")
    async with serving() as server:
        server.script = lambda number, body: cut if number == 0 else Play("slow")
        engines: list[Any] = []
        running = asyncio.create_task(
            session.run(LlmRooms(server), options=asked(max_evaluations=1), meanwhile=engines.append))
        await until(lambda: session.id is not None and len(server.requests) == 2 and server.open == 1)
        engines[0].ask_stop()
        await running
        server.script = lambda number, body: Play(text=REPLY[95:])
        await session.run(LlmRooms(server), options=asked(max_evaluations=1))
    rows = ledger(session)
    assert [(row.state, row.attempt, row.finish) for row in rows] == [
        ("done", 1, "length"), ("cancelled", 2, ""), ("done", 2, "stop")]
    assert len(server.requests) == 3
    with contextlib.closing(session.reader) as reader:
        (node,) = reader.nodes(session.id)
        assert [entry.node_id for entry in reader.llm_calls(session.id)] == [None, None, node.id]
    assert node.cost_usd == pytest.approx((rows[0].cost_usd or 0) + (rows[2].cost_usd or 0))


async def test_a_model_that_cannot_work_makes_way_for_another(session):
    """A wrong key puts one model out; the other writes every kernel, and no kernel counts as failed."""
    async with serving() as server:
        # only Anthropic's format has the system prompt beside the messages
        server.script = lambda number, body: kernels(number, body) if "system" in body else Play("401")
        await session.run(LlmRooms(server), options=asked(proposers=(ONE, OTHER)))
    with contextlib.closing(session.reader) as reader:
        nodes = reader.nodes(session.id)
    assert len(nodes) == 6
    assert {node.proposer for node in nodes} == {OTHER}
    errors = [data["text"] for data in events(session, Kind.LOG) if data["level"] == "error"]
    assert len(errors) == 1
    assert errors[0].startswith(f"{ONE}: {ONE} refused the key (401).")
    assert all(data["drop"] is None for data in events(session, Kind.PROPOSAL_FAILED))


@pytest.mark.parametrize("kind", ["401", "quota", "404"])
async def test_what_a_person_can_mend_pauses_the_search_until_they_say_so(session, kind):
    """On a screen the search waits with its reason, and goes on from a key; without one it ends with the reason."""
    async with serving() as server:
        mended = False
        server.script = lambda number, body: kernels(number, body) if mended else Play(kind)
        engines: list[Any] = []
        running = asyncio.create_task(
            session.run(LlmRooms(server), options=asked(attended=True), meanwhile=engines.append)
        )
        await until(lambda: session.id is not None and events(session, Kind.PAUSED))
        (paused,) = events(session, Kind.PAUSED)
        assert paused["paused"] is True
        assert ONE in paused["reason"]
        assert paused["text"].startswith("Paused until somebody says to go on.")
        asked_so_far = len(server.requests)
        await asyncio.sleep(0.1)
        assert len(server.requests) == asked_so_far
        mended = True
        engines[0].pause(False)
        await running
    with contextlib.closing(session.reader) as reader:
        assert reader.session(session.id).state == "done"
        assert len(reader.nodes(session.id)) == 6
    assert [data["paused"] for data in events(session, Kind.PAUSED)] == [True, False]


async def test_without_a_screen_the_search_ends_with_the_reason(session):
    """Nobody is there to mend it."""
    async with serving() as server:
        server.script = lambda number, body: Play("401")
        await session.run(LlmRooms(server), options=asked())
    with contextlib.closing(session.reader) as reader:
        info = reader.session(session.id)
    assert info.state == "done"
    assert "refused the key (401)" in info.stop_reason
    assert not events(session, Kind.PAUSED)


async def test_an_outage_is_waited_for(session):
    """A provider that refuses for a while is asked again by itself; meanwhile the log says what is waited for."""
    async with serving() as server:
        server.script = lambda number, body: Play("529") if number < 40 else kernels(number, body)
        await session.run(LlmRooms(server), options=asked())
    with contextlib.closing(session.reader) as reader:
        assert len(reader.nodes(session.id)) == 6
        assert reader.session(session.id).cost_usd < 0.05
    waits = events(session, Kind.PAUSED)
    assert [data["paused"] for data in waits][-1] is False
    assert "overloaded" in waits[0]["reason"]
    assert any("is asked again in" in data["text"] for data in events(session, Kind.LOG))


async def test_an_outage_that_does_not_end_ends_the_search(session, monkeypatch):
    """After a number of rests the provider is given up, with what it said."""
    monkeypatch.setattr(bench, "OUTAGE_LIMIT", 3)
    async with serving() as server:
        server.script = lambda number, body: Play("503", message="down for repairs")
        await session.run(LlmRooms(server), options=asked())
    with contextlib.closing(session.reader) as reader:
        assert "down for repairs (3 times in a row)" in reader.session(session.id).stop_reason


async def test_an_unknown_price_is_said_once(session):
    """Tokens are counted, dollars are not, and the way to give a price is named."""
    async with serving() as server:
        server.script = kernels
        rooms = LlmRooms(server)
        rooms.price = None
        await session.run(rooms, options=asked(max_usd=1.0))
    with contextlib.closing(session.reader) as reader:
        info = reader.session(session.id)
    assert (info.cost_usd, info.unpriced_calls) == (0.0, len(server.requests))
    assert all(row.prompt_tokens == 900 for row in ledger(session))
    said = [data["text"] for data in events(session, Kind.LOG) if "price" in data["text"]]
    assert len(said) == 1
    assert said[0].startswith(f"The price of {ONE} is not known: its tokens are counted, its dollars are not, and the ")
    assert said[0].endswith(f"Give it with --price {ONE}=IN,OUT, in dollars per million tokens.")


async def test_the_cost_is_estimated_by_target_before_it_is_paid(session):
    """A sentence before the first call: every target with its calls and dollars, the budget, and the sum of it."""
    async with serving() as server:
        server.script = kernels
        await session.run(LlmRooms(server), options=asked(max_evaluations=6, max_usd=5.0))
    (said,) = [data for data in events(session, Kind.LOG) if "estimate" in data]
    parts = said["estimate"]
    assert {part["name"] for part in parts} == {"norm", "softmax"}
    assert sum(part["calls"] for part in parts) == 6
    by_name = {part["name"]: part for part in parts}
    assert by_name["norm"]["calls"] > by_name["softmax"]["calls"], "the one with more to gain"
    # 2500 tokens of output at $2 a million, and a prompt at $1 a million
    each = by_name["norm"]["usd"] / by_name["norm"]["calls"]
    assert 0.005 < each < 0.005 + 0.012
    assert "norm about $" in said["text"]
    assert said["text"].endswith("It ends at $5.00 at the latest.")
    with contextlib.closing(session.reader) as reader:
        kinds = [(event.kind, event.data) for event in reader.events(session.id)]
    first_call = next(at for at, (kind, _) in enumerate(kinds) if kind == Kind.LLM_CALL)
    assert any("estimate" in data for _, data in kinds[:first_call])


async def test_nothing_is_estimated_where_the_price_is_not_known(session):
    """No made-up dollars."""
    async with serving() as server:
        server.script = kernels
        rooms = LlmRooms(server)
        rooms.price = None
        await session.run(rooms, options=asked(max_evaluations=2))
    assert [data for data in events(session, Kind.LOG) if "estimate" in data] == []
