"""One program run to its end or to its limit, its whole group killed afterwards, its output capped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forge_tui.processes.environment import clean_environment

_KEEP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended. `code` is negative for a signal; of long output the first mebibyte is kept, or as told."""

    code: int
    stdout: str
    stderr: str
    timed_out: bool = False


async def run(
    argv: Sequence[str], *, timeout_s: float, cwd: Path | None = None, env: dict[str, str] | None = None
) -> Finished:
    """Run a program in a group of its own, without the secrets of this process's environment.

    Raises:
        OSError: it could not be started.
    """
    return await run_in(clean_environment(env), argv, timeout_s=timeout_s, cwd=cwd)


async def run_in(
    environment: dict[str, str], argv: Sequence[str], *, timeout_s: float, cwd: Path | None = None,
    keep_bytes: int = _KEEP_BYTES, together: bool = False,
) -> Finished:  # fmt: skip
    """The same with this environment and no other; `together` puts what goes to standard error into `stdout` too.

    Raises:
        OSError: it could not be started.
    """
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=cwd, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT if together else asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    parts = (bytearray(), bytearray())
    streams = zip((process.stdout, process.stderr), parts, strict=True)
    timed_out = False
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*(_read(stream, part, keep_bytes) for stream, part in streams if stream is not None))
            await process.wait()
    except TimeoutError:
        timed_out = True
    finally:
        # the group may outlive its leader, so it is killed in every case
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    assert process.returncode is not None
    out, err = (bytes(part).decode(errors="replace") for part in parts)
    return Finished(process.returncode, out, err, timed_out)


async def _read(stream: asyncio.StreamReader, into: bytearray, keep_bytes: int) -> None:
    while chunk := await stream.read(65536):
        into += chunk[: max(0, keep_bytes - len(into))]
