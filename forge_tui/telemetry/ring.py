"""The last values of one measure. Pure."""

from __future__ import annotations

from collections import deque


class Ring:
    """A bounded series; None stands for a moment without a value."""

    def __init__(self, capacity: int = 600) -> None:
        self._values: deque[float | None] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def last(self) -> float | None:
        """The newest value."""
        return self._values[-1] if self._values else None

    def push(self, value: float | None) -> None:
        """Add the newest value; the oldest falls out when full."""
        self._values.append(value)

    def tail(self, count: int) -> list[float | None]:
        """The newest `count` values, oldest first; shorter while there are fewer."""
        if count <= 0:
            return []
        start = max(0, len(self._values) - count)
        return [self._values[at] for at in range(start, len(self._values))]


def spark(values: list[float | None], width: int, blocks: str, low: float, high: float) -> str:
    """A sparkline of exactly `width` cells, newest at the right.

    `blocks` goes from empty to full. A missing value is a blank; one at or below `low` shows the lowest mark.
    """
    top = len(blocks) - 1
    span = high - low
    cells = []
    for value in values[-width:] if width > 0 else []:
        if value is None:
            cells.append(" ")
            continue
        share = 0.0 if span <= 0 else min(1.0, max(0.0, (value - low) / span))
        cells.append(blocks[max(1, round(share * top))])
    return "".join(cells).rjust(width)
