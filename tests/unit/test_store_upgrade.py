"""Databases of earlier layouts: read as they are, brought up to date by a writer."""

import contextlib
import sqlite3

import msgspec
import pytest
import sqlite_utils
import store_fixture as fixture

from forge_tui.core.paths import Workspace
from forge_tui.core.profiles import Hotspot, KernelTime
from forge_tui.core.records import Confirmation, Verdict
from forge_tui.store import codec, schema
from forge_tui.store.reader import Reader
from forge_tui.store.version import SCHEMA_VERSION
from forge_tui.store.writer import Store

OLD_HOTSPOT = ("id", "parent", "name", "kind", "path", "calls", "total_ms", "self_ms", "share", "headroom_ms",
               "target_id", "reason")  # fmt: skip


LEDGER_6 = ("state", "attempt", "reserved_usd", "exact", "cache_write_tokens", "reasoning_tokens", "price")
CALLS_7 = ("seed", "finish")


@pytest.fixture
def old(tmp_path):
    """A workspace as version 1 wrote it, with one profiled session."""
    workspace = Workspace(tmp_path / ".forge")
    workspace.prepare()
    first = sqlite_utils.Migrations("forge-tui")
    first(name="0001_first_layout")(schema.first_layout)
    db = sqlite_utils.Database(workspace.database)
    first.apply(db)
    profile = fixture.profile()
    bare = {"device": msgspec.to_builtins(profile.device), "model_ms": 5.0, "overhead": 1.5, "hotspots": [],
            "targets": [], "warnings": ["old"]}  # fmt: skip
    with db.conn:
        db.execute("INSERT INTO sessions (id, model, options, state, created_at, updated_at) VALUES (?, ?, ?, ?, 1, 1)",
                   ["old-1", "m.py", codec.dump(fixture.options(workspace)), "done"])  # fmt: skip
        db.execute("INSERT INTO profiles VALUES ('old-1', 5.0, 1.5, ?)", [codec.dump(bare)])
        for place, spot in enumerate(profile.hotspots):
            marks = ", ".join("?" for _ in OLD_HOTSPOT)
            columns = f"session_id, position, {', '.join(OLD_HOTSPOT)}"
            db.execute(f"INSERT INTO hotspots ({columns}) VALUES ('old-1', {place}, {marks})",
                       [getattr(spot, name) for name in OLD_HOTSPOT])  # fmt: skip
    db.conn.close()
    return workspace


def test_version_one_is_read_without_being_changed(old):
    """What the older layout lacks has its default; reading leaves the file as it is."""
    before = old.database.read_bytes()
    with contextlib.closing(Reader.open(old)) as reader:
        profile = reader.profile("old-1")
        assert profile.hotspots == fixture.profile().hotspots
        assert (profile.warnings, profile.phases, profile.busy_ms, profile.idle_share) == (("old",), (), 0.0, 0.0)
        assert reader.session("old-1").options.model.text == "example:tiny-llm"
    assert old.database.read_bytes() == before


def test_evaluations_of_an_older_layout_are_read(old):
    """A verdict from before all clocks were kept comes back, without them; a writer's upgrade keeps it."""
    evaluation = fixture.faster(2.0, samples=())
    node = fixture.node(1)
    (target,) = [t for t in fixture.targets() if t.id == node.target_id]
    columns = [name for name in codec.EVALUATION if name != "timings"]
    row = dict(zip(codec.EVALUATION, codec.evaluation_row(evaluation), strict=True))
    with contextlib.closing(sqlite3.connect(old.database)) as raw:
        raw.execute("INSERT INTO targets VALUES ('old-1', ?, 0, 'n', 'module', 'q', 's', 1, 1, 1, 1, 1, ?)",
                    [target.id, codec.dump(target)])  # fmt: skip
        raw.execute(f"INSERT INTO nodes (session_id, {', '.join(codec.NODE)}, created_at) VALUES ('old-1', "
                    f"{', '.join('?' for _ in codec.NODE)}, 1)", codec.node_row(node))  # fmt: skip
        raw.execute(f"INSERT INTO evaluations (session_id, node_id, {', '.join(columns)}, at) VALUES ('old-1', 1, "
                    f"{', '.join('?' for _ in columns)}, 1)", [row[name] for name in columns])  # fmt: skip
        raw.commit()
    with contextlib.closing(Reader.open(old)) as reader:
        assert reader.node("old-1", 1).evaluation == evaluation
        assert [n.evaluation for n in reader.nodes("old-1")] == [evaluation]
        Store.open(old).close()
        assert reader.node("old-1", 1).evaluation == evaluation


def test_writer_upgrades_under_an_open_reader(old):
    """A writer adds the new columns; a reader that was open before goes on, and sees what is new."""
    with contextlib.closing(Reader.open(old)) as reader:
        assert len(reader.hotspots("old-1")) == 3
        with contextlib.closing(Store.open(old)) as store:
            assert reader.hotspots("old-1") == list(fixture.profile().hotspots)
            name = store.create_session(fixture.options(old)).id
            store.save_profile(name, fixture.whole_profile())
            assert reader.profile(name) == fixture.whole_profile()
    with contextlib.closing(sqlite3.connect(old.database)) as raw:
        assert raw.execute("SELECT schema_version FROM meta").fetchone() == (SCHEMA_VERSION,)
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with contextlib.closing(Store.open(old)) as store, contextlib.closing(Reader.open(old)) as reader:
        assert reader.hotspots("old-1") == list(fixture.profile().hotspots), "upgrading twice changes nothing"
        assert store.warnings == ()


def test_every_column_of_a_hotspot_comes_back(tmp_path):
    """Floors, host time, launches, signature and kernels are kept, foreign text in them too."""
    spot = Hotspot(
        id=7, parent=None, name="p\udcff", kind="phase", path="", calls=129, total_ms=1.5, self_ms=0.25, share=1.0,
        floor_ms=0.75, bound="launch", host_ms=3.5, launches=2**40, signature="f32[2] -> f32[2]", reason="a phase",
        kernels=(KernelTime(name='void k<"a\n", 1>()', launches=3, total_ms=0.125),),
    )  # fmt: skip
    profile = fixture.profile(hotspots=(spot,), targets=())
    with contextlib.closing(Store.open(Workspace(tmp_path))) as store:
        name = store.create_session(fixture.options(Workspace(tmp_path))).id
        store.save_profile(name, profile)
    with contextlib.closing(Reader.open(Workspace(tmp_path))) as reader:
        found = reader.hotspots(name)
    assert found == [msgspec.structs.replace(spot, name=found[0].name)]
    assert found[0].name.startswith("p")


def test_version_three_knows_no_confirmations_and_gets_them(tmp_path):
    """Nodes of the layout before are read as they are; a writer adds what is new: confirmations and steps are kept."""
    workspace = Workspace(tmp_path / ".forge")
    with fixture.session(workspace) as (store, _, name):
        store.add_node(name, fixture.node(1))
        store.set_evaluation(name, 1, fixture.faster(2.0))
    with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
        raw.execute("DROP TABLE confirmations")
        raw.execute("DROP TABLE steps")
        raw.execute("DROP TABLE tool_uses")
        raw.execute("UPDATE meta SET schema_version = 3")
        for column in (*LEDGER_6, *CALLS_7):
            raw.execute(f"ALTER TABLE llm_calls DROP COLUMN {column}")
        names = ("0004_confirmations", "0005_steps", "0006_ledger", "0007_steps_of_calls")
        raw.execute(f"DELETE FROM _sqlite_migrations WHERE name IN {names}")
        raw.commit()
    before = workspace.database.read_bytes()
    with contextlib.closing(Reader.open(workspace)) as reader:
        assert reader.node(name, 1).evaluation == fixture.faster(2.0)
        assert workspace.database.read_bytes() == before
        with contextlib.closing(Store.open(workspace)) as store:
            held = Confirmation(verdict=Verdict.FASTER, speedup=1.9, sha256="sha-2.0")
            store.confirm(name, 1, held)
            store.save_steps(name, [{"seed": 7}, {"seed": 5}])
            store.save_steps(name, [{"seed": 5}, {"seed": 9}])
        assert reader.steps(name) == [{"seed": 5}, {"seed": 9}], "what is kept now, in its order"
        assert reader.nodes(name)[0].evaluation.confirmation == held, "a reader from before the upgrade sees it"
    with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
        assert raw.execute("SELECT schema_version FROM meta").fetchone() == (SCHEMA_VERSION,)
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []


def test_version_fours_ledger_is_read_and_upgraded(tmp_path):
    """Calls from before reservations come back as they were; one that failed is marked; new ones stand beside them."""
    workspace = Workspace(tmp_path / ".forge")
    good, bad = fixture.llm_call(), fixture.llm_call(cost_usd=None, priced=False, error="cut off")
    with fixture.session(workspace) as (store, _, name):
        for call in (good, bad):
            store.add_llm_call(name, call, target_id="test-RMSNorm", edge="draft", node_id=None)
    with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
        for column in (*LEDGER_6, *CALLS_7):
            raw.execute(f"ALTER TABLE llm_calls DROP COLUMN {column}")
        raw.execute("UPDATE meta SET schema_version = 4")
        raw.execute("DROP TABLE steps")
        raw.execute("DROP TABLE tool_uses")
        raw.execute("DELETE FROM _sqlite_migrations WHERE name IN ('0005_steps', '0006_ledger', '0007_steps_of_calls')")
        raw.commit()
    before = workspace.database.read_bytes()
    with contextlib.closing(Reader.open(workspace)) as reader:
        assert [entry.call for entry in reader.llm_calls(name)] == [good, bad]
        assert (reader.session(name).cost_usd, reader.session(name).unpriced_calls) == (0.01, 1)
        assert workspace.database.read_bytes() == before, "reading leaves the file as it is"
        with contextlib.closing(Store.open(workspace)) as store:
            broken = msgspec.structs.replace(bad, state="broken", exact=False)
            assert [entry.call for entry in reader.llm_calls(name)] == [good, broken]
            store.open_llm_call(name, fixture.llm_call(reserved_usd=0.5), target_id="test-RMSNorm", edge="draft")
            assert [entry.call.state for entry in reader.llm_calls(name)] == ["done", "broken", "open"]
            assert reader.session(name).unpriced_calls == 1
    with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
        assert raw.execute("SELECT schema_version FROM meta").fetchone() == (SCHEMA_VERSION,)
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
