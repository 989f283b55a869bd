"""The watchdog of a worker: memory of its process tree, number of threads, size of its log.

Limits of address space would break CUDA, which reserves terabytes, and a cgroup would need one that the engine may
divide, which neither a login session nor a container usually is. So the tree is looked at, twice a second; what grows
faster than that is the system's own to end, and it takes the workers first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_EVERY_S = 0.5
_LOG_BYTES = 8 << 20
_LOG_KEPT = 1 << 20
#: more than this between two looks is no log any more
_FLOOD_BYTES = 256 << 20
_CUT = b"[... cut]\n"
_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker's tree may take; 0 for no limit."""

    memory_bytes: int = 0
    threads: int = 0


class Watch:
    """Looks after one worker at a time, in a task of the running loop."""

    def __init__(self, log: Path, limits: Limits) -> None:
        self._log = log
        self._limits = limits
        self._task: asyncio.Task[None] | None = None
        self.excess = ""
        """Why the worker was ended, as a sentence; empty where it was not."""

    def begin(self, pid: int) -> None:
        """Look after a worker that leads a process group of its own."""
        self.end()
        self.excess = ""
        self._task = asyncio.create_task(self._look(pid), name=f"watch {pid}")

    def end(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def trim(self) -> int:
        """Cut a log that has grown too large to its end; returns its size before."""
        with contextlib.suppress(OSError):
            size = self._log.stat().st_size
            if size > _LOG_BYTES:
                with open(self._log, "r+b") as file:
                    file.seek(-_LOG_KEPT, os.SEEK_END)
                    kept = file.read(_LOG_KEPT)
                    # the worker appends, so it goes on behind what is put back
                    file.truncate(0)
                    file.seek(0)
                    file.write(_CUT + kept)
            return size
        return 0

    async def _look(self, pid: int) -> None:
        before = self.trim()
        while not self.excess:
            await asyncio.sleep(_EVERY_S)
            size = self.trim()
            if size - min(before, _LOG_BYTES) > _FLOOD_BYTES:
                self.excess = f"The worker printed more than {_FLOOD_BYTES >> 20} MiB and was ended."
            before = size
            if self._limits.memory_bytes or self._limits.threads:
                self._weigh(pid)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)

    def _weigh(self, pid: int) -> None:
        memory, threads = weigh_tree(pid)
        if 0 < self._limits.memory_bytes < memory:
            gib = self._limits.memory_bytes / 2**30
            self.excess = f"The worker took more than {gib:.3g} GiB of memory and was ended."
        elif 0 < self._limits.threads < threads:
            self.excess = f"The worker started more than {self._limits.threads} threads and was ended."


def weigh_tree(pid: int) -> tuple[int, int]:
    """Bytes that a process and its descendants hold for themselves, and how many threads they are.

    A fork shares what it did not write, so of a child only what it has beyond its parent counts.
    """
    own, threads = _weigh(pid)
    total, count = own, threads
    waiting = [(child, own) for child in children(pid)]
    seen = {pid}
    while waiting:
        child, shared = waiting.pop()
        if child in seen:
            continue
        seen.add(child)
        memory, threads = _weigh(child)
        total += max(0, memory - shared)
        count += threads
        waiting += [(grandchild, memory) for grandchild in children(child)]
    return total, count


def _weigh(pid: int) -> tuple[int, int]:
    memory = threads = 0
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("RssAnon", "RssShmem", "VmSwap"):
                memory += int(value.split()[0]) * 1024
            elif name == "Threads":
                threads = int(value)
    return memory, threads


def children(pid: int) -> list[int]:
    """Process ids of what any thread of a process started and what still lives."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names only
            with contextlib.suppress(OSError, ValueError):
                found += [int(word) for word in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    return found


def memory_limit() -> int:
    """Bytes that a worker may take here: a part of the memory of the machine or, if that is less, of the container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(path).read_text()))
    return int(_SHARE * total)
