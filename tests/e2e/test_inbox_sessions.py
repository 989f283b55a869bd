"""Whole sessions whose kernels come from an inbox, and from the recorded replies of another session."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
from test_engine_sessions import OPTIONS, TARGETS, FakeRooms, Session

from forge_tui.core.errors import UsageError
from forge_tui.core.events import Kind
from forge_tui.core.records import Edge
from forge_tui.engine import replays
from forge_tui.engine.limits import Limit, ended_by
from forge_tui.proposers import replay
from forge_tui.proposers.desk import Desk
from forge_tui.proposers.inbox import InboxProposer
from forge_tui.search.landscape import KNOBS, LEVELS, Design
from forge_tui.search.simulate import DEVICE, write

MINE = msgspec.structs.replace(OPTIONS, proposers=("inbox",), max_evaluations=8)
KERNEL = '#include "forge_target.h"\nextern "C" int forge_launch(FORGE_PARAMS) {\n    return 0;\n}\n'


def kernel(number: int) -> str:
    """A kernel that the simulated judge reads."""
    rng = random.Random(number)
    knobs = tuple(rng.randrange(LEVELS) for _ in range(KNOBS))
    return write(Design(number % 3, frozenset({number % 4}), knobs, quality=number / 1000)) + KERNEL


def reply(number: int) -> str:
    """What a model answers."""
    return f"family: way {number}\nhypothesis: it is fast\n```cpp\n{kernel(number)}```\n"


class Person:
    """Answers every open prompt, until told to stop."""

    def __init__(self, session: Session, most: int = 10**6) -> None:
        self.desk = Desk(session.workspace.root)
        self.most = most
        self.answered: list[int] = []

    async def __call__(self) -> None:
        while True:
            for entry in self.desk.entries():
                if self.desk.state(entry) == "open" and len(self.answered) < self.most:
                    self.desk.answer(entry, reply(entry.number))
                    self.answered.append(entry.number)
            await asyncio.sleep(0.005)


@pytest.fixture
def session(tmp_path):
    """An empty workspace."""
    return Session(tmp_path / ".forge")


def said(session):
    """What the log says."""
    return [event.data["text"] for event in session.reader.events(session.id) if event.kind == Kind.LOG]


class SlowRooms(FakeRooms):
    """Evaluations take their time."""

    async def evaluate(self, target, built, seed):
        await asyncio.sleep(self.behaviour["slow_s"])
        return await super().evaluate(target, built, seed)


async def go(session, person=None, options=MINE, meanwhile=None, slow_s=0.0):
    """One engine on the session, with somebody at the inbox."""
    proposer = InboxProposer(session.workspace.root, "s", poll_s=0.005)
    rooms = SlowRooms(proposer=proposer, slow_s=slow_s)
    helper = asyncio.create_task(person()) if person is not None else None
    try:
        await session.run(rooms, options=options, meanwhile=meanwhile)
    finally:
        if helper is not None:
            helper.cancel()
    return proposer


async def test_a_person_writes_a_session(session):
    """Prompts come out, replies go in, settings are tuned between them, and the ledger has both for nothing."""
    person = Person(session)
    proposer = await go(session, person)
    info = session.reader.session(session.id)
    assert (info.state, info.cost_usd, info.unpriced_calls) == ("done", 0.0, 0)
    calls = session.reader.llm_calls(session.id)
    nodes = session.reader.nodes(session.id)
    written = [node for node in nodes if node.proposer == "inbox"]
    assert len(nodes) == 8
    assert {node.source for node in written} <= {kernel(n) for n in person.answered}
    assert len(written) >= 3
    # the last ones may have come when the evaluations were used up
    assert {call.call.prompt for call in calls} <= {proposer.desk.prompt(e) for e in proposer.desk.entries()
                                                    if e.taken}  # fmt: skip
    assert all("# Contract (CPU" in call.call.prompt for call in calls)
    assert {node.family for node in written} <= {f"way {n}" for n in person.answered}


async def test_several_prompts_are_open_at_once_and_outlive_the_engine(session):
    """A stop ends at once and leaves them; replies that come meanwhile are found by the next engine, none is lost."""
    engines = []

    async def stop_when_open():
        desk = Desk(session.workspace.root)
        while len(desk.entries()) < 4:  # noqa: ASYNC110 - files, of which nobody tells
            await asyncio.sleep(0.005)
        engines[0].ask_stop()

    await go(session, stop_when_open, meanwhile=engines.append)
    assert session.reader.session(session.id).state == "interrupted"
    desk = Desk(session.workspace.root)
    before = desk.entries()
    assert [desk.state(entry) for entry in before] == ["open"] * 4
    assert {entry.target_id for entry in before} == {t.id for t in TARGETS}
    for entry in before:
        desk.answer(entry, reply(entry.number))
    await go(session, Person(session))
    nodes = session.reader.nodes(session.id)
    assert {kernel(entry.number) for entry in before} <= {node.source for node in nodes}
    assert session.reader.session(session.id).state == "done"
    assert [desk.state(desk.entry(entry.number)) for entry in before] == ["taken"] * 4


async def test_a_limit_does_not_wait_for_a_person(session):
    """With the minutes used up the session ends, and its prompts stay for a resume that gives it more."""
    short = msgspec.structs.replace(MINE, max_minutes=0.005)
    await go(session, Person(session, most=4), options=short, slow_s=0.2)
    info = session.reader.session(session.id)
    assert (info.state, info.stop_reason) == ("done", "The limit of 0.005 minutes of search is reached.")
    assert 0.3 <= info.search_s < info.elapsed_s
    assert ended_by(info) == Limit(option="minutes", value=0.005)
    desk = Desk(session.workspace.root)
    left = [entry.number for entry in desk.entries() if not entry.taken]
    assert left
    assert any(f"{len(left)} prompt" in text and "open: a resume" in text for text in said(session))
    await go(session, Person(session), options=msgspec.structs.replace(MINE, max_minutes=1.0, max_evaluations=20))
    assert {kernel(number) for number in left} <= {node.source for node in session.reader.nodes(session.id)}


async def test_a_recorded_session_is_played_again(session, tmp_path):
    """The replies of a session, or of a file that holds them, give the same kernels; nothing is asked twice."""
    await go(session, Person(session))
    recorded = replays.load(f"replay:{session.id}", session.workspace)
    assert len(recorded) == len(session.reader.llm_calls(session.id))
    path = tmp_path / "replies.jsonl"
    path.write_text(replay.to_lines(recorded))
    assert replays.load(f"replay:{path}", session.workspace) == recorded
    second = Session(tmp_path / "second")
    name = f"replay:{path}"
    options = msgspec.structs.replace(MINE, proposers=(name,))
    await second.run(FakeRooms(proposer=replay.ReplayProposer(name, recorded)), options=options)
    mine = {n.source for n in session.reader.nodes(session.id) if n.proposer == "inbox"}
    theirs = {n.source for n in second.reader.nodes(second.id) if n.proposer == name}
    assert theirs == mine
    assert second.reader.session(second.id).state == "done"


def test_what_cannot_be_played_is_said(session, tmp_path):
    """A session without replies, an unknown one, an empty name, a file of something else."""
    from forge_tui.store.writer import Store

    store = Store.open(session.workspace)
    made = store.create_session(MINE).id
    store.close()
    with pytest.raises(UsageError, match="has no recorded reply"):
        replays.load(f"replay:{made}", session.workspace)
    with pytest.raises(UsageError, match="nosuch"):
        replays.load("replay:nosuch", session.workspace)
    with pytest.raises(UsageError, match="names nothing"):
        replays.load("replay:", session.workspace)
    path = tmp_path / "other.jsonl"
    path.write_text("\n{}\n")
    with pytest.raises(UsageError, match=r"Line 2 of .*other\.jsonl is no recorded reply"):
        replays.load(f"replay:{path}", session.workspace)


def test_devices_and_edges_of_recordings_fit(session):
    """What is recorded of one language or target is no reply for another."""
    entry = replay.Recorded(target_id=TARGETS[0].id, edge=Edge.DRAFT, language="cuda", reply=reply(1), source=kernel(1))
    from forge_tui.core.ports import Task

    task = Task(target=TARGETS[0], device=DEVICE, edge=Edge.DRAFT, parent=None, failed=None, best=None, lineage=(),
                nodes=(), seed=1)  # fmt: skip
    assert not replay.ReplayProposer("replay:x", [entry]).can(task)
    cpp = msgspec.structs.replace(entry, language="cpp")
    assert replay.ReplayProposer("replay:x", [cpp]).can(task)
    assert replay.ReplayProposer("replay:x", [cpp]).can(msgspec.structs.replace(task, edge=Edge.REWRITE))
    assert not replay.ReplayProposer("replay:x", [cpp]).can(msgspec.structs.replace(task, edge=Edge.REPAIR))
    assert not replay.ReplayProposer("replay:x", [cpp]).can(msgspec.structs.replace(task, target=TARGETS[1]))
