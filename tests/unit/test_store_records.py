"""What the engine writes is what readers get."""

import math
import threading

import msgspec
import pytest
import store_fixture as fixture

from forge_tui.core.errors import ExitCode, StoreError, UsageError
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Edge, Evaluation, Scalar, Verdict
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store


@pytest.fixture
def workspace(tmp_path):
    """A folder that is not there yet, with characters that a URI must escape."""
    return Workspace(tmp_path / "space here?#%" / ".forge")


def kinds(reader, name):
    """The kinds of all events."""
    return [event.kind for event in reader.events(name)]


def test_session_is_named_after_the_model_and_counted(workspace):
    """Sessions of one model are numbered; other models have their own numbers."""
    store = Store.open(workspace)
    texts = ["example:tiny-llm", "example:tiny-llm", "net.py:make", "example:tiny-llm"]
    ids = [store.create_session(fixture.options(workspace, text)).id for text in texts]
    assert ids == ["tiny-llm-1", "tiny-llm-2", "tiny_llm-1", "tiny-llm-3"]
    store.close()


def test_new_session_reads_back(workspace):
    """A session starts without device, cost, evaluations and engine."""
    store = Store.open(workspace)
    made = store.create_session(fixture.options(workspace, max_minutes=math.inf))
    read = Reader.open(workspace).session(made.id)
    assert read == made
    assert (read.state, read.evaluations, read.cost_usd, read.engine_pid) == ("starting", 0, 0.0, 0)
    assert read.options.max_minutes == math.inf
    store.close()


def test_profile_reads_back_whole(workspace):
    """Hotspots, targets, device, warnings and infinite scalars come back equal, in the profile's order."""
    softmax, norm = fixture.targets()
    signature = msgspec.structs.replace(
        softmax.signature, scalars=(Scalar(name="fill", value=-math.inf, source="arg", path="fill"),)
    )
    softmax = msgspec.structs.replace(softmax, signature=signature)
    profile = fixture.profile(targets=(softmax, norm))
    with fixture.session(workspace) as (store, reader, name):
        store.save_profile(name, profile)
        assert reader.profile(name) == profile
        assert reader.hotspots(name) == list(profile.hotspots)
        assert [t.name for t in reader.targets(name)] == ["RMSNorm", "F.softmax"], "most headroom first"
        assert reader.session(name).device == profile.device
        store.save_profile(name, profile)
        assert kinds(reader, name).count("profiled") == 2, "the same profile again is no new event"


def test_profile_is_none_before_profiling(workspace):
    """A session that has only started has no profile, nodes, deployment."""
    store = Store.open(workspace)
    name = store.create_session(fixture.options(workspace)).id
    reader = Reader.open(workspace)
    assert reader.profile(name) is None
    assert reader.deployment(name) is None
    assert (reader.nodes(name), reader.targets(name), reader.hotspots(name)) == ([], [], [])
    store.close()


def test_node_and_evaluation_read_back(workspace):
    """A node comes back with its evaluation; samples only when that node is asked for."""
    with fixture.session(workspace) as (store, reader, name):
        first = fixture.node(1, tunables={"B": 2, "A": 1}, cost_usd=0.5)
        repair = fixture.node(2, parent=1, edge=Edge.REPAIR, repairs=1)
        store.add_node(name, first)
        store.add_node(name, repair)
        evaluation = fixture.faster(2.0)
        assert reader.node(name, 1) == first
        store.set_evaluation(name, 1, evaluation)
        assert reader.node(name, 1) == msgspec.structs.replace(first, evaluation=evaluation)
        bare = msgspec.structs.replace(evaluation, samples=())
        assert reader.nodes(name) == [msgspec.structs.replace(first, evaluation=bare), repair]
        assert [n.source for n in reader.nodes(name, sources=False)] == ["", ""]
        assert reader.nodes(name, "test-F.softmax") == []
        assert list(reader.node(name, 1).tunables) == ["B", "A"], "in the order declared"
        assert kinds(reader, name)[-3:] == ["node_added", "node_added", "node_evaluated"]
        assert reader.events(name)[-1].data == {
            "node": 1, "target": "test-RMSNorm", "verdict": "faster", "reason": "", "speedup": 2.0,
        }  # fmt: skip


def test_writing_the_same_twice_is_once(workspace):
    """A repeated node and verdict change nothing and are no event; other ones are refused as bugs."""
    with fixture.session(workspace) as (store, reader, name):
        for _ in range(2):
            store.add_node(name, fixture.node(1))
            store.set_evaluation(name, 1, fixture.faster(2.0))
        assert kinds(reader, name)[-2:] == ["node_added", "node_evaluated"]
        assert kinds(reader, name).count("node_added") == 1
        for fault in (
            lambda: store.add_node(name, fixture.node(1, source="// another\n")),
            lambda: store.set_evaluation(name, 1, fixture.faster(2.5)),
            lambda: store.set_evaluation(name, 1, fixture.faster(2.0, samples=((1.0, 2.0),))),
            lambda: store.set_evaluation(name, 7, fixture.faster(2.0)),
        ):
            with pytest.raises(StoreError) as caught:
                fault()
            assert caught.value.exit_code is ExitCode.BUG
        assert reader.node(name, 1).evaluation == fixture.faster(2.0)


def test_infra_verdict_may_be_replaced(workspace):
    """A verdict that counts for nothing gives way to a real one, which stays, and is counted then only."""
    with fixture.session(workspace) as (store, reader, name):
        store.add_node(name, fixture.node(1))
        store.set_evaluation(name, 1, Evaluation(verdict=Verdict.INFRA, reason="the worker died"))
        assert reader.session(name).evaluations == 0
        store.set_evaluation(name, 1, fixture.faster(2.0))
        assert reader.session(name).evaluations == 1
        with pytest.raises(StoreError):
            store.set_evaluation(name, 1, Evaluation(verdict=Verdict.INFRA))


def test_numbers_that_are_none_read_as_none(workspace):
    """NaN is kept as nothing, infinity as infinity, and the same again is the same."""
    odd = fixture.faster(2.0, max_abs_error=math.nan, error_vs_eager=math.inf, speedup_ci=(math.nan, 2.0))
    with fixture.session(workspace) as (store, reader, name):
        store.add_node(name, fixture.node(1))
        store.set_evaluation(name, 1, odd)
        store.set_evaluation(name, 1, odd)
        read = reader.node(name, 1).evaluation
        assert (read.max_abs_error, read.error_vs_eager, read.speedup_ci) == (None, math.inf, None)


def test_text_of_any_kind_is_kept(workspace):
    """NUL, quotes and emoji come back; undecodable bytes become replacement characters."""
    with fixture.session(workspace) as (store, reader, name):
        text = "a\0b'\"%; DROP TABLE nodes -- \u2713 \U0001f525"
        store.add_node(name, fixture.node(1, source=text, idea="bad \udc80 byte"))
        read = reader.node(name, 1)
        assert read.source == text
        assert read.idea.startswith("bad \ufffd")
        assert read.idea.endswith(" byte")


def test_node_needs_its_target_and_parent(workspace):
    """The database itself refuses a node of no target, or of a parent that is not there; nothing stays of it."""
    import sqlite3

    with fixture.session(workspace) as (store, reader, name):
        for bad in (fixture.node(1, "nowhere"), fixture.node(1, parent=9), fixture.node(1, repairs=9)):
            with pytest.raises(sqlite3.IntegrityError):
                store.add_node(name, bad)
        assert reader.nodes(name) == []
        assert "node_added" not in kinds(reader, name)


def test_next_node_id_counts_on(workspace):
    """Numbers start at 1 and follow the highest."""
    with fixture.session(workspace) as (store, _, name):
        assert store.next_node_id(name) == 1
        store.add_node(name, fixture.node(7))
        assert store.next_node_id(name) == 8


def test_ledger_adds_up(workspace):
    """Costs are summed over priced calls, calls of unknown price are counted."""
    with fixture.session(workspace) as (store, reader, name):
        calls = [fixture.llm_call(), fixture.llm_call(cost_usd=None, priced=False, error="cut off")]
        for call in calls:
            store.add_llm_call(name, call, target_id="test-RMSNorm", edge=Edge.DRAFT, node_id=None)
        entries = reader.llm_calls(name)
        assert [entry.call for entry in entries] == calls
        assert [(e.target_id, e.edge, e.node_id) for e in entries] == [("test-RMSNorm", "draft", None)] * 2
        info = reader.session(name)
        assert (info.cost_usd, info.unpriced_calls) == (0.01, 1)
        assert reader.events(name)[-2].data == {
            "model": "openai/some", "cost_usd": 0.01, "tokens": 1200, "state": "done",
        }  # fmt: skip


def test_a_call_is_there_before_it_is_made_and_settled_once(workspace):
    """An open call costs nothing yet and is no unknown price; settling it takes its true cost, and only once."""
    with fixture.session(workspace) as (store, reader, name):
        call = fixture.llm_call(reply="", cost_usd=None, reserved_usd=0.25, price="p", attempt=2)
        number = store.open_llm_call(name, call, target_id="test-RMSNorm", edge=Edge.REPAIR)
        (entry,) = reader.llm_calls(name)
        assert (entry.id, entry.edge, entry.call.state, entry.call.reserved_usd) == (number, "repair", "open", 0.25)
        info = reader.session(name)
        assert (info.cost_usd, info.unpriced_calls) == (0.0, 0)
        done = fixture.llm_call(reserved_usd=0.25, cache_write_tokens=7, reasoning_tokens=3, price="p", attempt=2)
        store.add_node(name, fixture.node(1))
        store.settle_llm_call(name, number, done)
        store.link_llm_call(name, number, 1)
        (entry,) = reader.llm_calls(name)
        assert (entry.call, entry.node_id) == (done, 1)
        assert reader.session(name).cost_usd == 0.01
        with pytest.raises(StoreError, match="is not open"):
            store.settle_llm_call(name, number, done)
        with pytest.raises(StoreError, match="has no room for a node"):
            store.link_llm_call(name, number, 1)
        assert store.settle_lost_calls(name) == []


def test_calls_of_a_killed_engine_are_booked_and_marked(workspace):
    """What was set aside counts as spent; a call without a price counts as unknown."""
    with fixture.session(workspace) as (store, reader, name):
        for reserved in (0.25, None):
            call = fixture.llm_call(reply="", reserved_usd=reserved)
            store.open_llm_call(name, call, target_id="test-RMSNorm", edge=Edge.DRAFT)
        lost = store.settle_lost_calls(name)
        assert [(c.state, c.cost_usd, c.priced, c.exact) for c in lost] == [
            ("lost", 0.25, True, False), ("lost", None, False, False)]  # fmt: skip
        assert [entry.call for entry in reader.llm_calls(name)] == lost
        info = reader.session(name)
        assert (info.cost_usd, info.unpriced_calls) == (0.25, 1)


def test_state_and_fault_read_back(workspace):
    """A failed session has its fault, which the next state clears; both are events."""
    error = {"what": "No compiler.", "hint": "Install g++.", "exit_code": 4}
    with fixture.session(workspace) as (store, reader, name):
        store.set_state(name, "failed", stop_reason="No compiler.", error=error)
        info = reader.session(name)
        assert (info.state, info.stop_reason, info.error) == ("failed", "No compiler.", error)
        assert [e.data for e in reader.events(name)[-2:]] == [{"state": "failed", "text": "No compiler."}, error]
        store.set_state(name, "searching")
        info = reader.session(name)
        assert (info.state, info.stop_reason, info.error) == ("searching", "", None)


def test_elapsed_time_adds_up(workspace):
    """Engine time is summed over resumes."""
    with fixture.session(workspace) as (store, reader, name):
        store.add_elapsed(name, 1.5)
        store.add_elapsed(name, 2.25)
        assert reader.session(name).elapsed_s == 3.75


def test_options_can_be_widened(workspace):
    """A resume with a larger budget keeps it."""
    with fixture.session(workspace) as (store, reader, name):
        store.set_options(name, fixture.options(workspace, max_evaluations=99))
        assert reader.session(name).options.max_evaluations == 99


def test_last_deployment_counts(workspace):
    """The newest deployment is read, with its decisions; the same again is no new one."""
    with fixture.session(workspace) as (store, reader, name):
        store.save_deployment(name, fixture.deployment())
        store.save_deployment(name, fixture.deployment())
        assert reader.deployment(name) == fixture.deployment()
        assert kinds(reader, name).count("deployed") == 1
        second = fixture.deployment(deployed_ms=3.5, decisions=fixture.deployment().decisions[:1])
        store.save_deployment(name, second)
        assert reader.deployment(name) == second


def test_events_come_in_pages_and_cannot_be_changed(workspace):
    """Events have rising ids and are append-only."""
    import sqlite3

    with fixture.session(workspace) as (store, reader, name):
        begun = reader.last_event_id(name)
        ids = [store.event(name, "log", {"level": "info", "text": str(n)}) for n in range(5)]
        assert ids == sorted(ids)
        assert reader.last_event_id(name) == ids[-1]
        assert [e.data["text"] for e in reader.events(name, begun, limit=2)] == ["0", "1"]
        assert [e.id for e in reader.events(name, ids[2])] == ids[3:]
        assert reader.events(name, ids[-1]) == []
        raw = sqlite3.connect(workspace.database)
        for sql in ("DELETE FROM events", "UPDATE events SET kind = 'x'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                raw.execute(sql)
        raw.close()


def test_together_is_all_or_nothing(workspace):
    """Steps made together vanish together, their events too."""
    with fixture.session(workspace) as (store, reader, name):
        before = reader.last_event_id(name)

        def break_off() -> None:
            with store.together():
                store.add_llm_call(name, fixture.llm_call(), target_id="test-RMSNorm", edge="draft", node_id=1)
                store.add_node(name, fixture.node(1))
                raise RuntimeError

        with pytest.raises(RuntimeError):
            break_off()
        assert (reader.llm_calls(name), reader.nodes(name)) == ([], [])
        assert reader.last_event_id(name) == before
        with store.together():
            store.add_node(name, fixture.node(1))
            with pytest.raises(StoreError):
                store.add_node(name, fixture.node(1, source="// other\n"))
            store.add_node(name, fixture.node(2))
        assert [n.id for n in reader.nodes(name)] == [1, 2]


def test_reader_sees_the_old_state_while_a_step_is_open(workspace):
    """A reader neither waits for a step nor sees half of it, and can tell when something changed."""
    with fixture.session(workspace) as (store, reader, name):
        version = reader.data_version()
        with store.together():
            store.add_node(name, fixture.node(1))
            assert reader.nodes(name) == []
            assert reader.data_version() == version
        assert [n.id for n in reader.nodes(name)] == [1]
        assert reader.data_version() != version


def test_one_reader_for_each_thread(workspace):
    """Readers in threads of their own follow one writer."""
    found = []
    with fixture.session(workspace) as (store, _, name):
        store.add_node(name, fixture.node(1))
        threads = [threading.Thread(target=lambda: found.append(Reader.open(workspace).node(name, 1).id))
                   for _ in range(4)]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [1, 1, 1, 1]


def test_session_is_found_by_prefix(workspace):
    """An id, or the beginning of only one; else the sentence lists the ids, the nearest first."""
    store = Store.open(workspace)
    for _ in range(11):
        store.create_session(fixture.options(workspace))
    store.create_session(fixture.options(workspace, "example:resnet"))
    reader = Reader.open(workspace)
    assert reader.session("tiny-llm-1").id == "tiny-llm-1", "an exact id wins over longer ones"
    assert reader.session("res").id == "resnet-1"
    with pytest.raises(UsageError, match=r"Several sessions begin with 'tiny-llm-1\d?'|Several") as several:
        reader.session("tiny")
    assert "tiny-llm-11" in str(several.value)
    with pytest.raises(UsageError, match="There is no session 'resmet-1'") as none:
        reader.session("resmet-1")
    assert "Did you mean resnet-1?" in str(none.value)
    assert "tiny-llm-3" in str(none.value)
    with pytest.raises(UsageError):
        reader.session("")
    with pytest.raises(UsageError, match="has no node 3"):
        reader.node("resnet-1", 3)
    store.close()


def test_latest_is_the_one_worked_on_last(workspace):
    """The last session is the one that changed last, not the one made last."""
    store = Store.open(workspace)
    assert Reader.open(workspace).latest() is None
    first, second = (store.create_session(fixture.options(workspace)).id for _ in range(2))
    reader = Reader.open(workspace)
    assert reader.latest().id == second
    store.set_state(first, "searching")
    assert reader.latest().id == first
    assert [s.id for s in reader.sessions()] == [first, second]
    store.close()
