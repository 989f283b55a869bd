"""Commands to the engine. Every function blocks, so each is called in a thread."""

from __future__ import annotations

import subprocess
import sys

from forge_tui.core.errors import EnvironmentFault, ForgeError
from forge_tui.core.paths import Workspace
from forge_tui.processes import control

_RESUME_LIMIT_S = 60.0


def command(workspace: Workspace, session: str, op: str) -> None:
    """Send `pause`, `resume` or `stop`.

    Raises:
        ForgeError: no engine answered, or it refused.
    """
    reply = control.send(workspace.socket(session), op)
    if not reply.get("ok", False):
        raise ForgeError(str(reply.get("error") or "The engine gave no answer."))


def resume(workspace: Workspace, session: str) -> None:
    """Start an engine for the session, detached from this terminal.

    Raises:
        EnvironmentFault: it could not be started, with what it said.
    """
    argv = [sys.executable, "-m", "forge_tui", "resume", session, "--workspace", str(workspace.root), "--detach"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              timeout=_RESUME_LIMIT_S, start_new_session=True, check=False)  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(f"The engine did not start within {_RESUME_LIMIT_S:g} s.") from error
    except OSError as error:
        raise EnvironmentFault(f"The engine could not be started: {error.strerror or error}.") from error
    if done.returncode != 0:
        said = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()]
        raise EnvironmentFault(said[-1] if said else f"Resume ended with exit code {done.returncode}.")
