"""An engine killed at any moment loses nothing that it was told is kept."""

import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import store_fixture as fixture

from forge_tui.core.paths import Workspace
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store

WRITER = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import store_fixture as fixture
from forge_tui.core.paths import Workspace
from forge_tui.store import filesystem
from forge_tui.store.writer import Store
if sys.argv[4] == "journal":
    filesystem.network_kind = lambda _: "NFS"
store = Store.open(Workspace(Path(sys.argv[2])))
name = sys.argv[3]
store.acquire(name, os.getpid())
number = store.next_node_id(name)
while True:
    # as after a kill between a node and its verdict: the last node is evaluated again
    store.add_llm_call(name, fixture.llm_call(), target_id="test-RMSNorm", edge="draft", node_id=number)
    store.add_node(name, fixture.node(number, source="s" * 3000))
    store.event(name, "log", {"level": "info", "text": "x" * 500})
    store.set_evaluation(name, number, fixture.faster(2.0, samples=((1.0, 2.0),) * 30))
    os.write(1, b"%d\\n" % number)
    number += 1
"""


@pytest.mark.parametrize("mode", ["wal", "journal"])
def test_kill_at_random_moments_loses_no_acknowledged_verdict(tmp_path, mode):
    """After each kill -9 the file is sound, every acknowledged verdict is there whole, and the next engine goes on."""
    workspace = Workspace(tmp_path / ".forge")
    with contextlib.closing(Store.open(workspace)) as store:
        name = store.create_session(fixture.options(workspace)).id
        store.save_profile(name, fixture.profile())
    chance = random.Random(mode)
    acknowledged: list[int] = []
    rounds = 12 if mode == "wal" else 5
    for _ in range(rounds):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(Path(__file__).parents[1]), str(workspace.root), name, mode],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(chance.uniform(0, 0.12))
        process.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in (first + process.stdout.read()).splitlines(keepends=True)
                         if line.endswith(b"\n")]  # fmt: skip
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
        with contextlib.closing(Reader.open(workspace)) as reader:
            assert reader.session(name).engine_pid == 0
            whole = {n.id for n in reader.nodes(name) if n.evaluation is not None}
            assert whole >= set(acknowledged)
            assert len(reader.node(name, acknowledged[-1]).evaluation.samples) == 30
            evaluated = [e.data["node"] for e in reader.events(name, limit=10**6) if e.kind == "node_evaluated"]
            assert set(evaluated) == whole, "a verdict and its event are there together, or not at all"
            assert len(reader.llm_calls(name)) >= len(acknowledged)
        with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
            assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    assert len(set(acknowledged)) == len(acknowledged) >= rounds


def test_two_engines_share_a_workspace(tmp_path):
    """Engines of different sessions write at the same time, neither is refused, nothing is lost."""
    workspace = Workspace(tmp_path / ".forge")
    names = []
    with contextlib.closing(Store.open(workspace)) as store:
        for _ in range(2):
            names.append(store.create_session(fixture.options(workspace)).id)
            store.save_profile(names[-1], fixture.profile())
    engines = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(Path(__file__).parents[1]), str(workspace.root), name, "wal"],
            stdout=subprocess.PIPE,
        )
        for name in names
    ]
    for _ in range(40):
        for engine in engines:
            assert engine.stdout is not None
            assert engine.stdout.readline().endswith(b"\n")
    with contextlib.closing(Reader.open(workspace)) as reader:
        assert {s.engine_pid for s in reader.sessions()} == {engine.pid for engine in engines}
    for engine in engines:
        engine.kill()
        engine.wait()
        assert engine.stdout is not None
        engine.stdout.close()
    with contextlib.closing(Reader.open(workspace)) as reader:
        for name in names:
            assert len([n for n in reader.nodes(name) if n.evaluation is not None]) >= 40
    with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_workspace_made_by_many_at_once(tmp_path):
    """Engines that start together in a fresh folder make one database, and each its own session."""
    workspace = Workspace(tmp_path / ".forge")
    code = (
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[1])\nimport store_fixture as fixture\n"
        "from forge_tui.core.paths import Workspace\nfrom forge_tui.store.writer import Store\n"
        "w = Workspace(Path(sys.argv[2]))\nprint(Store.open(w).create_session(fixture.options(w)).id)\n"
    )
    starters = [
        subprocess.Popen([sys.executable, "-c", code, str(Path(__file__).parents[1]), str(workspace.root)],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(6)
    ]  # fmt: skip
    replies = [starter.communicate(timeout=60) for starter in starters]
    assert sorted(out.strip() for out, _ in replies) == [f"tiny-llm-{n}" for n in range(1, 7)], replies
