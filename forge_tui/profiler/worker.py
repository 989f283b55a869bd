"""The profiling worker: `python -m forge_tui.profiler.worker --in N --out N`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from forge_tui.core.records import ModelSpec
from forge_tui.models.load import load_model
from forge_tui.models.sources import files_read, sources_of
from forge_tui.processes.wire import fds_from_argv, serve
from forge_tui.profiler.device import describe
from forge_tui.profiler.experiments.bench import Bench
from forge_tui.profiler.profile import profile_model


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
    return {"profile": msgspec.to_builtins(msgspec.structs.replace(found, sources=sources))}


def _use_threads(message: dict[str, Any]) -> None:
    if message.get("threads"):
        torch.set_num_threads(message["threads"])


if __name__ == "__main__":
    handlers = {"describe_device": describe_device, "profile": profile, **Bench().handlers()}
    serve(handlers, *fds_from_argv(sys.argv))
