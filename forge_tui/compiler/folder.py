"""The private folder of a build: gone afterwards, and swept up by a later build where the engine was killed."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from forge_tui.processes import folders

_PREFIX = "forge-build-"


@asynccontextmanager
async def private_folder() -> AsyncIterator[Path]:
    """A folder that only this user can read.

    Raises:
        OSError: there is no room for it.
    """
    own = folders.OwnFolder(_PREFIX, Path(tempfile.gettempdir()))
    try:
        yield own.path
    finally:
        own.close()


def sweep() -> None:
    """Remove this user's folders whose owners no longer live."""
    folders.sweep(_PREFIX, Path(tempfile.gettempdir()))
