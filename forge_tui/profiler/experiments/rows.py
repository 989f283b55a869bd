"""Rows measured one by one in workers: one that fails, hangs or dies costs its own row only. No torch here."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from forge_tui.core.errors import EnvironmentFault, ExitCode, ForgeError, WorkerDied
from forge_tui.core.records import ModelSpec
from forge_tui.processes.child import WorkerProcess

Progress = Callable[[str], None]
_WORKER = "forge_tui.profiler.worker"
_LONGEST = 300
#: seconds to load a model
_OPEN_S = 900.0


class RowFailed(Exception):
    """A row has no result; the text is the reason."""


class Rows:
    """A model in a worker, reopened in a fresh one after every failure; use as `async with`.

    `timeout_s` is for everything together, `row_timeout_s` for one row.
    """

    def __init__(
        self, spec: ModelSpec, *, device_name: str, threads: int, seed: int, log: Path, timeout_s: float,
        row_timeout_s: float, allow_tf32: bool = False, worker: str = _WORKER,
    ) -> None:  # fmt: skip
        self._fields: dict[str, Any] = {
            "spec": msgspec.to_builtins(spec), "device": device_name, "threads": threads, "seed": seed,
            "allow_tf32": allow_tf32,
        }  # fmt: skip
        self._log = log
        self._worker = WorkerProcess(worker, log)
        self._opened = False
        self._ever = False
        self._end = time.monotonic() + timeout_s
        self._row_timeout_s = row_timeout_s
        self.settings: tuple[str, ...] = ()
        """Standard settings that the model may take; known once it was opened."""

    async def __aenter__(self) -> Self:
        """Nothing is started before it is needed."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker."""
        await self.close()

    async def close(self) -> None:
        """End the worker; the next row starts another one."""
        self._opened = False
        await self._worker.stop()

    async def open(self) -> None:
        """Have the model open in a worker.

        Raises:
            ForgeError: it cannot be loaded, or its forward raises.
            EnvironmentFault: the device is not there, or the worker died.
        """
        if self._opened and self._worker.running:
            return
        try:
            answer = await self._worker.request("open_model", self._limit(_OPEN_S), **self._fields)
        except WorkerDied as error:
            await self.close()
            late = "did not end in time." if error.timed_out else f"ended early: {error.what}"
            raise EnvironmentFault(f"Loading the model {late}", f"The log is {self._log}.") from error
        except ForgeError:
            await self.close()
            raise
        self.settings = tuple(answer["settings"])
        self._opened = self._ever = True

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer to one row's request.

        Raises:
            RowFailed: with the reason.
            ForgeError: the model could not even be opened the first time.
        """
        if self._left() <= 0:
            raise RowFailed("there was no time left")
        try:
            await self.open()
        except ForgeError as error:
            if not self._ever:
                raise
            raise RowFailed(error.what) from error
        limit_s = self._limit(self._row_timeout_s)
        try:
            return await self._worker.request(op, limit_s, **fields)
        except WorkerDied as error:
            await self.close()
            raise RowFailed(f"it did not end within {limit_s:.3g} s" if error.timed_out else error.what) from error
        except ForgeError as error:
            if error.exit_code is ExitCode.BUG:  # no sentence of ours: a process after that is of no more use
                await self.close()
            raise RowFailed(shortened(error.what)) from error

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _limit(self, most_s: float) -> float:
        return max(1.0, min(most_s, self._left()))


def shortened(text: str) -> str:
    """The first line of a message, with the second where the first only announces it."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()] or ["no message"]
    found = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
    return found if len(found) <= _LONGEST else f"{found[: _LONGEST - 3]}..."


def quiet(_: str) -> None:
    """Progress that nobody looks at."""
