"""One lease per device on the whole machine, so that no two sessions time on it at once.

It is held twice: as a lock on a file in the machine's own temporary folder (not in `TMPDIR`, which differs between
users), and as a name among the abstract sockets of the network namespace. Both go when their holder ends, however that
ends; both are open to every user. A GPU, or a MIG instance of one, is known by its UUID, since numbers differ between
processes.

Not covered: containers that share neither `/tmp` nor the network with each other, and programs other than Forge TUI.
`FORGE_TUI_LEASES` names a folder for the files, which such containers can mount.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import Device

VARIABLE = "FORGE_TUI_LEASES"
_POLL_S = 0.05
#: between a file's creation and the moment when it is open to all, another user is refused
_RACE_S = 1.0
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{8,}(?:/\d+/\d+)?")


def lease_path(device: Device, folder: Path | None = None) -> Path:
    """The file whose lock is the lease; one for all GPUs that have no UUID, as numbers do not tell them apart."""
    name = re.sub(r"[^A-Za-z0-9-]", "-", _identity(device))
    return (folder or Path(os.environ.get(VARIABLE) or "/tmp")) / f"forge-tui-{name}.lease"  # noqa: S108 - shared on purpose


def _identity(device: Device) -> str:
    if device.kind == "cpu":
        return "cpu"
    return device.uuid or _visible_uuid(device.name) or "cuda"


def _visible_uuid(name: str) -> str:
    """The UUID by which `CUDA_VISIBLE_DEVICES` names this device, if it does and in full."""
    entries = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    number = int(name.partition(":")[2] or 0)
    entry = entries[number].strip() if number < len(entries) else ""
    return entry if _UUID.fullmatch(entry) and len(entry) >= 40 else ""


@asynccontextmanager
async def lease(device: Device, wait_s: float, folder: Path | None = None) -> AsyncIterator[None]:
    """Hold the lease of a device.

    Raises:
        EnvironmentFault: another process held it for all of `wait_s`, or the file cannot be opened.
    """
    path = lease_path(device, folder)
    descriptor = await _open(path)
    name: socket.socket | None = None
    try:
        name = await _acquire(descriptor, _name_of(path), wait_s, device)
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        if name is not None:
            name.close()
        os.close(descriptor)


async def _acquire(descriptor: int, name: bytes, wait_s: float, device: Device) -> socket.socket | None:
    """Both halves, or none while waiting, so that nobody waits for the other half for ever."""
    deadline = time.monotonic() + wait_s
    while True:
        if _lock(descriptor, device):
            taken, held = _take_name(name)
            if taken:
                return held
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        if time.monotonic() >= deadline:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            who = f"process {holder}" if holder.isdecimal() else "another process"
            raise EnvironmentFault(
                f"{device.name} is in use by {who} of Forge TUI, waited {wait_s:g} s.",
                "Wait for it, or choose another device.",
            )
        await asyncio.sleep(_POLL_S)


def _lock(descriptor: int, device: Device) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
            raise EnvironmentFault(f"The lease of {device.name} cannot be taken: {error.strerror}.") from error
        return False
    return True


def _name_of(path: Path) -> bytes:
    """An abstract name. Files in a folder of somebody's choice are leases of their own."""
    if path.parent == Path("/tmp"):  # noqa: S108 - compared only
        return b"\0" + path.name.encode()
    return b"\0" + path.name.encode()[:60] + hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:16].encode()


def _take_name(name: bytes) -> tuple[bool, socket.socket | None]:
    """Whether nobody else has the name; the socket that holds it, or None where there are no such names."""
    if sys.platform != "linux":
        return True, None
    try:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:
        return True, None
    try:
        made.bind(name)
    except OSError as error:
        made.close()
        return error.errno != errno.EADDRINUSE, None
    return True, made


async def _open(path: Path) -> int:
    """The file, open to every user.

    An existing one is opened without creating, which a sticky folder refuses for files of others; one that may only be
    read can be locked as well.
    """
    deadline = time.monotonic() + _RACE_S
    while True:
        problem: OSError | None = None
        for flags in (os.O_RDWR, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDONLY):
            try:
                descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
            except (FileNotFoundError, FileExistsError) as error:
                problem = problem or error
                continue
            except OSError as error:
                problem = error
                continue
            if flags & os.O_CREAT:
                # past the umask of whoever is first
                with contextlib.suppress(OSError):
                    os.fchmod(descriptor, 0o666)
            return descriptor
        assert problem is not None
        if not isinstance(problem, PermissionError | FileExistsError) or time.monotonic() >= deadline:
            raise EnvironmentFault(
                f"The lease {path} cannot be opened: {problem.strerror}.",
                f"Remove the file, or set {VARIABLE} to a folder that all sessions of this machine share.",
            ) from problem
        await asyncio.sleep(_POLL_S)
