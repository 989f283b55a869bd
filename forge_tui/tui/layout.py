"""Which panes are shown at a terminal size. Pure, so that every size can be tested."""

from __future__ import annotations

from dataclasses import dataclass

MIN_WIDTH = 60
MIN_HEIGHT = 15

PANES = ("hotspots", "tree", "kernel", "telemetry", "events", "result")
"""Pane ids; the number keys follow this order."""

LEFT = ("hotspots", "tree")
RIGHT = ("kernel", "telemetry", "events", "result")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is shown: pane ids of both columns in order; an empty right column means there is one column only."""

    too_small: bool = False
    left: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    stacked: bool = False
    """One column: what is right in a wide terminal is below."""

    @property
    def shown(self) -> tuple[str, ...]:
        """Every shown pane."""
        return self.left + self.right


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user looks at: the focused pane, the last one of each slot, and whether it is zoomed."""

    focused: str = "tree"
    upper: str = "tree"
    """Last focused of the hotspots and tree panes."""
    lower: str = "kernel"
    """Last focused of the others."""
    zoomed: bool = False


def plan(width: int, height: int, wish: Wish) -> Plan:
    """The panes for a terminal of this size."""
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return Plan(too_small=True)
    if wish.zoomed or (height < 20 and width < 120):
        alone = (wish.focused,)
        at_left = wish.focused in LEFT
        return Plan(left=alone if at_left else (), right=() if at_left else alone, stacked=True)
    main = "result" if wish.lower == "result" else "kernel"
    if width >= 120:
        if height >= 34:
            return Plan(left=LEFT, right=(main, "telemetry", "events"))
        return Plan(left=(wish.upper,), right=(wish.lower,))
    if height >= 44:
        last = "events" if wish.lower == "events" else "telemetry"
        return Plan(left=LEFT, right=(main, last), stacked=True)
    return Plan(left=(wish.upper,), right=(wish.lower,), stacked=True)


def after_focus(wish: Wish, pane: str) -> Wish:
    """The wish once a pane was asked for."""
    return Wish(
        focused=pane,
        upper=pane if pane in LEFT else wish.upper,
        lower=pane if pane in RIGHT else wish.lower,
        zoomed=wish.zoomed,
    )


def neighbour(focused: str, step: int) -> str:
    """The pane after (or before) the focused one, round and round over all panes."""
    at = PANES.index(focused) if focused in PANES else 0
    return PANES[(at + step) % len(PANES)]
