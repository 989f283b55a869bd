"""The call tree as a trace that Perfetto and chrome://tracing open: nested slices as long as their times."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from forge_tui.cli.profile_view import CallTree, reached
from forge_tui.core.errors import EnvironmentFault, UsageError
from forge_tui.core.profiles import Hotspot, Profile
from forge_tui.core.words import count

_PID = 1


def trace_document(found: Profile, model: str) -> dict[str, Any]:
    """Trace events in Chrome's JSON format; microseconds of one model call, from 0 on.

    A profile adds the calls of a callable up, so a slice stands for all calls of it below its parent. Slices follow
    in the order of the first calls; what a parent has left behind them is its own time.
    """
    cuda = found.device.kind == "cuda"
    tracks: list[tuple[str, Callable[[Hotspot], float]]] = [
        ("GPU time" if cuda else "time", lambda spot: spot.total_ms)
    ]
    if cuda and any(spot.host_ms > 0 for spot in found.hotspots):
        tracks.append(("host time", lambda spot: spot.host_ms))
    events: list[dict[str, Any]] = [_name("process_name", 0, f"{model} on {found.device.model}")]
    names = {t.id: t.name for t in found.targets}
    for tid, (title, value) in enumerate(tracks, 1):
        events += [_name("thread_name", tid, title),
                   {"ph": "M", "name": "thread_sort_index", "pid": _PID, "tid": tid, "ts": 0,
                    "args": {"sort_index": tid}}]  # fmt: skip
        events += _slices(CallTree(found.hotspots), value, tid, names)
    return {
        "traceEvents": events, "displayTimeUnit": "ms",
        "otherData": {
            "model": model, "device": found.device.name, "device_model": found.device.model,
            "torch": found.device.torch_version, "model_ms": found.model_ms, "busy_ms": found.busy_ms,
        },
    }  # fmt: skip


def _name(kind: str, tid: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PID, "tid": tid, "ts": 0, "args": {"name": text}}


def _slices(
    tree: CallTree, value: Callable[[Hotspot], float], tid: int, names: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Parents before children. Children that sum to more than their parent (rounding, overlap) are drawn shorter."""

    def laid_out(spots: Iterable[Hotspot], start: int, room: float) -> list[tuple[Hotspot, int, int]]:
        found = []
        sizes = [(spot, _nanoseconds(value(spot))) for spot in spots]
        scale = min(1.0, room / total) if (total := sum(size for _, size in sizes)) else 1.0
        for spot, size in sizes:
            found.append((spot, start, int(size * scale)))
            start += found[-1][2]
        return found[::-1]

    stack = laid_out(tree.children[None], 0, math.inf)
    while stack:
        spot, start, length = stack.pop()
        yield {
            "ph": "X", "name": spot.name or spot.kind, "cat": spot.kind, "pid": _PID, "tid": tid, "ts": start / 1e3,
            "dur": length / 1e3, "args": _arguments(spot, names),
        }  # fmt: skip
        stack += laid_out(sorted(tree.children[spot.id], key=lambda child: child.id), start, length)


def _nanoseconds(ms: float) -> int:
    return max(0, round(1e6 * ms)) if math.isfinite(ms) else 0


def _arguments(spot: Hotspot, names: dict[str, str]) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "path": spot.path, "calls": spot.calls, "total_ms": spot.total_ms, "self_ms": spot.self_ms,
        "share": spot.share, "host_ms": spot.host_ms, "launches": spot.launches, "floor_ms": spot.floor_ms,
        "floor reached": reached(spot), "headroom_ms": spot.headroom_ms, "bound": spot.bound,
        "target": names.get(spot.target_id or "", ""), "why not": spot.reason, "signature": spot.signature,
        "kernels": [f"{k.name}: {count(k.launches, 'launch', 'launches')}, {k.total_ms:.4f} ms" for k in spot.kernels],
    }  # fmt: skip
    return {name: value for name, value in shown.items() if value not in ("", [], "-")}


def check_place(path: Path) -> None:
    """Refuse a file that could not be written, before anything is measured.

    Raises:
        UsageError: it is a folder, or its folder is not there.
        EnvironmentFault: it may not be written.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder.", "Name a file for --trace, such as trace.json.")
    if not path.parent.is_dir():
        raise UsageError(f"There is no folder {path.parent} for the trace.", "Make it, or name another file.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise _unwritable(path, "permission denied")


def write_trace(path: Path, found: Profile, model: str) -> None:
    """Write the trace; a file that was there before stays whole where the new one cannot be written.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    encoded = msgspec.json.encode(trace_document(found, model)) + b"\n"
    try:
        if path.exists() and not path.is_file():  # a device or a pipe
            path.write_bytes(encoded)
            return
        target = path.resolve()
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(encoded)
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error


def _unwritable(path: Path, why: str) -> EnvironmentFault:
    return EnvironmentFault(f"The trace {path} cannot be written: {why[:1].lower()}{why[1:]}.", "Name another file.")
