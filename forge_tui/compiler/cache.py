"""Built files by key: each in a folder that appears whole or not at all, checked by hash when it is taken out."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import msgspec

from forge_tui.core.records import Record

_META = "meta.json"


class Meta(Record, frozen=True):
    """What is kept beside a built file."""

    sha256: str
    compile_s: float
    log: str
    resources: dict[str, dict[str, int]]


class BuildCache:
    """A folder of built files. Safe for several processes: a folder is renamed into place, never changed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def look_up(self, key: str, artifact: str) -> tuple[Path, Meta] | None:
        """The built file of a key; a damaged entry counts as none and is taken away."""
        folder = self.root / key
        path = folder / artifact
        try:
            meta = msgspec.json.decode((folder / _META).read_bytes(), type=Meta)
            if hashlib.sha256(path.read_bytes()).hexdigest() == meta.sha256:
                return path, meta
        except FileNotFoundError:
            if not folder.exists():
                return None
        except (OSError, msgspec.DecodeError):
            pass
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def store(self, key: str, artifact: str, data: bytes, meta: Meta) -> Path:
        """Keep a built file; where another process was faster, its equal file stays.

        Raises:
            OSError: the cache cannot be written.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=self.root))
        try:
            _write(staging / artifact, data)
            _write(staging / _META, msgspec.json.encode(meta))
            try:
                staging.rename(self.root / key)
            except OSError:
                if self.look_up(key, artifact) is None:
                    staging.rename(self.root / key)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return self.root / key / artifact


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())
    path.chmod(0o444)
