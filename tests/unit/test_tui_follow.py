"""Following the store: what is read when, and what happens when it cannot be."""

# ruff: noqa: D103 - small helpers and checks say by their names what they do

from __future__ import annotations

import sqlite3
import threading
import time

import msgspec
import pytest
from tui.fakes import FakeView, busy_session, finish, make_node, verdict_of

from forge_tui.core.errors import StoreError
from forge_tui.core.records import Edge, Verdict
from forge_tui.tui.follow import Follower
from forge_tui.tui.updates import (
    Attached,
    DeploymentRead,
    EventsRead,
    NodesRead,
    ProfileRead,
    SessionRead,
    SessionsRead,
    SourceRead,
    Trouble,
    Update,
)

SESSION = "20250615-1406-7f3a"


def round_of(follower: Follower) -> list[Update]:
    follower.poll()
    return follower.drain()


def test_attaching_reads_everything_once() -> None:
    """The first round gives session, profile, every target's nodes and the backlog; the next gives nothing."""
    view = busy_session()
    follower = Follower(lambda: view)
    follower.attach(SESSION)
    first = round_of(follower)
    kinds = [type(update) for update in first]
    assert kinds[0] is Attached
    assert kinds.count(NodesRead) == 4
    assert {SessionsRead, SessionRead, ProfileRead, EventsRead} <= set(kinds)
    backlog = next(u for u in first if isinstance(u, EventsRead))
    assert not backlog.live
    assert len(backlog.events) == len(view.event_lists[SESSION])
    assert round_of(follower) == []


def test_only_what_changed_is_read() -> None:
    """One new node costs one node read, not the whole tree."""
    view = busy_session()
    follower = Follower(lambda: view)
    follower.attach(SESSION)
    round_of(follower)
    calls: list[str] = []
    view.nodes = lambda *a, **k: calls.append("nodes") or []  # type: ignore[method-assign,func-returns-value]
    view.add(SESSION, make_node(15, "t2", 11, Edge.TUNE, "", verdict_of(Verdict.SLOWER, 0.9)))
    updates = round_of(follower)
    nodes = [n.id for u in updates if isinstance(u, NodesRead) for n in u.nodes]
    assert nodes == [15]
    assert calls == []
    assert all(u.live for u in updates if isinstance(u, EventsRead))


def test_many_changes_read_whole_targets() -> None:
    """With hundreds of changed nodes the targets are read as a whole, each once, and nothing else is told."""
    view = busy_session()
    follower = Follower(lambda: view)
    follower.attach(SESSION)
    round_of(follower)
    for number in range(100, 300):
        view.add(SESSION, make_node(number, "t1", 1, Edge.TUNE, "", None))
    asked: list[str] = []
    original = view.nodes
    view.nodes = lambda s, t, sources=False: (asked.append(t), original(s, t))[1]  # type: ignore[method-assign]
    nodes = [n.id for u in round_of(follower) if isinstance(u, NodesRead) for n in u.nodes]
    assert nodes == list(range(100, 300))
    assert asked == ["t1"]


def test_the_newest_source_wish_wins() -> None:
    """Racing through the tree reads the source of where one stops."""
    view = busy_session()
    follower = Follower(lambda: view)
    follower.attach(SESSION)
    for node in (1, 2, 3):
        follower.want_source(node)
    read = [u for u in round_of(follower) if isinstance(u, SourceRead)]
    assert [u.node.id for u in read] == [3]
    assert read[0].node.source.startswith("//@tune")


def test_the_deployment_is_told_once() -> None:
    """The gate's result comes with its event, and is not read for ever after."""
    view = busy_session()
    follower = Follower(lambda: view)
    follower.attach(SESSION)
    round_of(follower)
    finish(view, SESSION)
    assert any(isinstance(u, DeploymentRead) for u in round_of(follower))
    view.touch()
    assert not any(isinstance(u, DeploymentRead) for u in round_of(follower))


@pytest.mark.parametrize(
    "fault", [StoreError("The database is busy."), OSError("stale handle"), sqlite3.OperationalError("disk I/O error"),
              msgspec.ValidationError("a newer record")]
)  # fmt: skip
def test_a_fault_of_the_store_is_told_and_passes(fault: Exception) -> None:
    """A store that cannot be read is a sentence, once, and reading goes on when it works again."""
    view = busy_session()
    follower = Follower(lambda: view)
    follower.attach(SESSION)
    round_of(follower)
    view.fault = fault
    told = [*round_of(follower), *round_of(follower)]
    assert [isinstance(u, Trouble) for u in told] == [True]
    view.fault = None
    view.add(SESSION, make_node(15, "t2", 11, Edge.TUNE, "", None))
    updates = round_of(follower)
    assert Trouble("") in updates
    assert [n.id for u in updates if isinstance(u, NodesRead) for n in u.nodes] == [15]


def test_a_bug_is_not_swallowed() -> None:
    """Any other exception is a bug and is raised."""
    view = busy_session()
    view.fault = ZeroDivisionError("bug")
    with pytest.raises(ZeroDivisionError):
        Follower(lambda: view).poll()


def test_an_unknown_session_is_told() -> None:
    """Attaching to a session that is not there says so."""
    view = busy_session()
    follower = Follower(lambda: view)
    follower.attach("nope")
    assert Trouble("There is no session nope.") in round_of(follower)


def test_a_workspace_may_come_later() -> None:
    """Before there is a database nothing is told; once there is, the sessions are."""
    views: list[FakeView] = []
    follower = Follower(lambda: views[0] if views else None)
    assert round_of(follower) == []
    views.append(busy_session())
    assert any(isinstance(u, SessionsRead) and len(u.sessions) == 1 for u in round_of(follower))


def test_the_thread_reads_in_its_own_thread_and_ends() -> None:
    """The view is opened and used in one thread, woken by a wish, and `stop` ends it."""
    view = busy_session()
    used: set[int] = set()
    original = view.data_version
    view.data_version = lambda: (used.add(threading.get_ident()), original())[1]  # type: ignore[method-assign]
    follower = Follower(lambda: view)
    follower.start()
    follower.attach(SESSION)
    follower.want_source(4)
    got: list[Update] = []
    end = time.monotonic() + 10
    while time.monotonic() < end and not any(isinstance(u, SourceRead) for u in got):
        got += follower.drain()
        time.sleep(0.005)
    follower.stop()
    assert any(isinstance(u, SourceRead) for u in got)
    assert used
    assert threading.get_ident() not in used
    assert not any(thread.name == "forge-follow" for thread in threading.enumerate())
    assert view.closed
