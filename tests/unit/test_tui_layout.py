"""Which panes are shown at which size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tui.tui import layout
from forge_tui.tui.layout import Plan, Wish, after_focus, neighbour, plan


@pytest.mark.parametrize(
    ("size", "wish", "left", "right"),
    [
        ((200, 50), Wish(), ("hotspots", "tree"), ("kernel", "telemetry", "events")),
        ((200, 50), Wish(lower="result"), ("hotspots", "tree"), ("result", "telemetry", "events")),
        ((140, 28), Wish(), ("tree",), ("kernel",)),
        ((80, 24), Wish(), ("tree",), ("kernel",)),
        ((80, 24), Wish(upper="hotspots", lower="events"), ("hotspots",), ("events",)),
        ((80, 50), Wish(), ("hotspots", "tree"), ("kernel", "telemetry")),
        ((80, 24), Wish(zoomed=True), ("tree",), ()),
        ((60, 15), Wish(focused="events", lower="events"), (), ("events",)),
    ],
)
def test_panes_for_a_size(size: tuple[int, int], wish: Wish, left: tuple[str, ...], right: tuple[str, ...]) -> None:
    """Wide terminals show all, smaller ones two or one."""
    found = plan(*size, wish)
    assert (found.left, found.right) == (left, right)
    assert not found.too_small


@pytest.mark.parametrize("size", [(59, 24), (80, 14), (1, 1), (0, 0)])
def test_too_small(size: tuple[int, int]) -> None:
    """Below 60 by 15 there is a sentence instead."""
    assert plan(*size, Wish()) == Plan(too_small=True)


@given(st.integers(60, 400), st.integers(15, 120), st.lists(st.sampled_from(layout.PANES)), st.booleans())
def test_the_focused_pane_is_shown(width: int, height: int, visits: list[str], zoomed: bool) -> None:
    """Whatever was visited, the pane with the keys is on the screen, on its own side, and no pane twice."""
    wish = Wish(zoomed=zoomed)
    for pane in visits:
        wish = after_focus(wish, pane)
    found = plan(width, height, wish)
    assert wish.focused in found.shown
    assert set(found.left) <= set(layout.LEFT)
    assert set(found.right) <= set(layout.RIGHT)
    assert len(set(found.shown)) == len(found.shown)


def test_tab_goes_round_all_panes() -> None:
    """Six steps come back to where they began, in both directions."""
    for step in (1, -1):
        at, seen = "tree", []
        for _ in layout.PANES:
            at = neighbour(at, step)
            seen.append(at)
        assert at == "tree"
        assert set(seen) == set(layout.PANES)
