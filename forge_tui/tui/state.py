"""What the screen shows of one session: updates in, plain data out. No Textual here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Flag, auto

from forge_tui.core.events import Kind
from forge_tui.core.profiles import Hotspot, Profile
from forge_tui.core.records import Deployment, Event, Node, SessionInfo, Target, Verdict
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

_ROAD = ("starting", "profiling", "searching", "deploying")
LIVE_STATES = frozenset(_ROAD)
STALE_S = 15.0
"""A heartbeat older than this means that no engine is at work."""
DIED_S = 4.0
"""The same where the store already knows that the engine's process is no more."""
MAX_EVENTS = 5000
PAUSE_TEXTS = {"Paused.": True, "Going on.": False}
"""What the engine logs when it was told so, by any screen."""


class Touched(Flag):
    """Which parts of the screen an update concerns."""

    NOTHING = 0
    SESSIONS = auto()
    RESET = auto()
    STATUS = auto()
    HOTSPOTS = auto()
    NODES = auto()
    SOURCE = auto()
    EVENTS = auto()
    RESULT = auto()
    FINISHED = auto()


@dataclass(slots=True)
class TargetView:
    """One target with its nodes."""

    target: Target
    nodes: dict[int, Node] = field(default_factory=dict)
    best: int | None = None
    newest: int | None = None
    evaluated: int = 0
    failed: int = 0
    usable: bool = True
    unusable_reason: str = ""
    eager_us: float | None = None

    @property
    def best_node(self) -> Node | None:
        """The fastest node whose verdict is `faster`; else the fastest right one."""
        return None if self.best is None else self.nodes[self.best]

    def best_path(self) -> set[int]:
        """Ids of the best node and its ancestors."""
        path: set[int] = set()
        at = self.best
        while at is not None and at not in path and at in self.nodes:
            path.add(at)
            at = self.nodes[at].parent
        return path

    def put(self, node: Node) -> None:
        """Take a new or changed node."""
        old = self.nodes.get(node.id)
        self.nodes[node.id] = node
        if self.newest is None or node.id > self.newest:
            self.newest = node.id
        for sign, each in ((-1, old), (1, node)):
            if each is not None and each.evaluation is not None:
                self.evaluated += sign
                self.failed += sign * each.evaluation.verdict.repairable
        if self.best == node.id and rank(node) is None:
            ranked = [(found, each.id) for each in self.nodes.values() if (found := rank(each)) is not None]
            self.best = max(ranked)[1] if ranked else None
        mine = rank(node)
        if mine is not None:
            best = None if self.best is None else rank(self.nodes[self.best])
            if best is None or mine > best:
                self.best = node.id


def rank(node: Node) -> tuple[int, float] | None:
    """How a right node compares to another; None for one that is not right or not timed."""
    evaluation = node.evaluation
    if evaluation is None or not evaluation.verdict.right or evaluation.speedup is None:
        return None
    return (1 if evaluation.verdict is Verdict.FASTER else 0, evaluation.speedup)


@dataclass(slots=True)
class SessionView:
    """One session as the screen knows it."""

    sessions: tuple[SessionInfo, ...] = ()
    sessions_known: bool = False
    session: str | None = None
    info: SessionInfo | None = None
    profile: Profile | None = None
    hotspots: tuple[Hotspot, ...] = ()
    targets: dict[str, TargetView] = field(default_factory=dict)
    offered: list[str] = field(default_factory=list)
    """Ids of every target of the profile."""
    opened: list[str] = field(default_factory=list)
    """Ids of the targets that the engine took for its search, in its order."""
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    events_seen: int = 0
    """Events taken in all; grows even when the ring drops old ones."""
    deployment: Deployment | None = None
    node: Node | None = None
    """The node last read with its source."""
    trouble: str = ""
    paused: bool = False
    pause_reason: str = ""
    """What the search waits for, where it paused by itself."""
    isolation: str = ""
    """What keeps compilers and kernels apart from the machine; empty before the engine said so."""
    isolated: bool = True
    _orphans: dict[str, list[Node]] = field(default_factory=dict)
    _run_began: float | None = None
    _last_state: str = ""

    def apply(self, update: Update) -> Touched:
        """Take one update; what it concerns."""
        match update:
            case SessionsRead(sessions):
                self.sessions, self.sessions_known = sessions, True
                return Touched.SESSIONS
            case Attached(session):
                self._reset(session)
                return Touched.RESET | Touched.STATUS
            case SessionRead(info):
                return self._session_read(info)
            case ProfileRead():
                return self._profile_read(update)
            case NodesRead(nodes):
                return self._nodes_read(nodes)
            case EventsRead():
                return self._events_read(update)
            case SourceRead(node):
                self.node = node
                return Touched.SOURCE
            case DeploymentRead(deployment):
                self.deployment = deployment
                return Touched.RESULT | Touched.STATUS | Touched.HOTSPOTS
            case Trouble(text):
                self.trouble = text
                return Touched.STATUS

    @property
    def order(self) -> list[str]:
        """The targets of the search; before the engine has chosen, every one of the profile."""
        return [key for key in self.opened if key in self.targets] or self.offered

    def is_searched(self, target: str) -> bool:
        """Whether the engine took this target, as far as is known."""
        return not self.opened or target in self.opened

    @property
    def best(self) -> tuple[TargetView, Node] | None:
        """The node with the highest speedup over all targets, among those that are faster."""
        ranked: list[tuple[tuple[int, float], TargetView, Node]] = []
        for view in self.targets.values():
            node = view.best_node
            mine = rank(node) if node is not None else None
            if node is not None and mine is not None and mine[0] == 1:
                ranked.append((mine, view, node))
        if not ranked:
            return None
        _, view, node = max(ranked, key=lambda entry: entry[0])
        return view, node

    @property
    def newest(self) -> tuple[str, int] | None:
        """Target and id of the newest node of all."""
        found = [(view.newest, key) for key, view in self.targets.items() if view.newest is not None]
        if not found:
            return None
        node, key = max(found)
        return key, node

    @property
    def live(self) -> bool:
        """Whether the session's state is one an engine works in."""
        return self.info is not None and self.info.state in LIVE_STATES

    @property
    def searching(self) -> bool:
        """Whether the session is in the one state that can be paused."""
        return self.info is not None and self.info.state == "searching"

    @property
    def evaluations(self) -> int:
        """Evaluated nodes, as the session counts them or as they are seen, whichever is more."""
        seen = sum(view.evaluated for view in self.targets.values())
        return max(seen, self.info.evaluations if self.info else 0)

    def engine_gone(self, now: float) -> bool:
        """Whether the session should be running and no engine has been heard for a while."""
        if self.info is None or not self.live:
            return False
        info = self.info
        silent = now - max(info.heartbeat_at, info.updated_at, info.created_at)
        died = info.engine_pid == 0 and info.heartbeat_at > 0
        return silent > (DIED_S if died else STALE_S)

    def elapsed_s(self, now: float) -> float:
        """Engine time so far, over all runs of the session."""
        if self.info is None:
            return 0.0
        if not self.live:
            return self.info.elapsed_s
        until = max(self.info.updated_at, self.info.heartbeat_at) if self.engine_gone(now) else now
        began = self._run_began if self._run_began is not None else self.info.created_at
        # the engine adds its time at every heartbeat; before the first one nothing of this run is in the sum
        return self.info.elapsed_s + max(0.0, until - max(began, self.info.heartbeat_at))

    def _reset(self, session: str) -> None:
        self.session = session
        self.info = self.profile = self.deployment = self.node = None
        self.hotspots = ()
        self.targets, self.offered, self.opened = {}, [], []
        self.events.clear()
        self.events_seen = 0
        self.paused, self.pause_reason = False, ""
        self.isolation, self.isolated = "", True
        self._orphans = {}
        self._run_began, self._last_state = None, ""

    def _session_read(self, info: SessionInfo) -> Touched:
        if info.id != self.session:
            return Touched.NOTHING
        before, self.info = self.info, info
        if info == before:
            return Touched.NOTHING
        if info.state != "searching":
            self.paused, self.pause_reason = False, ""
        touched = Touched.STATUS
        if before is None or before.state != info.state:
            touched |= Touched.RESULT
            if before is not None and before.state in LIVE_STATES and info.state not in LIVE_STATES:
                touched |= Touched.FINISHED
        return touched

    def _profile_read(self, update: ProfileRead) -> Touched:
        self.profile, self.hotspots = update.profile, update.hotspots
        self.offered = [target.id for target in update.targets]
        for target in update.targets:
            known = self.targets.get(target.id)
            if known is None:
                self.targets[target.id] = TargetView(target)
            else:
                known.target = target
        touched = Touched.HOTSPOTS | Touched.STATUS | Touched.RESULT
        for target_id in list(self._orphans):
            if target_id in self.targets:
                touched |= self._nodes_read(tuple(self._orphans.pop(target_id)))
        return touched

    def _nodes_read(self, nodes: tuple[Node, ...]) -> Touched:
        for node in nodes:
            view = self.targets.get(node.target_id)
            if view is None:
                self._orphans.setdefault(node.target_id, []).append(node)
            else:
                view.put(node)
        return Touched.NODES | Touched.STATUS | Touched.HOTSPOTS | Touched.RESULT if nodes else Touched.NOTHING

    def _events_read(self, update: EventsRead) -> Touched:
        touched = Touched.EVENTS
        for event in update.events:
            self.events.append(event)
            self.events_seen += 1
            if event.kind == Kind.TARGET_OPENED:
                key = str(event.data.get("target", ""))
                if key not in self.opened:
                    self.opened.append(key)
                view = self.targets.get(key)
                if view is not None:
                    view.usable = bool(event.data.get("usable", True))
                    view.unusable_reason = str(event.data.get("reason") or "")
                    eager = event.data.get("eager_us")
                    view.eager_us = float(eager) if isinstance(eager, int | float) else None
                touched |= Touched.HOTSPOTS
            elif event.kind == Kind.LOG and event.data.get("text") in PAUSE_TEXTS:
                self.paused = PAUSE_TEXTS[event.data["text"]]
                touched |= Touched.STATUS
            elif event.kind == Kind.PAUSED:
                self.paused = bool(event.data.get("paused"))
                self.pause_reason = str(event.data.get("reason") or "")
                touched |= Touched.STATUS
            elif event.kind == Kind.ISOLATION:
                self.isolation = str(event.data.get("short", ""))
                self.isolated = bool(event.data.get("isolated"))
                touched |= Touched.STATUS
            elif event.kind == Kind.STATE:
                self.paused, self.pause_reason = False, ""
                self._note_run(event)
                touched |= Touched.STATUS
        return touched

    def _note_run(self, event: Event) -> None:
        """A state that does not follow from the one before it is the first of another run."""
        state = str(event.data.get("state", ""))
        if state in _ROAD and (self._last_state not in _ROAD or _ROAD.index(state) <= _ROAD.index(self._last_state)):
            self._run_began = event.at
        self._last_state = state
