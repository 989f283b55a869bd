"""A private folder for raw outputs, gone when its owner is, and swept up by the next one where the owner was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.paths import scratch_root

_LOCK = "lock"
#: files that wait to be used again, and the largest of them
_MOST_KEPT = 3
_KEPT_BYTES = 2 << 30


class Scratch:
    """A folder that only this user can enter; a lock in it says that its owner lives."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or scratch_root()
        prefix = f"forge-tui-{os.getuid()}-"
        _sweep(self._root, prefix)
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=self._root))
            self._lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise EnvironmentFault(
                f"There is no room for outputs in {self._root}: {error.strerror}.", "Free space there."
            ) from error
        self._count = 0
        self._free: list[Path] = []

    @contextlib.contextmanager
    def lent(self, stem: str, *, keep: bool = False) -> Iterator[Path]:
        """The path of a file for some time: a new one or, with `keep`, one used before, whose pages are there already.

        A file that is not kept, or is too large to be, is removed at the end.
        """
        path = self._free.pop() if keep and self._free else self._new(stem)
        try:
            yield path
        finally:
            kept = 0
            if keep and len(self._free) < _MOST_KEPT:
                with contextlib.suppress(OSError):
                    kept = path.stat().st_size
            if 0 < kept <= _KEPT_BYTES:
                self._free.append(path)
            else:
                path.unlink(missing_ok=True)

    def _new(self, stem: str) -> Path:
        self._count += 1
        return self.folder / f"{stem}-{self._count}.bin"

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _sweep(root: Path, prefix: str) -> None:
    """Remove folders of owners that no longer live."""
    for folder in root.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.getuid() or folder.is_symlink():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
