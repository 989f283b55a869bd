"""Telemetry for the screen: starts the sampling process and reads its lines in a thread."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import deque
from typing import Any, Protocol

from forge_tui.processes.environment import clean_environment

_RETRY_S = 10.0


class Feed(Protocol):
    """Where samples come from."""

    def start(self) -> None:
        """Begin sampling."""

    def drain(self) -> list[dict[str, Any]]:
        """The samples since the last call, oldest first."""

    def trouble(self) -> str:
        """Why no samples come, or nothing."""

    def stop(self) -> None:
        """End sampling."""


class SamplerFeed:
    """The sampler as a child process. A driver that hangs holds up that process only."""

    def __init__(self, interval_s: float = 1.0) -> None:
        self._interval_s = interval_s
        self._samples: deque[dict[str, Any]] = deque(maxlen=600)
        self._process: subprocess.Popen[str] | None = None
        self._last = time.monotonic()
        self._ended_at: float | None = None
        self._fault = ""

    def start(self) -> None:
        """Start the process and its reader."""
        self._last = time.monotonic()
        self._ended_at = None
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "forge_tui.telemetry.sampler", "--interval", str(self._interval_s)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env=clean_environment(), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._fault = f"The sampler could not be started: {error.strerror or error}."
            self._ended_at = time.monotonic()
            return
        self._process = process
        threading.Thread(target=self._read, args=(process,), name="forge-telemetry", daemon=True).start()

    def drain(self) -> list[dict[str, Any]]:
        """The samples since the last call; starts an ended sampler again after a while."""
        if self._ended_at is not None and time.monotonic() - self._ended_at > _RETRY_S:
            self.start()
        out: list[dict[str, Any]] = []
        with contextlib.suppress(IndexError):
            while True:
                out.append(self._samples.popleft())
        return out

    def trouble(self) -> str:
        """Said when the sampler ended, or has been silent for several intervals."""
        if self._ended_at is not None:
            return self._fault or "The sampler ended; it is started again."
        silent = time.monotonic() - self._last
        if silent > max(5.0, 5 * self._interval_s):
            return f"No sample for {silent:.0f} s: the driver does not answer."
        return ""

    def stop(self) -> None:
        """End the process; one that hangs in the driver is left to the system."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                try:
                    sample = json.loads(line)
                except ValueError:
                    continue
                if isinstance(sample, dict):
                    self._last = time.monotonic()
                    self._samples.append(sample)
        if self._process is process:
            self._ended_at = time.monotonic()


class NoFeed:
    """No telemetry at all."""

    def start(self) -> None:
        """Nothing to start."""

    def drain(self) -> list[dict[str, Any]]:
        """No samples."""
        return []

    def trouble(self) -> str:
        """Says that it is off."""
        return "Telemetry is off."

    def stop(self) -> None:
        """Nothing to stop."""
