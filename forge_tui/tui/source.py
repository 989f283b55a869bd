"""What the screen reads: a narrow view of the store, so that tests can bring their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from forge_tui.core.profiles import Hotspot, Profile
from forge_tui.core.records import Deployment, Event, Node, SessionInfo, Target


class ViewSource(Protocol):
    """A read-only view of one workspace; used from one thread only."""

    def sessions(self) -> Sequence[SessionInfo]:
        """Every session."""

    def session(self, session_id: str) -> SessionInfo:
        """One session, by its id or the beginning of it."""

    def profile(self, session_id: str) -> Profile | None:
        """The profile, once there is one."""

    def hotspots(self, session_id: str) -> Sequence[Hotspot]:
        """The call tree."""

    def targets(self, session_id: str) -> Sequence[Target]:
        """The targets, in the order they are searched."""

    def nodes(self, session_id: str, target_id: str, sources: bool = False) -> Sequence[Node]:
        """The nodes of one target, oldest first; without sources unless asked."""

    def node(self, session_id: str, node_id: int) -> Node:
        """One node with its source."""

    def events(self, session_id: str, after: int = 0) -> Sequence[Event]:
        """Events with a higher id, oldest first; perhaps not all at once."""

    def deployment(self, session_id: str) -> Deployment | None:
        """The in-model gate's result, once there is one."""

    def data_version(self) -> int:
        """A number that differs after another process wrote."""

    def close(self) -> None:
        """Let go of the file."""


OpenSource = Callable[[], ViewSource | None]
"""Opens the view in the thread that will use it; None while the workspace holds no database yet."""
