"""What the follower tells the screen: frozen records, made in its thread, applied in the screen's loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from forge_tui.core.profiles import Hotspot, Profile
from forge_tui.core.records import Deployment, Event, Node, SessionInfo, Target


@dataclass(frozen=True, slots=True)
class SessionsRead:
    """Every session of the workspace."""

    sessions: tuple[SessionInfo, ...]


@dataclass(frozen=True, slots=True)
class Attached:
    """The follower now reads this session; what was shown before is void."""

    session: str


@dataclass(frozen=True, slots=True)
class SessionRead:
    """The session's row."""

    info: SessionInfo


@dataclass(frozen=True, slots=True)
class ProfileRead:
    """Profile and call tree."""

    profile: Profile | None
    hotspots: tuple[Hotspot, ...]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class NodesRead:
    """Nodes that are new or changed, of any target, without sources."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class EventsRead:
    """New events, oldest first."""

    events: tuple[Event, ...]
    live: bool
    """Whether they came while the screen watched (not the backlog of attaching)."""


@dataclass(frozen=True, slots=True)
class SourceRead:
    """One node with its source."""

    node: Node


@dataclass(frozen=True, slots=True)
class DeploymentRead:
    """The in-model gate's result."""

    deployment: Deployment


@dataclass(frozen=True, slots=True)
class Trouble:
    """The store could not be read; tried again. Empty once it works again."""

    text: str
    fatal: bool = field(default=False)


Update = (
    SessionsRead | Attached | SessionRead | ProfileRead | NodesRead | EventsRead | SourceRead | DeploymentRead | Trouble
)
