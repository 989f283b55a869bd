"""A hand-made session written into a real store, and the program that shows it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
from tui.fakes import DEVICE, FakeView, busy_session

from forge_tui.core.events import Kind
from forge_tui.core.paths import Workspace
from forge_tui.store.writer import Store

SHOW = """
import sys, pathlib
from forge_tui.core.paths import Workspace
from forge_tui.tui.app import run_screen
sys.exit(run_screen(Workspace(pathlib.Path(sys.argv[1])), None))
"""


def record(folder: Path, *, state: str = "searching", lease: bool = True) -> tuple[Workspace, Store, str]:
    """Write the busy session into a store below `folder`; the store stays open, as an engine's would."""
    source: FakeView = busy_session(state=state)
    (known,) = source.infos
    workspace = Workspace(folder)
    store = Store.open(workspace)
    options = msgspec.structs.replace(source.infos[known].options, workspace=str(folder))
    session = store.create_session(options).id
    if lease:
        store.acquire(session, os.getpid())
    store.save_device(session, DEVICE)
    store.set_state(session, "profiling")
    store.save_profile(session, source.profiles[known])
    for event in source.event_lists[known]:
        if event.kind == Kind.TARGET_OPENED:
            store.event(session, event.kind, event.data)
    store.set_state(session, "searching")
    for node in source.node_lists[known].values():
        store.add_node(session, node)
    if known in source.deployments:
        store.save_deployment(session, source.deployments[known])
    if state != "searching":
        store.set_state(session, state, stop_reason="All 60 evaluations were used.")  # type: ignore[arg-type]
    return workspace, store, session


def command(workspace: Workspace) -> list[str]:
    """What shows the workspace on a terminal."""
    return [sys.executable, "-c", SHOW, str(workspace.root)]
