"""The one writing connection of a process: journal mode, transactions, and a lock that writers of a workspace share."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlite_utils

from forge_tui.core.errors import StoreError
from forge_tui.store import filesystem, schema
from forge_tui.store.faults import BUSY_S, as_store_errors, locked
from forge_tui.store.version import check_not_newer, read_version

_POLL_S = 0.005
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class WriteConnection:
    """Opens the file for writing, brings it to this program's layout, and runs transactions.

    Engines of other sessions may write the same file. SQLite before 3.51.3 can damage a write-ahead log when two
    connections write or checkpoint at the very same moment, so every transaction, with the checkpoint that its commit
    may bring, is made under a lock of our own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: tuple[str, ...] = ()
        self._nested = False
        self._level = ""
        self._lock_fd = -1
        self._wal = False
        try:
            with as_store_errors(path):
                self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        try:
            self._lock_fd = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"The workspace {self.path.parent} cannot be written: {error.strerror}.",
                             "Name another folder with --workspace, or free space there.") from error  # fmt: skip
        # explicit BEGIN only: what Python starts by itself would be deferred, and fail where another engine wrote
        connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        self.db: Any = sqlite_utils.Database(connection, execute_plugins=False)
        with self._exclusive():
            check_not_newer(read_version(connection, self.path))
            self._choose_journal()
            self.execute("PRAGMA foreign_keys = ON")
            self.execute("PRAGMA synchronous = FULL")
            self.execute("BEGIN IMMEDIATE")
            with self._ending():
                check_not_newer(read_version(connection, self.path))
                schema.migrate(self.db)

    def _choose_journal(self) -> None:
        kind = filesystem.network_kind(self.path.parent)
        wanted = "wal" if kind is None else "delete"
        mode = self.execute(f"PRAGMA journal_mode = {wanted}").fetchone()[0]
        self._wal = mode == "wal"
        if kind is not None:
            warning = (
                f"The workspace is on a network filesystem ({kind}): the database uses a rollback journal, which is "
                "slower and may make the screen wait; a --workspace on a local disk is better."
            )
            self.warnings = (warning,)
        if self._wal:
            self.execute("PRAGMA journal_size_limit = 33554432")

    def execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """One statement on the connection."""
        cursor: sqlite3.Cursor = self.db.conn.execute(sql, values)
        return cursor

    def insert_many(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows; names are ours, values are bound."""
        marks = ", ".join("?" for _ in columns)
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - no user text in it
        self.db.conn.executemany(sql, rows)

    def insert(self, table: str, columns: Sequence[str], row: Sequence[Any]) -> int:
        """Insert one row; returns its row id."""
        marks = ", ".join("?" for _ in columns)
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - no user text in it
        return self.execute(sql, row).lastrowid or 0

    @contextlib.contextmanager
    def transaction(self, *, durable: bool) -> Iterator[None]:
        """All or nothing, from a `BEGIN IMMEDIATE` on; inside another one it is part of that.

        `durable` waits until the disk has it (and all before it); else a power cut may take the last ones, whole.
        """
        if self._nested:
            # within a transaction `atomic` makes a savepoint: a step that fails leaves nothing, even if that is caught
            with self.db.atomic():
                yield
            return
        with as_store_errors(self.path), self._exclusive():
            # a rollback journal is safe against power cuts at FULL only
            self._synchronous("FULL" if durable or not self._wal else "NORMAL")
            self.execute("BEGIN IMMEDIATE")
            self._nested = True
            try:
                with self._ending():
                    yield
            finally:
                self._nested = False

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Commit, or roll back whatever goes wrong, the commit itself included."""
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            # some faults (a full disk) have ended the transaction already
            if self.db.conn.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self.execute("ROLLBACK")
            raise

    def _synchronous(self, level: str) -> None:
        if level != self._level:
            self.execute(f"PRAGMA synchronous = {level}")
            self._level = level

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the workspace's lock; the kernel lets go of it when a process dies."""
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise locked(self.path) from None
                time.sleep(_POLL_S)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    break
                raise
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file; safe to call twice. The last connection folds the log into the database."""
        db, self.db = getattr(self, "db", None), None
        if db is not None:
            with contextlib.suppress(sqlite3.Error, StoreError):
                if self._lock_fd >= 0:
                    with self._exclusive():
                        db.conn.close()
                        db = None
            if db is not None:
                db.conn.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
