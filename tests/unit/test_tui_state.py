"""From updates to what is shown, without a screen."""

# ruff: noqa: D103 - small helpers and checks say by their names what they do

from __future__ import annotations

import random

import msgspec
import pytest
from tui.fakes import NOW, FakeView, big_session, busy_session, finish, make_node, make_target, verdict_of

from forge_tui.core.events import Kind
from forge_tui.core.records import Edge, Event, Verdict
from forge_tui.tui.follow import Follower
from forge_tui.tui.glyphs import ASCII, UNICODE
from forge_tui.tui.state import SessionView, TargetView, Touched, rank
from forge_tui.tui.status import first_run, status_pieces
from forge_tui.tui.summary import model_pieces, one_sentence, summary
from forge_tui.tui.updates import EventsRead, NodesRead, SessionRead

SESSION = "20250615-1406-7f3a"


def load(view: FakeView, session: str = SESSION) -> SessionView:
    """A view that has read everything."""
    follower = Follower(lambda: view)
    follower.attach(session)
    follower.poll()
    state = SessionView()
    for update in follower.drain():
        state.apply(update)
    return state


def text_of(lines: list[list[tuple[str, str]]]) -> str:
    return "\n".join("".join(text for text, _ in line) for line in lines)


def line_of(pieces: list[tuple[str, str]]) -> str:
    return "".join(text for text, _ in pieces)


def test_counts_best_and_newest() -> None:
    """The busy session's numbers are as made."""
    state = load(busy_session())
    view = state.targets["t1"]
    assert (view.best, view.newest, view.evaluated, view.failed) == (4, 14, 11, 5)
    assert view.best_path() == {1, 4}
    assert state.best is not None
    assert state.best[1].id == 11
    assert state.newest == ("t1", 14)
    assert not state.targets["t4"].usable
    assert state.targets["t4"].unusable_reason == "its outputs differ from one call to the next"


def test_a_faster_node_beats_a_higher_unsure_one() -> None:
    """`inconclusive` never is the best while something is proven faster."""
    view = TargetView(make_target(1, "A"))
    view.put(make_node(1, "t1", None, Edge.DRAFT, "", verdict_of(Verdict.INCONCLUSIVE, 1.9)))
    assert view.best == 1
    view.put(make_node(2, "t1", None, Edge.DRAFT, "", verdict_of(Verdict.FASTER, 1.1)))
    assert view.best == 2
    view.put(make_node(3, "t1", None, Edge.DRAFT, "", verdict_of(Verdict.INFRA)))
    assert (view.best, view.failed, view.evaluated) == (2, 0, 3)


def test_any_order_gives_the_same_state() -> None:
    """Nodes that come twice, unevaluated first, and shuffled give the same counts and best."""
    nodes = list(big_session(60).node_lists["big"].values())
    expected = TargetView(make_target(1, "A"))
    for node in nodes:
        expected.put(node)
    for seed in range(5):
        order = [*nodes, *(msgspec.structs.replace(n, evaluation=None) for n in nodes)]
        random.Random(seed).shuffle(order)
        view = TargetView(make_target(1, "A"))
        for node in order:
            view.put(node)
        for node in nodes:
            view.put(node)
        assert (view.evaluated, view.failed, view.newest) == (expected.evaluated, expected.failed, expected.newest)
        assert view.best is not None
        assert expected.best is not None
        assert rank(view.nodes[view.best]) == rank(expected.nodes[expected.best])


def test_nodes_before_their_target_wait() -> None:
    """A node whose target is not read yet is shown once it is."""
    view = busy_session()
    follower = Follower(lambda: view)
    follower.attach(SESSION)
    follower.poll()
    updates = follower.drain()
    nodes = [u for u in updates if isinstance(u, NodesRead)]
    others = [u for u in updates if not isinstance(u, NodesRead)]
    state = SessionView()
    for update in [others[0], *nodes, *others[1:]]:
        state.apply(update)
    for update in nodes:
        state.apply(update)
    assert len(state.targets["t1"].nodes) == 12


def test_finish_is_told_once_and_only_when_seen() -> None:
    """The end of a session is FINISHED where it was watched, and not where it was over before."""
    view = busy_session()
    state = load(view)
    finish(view, SESSION)
    first = state.apply(SessionRead(view.session(SESSION)))
    again = state.apply(SessionRead(view.session(SESSION)))
    assert Touched.FINISHED in first
    assert again == Touched.NOTHING
    late = load(view)
    assert not late.live


def test_pausing_by_any_screen_is_seen() -> None:
    """What the engine logs about pausing sets the state, whoever asked."""
    state = load(busy_session())
    for text, paused in (("Paused.", True), ("Going on.", False), ("Paused.", True), ("other", True)):
        event = Event(id=900, session=SESSION, at=NOW, kind=Kind.LOG, data={"level": "info", "text": text})
        state.apply(EventsRead((event,), live=True))
        assert state.paused is paused
    event = Event(id=901, session=SESSION, at=NOW, kind=Kind.STATE, data={"state": "deploying"})
    state.apply(EventsRead((event,), live=True))
    assert not state.paused


def test_a_pause_of_the_searchs_own_is_told_with_its_reason() -> None:
    """The status line says what is waited for and which key goes on, until the search does."""
    state = load(busy_session())
    reason = "openai/x: openai/x refused the key (401)."

    def event(paused: bool) -> Event:
        data = {"paused": paused, "reason": reason if paused else "", "level": "warning", "text": "Paused."}
        return Event(id=900 + paused, session=SESSION, at=NOW, kind=Kind.PAUSED, data=data)

    state.apply(EventsRead((event(True),), live=True))
    assert (state.paused, state.pause_reason) == (True, reason)
    line = line_of(status_pieces(state, UNICODE, 160, NOW))
    assert "paused" in line
    assert f"p goes on: {reason}" in line
    assert len(line_of(status_pieces(state, UNICODE, 80, NOW))) <= 80
    state.apply(EventsRead((event(False),), live=True))
    assert (state.paused, state.pause_reason) == (False, "")
    assert "p goes on" not in line_of(status_pieces(state, UNICODE, 160, NOW))


def test_isolation_is_in_the_status_line() -> None:
    """What keeps kernels apart is shown where there is room; that nothing does is shown sooner, as a warning."""
    state = load(busy_session())
    for isolated, short in ((True, "isolated: landlock+seccomp"), (False, "not isolated: no Landlock")):
        event = Event(id=902, session=SESSION, at=NOW, kind=Kind.ISOLATION,
                      data={"isolated": isolated, "short": short, "level": "info", "text": short})  # fmt: skip
        state.apply(EventsRead((event,), live=True))
        pieces = status_pieces(state, UNICODE, 250, NOW)
        assert (short, "muted" if isolated else "warning") in pieces
    narrow = line_of(status_pieces(state, UNICODE, 110, NOW))
    assert "not isolated" in narrow
    assert "session " not in narrow


def test_a_silent_engine_is_gone() -> None:
    """Without a heartbeat for a while the status says how to resume; a finished session is never `gone`."""
    state = load(busy_session())
    assert not state.engine_gone(NOW)
    assert state.engine_gone(NOW + 60)
    assert "engine gone: R resumes" in line_of(status_pieces(state, UNICODE, 80, NOW + 60))
    assert state.elapsed_s(NOW + 60) == pytest.approx(611.0)
    assert state.elapsed_s(NOW + 4) == pytest.approx(616.0), "what came since the last heartbeat"
    assert not load(busy_session(state="done")).engine_gone(NOW + 999)


@pytest.mark.parametrize(
    ("states", "began"),
    [
        (["starting", "profiling", "searching", "deploying"], 0),
        (["starting", "searching", "interrupted", "searching"], 3),
        (["starting", "searching", "searching"], 2),
        (["starting", "searching", "deploying", "searching", "deploying"], 3),
        (["starting", "profiling", "failed", "profiling", "searching"], 3),
    ],
)
def test_elapsed_counts_from_the_run_that_is_on(states: list[str], began: int) -> None:
    """Time between runs is not counted, after an interruption, a failure or a killed engine."""
    state = load(busy_session())
    for number, name in enumerate(states):
        event = Event(id=900 + number, session=SESSION, at=NOW + 100 * number, kind=Kind.STATE, data={"state": name})
        state.apply(EventsRead((event,), live=True))
    info = msgspec.structs.replace(state.info, heartbeat_at=NOW - 1, updated_at=NOW + 1000)
    state.apply(SessionRead(info))
    assert state.elapsed_s(NOW + 1000) == pytest.approx(611 + 1000 - 100 * began), "no heartbeat of this run yet"
    state.apply(SessionRead(msgspec.structs.replace(info, elapsed_s=20.0, heartbeat_at=NOW + 998)))
    assert state.elapsed_s(NOW + 1000) == pytest.approx(22.0)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_status_fits_and_keeps_what_matters(width: int) -> None:
    """State, count and model speedup stay at every width; the rest goes in order."""
    state = load(busy_session(state="done"))
    line = line_of(status_pieces(state, UNICODE, width, NOW))
    assert len(line) <= width
    assert "done" in line
    assert "12/60" in line
    assert "model 1.35x" in line
    assert ("All 60 evaluations" in line) == (width >= 120)


def test_status_of_trouble_and_of_nothing() -> None:
    """A store that cannot be read is said; so is an empty workspace."""
    state = SessionView()
    assert "no session" in line_of(status_pieces(state, UNICODE, 80, NOW))
    assert first_run(state, "/my w").endswith("\nforge-tui run example:tiny-llm --workspace '/my w'")
    state.trouble = "The database is of a newer version."
    assert "newer version" in line_of(status_pieces(state, UNICODE, 80, NOW))
    assert first_run(load(busy_session()), "/w") == ""


def test_summary_of_a_win() -> None:
    """The result has the model's times, every target, and why one is not deployed."""
    text = text_of(summary(load(busy_session(state="done")), UNICODE, 100, NOW))
    assert "48.2 ms before, 35.6 ms after: 1.35x [1.33, 1.38]" in text
    assert "vs compile" in text
    assert "41.0 ms: 1.15x" in text
    assert "★ yes, alone 1.24x" in text
    assert "the model is not faster with it: 0.99x [0.98, 1.01]" in text
    assert "its outputs differ from one call to the next" in text
    assert "No kernel was tried." in text


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("state", ["searching", "done", "failed", "interrupted"])
def test_summary_lines_fit(width: int, state: str) -> None:
    """No wrapped line is wider than the window, and in ASCII none has anything else."""
    lines = summary(load(busy_session(state=state)), ASCII, width, NOW)
    for line in lines:
        text = line_of(line)
        assert text.isascii()
        if "  in the model" not in text and "alone" not in text and width >= 60:
            assert len(text) <= width


def test_summary_of_a_failure() -> None:
    """What happened and what to do are both there."""
    state = load(busy_session(state="failed"))
    text = text_of(summary(state, UNICODE, 80, NOW))
    assert "The workspace's disk is full." in text
    assert "Free some space, then resume." in text
    assert one_sentence(state) == "The workspace's disk is full."


def test_unpriced_calls_make_a_lower_bound() -> None:
    """Where a price is unknown the cost is said to be at least that."""
    view = busy_session()
    view.infos[SESSION] = msgspec.structs.replace(view.infos[SESSION], unpriced_calls=2)
    state = load(view)
    assert "at least $0.42/$5.00" in line_of(status_pieces(state, UNICODE, 200, NOW))
    assert "at least $0.42 (2 calls without a price)" in text_of(summary(state, UNICODE, 100, NOW))


@pytest.mark.parametrize(
    ("interval", "deployed", "shown", "style"),
    [
        ((1.33, 1.38), True, "model 1.35x", "faster"),
        ((0.7, 2.58), True, "model 1.35x", "inconclusive"),
        ((0.8, 0.9), True, "model 1.35x", "slower"),
        ((1.33, 1.38), False, "model unchanged", "text"),
    ],
)
def test_the_models_speedup_claims_no_more_than_its_interval(
    interval: tuple[float, float], deployed: bool, shown: str, style: str
) -> None:
    """Green only where the whole interval is above 1, and no speedup at all where no kernel stays."""
    view = busy_session(state="done")
    known = view.deployments[SESSION]
    decisions = tuple(msgspec.structs.replace(d, deployed=deployed and d.deployed) for d in known.decisions)
    view.deployments[SESSION] = msgspec.structs.replace(known, speedup_ci=interval, decisions=decisions)
    state = load(view)
    assert state.deployment is not None
    pieces = model_pieces(state.deployment)
    assert (line_of(pieces), pieces[-1][1]) == (shown, style)
    assert shown in line_of(status_pieces(state, UNICODE, 80, NOW))
    text = text_of(summary(state, UNICODE, 100, NOW))
    assert ("No kernel stays: it is the original, 48.2 ms a call." in text) == (not deployed)
    assert ("no kernel stays" in one_sentence(state)) == (not deployed)
