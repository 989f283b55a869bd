"""Steps on their way, in the order in which they were decided, and whose turn it is to be folded in."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from forge_tui.search.driver import Step


@dataclass(eq=False, slots=True)
class Place:
    """One step on its way: without a source yet, or with a node whose verdict is awaited."""

    step: Step | None
    """None once there is a node."""
    turn: asyncio.Event = field(default_factory=asyncio.Event)


class Line:
    """Every step that has begun and not ended.

    `in_order` makes what is folded in, and when, a matter of the order of decisions alone and not of how long anything
    took: first sources in the order of their steps, then verdicts in the order of their nodes, one at a time, and
    steps are decided before each. Without it everything is folded in as it comes.
    """

    def __init__(self, *, in_order: bool) -> None:
        self.in_order = in_order
        self._asking: list[Place] = []
        self._judging: list[Place] = []

    def __len__(self) -> int:
        return len(self._asking) + len(self._judging)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Those without a source, oldest first."""
        return tuple(place.step for place in self._asking if place.step is not None)

    def enter(self, step: Step | None) -> Place:
        """A step was decided; None for a node that only lacks its verdict."""
        place = Place(step)
        (self._judging if step is None else self._asking).append(place)
        return place

    def has_node(self, place: Place) -> None:
        """Its source is there."""
        self._asking.remove(place)
        place.step = None
        place.turn.clear()
        self._judging.append(place)

    def leave(self, place: Place) -> None:
        """It is over."""
        (self._judging if place.step is None else self._asking).remove(place)

    def call_next(self) -> None:
        """Nothing more can be decided now: let the next one be folded in."""
        first = next(iter(self._asking or self._judging), None)
        for place in (*self._asking, *self._judging):
            if place is first:
                place.turn.set()
            else:
                place.turn.clear()

    async def turn_of(self, place: Place) -> None:
        """Wait until this one is called; what is done next without waiting is done before anything else."""
        if self.in_order:
            await place.turn.wait()
