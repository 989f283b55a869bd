"""One compiler process: started under limits, its output capped, its whole group killed at the time limit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forge_tui.compiler import command
from forge_tui.compiler.toolchain import build_environment
from forge_tui.processes.command import run_in

#: a template error can print gigabytes; what is beyond is read and thrown away
MAX_OUTPUT_BYTES = 256 * 1024
MAX_FILE_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended. `code` is negative for a signal, as in `subprocess`."""

    code: int
    output: str
    timed_out: bool


class Confined(Protocol):
    """How a command is kept apart from the machine, see `isolated`."""

    def wrap(self, argv: list[str], folder: Path) -> tuple[str, list[str]]:
        """What `limit.py` is to put into force, and the command as it is to be run."""


async def run(
    argv: list[str], folder: Path, *, timeout_s: float, memory_bytes: int, keep_bytes: int = MAX_OUTPUT_BYTES,
    confined: Confined | None = None,
) -> Finished:  # fmt: skip
    """Run one command in a folder; standard output and error come back together.

    The process gets a group of its own, which is killed at the time limit and when the caller is cancelled.

    Raises:
        OSError: the process could not be started.
    """
    rules, wrapped = confined.wrap(argv, folder) if confined is not None else ("", argv)
    limited = command.limited(
        wrapped, memory_bytes=memory_bytes, file_bytes=MAX_FILE_BYTES, cpu_s=int(timeout_s) + 10, confinement=rules
    )
    done = await run_in(
        build_environment(str(folder)), limited, timeout_s=timeout_s, cwd=folder, keep_bytes=keep_bytes, together=True
    )
    return Finished(done.code, done.stdout, done.timed_out)
