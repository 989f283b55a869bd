"""A worker process as the engine sees it: request, reply, limit, death."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from forge_tui.core import errors
from forge_tui.core.errors import TRACEBACK_IN_LOG, EnvironmentFault, ExitCode, ForgeError, WorkerDied
from forge_tui.processes.environment import clean_environment
from forge_tui.processes.watch import Limits, Watch

_TAIL_BYTES = 4000
_REPLY_LIMIT = 256 * 1024 * 1024


def raise_reply(error: dict[str, Any]) -> None:
    """Raise a worker's error reply again as the class it was; what is no `ForgeError` becomes one with BUG."""
    known = getattr(errors, str(error.get("type")), None)
    kind = known if isinstance(known, type) and issubclass(known, ForgeError) else ForgeError
    if kind is WorkerDied:
        raise WorkerDied(error["what"])
    raise kind(error["what"], error.get("hint", ""), exit_code=ExitCode(error.get("exit_code", 1)))


class WorkerProcess:
    """One worker, started as `python -m MODULE --in N --out N` in a process group of its own.

    stdout and stderr go to `log`, of which the end is kept. One request at a time; a request that outlives its limit
    kills the whole group, and so does a tree that outgrows `limits`.
    """

    def __init__(
        self, module: str, log: Path, env: dict[str, str] | None = None, args: tuple[str, ...] = (),
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self._module = module
        self._watch = Watch(log, limits or Limits())
        self._log = log
        self._env = clean_environment(env)
        self._args = args
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._transport: asyncio.ReadTransport | None = None
        self._request_fd = -1
        self._lock = asyncio.Lock()
        self._next_id = 0

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Process id, 0 when none lives."""
        return self._process.pid if self._process is not None and self.running else 0

    async def start(self) -> None:
        """Start the process if it does not live.

        Raises:
            EnvironmentFault: the system gives none: too many processes or open files, say, or a full disk.
        """
        if self.running:
            return
        await self.stop()
        try:
            await self._start()
        except OSError as error:
            raise EnvironmentFault(
                f"The worker {self._module} could not be started: {error.strerror or error}.",
                "Look at the limits of processes, memory and open files.",
            ) from error

    async def _start(self) -> None:
        request_read, request_write = os.pipe()
        reply_read, reply_write = os.pipe()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._watch.trim()
        try:
            with open(self._log, "ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", self._module, "--in", str(request_read), "--out", str(reply_write),
                    *self._args, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=self._env,
                    pass_fds=(request_read, reply_write), start_new_session=True,
                )  # fmt: skip
        except BaseException:
            os.close(request_write)
            os.close(reply_read)
            raise
        finally:
            os.close(request_read)
            os.close(reply_write)
        self._request_fd = request_write
        self._watch.begin(self._process.pid)
        loop = asyncio.get_running_loop()
        self._reader = asyncio.StreamReader(limit=_REPLY_LIMIT)
        protocol = asyncio.StreamReaderProtocol(self._reader)
        self._transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(reply_read, "rb"))

    async def request(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """Send one request and wait for its reply.

        Raises:
            EnvironmentFault: the process could not be started.
            WorkerDied: the process ended, or the limit passed and it was killed.
            ForgeError: the worker replied with an error.
        """
        async with self._lock:
            await self.start()
            self._next_id += 1
            line = json.dumps({"id": self._next_id, "op": op, **fields}).encode() + b"\n"
            assert self._reader is not None
            try:
                async with asyncio.timeout(timeout_s):
                    await asyncio.to_thread(self._send, line)
                    answer = await self._reader.readline()
            except TimeoutError:
                await self.stop()
                raise WorkerDied(f"No answer within {timeout_s:g} s.", timed_out=True, log=self.log_tail()) from None
            except asyncio.CancelledError:
                # the reply of a cancelled request must not be taken for the next one's
                await asyncio.shield(self.stop())
                raise
            except OSError:
                answer = b""
            if not answer.endswith(b"\n"):
                code = await self._ended()
                number = -code if code < 0 else None
                name = f"signal {signal.Signals(number).name}" if number else f"exit code {code}"
                what = self._watch.excess or f"The worker ended with {name}."
                raise WorkerDied(what, signal=number, log=self.log_tail())
            reply = json.loads(answer)
            if "error" in reply:
                failure = reply["error"]
                if failure["hint"] == TRACEBACK_IN_LOG:
                    failure["hint"] = f"The traceback is in {self._log}."
                raise_reply(failure)
            result: dict[str, Any] = reply["ok"]
            return result

    def _send(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[os.write(self._request_fd, view) :]

    async def _ended(self) -> int:
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._process.wait()
        code = self._process.returncode
        await self.stop()
        return code if code is not None else -int(signal.SIGKILL)

    async def stop(self) -> None:
        """Kill the process group and close the pipes; safe to call at any time."""
        process, self._process = self._process, None
        self._watch.end()
        if self._request_fd >= 0:
            os.close(self._request_fd)
            self._request_fd = -1
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def log_tail(self) -> str:
        """The end of the worker's log."""
        try:
            with open(self._log, "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - _TAIL_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""
