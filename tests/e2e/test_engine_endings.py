"""How sessions end: unanswered prompts, minutes, dollars, refusals, and what a resume goes on with."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from benchmarks import kill_points as kills
from test_engine_sessions import OPTIONS, TARGETS, CountedProposer, FakeRooms, Session
from test_inbox_sessions import Person, kernel, reply

from forge_tui.core.events import Kind
from forge_tui.core.records import Edge, LlmCall, Proposal, StartKernel
from forge_tui.engine import restoring, roster
from forge_tui.proposers.desk import Desk
from forge_tui.proposers.inbox import InboxProposer
from forge_tui.search.driver import Step
from forge_tui.store.reader import Reader

BOTH = msgspec.structs.replace(OPTIONS, proposers=("simulated", "inbox"), usd_per_percent=1e9)
ALONE = msgspec.structs.replace(OPTIONS, proposers=("inbox",))


@pytest.fixture
def session(tmp_path):
    """An empty workspace."""
    return Session(tmp_path / ".forge")


class ManyRooms(FakeRooms):
    """Proposers by name."""

    def __init__(self, session, **proposers):
        super().__init__()
        self.proposers = proposers
        self.workspace = session.workspace

    def proposer(self, name):
        if name == "inbox":
            return InboxProposer(self.workspace.root, "s", poll_s=0.005)
        return self.proposers.get(name) or CountedProposer(self.land, self.asked)


class Paid:
    """A model with books, each call of which costs half of what is set aside; some of its requests are turned down."""

    name = "paid"

    def __init__(self, rooms, *, most=0.5, refuses=lambda task: False):
        self.inner = CountedProposer(rooms.land, rooms.asked)
        self.most = most
        self.refuses = refuses
        self.asked = []
        self.books = None

    def keep_books(self, books):
        self.books = books

    def can(self, task):
        return self.inner.can(task)

    async def most_usd(self):
        # too little, so that it is the books that say no
        return self.most / 10

    async def propose(self, task):
        call = LlmCall(model=self.name, prompt="p", reply="r", reserved_usd=self.most)
        number = self.books.open(task, call)
        if number is None:
            return Proposal(source=None, infra=True, this_request=True, failure="The budget does not allow it.")
        node = task.failed or task.parent
        self.asked.append((task.target.id, task.edge, node.id if node else None))
        await asyncio.sleep(0)
        if self.refuses(task):
            refused = msgspec.structs.replace(call, state="failed", cost_usd=0.0, priced=True)
            self.books.settle(number, refused)
            return Proposal(source=None, infra=True, this_request=True, failure="Too long.", call=refused,
                            booked=number)  # fmt: skip
        paid = msgspec.structs.replace(call, cost_usd=self.most / 2, priced=True)
        self.books.settle(number, paid)
        return msgspec.structs.replace(self.inner.write(task), call=paid, booked=number)

    async def close(self):
        pass


def info(session):
    """The session's row."""
    with contextlib.closing(session.reader) as reader:
        return reader.session(session.id)


def told(session, kind):
    """Data of its events of a kind."""
    with contextlib.closing(session.reader) as reader:
        return [event.data for event in reader.events(session.id, limit=10**6) if event.kind == kind]


def sources(session):
    """Of its nodes."""
    with contextlib.closing(session.reader) as reader:
        return [node.source for node in reader.nodes(session.id)]


async def test_an_unanswered_prompt_takes_no_evaluation_and_holds_up_no_end(session):
    """All evaluations are made though nobody answers; the answer that comes later is read by a resume with more."""
    await session.run(ManyRooms(session), options=msgspec.structs.replace(BOTH, max_evaluations=8))
    assert (info(session).state, info(session).stop_reason) == ("done", "All 8 evaluations are used up.")
    assert len(sources(session)) == 8
    desk = Desk(session.workspace.root)
    left = desk.entries()
    assert [desk.state(entry) for entry in left] == ["open"] * len(left)
    assert left
    said = [data["text"] for data in told(session, Kind.LOG)]
    assert any(text.startswith(f"{len(left)} prompt") and "open: a resume" in text for text in said)
    for entry in left:
        desk.answer(entry, reply(entry.number))
    await session.run(ManyRooms(session), options=msgspec.structs.replace(BOTH, max_evaluations=16))
    assert len(sources(session)) == 16
    assert {kernel(entry.number) for entry in left} <= set(sources(session))


async def test_an_answer_for_which_no_evaluation_is_left_stays_unread(session):
    """What comes while the last candidates are evaluated is left for a resume that has more."""

    class Slow(ManyRooms):
        async def evaluate(self, target, built, seed):
            if self.asked["evaluate"] == 4:
                # the last four are on their way
                async with asyncio.timeout(10):
                    while len(sources(session)) < 8:  # noqa: ASYNC110 - another view
                        await asyncio.sleep(0.01)
                desk = Desk(session.workspace.root)
                for entry in desk.entries():
                    if desk.state(entry) == "open":
                        desk.answer(entry, reply(entry.number))
                await asyncio.sleep(0.1)
            return await super().evaluate(target, built, seed)

    await session.run(Slow(session), options=msgspec.structs.replace(BOTH, max_evaluations=8))
    assert len(sources(session)) == 8
    desk = Desk(session.workspace.root)
    assert {desk.state(entry) for entry in desk.entries()} == {"answered"}
    assert len(_steps(session)) == len(desk.entries())


async def test_steps_that_a_limit_keeps_back_are_kept(session):
    """An engine that may search no more writes down what another one left, beside what it does itself."""
    engines = []
    running = asyncio.create_task(session.run(ManyRooms(session), options=ALONE, meanwhile=engines.append))
    async with asyncio.timeout(10):
        while not session.id or len(_steps(session)) < 4:  # noqa: ASYNC110 - another view
            await asyncio.sleep(0.02)
    engines[0].ask_stop()
    await running
    before = _steps(session)
    own = StartKernel(source=kernel(3), language="cpp", path="own.cpp")
    await session.run(ManyRooms(session), options=msgspec.structs.replace(ALONE, max_minutes=0.0, start=(own,)))
    assert (info(session).state, sources(session)) == ("done", [kernel(3)])
    assert info(session).stop_reason == "The limit of 0 minutes of search is reached."
    assert _steps(session) == before


async def test_the_rent_of_a_wait_for_a_person_ends_it(session):
    """Ten dollars a second and three to spend: the session ends though prompts are open, within its minutes."""
    began = time.monotonic()
    await session.run(ManyRooms(session), options=msgspec.structs.replace(
        ALONE, max_usd=3.0, gpu_usd_per_hour=36000.0, max_minutes=0.004))  # fmt: skip
    assert time.monotonic() - began < 3
    assert info(session).state == "done"
    assert "of the budget of $3.00 are spent" in info(session).stop_reason
    assert info(session).search_s < 0.004 * 60 < 0.3 <= info(session).elapsed_s


async def test_minutes_count_search_and_go_on_at_a_resume(session):
    """A wait for a person alone uses none; what was used before a stop is used at the resume."""
    short = msgspec.structs.replace(ALONE, max_minutes=0.01, max_evaluations=8)
    engines = []
    running = asyncio.create_task(session.run(ManyRooms(session), options=short, meanwhile=engines.append))
    await asyncio.sleep(1.0)
    assert not running.done(), "0.6 s of search are not over, as nothing is searched"
    assert engines[0].status()["search_s"] < 0.6
    engines[0].ask_stop()
    await running
    before = info(session)
    assert before.state == "interrupted"
    assert 0 < before.search_s < 0.6
    assert before.elapsed_s > 0.7

    person = asyncio.create_task(Person(session)())
    await session.run(ManyRooms(session), options=msgspec.structs.replace(short, max_minutes=1.0))
    person.cancel()
    after = info(session)
    assert len(sources(session)) == 8
    assert after.search_s > before.search_s
    spent = msgspec.structs.replace(short, max_minutes=after.search_s / 60, max_evaluations=20)
    await session.run(ManyRooms(session), options=spent)
    assert info(session).stop_reason == f"The limit of {spent.max_minutes:g} minutes of search is reached."
    assert len(sources(session)) == 8


async def test_profiling_is_time_apart(session):
    """It counts as engine time and as profiling, and not for the minutes of search."""

    class Slow(ManyRooms):
        async def profile(self):
            await asyncio.sleep(0.3)
            return await super().profile()

    await session.run(Slow(session), options=msgspec.structs.replace(OPTIONS, max_minutes=0.2 / 60, max_evaluations=1))
    found = info(session)
    assert found.profile_s >= 0.3
    assert found.elapsed_s >= found.profile_s + found.search_s
    assert len(sources(session)) == 1, "its time is not used up before it begins"


async def test_a_request_that_is_turned_down_puts_nobody_out(session):
    """Every draft of one target is refused; nobody rests, and it is not asked again, by the next engine neither."""
    rooms = ManyRooms(session)
    first = TARGETS[0].id
    for evaluations in (10, 20):
        paid = Paid(rooms, refuses=lambda task: task.target.id == first)
        rooms.proposers = {"paid": paid}
        await session.run(rooms, options=msgspec.structs.replace(
            OPTIONS, proposers=("paid",), max_evaluations=evaluations, usd_per_percent=1e9))  # fmt: skip
        assert len(sources(session)) == evaluations
        asked = [place for place in paid.asked if place[0] == first]
        # two were on their way together
        assert asked == ([(first, Edge.DRAFT, None)] * 2 if evaluations == 10 else [])
    assert not told(session, Kind.PAUSED)
    assert not [data for data in told(session, Kind.LOG) if "asked again" in data["text"]]


async def test_a_call_that_the_budget_does_not_hold_is_not_held_against_the_model(session, monkeypatch):
    """The books say no, nothing was asked: nobody rests, the reason is the budget, and every row is within it."""
    monkeypatch.setattr(roster, "REST_S", 100.0)
    rooms = ManyRooms(session)
    rooms.proposers = {"paid": Paid(rooms, most=0.3)}
    options = msgspec.structs.replace(OPTIONS, proposers=("paid", "simulated"), max_usd=0.2, max_evaluations=40,
                                      usd_per_percent=1e9)  # fmt: skip
    await session.run(rooms, options=msgspec.structs.replace(options, proposers=("paid",)))
    said = "$0.00 of the budget of $0.20 are spent, and one more model call may cost $0.30."
    assert info(session).stop_reason == said
    failed = told(session, Kind.PROPOSAL_FAILED)
    assert {data["needed_usd"] for data in failed} == {0.3}
    assert not [data for data in told(session, Kind.LOG) if "asked again" in data["text"]]
    assert not told(session, Kind.PAUSED)
    before = len(failed)
    # known from the start now, and with more there is enough
    await session.run(rooms, options=msgspec.structs.replace(options, proposers=("paid",), max_usd=0.25))
    assert len(told(session, Kind.PROPOSAL_FAILED)) == before
    await session.run(rooms, options=msgspec.structs.replace(options, proposers=("paid",), max_usd=1.0))
    assert 0.7 < info(session).cost_usd <= 1.0
    assert sources(session)


@pytest.mark.parametrize(("now", "later"), [(1.0, 0.3), (0.4, 2.0), (0.0, 1.0), (1.0, 0.0)])
async def test_a_resume_keeps_to_its_own_budget(session, now, later):
    """Less than was spent: nothing more is asked. More: it goes on from what was spent."""
    rooms = ManyRooms(session)
    rooms.proposers = {"paid": Paid(rooms, most=0.1)}
    options = msgspec.structs.replace(OPTIONS, proposers=("paid",), max_evaluations=200, usd_per_percent=1e9,
                                      max_usd=now)  # fmt: skip
    await session.run(rooms, options=options)
    first = info(session).cost_usd
    assert first <= now
    assert first > now - 0.1 - 1e-9
    await session.run(rooms, options=msgspec.structs.replace(options, max_usd=later))
    second = info(session).cost_usd
    assert second == pytest.approx(first) if later < first else first < second <= later


async def test_fewer_evaluations_at_a_resume_leave_earlier_steps_alone(session):
    """Steps that were decided under a larger budget are not gone on with."""
    rooms = ManyRooms(session)
    hanging = asyncio.Event()

    class Slow(Paid):
        async def propose(self, task):
            if len(self.asked) >= 3:
                await hanging.wait()
            return await super().propose(task)

    rooms.proposers = {"paid": Slow(rooms)}
    options = msgspec.structs.replace(OPTIONS, proposers=("paid",), max_evaluations=20, usd_per_percent=1e9)
    engines = []
    running = asyncio.create_task(session.run(rooms, options=options, meanwhile=engines.append))
    async with asyncio.timeout(10):
        while not session.id or len(sources(session)) < 3 or not _steps(session):  # noqa: ASYNC110 - another view
            await asyncio.sleep(0.02)
    engines[0].ask_stop()
    await running
    assert _steps(session)
    had = len(sources(session))
    rooms.proposers = {"paid": Paid(rooms)}
    await session.run(rooms, options=msgspec.structs.replace(options, max_evaluations=had))
    assert info(session).stop_reason == f"All {had} evaluations are used up."
    assert len(sources(session)) == had


def _steps(session):
    with contextlib.closing(session.reader) as reader:
        return reader.steps(session.id)


async def test_what_was_found_elsewhere_is_looked_up_once(tmp_path, monkeypatch):
    """A better kernel that another session finds meanwhile is none of a session that began before."""
    first, second = Session(tmp_path / ".forge"), Session(tmp_path / ".forge")
    few = msgspec.structs.replace(OPTIONS, max_evaluations=8, usd_per_percent=1e9)
    await first.run(FakeRooms(fast=True), options=few)
    await second.run(FakeRooms(), options=msgspec.structs.replace(few, max_evaluations=2))
    with contextlib.closing(second.reader) as reader:
        before = reader.found(second.id)
    assert set(before) == {target.id for target in TARGETS}
    assert any(before.values())
    await first.run(FakeRooms(fast=True), options=msgspec.structs.replace(few, max_evaluations=40))
    seen = []

    looked = restoring.found

    def watched(*arguments):
        seen.append(looked(*arguments))
        return seen[-1]

    monkeypatch.setattr(restoring, "found", watched)
    for run in (second, Session(tmp_path / ".forge")):
        await run.run(FakeRooms(), options=few)
    again, anew = (msgspec.to_builtins(found) for found in seen)
    assert again == before
    assert anew != before, "a session that begins now sees the new ones"


KILLED = """
import asyncio, os, sys
from pathlib import Path
from benchmarks import kill_points as kills
class Hanging(kills.BookedPlayer):
    count = 0
    async def propose(self, task):
        Hanging.count += 1
        if Hanging.count == 5:
            asked = (await self._inner.propose(task)).call
            import msgspec
            assert self._books.open(task, msgspec.structs.replace(asked, reserved_usd=0.77))
            print("calling", flush=True)
            await asyncio.sleep(60)
        return await super().propose(task)
kills.BookedPlayer = Hanging
folder = Path(sys.argv[1])
kills.engine(folder / "killed", kills.Case(kills.case(folder / "both.landscape", 21, max_evaluations=16), booked=True))
"""


def test_a_kill_in_the_middle_of_a_call_costs_that_call_alone(tmp_path):
    """SIGKILL of a real engine while it waits for a paid reply: the call is booked, all else is as without the kill."""
    one = kills.Case(kills.case(kills.both(tmp_path / "both.landscape"), 21, max_evaluations=16), booked=True)
    tests = Path(kills.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests.parent), str(tests)])}
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"calling\n"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    (killed,) = [call for call in kills.outcome(tmp_path / "killed")["calls"] if call[3]["state"] == "open"]
    assert killed[3]["reserved_usd"] == 0.77
    with contextlib.closing(Reader(tmp_path / "killed" / "forge.db")) as reader:
        (info,) = reader.sessions()
        undone = msgspec.convert(reader.steps(info.id), list[Step])
    assert (killed[0], killed[1]) in [(step.target_id, step.edge) for step in undone]
    kills.engine(tmp_path / "killed", one, info.id)
    kills.engine(tmp_path / "whole", one)
    found, wanted = kills.outcome(tmp_path / "killed"), kills.outcome(tmp_path / "whole")
    assert kills.differences(kills.forgiven(found, wanted), wanted) == []
    assert found["dollars"] == pytest.approx(wanted["dollars"] + 0.77)
    assert math.fsum(call[3]["cost_usd"] for call in found["calls"]) == pytest.approx(found["dollars"])
