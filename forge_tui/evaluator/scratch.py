"""A private folder for raw outputs, gone when its owner is, and swept up by the next one where the owner was killed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.paths import scratch_root
from forge_tui.processes import folders

#: files that wait to be used again, and the largest of them
_MOST_KEPT = 3
_KEPT_BYTES = 2 << 30


class Scratch:
    """A folder that only this user can enter."""

    def __init__(self, root: Path | None = None) -> None:
        root = root or scratch_root()
        prefix = f"forge-outputs-{os.getuid()}-"
        folders.sweep(prefix, root)
        try:
            self._own = folders.OwnFolder(prefix, root)
        except OSError as error:
            raise EnvironmentFault(
                f"There is no room for outputs in {root}: {error.strerror}.", "Free space there."
            ) from error
        self.folder = self._own.path
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
        self._own.close()
