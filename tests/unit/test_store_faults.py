"""What goes wrong with a database is said in one sentence, and nothing half written stays."""

import contextlib
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import store_fixture as fixture

from forge_tui.core.errors import ExitCode, StoreError
from forge_tui.core.paths import Workspace
from forge_tui.store import filesystem
from forge_tui.store.reader import Reader
from forge_tui.store.version import SCHEMA_VERSION
from forge_tui.store.writer import Store

TESTS = Path(__file__).parents[1]


def child(code: str, *arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own, with the fixtures at hand."""
    imports = f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nimport store_fixture as fixture\n"
    imports += "from forge_tui.core.errors import StoreError\nfrom forge_tui.core.paths import Workspace\n"
    argv = [sys.executable, "-c", imports + code, *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, **more)


@pytest.fixture
def workspace(tmp_path):
    """A folder that is not there yet."""
    return Workspace(tmp_path / ".forge")


def integrity(workspace: Workspace) -> str:
    """What SQLite says of the file."""
    with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
        return raw.execute("PRAGMA integrity_check").fetchone()[0]


def test_no_database_is_said(workspace):
    """A workspace that nobody ran in has nothing to read, a folder that is not there neither."""
    for place in (workspace, Workspace(Path("/proc/1/stat/nothing"))):
        with pytest.raises(StoreError) as caught:
            Reader.open(place)
        assert str(caught.value) == (
            f"There is no Forge TUI database in {place.root}. Start with forge-tui run MODEL."
        )
        assert caught.value.exit_code is ExitCode.ENVIRONMENT
    workspace.root.mkdir()
    workspace.database.touch()
    with pytest.raises(StoreError, match="There is no Forge TUI database"):
        Reader.open(workspace)


def test_newer_database_is_refused_untouched(workspace):
    """A layout of a later version is neither read nor written, and says what to do."""
    Store.open(workspace).close()
    with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
        raw.execute(f"UPDATE meta SET schema_version = {SCHEMA_VERSION + 1}")
        raw.commit()
    before = workspace.database.read_bytes()
    for opening in (Store.open, Reader.open):
        with pytest.raises(StoreError) as caught:
            opening(workspace)
        assert str(caught.value) == (
            f"The workspace's database was written by a newer Forge TUI (schema {SCHEMA_VERSION + 1}, "
            f"this one knows {SCHEMA_VERSION}): "
            "upgrade forge-tui, or name another folder with --workspace."
        )
    assert workspace.database.read_bytes() == before


def test_other_programs_database_is_left_alone(workspace):
    """A SQLite file that is not ours is neither read nor given our tables."""
    workspace.root.mkdir()
    with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
        raw.execute("CREATE TABLE notes (text)")
    for opening in (Store.open, Reader.open):
        with pytest.raises(StoreError, match="is not a Forge TUI database"):
            opening(workspace)
    with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
        assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("notes",)]


@pytest.mark.parametrize("damage", [slice(0, 100), slice(4096, 40960)], ids=["header", "pages"])
def test_damaged_database_is_said(workspace, damage):
    """A damaged header or page is a sentence for readers and writers, not a traceback."""
    fixture.finished(workspace.root)
    content = bytearray(workspace.database.read_bytes())
    content[damage] = b"\xa5" * len(content[damage])
    workspace.database.write_bytes(content)

    def read() -> None:
        with contextlib.closing(Reader.open(workspace)) as reader:
            reader.sessions()

    def write() -> None:
        with contextlib.closing(Store.open(workspace)) as store:
            store.create_session(fixture.options(workspace))

    for using in (read, write):
        with pytest.raises(StoreError, match=re.escape(f"{workspace.database} is damaged")) as caught:
            using()
        assert "--workspace" in caught.value.hint


def test_second_engine_is_refused(workspace):
    """A session has one writer: another one cannot take it, nor change it, and is told whose it is."""
    with fixture.session(workspace) as (store, reader, name):
        with contextlib.closing(Store.open(workspace)) as second:
            for attempt in (
                lambda: second.acquire(name, os.getpid()),
                lambda: second.set_options(name, fixture.options(workspace, max_evaluations=1)),
                lambda: second.add_node(name, fixture.node(1)),
                lambda: second.event(name, "log", {}),
            ):
                with pytest.raises(StoreError, match=f"run by another engine \\(process {os.getpid()} on"):
                    attempt()
            second.create_session(fixture.options(workspace))
        assert reader.session(name).options.max_evaluations == 60
        assert reader.session(name).engine_pid == os.getpid()
        store.release(name)
        assert reader.session(name).engine_pid == 0
        with contextlib.closing(Store.open(workspace)) as third:
            third.acquire(name, os.getpid())
            third.add_node(name, fixture.node(1))


def test_lease_of_a_killed_engine_is_taken_over(workspace):
    """After a kill -9 readers see no engine, and the next one gets the session."""
    code = (
        "import os, signal\nfrom forge_tui.store.writer import Store\nworkspace = Workspace(__import__('pathlib').Path("
        "sys.argv[1]))\nstore = Store.open(workspace)\nname = store.create_session(fixture.options(workspace)).id\n"
        "store.acquire(name, os.getpid())\nprint(name, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = child(code, workspace.root)
    assert done.returncode == -signal.SIGKILL, done.stderr
    name = done.stdout.strip()
    with contextlib.closing(Reader.open(workspace)) as reader, contextlib.closing(Store.open(workspace)) as store:
        assert reader.session(name).engine_pid == 0
        store.acquire(name, os.getpid())
        assert reader.session(name).engine_pid == os.getpid()


def test_process_id_that_was_given_away_is_no_engine(workspace):
    """A living process of the same number, but started at another time, does not hold the lease."""
    with contextlib.closing(Store.open(workspace)) as store:
        name = store.create_session(fixture.options(workspace)).id
        store.acquire(name, os.getpid())
        with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
            raw.execute("UPDATE leases SET started = '12'")
            raw.commit()
        with contextlib.closing(Store.open(workspace)) as second:
            second.acquire(name, os.getpid())
        with pytest.raises(StoreError, match="taken over by another engine"):
            store.add_node(name, fixture.node(1))


@pytest.mark.parametrize(("age_s", "free"), [(5, False), (120, True)])
def test_engine_on_another_machine_counts_by_its_heartbeat(workspace, age_s, free):
    """A lease of another machine holds while its heartbeat is fresh; the engine that lost it is told so."""
    with contextlib.closing(Store.open(workspace)) as store, contextlib.closing(Store.open(workspace)) as second:
        name = store.create_session(fixture.options(workspace)).id
        store.acquire(name, os.getpid())
        with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
            raw.execute("UPDATE leases SET host = 'elsewhere x y', heartbeat_at = heartbeat_at - ?", (age_s,))
            raw.commit()
        if not free:
            with pytest.raises(StoreError, match="on elsewhere"):
                second.acquire(name, os.getpid())
            store.heartbeat(name)
            return
        second.acquire(name, os.getpid())
        for late in (lambda: store.heartbeat(name), lambda: store.acquire(name, os.getpid())):
            with pytest.raises(StoreError, match="another engine"):
                late()


def test_heartbeat_is_written(workspace):
    """A heartbeat moves the time that readers see."""
    with fixture.session(workspace) as (store, reader, name):
        before = reader.session(name).heartbeat_at
        store.heartbeat(name)
        assert reader.session(name).heartbeat_at > before


def test_lock_that_is_not_let_go_is_said(workspace, monkeypatch):
    """A foreign lock ends in a sentence after the patience is over, and the step can be made later."""
    monkeypatch.setattr("forge_tui.store.connection.BUSY_S", 0.2)
    with fixture.session(workspace) as (store, _, name):
        foreign = sqlite3.connect(workspace.database, isolation_level=None)
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"has kept .* locked"):
            store.add_node(name, fixture.node(1))
        foreign.execute("ROLLBACK")
        foreign.close()
        store.add_node(name, fixture.node(1))


FILL = """
from pathlib import Path
workspace = Workspace(Path(sys.argv[1]))
acknowledged = 0
with fixture.session(workspace) as (store, reader, name):
    try:
        for number in range(1, 100_000):
            store.add_node(name, fixture.node(number, source="x" * 20_000, evaluation=fixture.faster(2.0)))
            acknowledged = number
    except StoreError as error:
        print(error)
print(acknowledged)
"""


def check_full(done: subprocess.CompletedProcess[str], workspace: Workspace) -> None:
    """The sentence is right, the file sound, and every acknowledged node is there."""
    assert done.returncode == 0, done.stderr
    sentence, acknowledged = done.stdout.strip().splitlines()
    assert sentence == (
        f"The disk that holds {workspace.database} is full. Free space there, then go on with forge-tui resume."
    )
    assert integrity(workspace) == "ok"
    with contextlib.closing(Reader.open(workspace)) as reader:
        nodes = reader.nodes("tiny-llm-1")
        assert [n.id for n in nodes] == list(range(1, int(acknowledged) + 1))
        assert all(n.evaluation is not None for n in nodes)
        assert int(acknowledged) > 5


def test_full_disk_keeps_what_was_acknowledged(tmp_path):
    """On a full filesystem the step fails whole, with a sentence; with space again, everything goes on."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], capture_output=True, check=False
    ).returncode == 0
    if not mounted:
        pytest.skip("no filesystem can be mounted here; the next test limits the file's size instead")
    try:
        workspace = Workspace(place / ".forge")
        check_full(child(FILL, workspace.root), workspace)
        with pytest.raises(StoreError, match="No space left on device"):
            Store.open(workspace)
        subprocess.run(["mount", "-o", "remount,size=20m", str(place)], check=True)
        with contextlib.closing(Store.open(workspace)) as store:
            store.add_node("tiny-llm-1", fixture.node(store.next_node_id("tiny-llm-1")))
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_file_that_may_not_grow_is_a_fault_and_stays_whole(workspace):
    """A quota (a limit on the file's size) is a sentence, and what was acknowledged is there."""
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    done = child(FILL, workspace.root, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    sentence, acknowledged = done.stdout.strip().splitlines()
    assert str(workspace.database) in sentence
    assert "Traceback" not in done.stderr
    assert integrity(workspace) == "ok"
    with contextlib.closing(Reader.open(workspace)) as reader:
        assert [n.id for n in reader.nodes("tiny-llm-1")] == list(range(1, int(acknowledged) + 1))


READ_ONLY = """
import os
from pathlib import Path
from forge_tui.store.connection import WriteConnection
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store
workspace = Workspace(Path(sys.argv[1]))
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
print(len(Reader.open(workspace).nodes(sys.argv[2])))
for opening in (Store.open, lambda _: WriteConnection(workspace.database)):
    try:
        opening(workspace)
    except StoreError as error:
        print(error)
"""


def test_read_only_folder_can_be_read_and_says_why_not_written(tmp_path):
    """Somebody else's finished session can be read; writing it is one sentence, at whatever level it fails."""
    workspace, name = fixture.finished(tmp_path / ".forge")
    for path in (workspace.root, *workspace.root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    for parent in tmp_path.parents if os.getuid() == 0 else ():
        if "pytest" in str(parent):
            parent.chmod(parent.stat().st_mode | 0o055)
    tmp_path.chmod(0o755)
    done = child(READ_ONLY, workspace.root, name)
    assert done.returncode == 0, done.stderr
    count, *sentences = done.stdout.strip().splitlines()
    assert count == "5"
    assert len(sentences) == 2
    for sentence in sentences:
        assert sentence.startswith(f"The workspace {workspace.root} cannot be written: Permission denied.")


def test_network_filesystem_means_rollback_journal(workspace, monkeypatch):
    """On NFS and its like there is no write-ahead log, and the store says so; back on a local disk there is."""
    monkeypatch.setattr(filesystem, "network_kind", lambda _: "NFS")
    with fixture.session(workspace) as (store, reader, name):
        assert "network filesystem (NFS)" in store.warnings[0]
        store.add_node(name, fixture.node(1))
        assert [n.id for n in reader.nodes(name)] == [1]
        assert not workspace.database.with_name("forge.db-wal").exists()
    with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    monkeypatch.undo()
    with contextlib.closing(Store.open(workspace)) as store:
        assert store.warnings == ()
    with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_filesystem_is_named():
    """Known local filesystems are no network ones; a folder that is not there is unknown."""
    assert filesystem.describe(Path("/dev/shm")) == "tmpfs"
    assert filesystem.network_kind(Path("/dev/shm")) is None
    assert filesystem.describe(Path("/no/such/folder")) == "unknown"
    assert filesystem.network_kind(Path("/no/such/folder")) is None


HOT = """
import os, signal
from pathlib import Path
from forge_tui.store import filesystem
filesystem.network_kind = lambda _: "NFS"
workspace = Workspace(Path(sys.argv[1]))
with fixture.session(workspace) as (store, reader, name):
    store.add_node(name, fixture.node(1))
    connection = store._connection
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("PRAGMA cache_spill = 1")
    with store.together():
        for number in range(2, 60):
            store.add_node(name, fixture.node(number, source="y" * 20_000))
        assert (workspace.root / "forge.db-journal").stat().st_size > 512
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_reader_gets_over_the_journal_of_a_killed_writer(workspace):
    """A writer killed amid a big step leaves a rollback journal; a reader comes after it and sees the old state."""
    done = child(HOT, workspace.root)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with contextlib.closing(Reader.open(workspace)) as reader:
        assert [n.id for n in reader.nodes("tiny-llm-1")] == [1]
    assert integrity(workspace) == "ok"


def test_reader_imports_no_writing_library():
    """The screen's side of the store loads sqlite3 and nothing heavier."""
    done = child("import subprocess\nprint(subprocess.run([sys.executable, '-c', 'import forge_tui.store.reader, sys; "
                 "print(sorted({m.split(chr(46))[0] for m in sys.modules} & "
                 "{\"sqlite_utils\", \"torch\", \"textual\", \"litellm\", \"click\"}))'], "
                 "capture_output=True, text=True).stdout)")  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr
