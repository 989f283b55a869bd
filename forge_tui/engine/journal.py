"""The points of a recording that runs: appended one by one, so that a kill loses no more than the one in flight."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

import msgspec

from forge_tui.core.errors import EnvironmentFault, UsageError
from forge_tui.core.landscapes import Point


class _Head(msgspec.Struct, frozen=True):
    key: str


class _Line(msgspec.Struct, frozen=True, array_like=True):
    target: int
    point: Point


class Journal:
    """A file beside the landscape that grows line by line, and is removed when the landscape is complete."""

    def __init__(self, output: Path, key: str) -> None:
        """Open it, or go on with what is there.

        Raises:
            UsageError: it belongs to another recording, or to one that runs.
            EnvironmentFault: it cannot be written.
        """
        self.path = output.with_name(output.name + ".part")
        self.points: list[tuple[int, Point]] = []
        """What an earlier recording left, by index of the target."""
        try:
            self._file: IO[bytes] = self.path.open("a+b")
            try:
                self._lock()
                self._read(key)
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise EnvironmentFault(f"{self.path} cannot be written: {error.strerror or error}.",
                                   "Name another --output, or free space there.") from error  # fmt: skip

    def add(self, target: int, point: Point) -> None:
        """Keep a point, on the disk when this returns.

        Raises:
            EnvironmentFault: the disk is full.
        """
        try:
            self._write(msgspec.json.encode(_Line(target, point)))
        except OSError as error:
            raise EnvironmentFault(f"{self.path} cannot be written: {error.strerror or error}.",
                                   "Free space there; the same command goes on.") from error  # fmt: skip

    def close(self, *, remove: bool) -> None:
        """Let go of the file."""
        if remove:
            self.path.unlink(missing_ok=True)
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{self.path} is being written by another recording.",
                             "Wait for it, or name another --output.") from None  # fmt: skip

    def _read(self, key: str) -> None:
        self._file.seek(0)
        whole, _, torn = self._file.read().rpartition(b"\n")
        if torn:
            # the line that a kill cut short
            self._file.truncate(len(whole) + (1 if whole else 0))
        lines = whole.split(b"\n") if whole else []
        if not lines:
            self._write(msgspec.json.encode(_Head(key)))
            return
        try:
            head = msgspec.json.decode(lines[0], type=_Head)
            found = [msgspec.json.decode(line, type=_Line) for line in lines[1:]]
        except msgspec.MsgspecError as error:
            raise UsageError(f"{self.path} is damaged: {error}.", "Remove it, or name another --output.") from error
        if head.key != key:
            raise UsageError(
                f"{self.path} was left by another recording (model, target, device or templates differ).",
                "Remove it, or name another --output.",
            )
        self.points = [(line.target, line.point) for line in found]

    def _write(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
