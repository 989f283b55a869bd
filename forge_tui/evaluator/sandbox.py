"""A forked child for one candidate: limits, a time limit that kills, and a report of how it ended.

The parent must never have run anything in parallel: OpenMP's threads do not survive a fork, so only the child starts
them.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_tui.evaluator import seccomp
from forge_tui.processes.wire import die_with_parent

_GIB = 2**30
#: how a child ended that answered without being asked
FORGED = "forged reply"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: `reply` if it finished, else `how` in words for a sentence (`SIGSEGV`, `exit code 0`).

    A reply `{"fault": ...}` is an exception of Python in the child.
    """

    reply: dict[str, Any] | None
    how: str = ""
    timed_out: bool = False


def run_in_child(
    work: Callable[[], dict[str, Any]], timeout_s: float, close_fds: tuple[int, ...] = ()
) -> Ended:
    """Fork, run `work` in the child, return its reply; a child that outlives the limit is killed with its group."""
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    # a candidate that writes to every descriptor it finds must not be taken for the child
    token = os.urandom(16).hex().encode()
    pid = os.fork()
    if pid == 0:
        _child(work, write_end, (read_end, *close_fds), token)
    os.close(write_end)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    try:
        data, timed_out = _read_until(read_end, time.monotonic() + timeout_s)
    finally:
        os.close(read_end)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    if timed_out:
        return Ended(None, f"no answer within {timeout_s:g} s", timed_out=True)
    if data.endswith(b"\n") and data.startswith(token):
        reply = json.loads(data.removeprefix(token))
        sys.stderr.write(reply.pop("trace", ""))
        return Ended(reply)
    return Ended(None, FORGED if data else _how(status))


def limit(threads: int, extra_bytes: int) -> None:
    """Limits for the process that is about to load a candidate; `extra_bytes` of memory beyond what it has."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # each thread takes address space for its stack and the allocator's arena
    size = _virtual_bytes() + 8 * _GIB + extra_bytes + threads * 128 * 2**20
    _lower(resource.RLIMIT_AS, size)
    with contextlib.suppress(OSError):
        # if memory runs out, this process goes and not the ones that serve it
        Path("/proc/self/oom_score_adj").write_text("1000")


def lock_down() -> None:
    """After the candidate is loaded: no new descriptors, no programs, no network, no signals to others."""
    # the filter takes limits for good
    _lower(resource.RLIMIT_NOFILE, 0)
    seccomp.install()


def _lower(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(what, (value, value))


def _virtual_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 64 * _GIB


def _child(work: Callable[[], dict[str, Any]], write_end: int, close_fds: tuple[int, ...], token: bytes) -> None:
    """Never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        die_with_parent()
        for descriptor in close_fds:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        try:
            reply = work()
        except Exception as error:  # noqa: BLE001 - a fault of ours; its trace is the parent's to print, which may
            reply = {"fault": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        line = token + json.dumps(reply).encode() + b"\n"
        view = memoryview(line)
        while view:
            view = view[os.write(write_end, view) :]
        code = 0
    finally:
        # whatever it is, a forked child must not go on with its parent's code
        os._exit(code)


def _read_until(descriptor: int, deadline: float) -> tuple[bytes, bool]:
    """What comes until end of file; the flag says that the deadline passed first."""
    parts: list[bytes] = []
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return b"".join(parts), True
        ready, _, _ = select.select([descriptor], [], [], left)
        if not ready:
            continue
        part = os.read(descriptor, 1 << 16)
        parts.append(part)
        # the reply is one line; end of file may be long in coming if a thread of the child hangs
        if not part or part.endswith(b"\n"):
            return b"".join(parts), False


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"
    return f"exit code {os.WEXITSTATUS(status)}"
