"""One compiler process: started under limits, its output capped, its whole group killed at the time limit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forge_tui.compiler import command
from forge_tui.compiler.toolchain import build_environment

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
    process = await asyncio.create_subprocess_exec(
        *limited, cwd=folder, env=build_environment(str(folder)), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    output = bytearray()
    timed_out = False
    try:
        async with asyncio.timeout(timeout_s):
            await _read(process, output, keep_bytes)
            await process.wait()
    except TimeoutError:
        timed_out = True
    finally:
        # the group may outlive its leader, so it is killed in every case
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    assert process.returncode is not None
    return Finished(process.returncode, output.decode(errors="replace"), timed_out)


async def _read(process: asyncio.subprocess.Process, output: bytearray, keep_bytes: int) -> None:
    assert process.stdout is not None
    while chunk := await process.stdout.read(65536):
        output += chunk[: max(0, keep_bytes - len(output))]
