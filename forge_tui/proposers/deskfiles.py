"""Files of the inbox: whole from the moment they have their name, held by one process at a time, free of keys."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from forge_tui.core import secrets
from forge_tui.proposers import keys

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_POLL_S = 0.01


def put(path: Path, text: str) -> None:
    """Write a whole file under a temporary name, then give it its own.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(text.encode("utf-8", "replace"))
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def put_new(path: Path, text: str) -> bool:
    """Write a file for its owner alone, unless there is one of that name; says whether it did.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(text.encode("utf-8", "replace"))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return True


@contextlib.contextmanager
def held(path: Path, wait_s: float) -> Iterator[None]:
    """Hold a lock on a file that is made for it; the system lets go of it when a process dies.

    Raises:
        BlockingIOError: somebody else holds it for longer than that.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    except OSError:
        # who cannot write here has nothing to agree on
        yield
        return
    try:
        until = time.monotonic() + wait_s
        while not _got(fd):
            if time.monotonic() >= until:
                raise BlockingIOError
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)


def _got(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def without_keys(text: str) -> str:
    """The text without the values of keys, those of the file of keys included."""
    keys.learn()
    return secrets.without_values(text)
