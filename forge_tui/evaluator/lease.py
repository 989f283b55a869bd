"""One lease per device on the whole machine, so that no two sessions time on it at once.

It is a lock on a file in the shared temporary folder: the system lets go of it when its holder ends, however that
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import Device

_POLL_S = 0.05


def lease_path(device: Device, folder: Path | None = None) -> Path:
    """The file whose lock is the lease; GPUs by UUID, since their numbers differ between processes."""
    name = re.sub(r"[^A-Za-z0-9-]", "-", device.uuid or device.name) if device.kind == "cuda" else "cpu"
    return (folder or Path(tempfile.gettempdir())) / f"forge-tui-{name}.lease"


@asynccontextmanager
async def lease(device: Device, wait_s: float, folder: Path | None = None) -> AsyncIterator[None]:
    """Hold the lease of a device.

    Raises:
        EnvironmentFault: another process held it for all of `wait_s`, or the file cannot be opened.
    """
    path = lease_path(device, folder)
    descriptor = _open(path)
    try:
        await _acquire(descriptor, wait_s, device)
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


async def _acquire(descriptor: int, wait_s: float, device: Device) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                raise EnvironmentFault(f"The lease of {device.name} cannot be taken: {error.strerror}.") from error
        if time.monotonic() >= deadline:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            who = f"process {holder}" if holder.isdecimal() else "another process"
            raise EnvironmentFault(
                f"{device.name} is in use by {who} of Forge TUI, waited {wait_s:g} s.",
                "Wait for it, or choose another device.",
            )
        await asyncio.sleep(_POLL_S)


def _open(path: Path) -> int:
    """The file, open to every user; an existing one is opened without creating, which a sticky folder refuses."""
    for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT):
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise EnvironmentFault(
                f"The lease {path} cannot be opened: {error.strerror}.", "Remove the file, or set TMPDIR."
            ) from error
        if flags & os.O_CREAT:
            with contextlib.suppress(OSError):
                os.fchmod(descriptor, 0o666)
        return descriptor
    raise EnvironmentFault(f"The lease {path} cannot be made.", "Set TMPDIR to a folder that can be written.")
