"""The database's layout as migrations, each a function that takes the file one version further."""

from __future__ import annotations

import sqlite3
from typing import Any

import sqlite_utils

from forge_tui import __version__
from forge_tui.store.version import SCHEMA_VERSION

migrations = sqlite_utils.Migrations("forge-tui")

#: strict tables came with SQLite 3.37; without them the columns' types are not enforced, nothing else changes
_STRICT = sqlite3.sqlite_version_info >= (3, 37)

_TABLES = """
meta (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    schema_version INTEGER NOT NULL,
    written_by TEXT NOT NULL
)

sessions (
    id TEXT PRIMARY KEY,
    model TEXT NOT NULL,
    options TEXT NOT NULL,
    state TEXT NOT NULL,
    stop_reason TEXT NOT NULL DEFAULT '',
    error TEXT,
    device TEXT,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    elapsed_s REAL NOT NULL DEFAULT 0
)

leases (
    session_id TEXT PRIMARY KEY REFERENCES sessions (id),
    token TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started TEXT NOT NULL,
    host TEXT NOT NULL,
    heartbeat_at REAL NOT NULL
)

profiles (
    session_id TEXT PRIMARY KEY REFERENCES sessions (id),
    model_ms REAL NOT NULL,
    overhead REAL NOT NULL,
    record TEXT NOT NULL
)

hotspots (
    session_id TEXT NOT NULL REFERENCES profiles (session_id),
    position INTEGER NOT NULL,
    id INTEGER NOT NULL,
    parent INTEGER,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    path TEXT NOT NULL,
    calls INTEGER NOT NULL,
    total_ms REAL NOT NULL,
    self_ms REAL NOT NULL,
    share REAL NOT NULL,
    headroom_ms REAL NOT NULL,
    target_id TEXT,
    reason TEXT NOT NULL,
    PRIMARY KEY (session_id, id)
)

targets (
    session_id TEXT NOT NULL REFERENCES profiles (session_id),
    id TEXT NOT NULL,
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    qualname TEXT NOT NULL,
    signature TEXT NOT NULL,
    calls INTEGER NOT NULL,
    time_us REAL NOT NULL,
    share REAL NOT NULL,
    floor_us REAL NOT NULL,
    headroom_ms REAL NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (session_id, id)
)

nodes (
    session_id TEXT NOT NULL REFERENCES sessions (id),
    id INTEGER NOT NULL,
    target_id TEXT NOT NULL,
    parent INTEGER,
    edge TEXT NOT NULL,
    proposer TEXT NOT NULL,
    source TEXT NOT NULL,
    language TEXT NOT NULL,
    idea TEXT NOT NULL,
    family TEXT NOT NULL,
    tunables TEXT NOT NULL,
    key TEXT NOT NULL,
    cost_usd REAL NOT NULL,
    repairs INTEGER,
    created_at REAL NOT NULL,
    PRIMARY KEY (session_id, id),
    FOREIGN KEY (session_id, target_id) REFERENCES targets (session_id, id),
    FOREIGN KEY (session_id, parent) REFERENCES nodes (session_id, id),
    FOREIGN KEY (session_id, repairs) REFERENCES nodes (session_id, id)
)

evaluations (
    session_id TEXT NOT NULL,
    node_id INTEGER NOT NULL,
    verdict TEXT NOT NULL,
    reason TEXT NOT NULL,
    compile_s REAL NOT NULL,
    verify_s REAL NOT NULL,
    timing_s REAL NOT NULL,
    time_us REAL,
    baseline_us REAL,
    speedup REAL,
    speedup_low REAL,
    speedup_high REAL,
    max_abs_error REAL,
    error_vs_eager REAL,
    sha256 TEXT NOT NULL,
    log TEXT NOT NULL,
    resources TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (session_id, node_id),
    FOREIGN KEY (session_id, node_id) REFERENCES nodes (session_id, id)
)

samples (
    session_id TEXT NOT NULL,
    node_id INTEGER NOT NULL,
    i INTEGER NOT NULL,
    candidate_us REAL NOT NULL,
    baseline_us REAL NOT NULL,
    PRIMARY KEY (session_id, node_id, i),
    FOREIGN KEY (session_id, node_id) REFERENCES evaluations (session_id, node_id)
)

llm_calls (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    target_id TEXT NOT NULL,
    edge TEXT NOT NULL,
    node_id INTEGER,
    at REAL NOT NULL,
    model TEXT NOT NULL,
    prompt TEXT NOT NULL,
    reply TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cost_usd REAL,
    priced INTEGER NOT NULL,
    latency_s REAL NOT NULL,
    error TEXT NOT NULL
)

deployments (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    at REAL NOT NULL,
    baseline_ms REAL NOT NULL,
    deployed_ms REAL NOT NULL,
    speedup REAL NOT NULL,
    record TEXT NOT NULL
)

decisions (
    deployment_id INTEGER NOT NULL REFERENCES deployments (id),
    position INTEGER NOT NULL,
    target_id TEXT NOT NULL,
    node_id INTEGER NOT NULL,
    deployed INTEGER NOT NULL,
    why_not TEXT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (deployment_id, position)
)

events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    data TEXT NOT NULL
)
"""

_REST = """
CREATE INDEX nodes_by_target ON nodes (session_id, target_id, id)
CREATE INDEX llm_calls_by_session ON llm_calls (session_id, id)
CREATE INDEX deployments_by_session ON deployments (session_id, id)
CREATE INDEX events_by_session ON events (session_id, id)
CREATE TRIGGER events_keep_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END
CREATE TRIGGER events_keep_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END
"""

_HOTSPOT_2 = """
floor_ms REAL NOT NULL DEFAULT 0
bound TEXT NOT NULL DEFAULT ''
host_ms REAL NOT NULL DEFAULT 0
launches INTEGER NOT NULL DEFAULT 0
signature TEXT NOT NULL DEFAULT ''
kernels TEXT NOT NULL DEFAULT '[]'
"""

_CONFIRMATIONS_4 = """
confirmations (
    session_id TEXT NOT NULL,
    node_id INTEGER NOT NULL,
    verdict TEXT NOT NULL,
    reason TEXT NOT NULL,
    speedup REAL,
    unsanitised TEXT NOT NULL,
    record TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (session_id, node_id),
    FOREIGN KEY (session_id, node_id) REFERENCES evaluations (session_id, node_id)
)
"""


_STEPS_5 = """
steps (
    session_id TEXT NOT NULL REFERENCES sessions (id),
    position INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (session_id, position)
)
"""


_LEDGER_6 = """
state TEXT NOT NULL DEFAULT 'done'
attempt INTEGER NOT NULL DEFAULT 1
reserved_usd REAL
exact INTEGER NOT NULL DEFAULT 1
cache_write_tokens INTEGER NOT NULL DEFAULT 0
reasoning_tokens INTEGER NOT NULL DEFAULT 0
price TEXT NOT NULL DEFAULT ''
"""


_CALLS_7 = """
seed INTEGER NOT NULL DEFAULT 0
finish TEXT NOT NULL DEFAULT ''
"""

_TOOL_USES_7 = """
tool_uses (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    call_id INTEGER NOT NULL REFERENCES llm_calls (id),
    target_id TEXT NOT NULL,
    at REAL NOT NULL,
    tool TEXT NOT NULL,
    source TEXT NOT NULL,
    verdict TEXT NOT NULL,
    answer TEXT NOT NULL,
    seconds REAL NOT NULL
)
"""


def first_layout(db: Any) -> None:
    """Every table of version 1."""
    for table in _TABLES.strip().split("\n\n"):
        db.execute(f"CREATE TABLE {table}{' STRICT' if _STRICT else ''}")
    for statement in _REST.strip().splitlines():
        db.execute(statement)
    db.execute("INSERT INTO meta (id, schema_version, written_by) VALUES (1, 1, ?)", [__version__])


def whole_call_tree(db: Any) -> None:
    """Version 2: floors, host time, launches, signature and kernels of a hotspot."""
    for column in _HOTSPOT_2.strip().splitlines():
        db.execute(f"ALTER TABLE hotspots ADD COLUMN {column}")
    db.execute("UPDATE meta SET schema_version = 2, written_by = ?", [__version__])


def all_clocks(db: Any) -> None:
    """Version 3: what a timing found beside its verdict."""
    db.execute("ALTER TABLE evaluations ADD COLUMN timings TEXT NOT NULL DEFAULT ''")
    db.execute("UPDATE meta SET schema_version = 3, written_by = ?", [__version__])


def confirmations(db: Any) -> None:
    """Version 4: what became of winners that were tried once more."""
    db.execute(f"CREATE TABLE {_CONFIRMATIONS_4.strip()}{' STRICT' if _STRICT else ''}")
    db.execute("UPDATE meta SET schema_version = 4, written_by = ?", [__version__])


def steps(db: Any) -> None:
    """Version 5: steps of the search that were decided and have no source yet."""
    db.execute(f"CREATE TABLE {_STEPS_5.strip()}{' STRICT' if _STRICT else ''}")
    db.execute("UPDATE meta SET schema_version = 5, written_by = ?", [__version__])


def ledger(db: Any) -> None:
    """Version 6: calls are written down before they are made, with what they may cost at most."""
    for column in _LEDGER_6.strip().splitlines():
        db.execute(f"ALTER TABLE llm_calls ADD COLUMN {column}")
    # what was written with an error had come to nothing
    db.execute("UPDATE llm_calls SET state = 'broken', exact = priced WHERE error <> ''")
    db.execute("UPDATE meta SET schema_version = 6, written_by = ?", [__version__])


def steps_of_calls(db: Any) -> None:
    """Version 7: calls know their step, so that a reply which came is used after a kill; what models tried by tools."""
    for column in _CALLS_7.strip().splitlines():
        db.execute(f"ALTER TABLE llm_calls ADD COLUMN {column}")
    db.execute(f"CREATE TABLE {_TOOL_USES_7.strip()}{' STRICT' if _STRICT else ''}")
    db.execute("CREATE INDEX tool_uses_by_session ON tool_uses (session_id, call_id)")
    db.execute("UPDATE meta SET schema_version = 7, written_by = ?", [__version__])


migrations(name="0001_first_layout")(first_layout)
migrations(name="0002_whole_call_tree")(whole_call_tree)
migrations(name="0003_all_clocks")(all_clocks)
migrations(name="0004_confirmations")(confirmations)
migrations(name="0005_steps")(steps)
migrations(name="0006_ledger")(ledger)
migrations(name="0007_steps_of_calls")(steps_of_calls)


def migrate(db: Any) -> None:
    """Apply what the file lacks; to be called in a transaction, so that two programs cannot do it at once."""
    migrations.apply(db)
    found = db.execute("SELECT schema_version FROM meta").fetchone()[0]
    assert found == SCHEMA_VERSION, "a migration must raise meta.schema_version"
