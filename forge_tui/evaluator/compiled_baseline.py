"""The compiled original as the engine sees it: when it is compiled, where it is kept, why it is no baseline."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from forge_tui.core.errors import ForgeError
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Device, Target
from forge_tui.processes.child import WorkerProcess

_COMPILE_S = 300.0
_FAULTS = 3
#: why there are no samples of it
UNASKED = "asked only where a candidate is faster than eager"
UNWANTED = "switched off"


class CompiledBaseline:
    """Compiles a target's original once, when a candidate gives occasion to.

    On the CPU it is a package in the workspace, compiled by a process of its own; on CUDA the runner compiles.
    """

    def __init__(
        self, device: Device, model_hash: str, threads: int, workspace: Workspace, settings: tuple[str, ...],
        log_dir: Path, *, wanted: bool,
    ) -> None:  # fmt: skip
        self._device = device
        self._model_hash = model_hash
        self._threads = threads
        self._folder = workspace.artifacts / "compiled"
        self._wanted = wanted
        self._worker = WorkerProcess("forge_tui.evaluator.compiled", log_dir / "compile.log", args=settings)
        self._failures: dict[str, str] = {}
        self._faults: dict[str, int] = {}
        """By target, how often it failed through something that may pass."""
        self._held: dict[str, int] = {}
        """Targets by the process id of the runner that has it."""

    def missing(self, target: Target, runner_pid: int) -> dict[str, str]:
        """`{"compile": reason}` where a timing now would go without it, else nothing."""
        if not self._wanted:
            return {"compile": UNWANTED}
        if target.id in self._failures:
            return {"compile": self._failures[target.id]}
        return {} if self._held.get(target.id) == runner_pid else {"compile": UNASKED}

    def lacking(self, target: Target, runner_pid: int) -> bool:
        """Whether it is wanted, not there, and not known to fail."""
        return self.missing(target, runner_pid).get("compile") == UNASKED

    async def ensure(
        self, target: Target, fields: dict[str, Any], make: Callable[..., Awaitable[str]], pid: Callable[[], int]
    ) -> str:
        """Have it in the runner, through `make`. Why that failed, or nothing.

        What the original itself does not allow is kept; a process that ended or a full disk is tried `_FAULTS` times.
        """
        try:
            failure = await self._ensure(target, fields, make)
            passing = False
        except ForgeError as error:
            failure, passing = str(error), True
        failure = failure.rstrip(".")
        if not failure:
            self._held[target.id] = pid()
            return ""
        self._faults[target.id] = self._faults.get(target.id, 0) + 1
        if not passing or self._faults[target.id] >= _FAULTS:
            self._failures[target.id] = failure
        return failure

    async def _ensure(self, target: Target, fields: dict[str, Any], make: Callable[..., Awaitable[str]]) -> str:
        if self._device.kind == "cuda":
            return await make()
        path = self._path(target)
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            answer = await self._worker.request("package", _COMPILE_S, package=str(path), use_threads=self._threads,
                                                **fields)  # fmt: skip
            # it holds the model, and is asked once for a target
            await self._worker.stop()
            if answer["failure"]:
                return str(answer["failure"])
        return await make(package=str(path))

    def _path(self, target: Target) -> Path:
        """By all that the compiled code depends on."""
        key = f"{target.id}|{self._model_hash}|{self._device.identity}|{self._threads}"
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.pt2"

    async def close(self) -> None:
        """End the compiling process."""
        await self._worker.stop()
