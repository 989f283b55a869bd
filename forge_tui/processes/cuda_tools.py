"""Where the programs of the CUDA toolkit are: on PATH, in a toolkit's folder, in a wheel."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path


def find(name: str) -> str:
    """The path of `compute-sanitizer` or `ncu`; empty where there is none."""
    return next((path for path in _places(name) if path and os.access(path, os.X_OK) and Path(path).is_file()), "")


def _places(name: str) -> Iterator[str]:
    yield shutil.which(name) or ""
    chosen = [Path(os.environ[key]) for key in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(key)]
    roots = chosen + sorted([*Path("/usr/local").glob("cuda*"), *Path("/opt").glob("cuda*")], key=_newest, reverse=True)
    for root in roots:
        yield str(root / "bin" / name)
        yield str(root / name / name)
    for folder in sorted(Path("/opt/nvidia/nsight-compute").glob("*"), key=_newest, reverse=True):
        yield str(folder / name)
    for entry in sys.path:
        if entry:
            yield from (str(path) for path in sorted(Path(entry).glob(f"nvidia/c*/bin/{name}"), reverse=True))


def _newest(path: Path) -> tuple[int, ...]:
    """`cuda-13.0` behind `cuda-12.8`, plain `cuda` behind both."""
    return tuple(int(n) for n in re.findall(r"\d+", path.name)) or (10**6,)
