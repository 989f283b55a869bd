"""A filter of system calls for the process that runs a CPU candidate.

A kernel needs none but those of memory and threads. What would leave the process (programs, network, files, signals to
others), undo its limits, or work behind the back of the timing ends it with SIGSYS; the candidate's own threads stay
possible.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from forge_tui.processes import seccomp
from forge_tui.processes.seccomp import ALLOW, JUMP_EQUAL, JUMP_SET, KILL, LOAD, RETURN, Item, argument

_CLONE_THREAD = 0x00010000
_PROT_EXEC = 4
_MREMAP_FIXED = 2


@dataclass(frozen=True, slots=True)
class _Numbers:
    """System calls of one machine. `mapping` are mmap, mprotect and pkey_mprotect."""

    architecture: int
    clone: int
    clone3: int
    mapping: tuple[int, ...]
    mremap: int
    tgkill: int
    prlimit64: int
    fatal: tuple[int, ...]


_NUMBERS = {
    # execve execveat fork vfork ptrace kill socket connect bind unlink unlinkat rename renameat renameat2 mkdir rmdir
    # truncate creat open_by_handle_at process_vm_readv process_vm_writev mount memfd_create pidfd_open setns unshare
    # userfaultfd bpf perf_event_open io_uring_setup link linkat symlink symlinkat chmod fchmodat mknod
    # sched_setaffinity sched_setscheduler setpriority, which would slow the original down; personality, which can make
    # data executable
    # mkdirat mknodat fchmodat2 chown lchown fchownat setxattr lsetxattr utime utimes futimesat utimensat
    # tkill rt_sigqueueinfo rt_tgsigqueueinfo: signals; setrlimit
    # shmget shmat: memory that may be executed, over other memory
    # sched_setparam sched_setattr migrate_pages move_pages, as above; alarm setitimer timer_create, which would
    # interrupt the original
    "x86_64": _Numbers(
        0xC000003E, clone=56, clone3=435, mapping=(9, 10, 329), mremap=25, tgkill=234, prlimit64=302,
        fatal=(59, 322, 57, 58, 101, 62, 41, 42, 49, 87, 263, 82, 264, 316, 83, 84, 76, 85, 304, 310, 311, 165, 319,
               434, 308, 272, 323, 321, 298, 425, 86, 265, 88, 266, 90, 268, 133, 203, 144, 141, 135,
               258, 259, 452, 92, 94, 260, 188, 189, 132, 235, 261, 280, 200, 129, 297, 160, 29, 30, 142, 314, 256,
               279, 37, 38, 222),
    ),
    "aarch64": _Numbers(
        0xC00000B7, clone=220, clone3=435, mapping=(222, 226, 288), mremap=216, tgkill=131, prlimit64=261,
        fatal=(221, 281, 117, 129, 198, 203, 200, 35, 38, 276, 34, 45, 265, 270, 271, 40, 279, 434, 268, 97, 282, 280,
               241, 425, 37, 36, 53, 33, 122, 119, 140, 92,
               452, 54, 5, 6, 88, 130, 138, 240, 164, 194, 196, 118, 274, 238, 239, 103, 107),
    ),
}  # fmt: skip


def _program(machine: str, pid: int) -> bytes | None:
    """The filter for a process, or None for a machine that is not known."""
    known = _NUMBERS.get(machine)
    if known is None:
        return None
    items = seccomp.beginning(known.architecture, KILL)
    for number in known.fatal:
        items += seccomp.answer(number, KILL)
    # memory that can be executed would let a kernel replace the code around it, and so would code that is moved there
    for number in known.mapping:
        items += _without(number, 2, _PROT_EXEC)
    items += _without(known.mremap, 3, _MREMAP_FIXED)
    # abort() sends its signal in this way
    items += [
        (JUMP_EQUAL, 0, 4, known.tgkill), (LOAD, 0, 0, argument(0)), (JUMP_EQUAL, 0, 1, pid), (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, KILL),
    ]  # fmt: skip
    # the C library asks for limits; no new ones may be given
    items += [
        (JUMP_EQUAL, 0, 6, known.prlimit64), (LOAD, 0, 0, argument(2)), (JUMP_EQUAL, 0, 3, 0),
        (LOAD, 0, 0, argument(2, high=True)), (JUMP_EQUAL, 0, 1, 0), (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, KILL),
    ]  # fmt: skip
    # the flags of clone3 lie in memory, out of the filter's sight: the C library then falls back to clone
    items += seccomp.answer(known.clone3, seccomp.ERRNO | seccomp.ENOSYS)
    items += _without(known.clone, 0, _CLONE_THREAD, whether=True)
    items += [(RETURN, 0, 0, ALLOW)]
    return seccomp.assemble(items)


def _without(number: int, index: int, bits: int, *, whether: bool = False) -> list[Item]:
    """A call that ends the process if one of these bits is set in an argument; with `whether`, if none is."""
    answers = (ALLOW, KILL) if whether else (KILL, ALLOW)
    return [
        (JUMP_EQUAL, 0, 4, number), (LOAD, 0, 0, argument(index)), (JUMP_SET, 0, 1, bits), (RETURN, 0, 0, answers[0]),
        (RETURN, 0, 0, answers[1]),
    ]  # fmt: skip


def install() -> bool:
    """Put the filter on this process, for good; whether the system took it."""
    program = _program(os.uname().machine, os.getpid()) if sys.platform == "linux" else None
    return program is not None and seccomp.install(program)
