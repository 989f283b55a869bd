"""The deployment worker as the gate sees it: restarted after a death, every request under a limit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from forge_tui.core.errors import ExitCode, ForgeError, WorkerDied
from forge_tui.core.records import Device, ModelSpec, Record, Winner
from forge_tui.deploy.messages import Check, Comparison, CompileResult, HostTimes, Prepared
from forge_tui.processes.child import WorkerProcess

MODULE = "forge_tui.deploy.worker"
_PREPARE_S = 300.0

R = TypeVar("R", bound=Record)


class WorkerBench:
    """One model in a worker process; implements `gate.Bench`.

    A worker that died, or that reported something other than a fault of the user (a CUDA error leaves a process of no
    more use), is replaced before the next request.
    """

    def __init__(
        self, spec: ModelSpec, device: Device, winners: Sequence[Winner], *, threads: int, seed: int, log: Path,
        timeout_s: float, compile_timeout_s: float, module: str = MODULE,
    ) -> None:  # fmt: skip
        self._fields: dict[str, Any] = {
            "spec": msgspec.to_builtins(spec), "device": device.name, "threads": threads, "seed": seed,
            "winners": [msgspec.to_builtins(winner) for winner in winners],
        }  # fmt: skip
        self._module = module
        self._log = log
        self._worker = WorkerProcess(module, log)
        self._prepared: Prepared | None = None
        self._ready = False
        self._end = time.monotonic() + timeout_s
        self._compile_timeout_s = compile_timeout_s

    def remaining_s(self) -> float:
        """Seconds left for everything."""
        return max(0.0, self._end - time.monotonic())

    async def prepare(self) -> Prepared:
        """Start the worker and load the model there, if it is not.

        Raises:
            ForgeError: the model cannot be loaded.
        """
        if self._prepared is None or not self._ready or not self._worker.running:
            self._ready = False
            self._prepared = await self._send(self._worker, "prepare", Prepared, _PREPARE_S, **self._fields)
            self._ready = True
        return self._prepared

    async def check(self, indices: Sequence[int]) -> Check:
        """See `gate.Bench`."""
        return await self._request("check", Check, 0.0, indices=list(indices))

    async def compare(self, first: Sequence[int], second: Sequence[int], budget_s: float) -> Comparison:
        """See `gate.Bench`."""
        return await self._request(
            "compare", Comparison, budget_s, first=list(first), second=list(second), budget_s=budget_s
        )

    async def host(self, index: int) -> HostTimes:
        """See `gate.Bench`."""
        return await self._request("host", HostTimes, 5.0, index=index)

    async def compiled(self, budget_s: float) -> CompileResult:
        """See `gate.Bench`; in a process of its own, after the other one has let go of the device."""
        await self._worker.stop()
        self._ready = False
        worker = WorkerProcess(self._module, self._log.with_name(f"{self._log.stem}-compile.log"))
        limit_s = min(self._compile_timeout_s, self.remaining_s())
        # without winners: this process sees the original model alone
        try:
            await self._send(worker, "prepare", Prepared, _PREPARE_S, **(self._fields | {"winners": []}))
            result = await self._send(worker, "compile", CompileResult, self._compile_timeout_s)
            if result.failure:
                return result
            return await self._send(worker, "compiled", CompileResult, self._limit_s(budget_s), budget_s=budget_s)
        except WorkerDied as error:
            late = f"Not ready within {limit_s:.3g} s." if error.timed_out else error.what
            return CompileResult(comparison=None, failure=late)
        except ForgeError as error:
            return CompileResult(comparison=None, failure=error.what)
        finally:
            await worker.stop()

    async def close(self) -> None:
        """End the worker."""
        await self._worker.stop()

    async def _request(self, op: str, kind: type[R], limit_s: float, **fields: Any) -> R:
        await self.prepare()
        return await self._send(self._worker, op, kind, self._limit_s(limit_s), **fields)

    def _limit_s(self, budget_s: float) -> float:
        """A request's limit: generous against the model's own time, so that only what hangs is killed."""
        model_s = self._prepared.model_ms / 1e3 if self._prepared is not None else 1.0
        return 30.0 + 3 * budget_s + 60 * model_s

    async def _send(self, worker: WorkerProcess, op: str, kind: type[R], limit_s: float, **fields: Any) -> R:
        remaining = self.remaining_s()
        if remaining <= 0:
            raise WorkerDied("There is no time left.", timed_out=True)
        try:
            reply = await worker.request(op, min(limit_s, remaining), **fields)
        except WorkerDied:
            self._ready = False
            raise
        except ForgeError as error:
            if error.exit_code is ExitCode.BUG:
                await worker.stop()
                self._ready = False
            raise
        return msgspec.convert(reply, kind)
