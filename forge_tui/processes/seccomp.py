"""A filter of system calls for compilers and workers: no network, no looking into other processes.

It answers with an error rather than killing, since a compiler or a driver may ask in vain and go on. The process of a
CPU candidate has a stricter one of its own. Only the standard library, so that the file can be loaded by a plain
script.
"""

from __future__ import annotations

import ctypes
import os
import struct

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EACCES, _ENOSYS = 13, 38
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_FIRST_ARGUMENT = 0, 4, 16
#: the other numbering of calls that x86-64 knows
_X32 = 0x40000000

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
    items: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _OFFSET_ARCH),
        # 32-bit programs have other numbers: none of a toolchain is one
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
        (_JUMP_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
    ]
    for number in refused:
        items += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | _EACCES)]
    items += [(_JUMP_EQUAL, 0, 1, io_uring), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    items += [(_JUMP_EQUAL, 1, 0, socket), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, _OFFSET_FIRST_ARGUMENT)]
    for family in _LOCAL_FAMILIES:
        items += [(_JUMP_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    items += [(_RETURN, 0, 0, _ERRNO | _EACCES)]
    return b"".join(struct.pack("<HBBI", *item) for item in items)


def cut_off() -> bool:
    """Put the filter on the calling thread and whatever it starts, for good; whether the system took it."""
    code = program(os.uname().machine)
    if code is None:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    kept = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("count", ctypes.c_ushort), ("items", ctypes.c_void_p))

    wanted = Program(len(code) // 8, ctypes.addressof(kept))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return not libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(wanted), 0, 0)
