"""SQLite's errors as sentences: what happened to the workspace's database, and what to do."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from forge_tui.core.errors import ExitCode, StoreError

#: seconds that a statement waits for another process's lock
BUSY_S = 10.0
#: below this many free bytes an input/output error is taken for a full disk
_NEARLY_FULL = 1 << 16
_SPACE = "Free space there, then go on with forge-tui resume."


@contextlib.contextmanager
def as_store_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite says about the file into a StoreError; broken constraints stay what they are: bugs."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except sqlite3.Error as error:
        raise explain(error, path) from error


def code_of(error: sqlite3.Error) -> int:
    """SQLite's primary result code, 0 where there is none."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def explain(error: sqlite3.Error, path: Path) -> StoreError:
    """The fault as one sentence and what to do."""
    code = code_of(error)
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and nearly_full(path.parent)):
        return StoreError(f"The disk that holds {path} is full.", _SPACE)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreError(
            f"The workspace's database {path} is damaged ({error}).",
            "Name another folder with --workspace, or put the file aside and start again.",
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return locked(path)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreError(
            f"The workspace's database {path} is read-only.", "Change its permissions, or name another folder with "
            "--workspace.",
        )  # fmt: skip
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreError(
            f"The workspace's database {path} cannot be opened.",
            "Look at the permissions of the folder, or name another one with --workspace.",
        )
    if code == sqlite3.SQLITE_IOERR:
        return StoreError(f"The workspace's database {path} cannot be read or written ({error}).",
                          "Look at the disk and its quota, or name another folder with --workspace.")  # fmt: skip
    return StoreError(f"The workspace's database {path} cannot be used: {error}.", exit_code=ExitCode.BUG)


def locked(path: Path) -> StoreError:
    """Another process holds the lock and does not let go."""
    return StoreError(
        f"Another process has kept {path} locked for {BUSY_S:g} s.",
        "End it (fuser shows which one), or name another folder with --workspace.",
    )


def nearly_full(folder: Path) -> bool:
    """Whether the folder's filesystem has no room left."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _NEARLY_FULL
