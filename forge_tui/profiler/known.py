"""Ceilings of a device, kept between sessions: what a device is able to do does not change, but a busy moment hides it.

So the first few measurements are all made, and the best of each figure is kept; after that the file is believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from forge_tui.core.records import Ceilings, Record

#: raised where the way of measuring changes
_VERSION = 1
#: measurements that are made before the file is believed
_MEASUREMENTS = 3


class _Kept(Record, frozen=True, kw_only=True):
    version: int
    identity: str
    measured: int
    ceilings: Ceilings


def ceilings_of(identity: str, folder: Path, measure: Callable[[], Ceilings]) -> Ceilings:
    """The ceilings of the device with this identity: measured, or from `folder` once they were measured often enough.

    A folder that cannot be read or written costs the measurement and nothing else.
    """
    path = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"
    kept = _read(path, identity)
    if kept is not None and kept.measured >= _MEASUREMENTS:
        return kept.ceilings
    found = measure()
    count = 1
    if kept is not None:
        found, count = best_of(kept.ceilings, found), kept.measured + 1
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_bytes(
            msgspec.json.encode(_Kept(version=_VERSION, identity=identity, measured=count, ceilings=found))
        )
        temporary.replace(path)
    return found


def best_of(one: Ceilings, other: Ceilings) -> Ceilings:
    """The higher rates and the shorter launch."""
    dtypes = one.matmul_tflops.keys() | other.matmul_tflops.keys()
    return Ceilings(
        copy_gbps=max(one.copy_gbps, other.copy_gbps),
        matmul_tflops={d: max(c.matmul_tflops.get(d, 0.0) for c in (one, other)) for d in sorted(dtypes)},
        launch_us=min(one.launch_us, other.launch_us),
        cached_copy_gbps=max(one.cached_copy_gbps, other.cached_copy_gbps),
        cache_bytes=max(one.cache_bytes, other.cache_bytes),
    )


def _read(path: Path, identity: str) -> _Kept | None:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError):
        return None
    return kept if kept.version == _VERSION and kept.identity == identity else None
