"""The engine's side of profiling: starts the worker, sends one request, takes the record."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec

from forge_tui.core.errors import EnvironmentFault, WorkerDied
from forge_tui.core.paths import Workspace
from forge_tui.core.profiles import Profile
from forge_tui.core.records import Device, ModelSpec
from forge_tui.processes.child import WorkerProcess
from forge_tui.profiler.experiments.client import baselines, what_if

__all__ = ["baselines", "describe_device", "profile", "what_if"]

_WORKER = "forge_tui.profiler.worker"
#: what a log may hold of earlier runs; models print
_LOG_BYTES = 8 << 20


async def profile(
    spec: ModelSpec, device_name: str, workspace: Workspace, *, threads: int = 0, seed: int = 0, log: Path,
    timeout_s: float = 600.0, repeats: int = 7, capture_bytes: int = 2 << 30,
) -> Profile:  # fmt: skip
    """Profile a model in a worker of its own; captured inputs go into the workspace.

    Raises:
        ModelError: the model file is not usable, or its code raised.
        UsageError: the device's name is malformed.
        EnvironmentFault: the device is not there, the disk is full, or the worker died.
    """
    answer = await _ask(
        log, "profile", timeout_s, "Profiling", spec=msgspec.to_builtins(spec), device=device_name,
        artifacts=str(workspace.artifacts), seed=seed, threads=threads, repeats=repeats,
        capture_bytes=capture_bytes,
    )  # fmt: skip
    return msgspec.convert(answer["profile"], Profile)


async def describe_device(device_name: str, *, threads: int = 0, log: Path, timeout_s: float = 120.0) -> Device:
    """The record of a device, with its measured ceilings.

    Raises:
        UsageError: the device's name is malformed.
        EnvironmentFault: the device is not there, or the worker died.
    """
    answer = await _ask(log, "describe_device", timeout_s, "Measuring the device", device=device_name, threads=threads)
    return msgspec.convert(answer["device"], Device)


def _shorten(log: Path) -> None:
    """Begin a log anew that has grown over many runs."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > _LOG_BYTES:
            os.truncate(log, 0)


async def _ask(log: Path, op: str, timeout_s: float, what: str, **fields: Any) -> dict[str, Any]:
    _shorten(log)
    worker = WorkerProcess(_WORKER, log)
    try:
        return await worker.request(op, timeout_s, **fields)
    except WorkerDied as error:
        if error.timed_out:
            raise EnvironmentFault(f"{what} did not end within {timeout_s:g} s.", f"The log is {log}.") from error
        hint = "Often that is memory. " if error.signal == 9 else ""
        raise EnvironmentFault(f"{what} ended early: {error.what}", f"{hint}The log is {log}.") from error
    finally:
        await worker.stop()
