"""Runs one command under limits: `python limit.py MEMORY_BYTES FILE_BYTES CPU_SECONDS CONFINEMENT COMMAND...`.

Limits are set in a small process of its own that then becomes the command, because setting them between fork and
exec of a process with threads is unsafe. CONFINEMENT is JSON, `{"read": [...], "write": [...]}` for Landlock, or empty.
Only the standard library, so that it runs as a plain file in 20 ms.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys

#: exit code where the confinement that was asked for cannot be had: the command is not run without it
NOT_CONFINED = 126
_ROOM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "processes")  # noqa: PTH118, PTH120, PTH100 - pathlib takes 10 ms


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _confine(text: str) -> None:
    # as plain files: the package itself would take several times as long to import
    sys.path.insert(0, _ROOM)
    landlock, seccomp = importlib.import_module("landlock"), importlib.import_module("seccomp")
    sys.path.remove(_ROOM)
    rules = json.loads(text)
    landlock.restrict(rules["read"], rules["write"])
    seccomp.cut_off()


def main(argv: list[str]) -> None:
    """Set the limits and become the command; exit code 127 where it cannot be started."""
    memory, file_size, cpu = (int(text) for text in argv[1:4])
    # when memory runs out, the compiler goes first, not the engine
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("900")
    if argv[4]:
        try:
            _confine(argv[4])
        except OSError as error:
            sys.stderr.write(f"{argv[5]}: not confined: {error.strerror}\n")
            sys.exit(NOT_CONFINED)
    if memory >= 0:
        _lower(resource.RLIMIT_AS, memory)
    _lower(resource.RLIMIT_FSIZE, file_size)
    # a compiler whose engine was killed must not run on for ever
    _lower(resource.RLIMIT_CPU, cpu)
    _lower(resource.RLIMIT_CORE, 0)
    try:
        os.execvp(argv[5], argv[5:])  # noqa: S606 - no shell wanted
    except OSError as error:
        sys.stderr.write(f"{argv[5]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv)
