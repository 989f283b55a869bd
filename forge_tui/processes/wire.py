"""Messages between an engine and its workers: one JSON document a line, over pipes of their own.

A worker's stdout and stderr belong to torch, compilers and user code, so replies travel on descriptors of their own
(`--in N --out N`).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from forge_tui.core.errors import ForgeError

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that ends; to be called after every fork."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


Handler = Callable[[dict[str, Any]], dict[str, Any]]


def encode_error(error: BaseException) -> dict[str, Any]:
    """A failure as a message; a `ForgeError` keeps its sentence, hint and exit code."""
    if isinstance(error, ForgeError):
        return {"error": {"what": error.what, "hint": error.hint, "exit_code": int(error.exit_code),
                          "type": type(error).__name__}}  # fmt: skip
    text = "".join(traceback.format_exception(error))
    return {"error": {"what": f"{type(error).__name__}: {error}", "hint": "", "exit_code": 1,
                      "type": type(error).__name__, "traceback": text}}  # fmt: skip


def serve(handlers: dict[str, Handler], fd_in: int, fd_out: int) -> None:
    """Answer requests `{"id", "op", ...}` with `{"id", "ok": ...}` or `{"id", "error": ...}` until end of input.

    An exception of a handler becomes an error reply; the worker goes on. The worker dies with its engine.
    """
    die_with_parent()
    with os.fdopen(fd_in, "rb") as requests, os.fdopen(fd_out, "wb") as replies:
        for line in requests:
            message = json.loads(line)
            reply: dict[str, Any] = {"id": message.get("id")}
            try:
                reply["ok"] = handlers[message["op"]](message)
            except Exception as error:  # noqa: BLE001 - a worker reports every failure to its engine
                reply |= encode_error(error)
                traceback.print_exc(file=sys.stderr)
            replies.write(json.dumps(reply).encode() + b"\n")
            replies.flush()


def fds_from_argv(argv: list[str]) -> tuple[int, int]:
    """The two descriptors a worker was started with (`--in N --out N`)."""
    return int(argv[argv.index("--in") + 1]), int(argv[argv.index("--out") + 1])
