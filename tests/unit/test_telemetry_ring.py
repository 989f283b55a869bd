"""The ring buffer and its sparkline."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forge_tui.telemetry.ring import Ring, spark

BLOCKS = " ▁▂▃▄▅▆▇█"
VALUES = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=50)


@given(VALUES, st.integers(1, 20), st.integers(0, 30))
def test_the_ring_keeps_the_newest(values: list[float | None], capacity: int, count: int) -> None:
    """A full ring holds the last values in order, and `tail` the last of those."""
    ring = Ring(capacity)
    for value in values:
        ring.push(value)
    kept = values[-capacity:]
    assert ring.tail(capacity) == kept
    assert ring.tail(count) == (kept[-count:] if count else [])
    assert len(ring) == len(kept)
    assert ring.last == (kept[-1] if kept else None)


@given(VALUES, st.integers(0, 60))
def test_a_sparkline_has_its_width(values: list[float | None], width: int) -> None:
    """Whatever the values, the line has just the cells asked for."""
    line = spark(values, width, BLOCKS, 0.0, 100.0)
    assert len(line) == width
    assert set(line) <= set(BLOCKS)


def test_levels_and_gaps() -> None:
    """The lowest value shows, the highest is full, what is missing is a blank, and the newest is at the right."""
    assert spark([0.0, 50.0, 100.0, None, 250.0], 7, BLOCKS, 0.0, 100.0) == "  ▁▄█ █"
    assert spark([5.0, 5.0], 2, BLOCKS, 5.0, 5.0) == "▁▁"
