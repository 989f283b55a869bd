"""A filter of system calls for compilers and workers: no network, no looking into other processes.

It answers with an error rather than killing, since a compiler or a driver may ask in vain and go on. The process of a
CPU candidate has a stricter one of its own. Only the standard library, so that the file can be loaded by a plain
script.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EACCES, ENOSYS = 13, 38
LOAD, JUMP_EQUAL, _JUMP_AT_LEAST, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENTS = 0, 4, 16
#: the other numbering of calls that x86-64 knows
_X32 = 0x40000000

#: operation, how many items to jump over if it holds, how many if not, value
Item = tuple[int, int, int, int]

#: machine: audit architecture, socket, io_uring_setup, and the calls that are refused
_NUMBERS: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    # ptrace process_vm_readv process_vm_writev pidfd_getfd mount umount2 pivot_root unshare setns bpf perf_event_open
    # userfaultfd add_key request_key keyctl kexec_load init_module finit_module open_by_handle_at
    "x86_64": (0xC000003E, 41, 425, (101, 310, 311, 438, 165, 166, 155, 272, 308, 321, 298, 323, 248, 249, 250, 246,
                                     175, 313, 304)),
    "aarch64": (0xC00000B7, 198, 425, (117, 270, 271, 438, 40, 39, 41, 97, 268, 280, 241, 282, 217, 218, 219, 104, 105,
                                       273, 265)),
}  # fmt: skip
#: families that stay: unix (the driver's and the C library's own services) and netlink
_LOCAL_FAMILIES = (1, 16)


def program(machine: str) -> bytes | None:
    """The filter as struct sock_filter items; None for a machine that is not known."""
    known = _NUMBERS.get(machine)
    if known is None:
        return None
    architecture, socket, io_uring, refused = known
    # 32-bit programs have other numbers: none of a toolchain is one
    items = beginning(architecture, ERRNO | ENOSYS)
    for number in refused:
        items += answer(number, ERRNO | _EACCES)
    items += answer(io_uring, ERRNO | ENOSYS)
    items += [(JUMP_EQUAL, 1, 0, socket), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, argument(0))]
    for family in _LOCAL_FAMILIES:
        items += answer(family, ALLOW)
    items += [(RETURN, 0, 0, ERRNO | _EACCES)]
    return assemble(items)


def beginning(architecture: int, otherwise: int) -> list[Item]:
    """The number of a call is loaded; calls in another numbering are answered with `otherwise`."""
    return [
        (LOAD, 0, 0, _OFFSET_ARCH),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, otherwise),
        (LOAD, 0, 0, _OFFSET_NUMBER),
        (_JUMP_AT_LEAST, 0, 1, _X32),
        (RETURN, 0, 0, otherwise),
    ]


def answer(value: int, what: int) -> list[Item]:
    """The answer if what is loaded has this value; else it goes on."""
    return [(JUMP_EQUAL, 0, 1, value), (RETURN, 0, 0, what)]


def argument(index: int, *, high: bool = False) -> int:
    """Where an argument of a call lies: its lower half, or the upper one."""
    return _OFFSET_ARGUMENTS + 8 * index + 4 * high


def assemble(items: Iterable[Item]) -> bytes:
    """As the struct sock_filter items that the system takes."""
    return b"".join(struct.pack("<HBBI", *item) for item in items)


def cut_off() -> bool:
    """Put the filter on the calling thread and whatever it starts, for good; whether the system took it."""
    code = program(os.uname().machine)
    return code is not None and install(code)


def install(code: bytes) -> bool:
    """Put a filter on the calling thread and whatever it starts, for good; whether the system took it."""
    libc = ctypes.CDLL(None, use_errno=True)
    kept = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("count", ctypes.c_ushort), ("items", ctypes.c_void_p))

    wanted = Program(len(code) // 8, ctypes.addressof(kept))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return not libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(wanted), 0, 0)
