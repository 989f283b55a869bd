"""The engine's Unix socket: commands from screens and from the command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Command = Callable[[dict[str, Any]], dict[str, Any]]


class ControlServer:
    """Listens at `path` (mode 0600) and answers one JSON line with one JSON line."""

    def __init__(self, path: Path, commands: dict[str, Command]) -> None:
        self._path = path
        self._commands = commands
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; a socket file left by a dead engine is replaced (the store's lease says that it is dead)."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        old = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._answer, str(self._path))
        finally:
            os.umask(old)

    async def stop(self) -> None:
        """Stop listening and remove the socket file."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._path.unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            async with asyncio.timeout(10):
                line = await reader.readline()
            writer.write(json.dumps(self._handle(line)).encode() + b"\n")
            await writer.drain()
        writer.close()

    def _handle(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
            command = self._commands[message["op"]]
        except (ValueError, KeyError, TypeError):
            known = ", ".join(sorted(self._commands))
            return {"ok": False, "error": f"Not a command of this engine; it knows {known}."}
        return {"ok": True, **command(message)}
