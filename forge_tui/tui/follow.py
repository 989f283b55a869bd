"""Follows the store from a thread of its own, so that a slow disk cannot stop the screen."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable

import msgspec

from forge_tui.core.errors import ForgeError
from forge_tui.core.events import Kind
from forge_tui.core.records import Event, Node
from forge_tui.tui.source import OpenSource, ViewSource
from forge_tui.tui.updates import (
    Attached,
    DeploymentRead,
    EventsRead,
    NodesRead,
    ProfileRead,
    SessionRead,
    SessionsRead,
    SourceRead,
    Trouble,
    Update,
)

_POLL_S = 0.1
_SLOW_POLL_S = 1.0
_ONE_BY_ONE = 64
"""With more changed nodes than this at once, whole targets are read again."""
_MAX_EVENTS = 5000


class Follower:
    """Reads what changed and queues it as updates; commands reach it through `attach` and `want_source`.

    `poll` does one round in the caller's thread; `start` runs rounds in a daemon thread. The view is opened in the
    thread that polls, since a SQLite connection belongs to its thread.
    """

    def __init__(self, open_source: OpenSource) -> None:
        self._open = open_source
        self._view: ViewSource | None = None
        self._wishes: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
        self._updates: deque[Update] = deque()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._session: str | None = None
        self._version: int | None = None
        self._last_event = 0
        self._backlog_done = False
        self._profiled = False
        self._have_deployment = False
        self._trouble = ""
        self._slow_at = 0.0
        self._sources: dict[int, Node] = {}

    def start(self) -> None:
        """Run rounds in a thread until `stop`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="forge-follow", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; does not wait long for a reader that hangs on its disk."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def attach(self, session: str) -> None:
        """Read this session from its start."""
        self._wish("attach", session)

    def want_source(self, node_id: int) -> None:
        """Read one node with its source."""
        self._wish("source", node_id)

    def drain(self) -> list[Update]:
        """What was read since the last call, oldest first."""
        out: list[Update] = []
        with contextlib.suppress(IndexError):
            while True:
                out.append(self._updates.popleft())
        return out

    def poll(self) -> None:
        """One round: wishes first, then what changed in the store. Never raises for a fault of the store."""
        try:
            self._round()
        except (ForgeError, OSError, msgspec.MsgspecError) as error:
            self._fault(str(error))
        except Exception as error:
            # sqlite3 is not imported here: the reader's own faults are told by their module
            if not type(error).__module__.startswith("sqlite3"):
                raise
            self._fault(f"The workspace's database could not be read: {error}.")
        else:
            if self._trouble:
                self._trouble = ""
                self._put(Trouble(""))

    def _fault(self, text: str) -> None:
        self._version = None
        if text != self._trouble:
            self._trouble = text
            self._put(Trouble(text))

    def _wish(self, kind: str, value: object) -> None:
        self._wishes.put((kind, value))
        self._wake.set()

    def _put(self, update: Update) -> None:
        self._updates.append(update)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll()
            except Exception as error:  # noqa: BLE001 - a silent end of this thread would freeze the screen's data
                self._fault(f"A bug while reading the workspace: {type(error).__name__}: {error}")
            self._wake.wait(_POLL_S)
            self._wake.clear()
        if self._view is not None:
            self._view.close()

    def _round(self) -> None:
        if self._view is None:
            self._view = self._open()
            if self._view is None:
                return
        view = self._view
        self._serve_wishes(view)
        now = time.monotonic()
        version = view.data_version()
        changed = version != self._version
        slow = now - self._slow_at >= _SLOW_POLL_S
        if not changed and not slow:
            return
        if changed or self._session is None:
            self._put(SessionsRead(tuple(view.sessions())))
        self._slow_at = now
        if self._session is not None:
            self._read_session(view, self._session)
        self._version = version

    def _serve_wishes(self, view: ViewSource) -> None:
        source_of: int | None = None
        while True:
            try:
                kind, value = self._wishes.get_nowait()
            except queue.Empty:
                break
            if kind == "attach":
                self._begin(_full_id(view, str(value)))
            elif isinstance(value, int):
                source_of = value  # only the newest one is still on the screen
        if source_of is not None and self._session is not None:
            self._put(SourceRead(view.node(self._session, source_of)))

    def _begin(self, session: str) -> None:
        self._session = session
        self._last_event = 0
        self._backlog_done = False
        self._profiled = False
        self._have_deployment = False
        self._version = None
        self._put(Attached(session))

    def _read_session(self, view: ViewSource, session: str) -> None:
        self._put(SessionRead(view.session(session)))
        events = self._new_events(view, session)
        kinds = {event.kind for event in events}
        first = not self._backlog_done
        if not self._profiled or Kind.PROFILED in kinds or Kind.TARGET_OPENED in kinds:
            self._read_profile(view, session)
        if first:
            for target in view.targets(session):
                self._put(NodesRead(tuple(view.nodes(session, target.id))))
        elif events:
            self._put(NodesRead(tuple(self._changed_nodes(view, session, events))))
        if not self._have_deployment or Kind.DEPLOYED in kinds:
            deployment = view.deployment(session)
            if deployment is not None:
                self._have_deployment = True
                self._put(DeploymentRead(deployment))
        if events:
            self._put(EventsRead(events[-_MAX_EVENTS:], live=not first))
        self._backlog_done = True

    def _new_events(self, view: ViewSource, session: str) -> tuple[Event, ...]:
        """Every event since the last one; the store gives them in portions."""
        found: list[Event] = []
        after = self._last_event
        while portion := view.events(session, after):
            found += portion
            after = portion[-1].id
        self._last_event = after
        return tuple(found)

    def _read_profile(self, view: ViewSource, session: str) -> None:
        hotspots = tuple(view.hotspots(session))
        targets = tuple(view.targets(session))
        if hotspots or targets:
            self._profiled = True
            self._put(ProfileRead(view.profile(session), hotspots, targets))

    def _changed_nodes(self, view: ViewSource, session: str, events: Iterable[Event]) -> Iterable[Node]:
        touched: dict[int, str] = {}
        for event in events:
            node = event.data.get("node")
            if event.kind in (Kind.NODE_ADDED, Kind.NODE_EVALUATED, Kind.NODE_CONFIRMED) and isinstance(node, int):
                touched[node] = str(event.data.get("target", ""))
        if len(touched) <= _ONE_BY_ONE:
            return [view.node(session, node) for node in touched]
        return [
            node
            for target in dict.fromkeys(touched.values())
            for node in view.nodes(session, target)
            if node.id in touched
        ]


def _full_id(view: ViewSource, session: str) -> str:
    """The whole id where only its beginning was given; an unknown one stays, so that its fault is told."""
    try:
        return view.session(session).id
    except ForgeError:
        return session
