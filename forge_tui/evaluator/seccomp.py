"""A filter of system calls for the process that runs a CPU candidate.

A kernel needs none but those of memory and threads. What would leave the process (programs, network, files, signals to
others) ends it with SIGSYS; the candidate's own threads stay possible.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_ENOSYS = 38
_CLONE_THREAD = 0x00010000

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
#: the other numbering of calls that x86-64 knows
_X32 = 0x40000000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_FIRST_ARGUMENT, _OFFSET_THIRD_ARGUMENT = 0, 4, 16, 32
_PROT_EXEC = 4
#: mmap, mprotect, pkey_mprotect: memory that can be executed would let a kernel replace the code around it
_MAPPING: dict[str, tuple[int, ...]] = {"x86_64": (9, 10, 329), "aarch64": (222, 226, 288)}

#: machine: audit architecture, clone, clone3, and the calls that end the process
_NUMBERS: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    # execve execveat fork vfork ptrace kill socket connect bind unlink unlinkat rename renameat renameat2 mkdir rmdir
    # truncate creat open_by_handle_at process_vm_readv process_vm_writev mount memfd_create pidfd_open setns unshare
    # userfaultfd bpf perf_event_open io_uring_setup link linkat symlink symlinkat chmod fchmodat mknod
    # sched_setaffinity sched_setscheduler setpriority, which would slow the original down; personality, which can make
    # data executable
    "x86_64": (0xC000003E, 56, 435, (59, 322, 57, 58, 101, 62, 41, 42, 49, 87, 263, 82, 264, 316, 83, 84, 76, 85, 304,
                                      310, 311, 165, 319, 434, 308, 272, 323, 321, 298, 425, 86, 265, 88, 266, 90, 268,
                                      133, 203, 144, 141, 135)),
    "aarch64": (0xC00000B7, 220, 435, (221, 281, 117, 129, 198, 203, 200, 35, 38, 276, 34, 45, 265, 270, 271, 40, 279,
                                       434, 268, 97, 282, 280, 241, 425, 37, 36, 53, 33, 122, 119,
                                       140, 92)),
}  # fmt: skip


def _program(machine: str) -> bytes | None:
    """The filter as struct sock_filter items, or None for a machine that is not known."""
    known = _NUMBERS.get(machine)
    if known is None:
        return None
    architecture, clone, clone3, fatal = known
    items: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _OFFSET_ARCH),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
        (_JUMP_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    for number in fatal:
        items += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _KILL)]
    for number in _MAPPING[machine]:
        items += [
            (_JUMP_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, _OFFSET_THIRD_ARGUMENT),
            (_JUMP_SET, 0, 1, _PROT_EXEC),
            (_RETURN, 0, 0, _KILL),
            (_RETURN, 0, 0, _ALLOW),
        ]
    # the flags of clone3 lie in memory, out of the filter's sight: the C library then falls back to clone
    items += [(_JUMP_EQUAL, 0, 1, clone3), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    items += [
        (_JUMP_EQUAL, 1, 0, clone),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _OFFSET_FIRST_ARGUMENT),
        (_JUMP_SET, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _KILL),
    ]
    return b"".join(struct.pack("<HBBI", *item) for item in items)


def install() -> bool:
    """Put the filter on this process, for good; whether the system took it."""
    program = _program(platform.machine()) if sys.platform == "linux" else None
    if program is None:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("count", ctypes.c_ushort), ("items", ctypes.c_void_p))

    wanted = Program(len(program) // 8, ctypes.addressof(code))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return not libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(wanted), 0, 0)
