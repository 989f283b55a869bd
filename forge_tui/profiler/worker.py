"""The profiling worker: `python -m forge_tui.profiler.worker --in N --out N`."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from forge_tui.core.records import ModelSpec
from forge_tui.models.faults import readable
from forge_tui.models.load import load_model
from forge_tui.models.sources import files_read, sources_of
from forge_tui.processes.wire import fds_from_argv, serve
from forge_tui.profiler.device import describe
from forge_tui.profiler.experiments.bench import Bench
from forge_tui.profiler.profile import deep_calls, profile_model


def describe_device(message: dict[str, Any]) -> dict[str, Any]:
    """Answer `describe_device`: the Device record."""
    _use_threads(message)
    return {"device": msgspec.to_builtins(describe(message["device"]))}


def profile(message: dict[str, Any]) -> dict[str, Any]:
    """Answer `profile`: the Profile record."""
    _use_threads(message)
    spec = msgspec.convert(message["spec"], ModelSpec)
    device = describe(message["device"])  # before the model's code can change how torch computes
    before = set(sys.modules)
    with files_read() as opened:
        loaded = load_model(spec, message["device"], message.get("seed", 0))
    more = {"capture_bytes": message["capture_bytes"]} if "capture_bytes" in message else {}
    found = profile_model(loaded, device, Path(message["artifacts"]), repeats=message.get("repeats", 7), **more)
    inputs = {path for path in (spec.path, spec.inputs) if path}  # some are read without Python
    sources = sources_of(opened | inputs, set(sys.modules) - before | set(loaded.own_modules))
    return {"profile": _readable(msgspec.to_builtins(msgspec.structs.replace(found, sources=sources)))}


def _readable(value: Any) -> Any:
    """Names of modules may hold what no encoding has."""
    if isinstance(value, str):
        return value if value.isascii() else readable(value)
    if isinstance(value, (list, tuple)):
        return [_readable(item) for item in value]
    if isinstance(value, dict):
        return {_readable(key): _readable(item) for key, item in value.items()}
    return value


def _use_threads(message: dict[str, Any]) -> None:
    if message.get("threads"):
        torch.set_num_threads(message["threads"])


def _leave_pipes(fds: tuple[int, int]) -> None:
    """In a process that the model forks: the engine must see the worker's end, and no second answer."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        with contextlib.suppress(OSError):
            os.dup2(nothing, fd)
    os.close(nothing)


if __name__ == "__main__":
    handlers = {"describe_device": describe_device, "profile": profile, **Bench().handlers()}
    pipes = fds_from_argv(sys.argv)
    os.register_at_fork(after_in_child=functools.partial(_leave_pipes, pipes))
    with deep_calls():
        serve(handlers, *pipes)
