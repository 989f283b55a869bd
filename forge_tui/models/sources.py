"""Files that a model is made of, with their states, so that a saved profile is known to be old; imports no torch."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: larger files are known by size and time of change instead of their content
_HASHED_BYTES = 32 << 20
_MAX_FILES = 2000
_INSTALLED = frozenset({"site-packages", "dist-packages", "__pycache__"})
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/lib/", "/usr/share/", "/usr/local/lib/")

_recording: set[str] | None = None
_hooked = False


@contextlib.contextmanager
def files_read() -> Iterator[set[str]]:
    """Paths of the model's own files that Python code opens for reading meanwhile; complete after the block.

    Libraries that open files without Python (a memory map in C++ or Rust) are not seen.
    """
    global _recording, _hooked
    if not _hooked:
        sys.addaudithook(_audit)  # cannot be taken back; idle it costs one comparison an event
        _hooked = True
    _places()  # not for the first time inside the hook, where it might open files itself
    before, found = _recording, set[str]()
    _recording = found
    try:
        yield found
    finally:
        _recording = before


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _recording is None or event != "open":
        return
    with contextlib.suppress(Exception):  # an audit hook that raises would fail the model's own open()
        path, mode, flags = arguments
        writes = set(mode) & set("wax+") if mode is not None else flags & os.O_ACCMODE != os.O_RDONLY
        if not isinstance(path, int) and not writes and len(_recording) < _MAX_FILES:
            read = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - no link is followed
            if _is_own(read):
                _recording.add(read)


def sources_of(opened: set[str], modules: set[str]) -> dict[str, str]:
    """The state of every file that belongs to the model: of these modules, and what was opened.

    Python's own files, installed packages, and this program are left to their versions.
    """
    found = {os.path.abspath(path) for path in opened}  # noqa: PTH100
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str):
            found.add(os.path.abspath(file))  # noqa: PTH100
    states = {path: state_of(path) for path in sorted(found) if _is_own(path)}
    # a name that is not UTF-8 has no place in a saved profile: written out it names no file, so nothing is reused
    return {path.encode("utf-8", "backslashreplace").decode(): state for path, state in states.items() if state}


def _is_own(path: str) -> bool:
    parts = path.split("/")
    return not (_INSTALLED.intersection(parts) or path.startswith(_SYSTEM) or path.startswith(_places()))


@functools.cache
def _places() -> tuple[str, ...]:
    """Folders of Python's own library and of this program, each with a slash behind it."""
    stdlib = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    places = stdlib | {os.path.realpath(place) for place in stdlib} | {str(Path(__file__).parents[1])}
    return tuple(f"{place}/" for place in sorted(places))


def state_of(path: str) -> str:
    """A file's content as a hash, a large one's size and time of change; empty where there is no such file."""
    try:
        info = os.stat(path)  # noqa: PTH116
        if not stat.S_ISREG(info.st_mode):
            return ""
        if info.st_size > _HASHED_BYTES:
            return f"{info.st_size} bytes, changed at {info.st_mtime_ns}"
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def unchanged(states: Mapping[str, str]) -> bool:
    """Whether all of these files are as they were."""
    return all(state_of(path) == state for path, state in states.items())
