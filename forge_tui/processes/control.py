"""Commands to a running engine over its Unix socket: one JSON line there, one back."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from forge_tui.core.errors import EnvironmentFault


def send(path: Path, op: str, timeout_s: float = 5.0, **fields: Any) -> dict[str, Any]:
    """Send one command (`stop`, `pause`, `resume`, `status`) and return the engine's answer.

    Raises:
        EnvironmentFault: no engine listens there, or it did not answer in time.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(json.dumps({"op": op, **fields}).encode() + b"\n")
            answer = connection.makefile("rb").readline()
    except OSError as error:
        raise EnvironmentFault(
            f"No engine answers at {path} ({error.strerror or error}).", "Start it again with forge-tui resume."
        ) from error
    reply: dict[str, Any] = json.loads(answer or b"{}")
    return reply
