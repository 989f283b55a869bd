"""Landlock: a process that gives up, for good and for all it starts, the files and the network it does not need.

It takes neither a program nor a namespace, so it also works for ordinary users and inside containers, from Linux 5.13
on. Only the standard library, so that the file can be loaded by a plain script.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
#: removing and making of every kind
_CHANGE_DIR = sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
#: what a rule on a file, in contrast to a folder, may name
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1, 2


def abi() -> int:
    """The version that the running kernel speaks; 0 where there is none (too old, switched off, or filtered)."""
    found = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    return max(0, int(found))


def restrict(read: Sequence[str], write: Sequence[str], *, network: bool = False, alone: bool = True) -> int:
    """Confine the calling thread and whatever it starts; returns the version in force.

    `read` may be read and executed, `write` anything; paths that are not there are left out. TCP is refused (from
    version 4) unless `network`; with `alone`, abstract sockets and signals of processes outside too (from version 6).

    Raises:
        OSError: the system does not take it; nothing has changed then, but that no new privileges can be had.
    """
    libc = _libc()
    version = abi()
    if not version:
        raise OSError(ctypes.get_errno(), "Landlock is not there")
    handled = _READ | _WRITE_FILE | _CHANGE_DIR
    handled |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled |= _IOCTL_DEV if version >= 5 else 0
    attributes = struct.pack("=Q", handled)
    if version >= 4:
        attributes += struct.pack("=Q", 0 if network else _BIND_TCP | _CONNECT_TCP)
    if version >= 6:
        attributes += struct.pack("=Q", _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL if alone else 0)
    ruleset = int(libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "Landlock takes no rules")
    try:
        for path in read:
            _allow(libc, ruleset, path, _READ & handled)
        for path in write:
            _allow(libc, ruleset, path, handled)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(_RESTRICT_SELF, ruleset, 0):
            raise OSError(ctypes.get_errno(), "Landlock cannot be put into force")
    finally:
        os.close(ruleset)
    return version


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        if libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0):
            raise OSError(ctypes.get_errno(), f"Landlock takes no rule for {path}")
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _probe() -> int:
    """Confine this process and see whether it holds; the version, 0 where it does not."""
    try:
        version = restrict(["/usr"], [])
    except OSError:
        return 0
    for path, flags in (("/", os.O_RDONLY), ("/dev/null", os.O_WRONLY)):
        try:
            os.open(path, flags)
        except PermissionError:
            continue
        return 0
    return version


if __name__ == "__main__":
    print(_probe())  # noqa: T201 - read by `isolation`, which runs this file
