"""What keeps compilers and kernels apart from the rest of the machine here: found out by trying, once.

Landlock with a filter of system calls comes first: it needs no program and no namespaces, which containers often
forbid, and costs 2 to 6 ms a start. Where the kernel has none, compilers run in bubblewrap, if that works. The process
of a CPU candidate has its own, stricter filter in every case. `FORGE_TUI_ISOLATION` forces `landlock`, `bubblewrap` or
`off`.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from forge_tui.core.ports import Isolation
from forge_tui.processes import landlock

VARIABLE = "FORGE_TUI_ISOLATION"
_TRY_S = 10.0
#: folders and files of the system that hold programs, libraries and headers, and nothing private
SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/nix/store", "/gnu/store", "/etc/ld.so.cache",
    "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/dev/zero", "/dev/urandom", "/dev/random",
)  # fmt: skip
#: what may be written beside a process's own folder
SINKS = ("/dev/null", "/dev/full")


@functools.cache
def detect() -> Isolation:
    """What works on this machine; tried in processes of their own, and kept for the life of this one."""
    wanted = os.environ.get(VARIABLE, "").strip().lower()
    if wanted == "off":
        return Isolation(means="", why=f"{VARIABLE} is off")
    reasons: list[str] = []
    if wanted != "bubblewrap":
        version = _try_landlock()
        if version:
            return Isolation(means="landlock", abi=version)
        reasons.append("this kernel has no Landlock" if not landlock.abi() else "Landlock does not hold here")
    if wanted != "landlock":
        problem = _try_bubblewrap()
        if not problem:
            return Isolation(means="bubblewrap")
        reasons.append(problem)
    return Isolation(means="", why=" and ".join(reasons))


def bubblewrap(read: Sequence[str], write: Sequence[str], folder: str) -> list[str]:
    """The beginning of a command that runs in bubblewrap: nothing of the machine but these paths, no network."""
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--dev", "/dev", "--proc", "/proc"]
    for path in read:
        if path.startswith(("/dev/", "/proc/")):
            continue
        place = Path(path)
        if place.is_symlink() and place.parent == Path("/"):
            argv += ["--symlink", str(place.readlink()), path]
        else:
            argv += ["--ro-bind-try", path, path]
    for path in write:
        if not path.startswith("/dev/"):
            argv += ["--bind", path, path]
    return [*argv, "--chdir", folder, "--"]


def _try_landlock() -> int:
    try:
        done = subprocess.run([sys.executable, "-I", landlock.__file__], capture_output=True, text=True, check=False,
                              timeout=_TRY_S, stdin=subprocess.DEVNULL, env={})  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdecimal() else 0


def _try_bubblewrap() -> str:
    """Empty where it works, else why not."""
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed"
    argv = [program, *bubblewrap(SYSTEM, [], "/")[1:], "/bin/sh", "-c", "exit 42"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_TRY_S, errors="replace",
                              stdin=subprocess.DEVNULL, env={"PATH": os.defpath})  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start ({error})"
    if done.returncode == 42:
        return ""
    said = done.stderr.strip().splitlines()
    return f"bubblewrap is refused ({(said or ['it says nothing'])[-1][:120]})"
