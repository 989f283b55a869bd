"""Who writes a session: a row with process and heartbeat, which refuses a second engine and outlives no dead one."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from forge_tui.core.records import Record

#: an engine on another machine counts as gone after so long without a heartbeat
FOREIGN_STALE_S = 60.0
LEASE = ("token", "pid", "started", "host", "heartbeat_at")


class Lease(Record, frozen=True, kw_only=True):
    """One row of the table `leases`."""

    token: str
    pid: int
    started: str
    """When the process started, in the kernel's ticks: a process id alone may have been given to another process."""
    host: str
    heartbeat_at: float

    def alive(self, now: float) -> bool:
        """Whether its engine still runs: asked of the kernel on this machine, of the heartbeat for another."""
        if self.host != this_host():
            return now - self.heartbeat_at < FOREIGN_STALE_S
        return bool(self.started) and started(self.pid) == self.started

    @classmethod
    def from_row(cls, row: tuple[Any, ...]) -> Lease:
        """From the columns `LEASE`."""
        return cls(**dict(zip(LEASE, row, strict=True)))


def started(pid: int) -> str:
    """The start time of a running process; empty for one that does not run or has ended unreaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    # the command name, in brackets, may hold spaces and brackets itself
    fields = stat[stat.rindex(b")") + 2 :].split()
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


@functools.cache
def this_host() -> str:
    """Machine, boot and process namespace: where a process id means something."""
    parts = [os.uname().nodename]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        parts.append("?")
    return " ".join(parts)
