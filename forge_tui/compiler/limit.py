"""Runs one command under limits: `python limit.py MEMORY_BYTES FILE_BYTES CPU_SECONDS COMMAND...`.

Limits are set in a small process of its own that then becomes the command, because setting them between fork and
exec of a process with threads is unsafe. Only the standard library, so that it runs as a plain file in 20 ms.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def main(argv: list[str]) -> None:
    """Set the limits and become the command; exit code 127 where it cannot be started."""
    memory, file_size, cpu = (int(text) for text in argv[1:4])
    _lower(resource.RLIMIT_AS, memory)
    _lower(resource.RLIMIT_FSIZE, file_size)
    # a compiler whose engine was killed must not run on for ever
    _lower(resource.RLIMIT_CPU, cpu)
    _lower(resource.RLIMIT_CORE, 0)
    # when memory runs out, the compiler goes first, not the engine
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("900")
    try:
        os.execvp(argv[4], argv[4:])  # noqa: S606 - no shell wanted
    except OSError as error:
        sys.stderr.write(f"{argv[4]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv)
