"""Looks at the machine while something is timed: a GPU through the telemetry process, the CPU through /proc.

Nothing here waits for a driver: a telemetry process that hangs sends no lines, and then nothing is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forge_tui.core.records import Device
from forge_tui.evaluator import noise
from forge_tui.processes.environment import clean_environment

_INTERVAL_S = 0.25
#: a line older than this says nothing of now
_STALE_S = 1.5
#: the driver's utilisation is a mean over up to a second: our own work is in it for so long
_DECAY_S = 1.5
#: looking at an idle GPU takes time, so it is not done before every round
_IDLE_LOOK_S = 20.0
_CPU_LOOK_S = 0.3
_LINE_BYTES = 1 << 20
_SAMPLER = (sys.executable, "-m", "forge_tui.telemetry.sampler", "--interval", str(_INTERVAL_S))


@dataclass(frozen=True, slots=True)
class Round:
    """What was seen during one round; None is what the machine does not tell."""

    marks: tuple[str, ...] = ()
    others: float | None = None
    sm_mhz: tuple[float, float] | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] | None = None


class Watch(Protocol):
    """Looks before, during and after rounds."""

    async def busy(self) -> str:
        """What others do now, in words; empty where they are quiet, or nothing is known. Nothing of ours may run."""

    async def begin(self) -> None:
        """A round begins."""

    async def end(self) -> Round:
        """It ended."""

    async def close(self) -> None:
        """Let go of processes."""


class CpuWatch:
    """CPU time of others on our cores; `pids` are our processes beside this one, their children included."""

    def __init__(self, threads: int, pids: Callable[[], list[int]], proc: Path = Path("/proc"),
                 group: Path = Path("/sys/fs/cgroup/cpu.stat")) -> None:  # fmt: skip
        self._cores = sorted(os.sched_getaffinity(0))
        self._threads = threads or len(self._cores)
        self._pids = pids
        self._proc = proc
        self._group = group
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._last: noise.CpuTimes | None = None

    async def busy(self) -> str:
        """See `Watch`; by what happened since the last look, and by a look of its own where others were busy then."""
        for look in range(2):
            reading = self._since()
            if reading is not None and not noise.cpu_busy(reading, len(self._cores), self._threads):
                return ""
            if reading is not None and look:
                return f"other processes use {reading.others:.1f} of {len(self._cores)} cores"
            await asyncio.sleep(_CPU_LOOK_S)
        return ""

    async def begin(self) -> None:
        """See `Watch`."""
        self._last = self._look()

    async def end(self) -> Round:
        """See `Watch`."""
        reading = self._since()
        if reading is None:
            return Round()
        marks = noise.cpu_marks(reading, len(self._cores), self._threads)
        return Round(marks=marks, others=reading.others, throttle=reading.throttle)

    async def close(self) -> None:
        """See `Watch`."""

    def _since(self) -> noise.Reading | None:
        before, self._last = self._last, self._look()
        if before is None or self._last is None or self._last.at - before.at < _CPU_LOOK_S / 2:
            return None
        return noise.cpu_reading(before, self._last)

    def _look(self) -> noise.CpuTimes | None:
        try:
            text = (self._proc / "stat").read_text()
            busy, steal = noise.parse_stat(text, self._cores, self._ticks)
        except (OSError, ValueError):
            return None
        own = sum(self._seconds(pid) for pid in [os.getpid(), *self._pids()])
        own += sum(self._seconds(child) for pid in self._pids() for child in self._children(pid))
        return noise.CpuTimes(at=time.monotonic(), busy=busy, steal=steal, own=own, throttled=self._throttled())

    def _seconds(self, pid: int) -> float:
        try:
            return noise.parse_process((self._proc / str(pid) / "stat").read_text(), self._ticks, children=True)
        except (OSError, ValueError):
            return 0.0

    def _children(self, pid: int) -> list[int]:
        found: list[int] = []
        with contextlib.suppress(OSError, ValueError):
            for task in (self._proc / str(pid) / "task").iterdir():
                found += map(int, (task / "children").read_text().split())
        return found

    def _throttled(self) -> float:
        with contextlib.suppress(OSError, ValueError):
            for line in self._group.read_text().splitlines():
                if line.startswith("throttled_usec "):
                    return int(line.split()[1]) / 1e6
        return 0.0


class GpuWatch:
    """Clocks, temperature, throttling and other processes of one GPU, from lines of the telemetry process."""

    def __init__(self, device: Device, pids: Callable[[], list[int]], command: tuple[str, ...] = _SAMPLER) -> None:
        self._uuid = device.uuid
        self._pids = pids
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._readings: deque[noise.Reading] = deque(maxlen=400)
        self._begun = self._idle_looked = -1e9
        self.heard = asyncio.Event()
        """Set once there is a reading of this GPU."""

    async def busy(self) -> str:
        """See `Watch`; by process where the driver names ours, else by utilisation now and then."""
        await self._start()
        now = time.monotonic()
        newest = self._newest()
        if newest is None:
            return ""
        if newest.others is not None:
            return f"other processes use {newest.others:.0f}% of it" if noise.gpu_busy([newest]) else ""
        if now - self._idle_looked < _IDLE_LOOK_S:
            return ""
        while noise.gpu_idle_busy(newest):
            if time.monotonic() - now > _DECAY_S:
                return f"it is busy ({newest.util_percent:.0f}%) while nothing of this session runs on it"
            await asyncio.sleep(_INTERVAL_S)
            again = self._newest()
            if again is None:
                return ""
            newest = again
        self._idle_looked = time.monotonic()
        return ""

    async def begin(self) -> None:
        """See `Watch`."""
        await self._start()
        self._begun = time.monotonic()

    async def end(self) -> Round:
        """See `Watch`."""
        readings = [r for r in self._readings if r.at >= self._begun]
        clocks = [r.sm_mhz for r in readings if r.sm_mhz is not None]
        told = [r.throttle for r in readings if r.throttle is not None]
        marks = noise.gpu_marks(readings)
        if marks:
            # the next look at the idle GPU is due
            self._idle_looked = -1e9
        return Round(
            marks=marks, others=noise.most(readings), sm_mhz=(min(clocks), max(clocks)) if clocks else None,
            temperature_c=max((r.temperature_c for r in readings if r.temperature_c is not None), default=None),
            throttle=tuple(sorted({reason for reasons in told for reason in reasons})) if told else None,
        )  # fmt: skip

    async def close(self) -> None:
        """Kill the process; one that hangs in the driver is not waited for."""
        process, self._process = self._process, None
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 1.0)

    async def _start(self) -> None:
        if self._process is not None:
            return
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, env=clean_environment(), limit=_LINE_BYTES,
            )  # fmt: skip
        except OSError:
            # unwatched, as where NVML does not answer; the next look tries again
            return
        self._reader = asyncio.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            with contextlib.suppress(ValueError, TypeError, AttributeError):
                reading = noise.gpu_reading(json.loads(line), self._uuid, self._pids(), time.monotonic())
                if reading is not None:
                    self._readings.append(reading)
                    self.heard.set()

    def _newest(self) -> noise.Reading | None:
        if not self._readings or time.monotonic() - self._readings[-1].at > _STALE_S:
            return None
        return self._readings[-1]


def watch_for(device: Device, threads: int, pids: Callable[[], list[int]]) -> Watch:
    """The watch for a device."""
    return GpuWatch(device, pids) if device.kind == "cuda" else CpuWatch(threads or device.threads, pids)
