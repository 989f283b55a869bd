"""Starting an engine, and waiting for it, from the command line or a screen."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from forge_tui.core.errors import EnvironmentFault, ExitCode, ForgeError
from forge_tui.core.paths import Workspace
from forge_tui.processes.child import raise_reply

START_LIMIT_S = 30.0


@dataclass(slots=True)
class EngineProcess:
    """An engine started by this process, in a session of its own."""

    session: str
    process: subprocess.Popen[bytes]
    ready: IO[bytes]
    log: Path
    _ended: dict[str, Any] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether the engine lives."""
        return self.process.poll() is None

    def stop(self, patience_s: float = 20.0) -> None:
        """Ask it to end so that the session can be resumed; kill it if it does not."""
        if not self.running:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            kill_group(self.process)

    def raise_for_end(self) -> None:
        """Raise the fault that ended the engine, if one did.

        Raises:
            ForgeError: the engine's own fault, or a crash, with the log's path.
        """
        code = self.process.wait()
        for line in self.ready:
            message = json.loads(line)
            if "error" in message:
                raise_reply(message["error"])
        if code not in (int(ExitCode.OK), int(ExitCode.INTERRUPTED)):
            raise ForgeError(
                f"The engine ended unexpectedly ({describe_exit(code)}).",
                f"Its log is {self.log}; go on with forge-tui resume {self.session}.", exit_code=ExitCode.BUG,
            )  # fmt: skip


def start_engine(workspace: Workspace, request: dict[str, Any]) -> EngineProcess:
    """Start an engine and wait until the session is its own.

    Raises:
        ForgeError: the engine could not take the session; the sentence is the engine's own.
    """
    workspace.prepare()
    log = workspace.logs / f"engine-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    read_fd, write_fd = os.pipe()
    try:
        with open(log, "ab") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "forge_tui.engine", "--workspace", str(workspace.root),
                 "--ready", str(write_fd)],
                stdin=subprocess.PIPE, stdout=sink, stderr=sink, pass_fds=(write_fd,), start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        os.close(read_fd)
        raise EnvironmentFault(f"The engine could not be started: {error}.") from error
    finally:
        os.close(write_fd)
    ready = os.fdopen(read_fd, "rb")
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode())
            process.stdin.close()
        if not select.select([ready], [], [], START_LIMIT_S)[0]:
            raise EnvironmentFault(f"The engine did not start within {START_LIMIT_S:g} s.", f"Its log is {log}.")
        line = ready.readline()
    except BaseException:
        kill_group(process)
        raise
    if not line:
        end = describe_exit(process.wait())
        raise EnvironmentFault(f"The engine ended before it was ready ({end}).", f"Its log is {log}.")
    message = json.loads(line)
    if not message["ok"]:
        process.wait()
        raise_reply(message["error"])
    return EngineProcess(message["session"], process, ready, log)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def describe_exit(code: int) -> str:
    """`signal SIGKILL` or `exit code 3`."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
