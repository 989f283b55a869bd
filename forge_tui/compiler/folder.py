"""The private folder of a build: gone afterwards, and swept up by a later build where the engine was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_PREFIX = "forge-build-"
_UNNAMED = "forge-new-"


@asynccontextmanager
async def private_folder() -> AsyncIterator[Path]:
    """A folder that only this user can read. A lock on it says that its owner lives."""
    made = Path(tempfile.mkdtemp(prefix=_UNNAMED))
    descriptor = os.open(made, os.O_RDONLY | os.O_CLOEXEC)
    folder = made
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # it gets the name that the sweep looks for when it is locked already
        folder = made.rename(made.with_name(_PREFIX + made.name.removeprefix(_UNNAMED)))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def sweep() -> None:
    """Remove this user's folders whose owners no longer live."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
