"""Folders of one process: gone when it is done with them, and swept up by a later one where it was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_UNNAMED = "forge-new-"


class OwnFolder:
    """A folder that only this user can enter. A lock on it says that its owner lives."""

    def __init__(self, prefix: str, root: Path) -> None:
        """Make it.

        Raises:
            OSError: there is no room for it.
        """
        made = Path(tempfile.mkdtemp(prefix=_UNNAMED, dir=root))
        self._lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # it gets the name that a sweep looks for when it is locked already
        self.path = made.rename(made.with_name(prefix + made.name.removeprefix(_UNNAMED)))

    def close(self) -> None:
        """Remove it with all that is in it; safe to call again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def sweep(prefix: str, root: Path) -> None:
    """Remove this user's folders whose owners no longer live."""
    for folder in root.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
