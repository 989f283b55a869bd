"""`python -m forge_tui.engine --workspace DIR --ready FD`: the engine process.

The request comes on stdin as one JSON document: `{"run": RunOptions}` or `{"resume": id, "max_evaluations": n or null,
...}`. On descriptor FD it writes one line when the session is its own (`{"ok": true, "session": id}` or
`{"ok": false, "error": {...}}`), and one when it ends. Closing the terminal does not reach it: it leads a session of
its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from forge_tui.core import secrets
from forge_tui.core.errors import EnvironmentFault, ExitCode, ForgeError, UsageError
from forge_tui.core.landscapes import PREFIX
from forge_tui.core.paths import Workspace
from forge_tui.core.records import RunOptions, SessionInfo
from forge_tui.engine import logs
from forge_tui.engine.control import ControlServer
from forge_tui.engine.loop import Engine, resumable
from forge_tui.engine.rooms import Rooms, WorkerRooms
from forge_tui.processes.wire import encode_error
from forge_tui.proposers import keys
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store


def main(argv: list[str]) -> int:
    """Run one session; returns the process's exit code."""
    logs.keep_keys_out()
    keys.learn()
    workspace = Workspace(Path(argv[argv.index("--workspace") + 1]))
    ready = int(argv[argv.index("--ready") + 1])
    os.set_inheritable(ready, False)
    try:
        request = json.loads(sys.stdin.buffer.read())
        return asyncio.run(_engine(workspace, request, ready))
    except ForgeError as error:
        print(secrets.masked(str(error)), file=sys.stderr)  # noqa: T201 - the engine's log
        _tell(ready, {"ok": False, **encode_error(error)})
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)


async def _engine(workspace: Workspace, request: dict[str, Any], ready: int) -> int:
    workspace.prepare()
    store = Store.open(workspace)
    try:
        session = _session(store, workspace, request)
        store.acquire(session.id, os.getpid())
        try:
            store.set_options(session.id, session.options)
            rooms = _rooms(session, workspace)
            with contextlib.closing(Reader.open(workspace)) as reader:
                engine = Engine(store, reader, session, rooms)
                if isinstance(rooms, WorkerRooms):
                    rooms.on_note = engine.note
                await _serve(engine, workspace, session, ready)
        finally:
            store.release(session.id)
    finally:
        store.close()
    return int(ExitCode.OK)


def _rooms(session: SessionInfo, workspace: Workspace) -> Rooms:
    if session.options.device.startswith(PREFIX):
        from forge_tui.engine.sim import SimRooms

        return SimRooms(session.options)
    return WorkerRooms(session.options, workspace, session.id)


async def _serve(engine: Engine, workspace: Workspace, session: SessionInfo, ready: int) -> None:
    def stop(_: dict[str, Any]) -> dict[str, Any]:
        engine.ask_stop()
        return {}

    def pause(message: dict[str, Any]) -> dict[str, Any]:
        engine.pause(message["op"] == "pause")
        return {}

    server = ControlServer(workspace.socket(session.id), {
        "stop": stop, "pause": pause, "resume": pause, "status": lambda _: engine.status(),
    })  # fmt: skip
    await server.start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, engine.ask_stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    _tell(ready, {"ok": True, "session": session.id})
    try:
        await engine.run()
    finally:
        await server.stop()


def _session(store: Store, workspace: Workspace, request: dict[str, Any]) -> SessionInfo:
    if "run" in request:
        return store.create_session(msgspec.convert(request["run"], RunOptions))
    with contextlib.closing(Reader.open(workspace)) as reader:
        session = reader.session(request["resume"])
    wider = {name: request[name] for name in ("max_evaluations", "max_minutes", "max_usd") if request.get(name)}
    resumable(session, bool(wider))
    spec = session.options.model
    if spec.content_hash:
        from forge_tui.models.spec import content_hash

        if content_hash(spec) != spec.content_hash:
            what = f"The model file {spec.path} has" if not (spec.inputs or spec.vary) else (
                f"The model file {spec.path} or its file of inputs has")  # fmt: skip
            raise UsageError(
                f"{what} changed since session {session.id} began; its kernels may not fit.",
                "Start a new session with forge-tui run, or put the file back.",
            )
    changes = wider | ({"attended": request["attended"]} if "attended" in request else {})
    if request.get("prices"):
        given = msgspec.convert(request["prices"], dict[str, tuple[float, ...]])
        changes["prices"] = session.options.prices | given
    if changes:
        session = msgspec.structs.replace(session, options=msgspec.structs.replace(session.options, **changes))
    if wider:
        # with more to spend the search goes on, also where it was over
        session = msgspec.structs.replace(session, state="interrupted")
    return session


def _tell(fd: int, message: dict[str, Any]) -> None:
    # whoever started the engine may be gone; the store has the truth
    with contextlib.suppress(OSError):
        os.write(fd, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as fault:
        raise EnvironmentFault(str(fault)) from fault
