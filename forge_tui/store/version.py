"""The version of the database's layout, and what is said where it is not the one this program knows."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from forge_tui.core.errors import StoreError

#: raised by every migration in `schema`
SCHEMA_VERSION = 7
#: the oldest that a reader makes do with; a writer brings every one up to date
OLDEST_READABLE = 1


def missing(path: Path) -> StoreError:
    """There is nothing to read yet."""
    return StoreError(f"There is no Forge TUI database in {path.parent}.", "Start with forge-tui run MODEL.")


def read_version(connection: sqlite3.Connection, path: Path) -> int:
    """The layout's version; 0 for an empty file.

    Raises:
        StoreError: the file is another program's.
    """
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "meta" in names:
        row = connection.execute("SELECT schema_version FROM meta").fetchone()
        return int(row[0]) if row else 0
    if names - {"_sqlite_migrations", "sqlite_sequence"}:
        raise StoreError(f"{path} is not a Forge TUI database.", "Name another folder with --workspace.")
    return 0


def check_not_newer(found: int) -> None:
    """Refuse a database that a later program wrote.

    Raises:
        StoreError: it is newer.
    """
    if found > SCHEMA_VERSION:
        raise StoreError(
            f"The workspace's database was written by a newer Forge TUI (schema {found}, this one knows "
            f"{SCHEMA_VERSION}): upgrade forge-tui, or name another folder with --workspace."
        )
