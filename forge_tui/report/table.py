"""Plain tables: columns as wide as their content; where the width is bounded, text is cut and columns are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forge_tui.report.format import one_line

_GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and what may be done to the column where there is no room for it."""

    head: str
    most: int = 0
    """Most characters of a cell; 0 for any."""
    right: bool = False
    least: int = 0
    """Characters to which it may be cut in a narrow terminal; 0 leaves it as wide as its content."""
    drop: int = 0
    """Columns with the highest number are left out first; those with 0 stay."""


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table; `notes` are sentences that belong below it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def heads(self) -> tuple[str, ...]:
        """The headings."""
        return tuple(column.head for column in self.columns)


def render(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int = 0) -> str:
    """The table as lines of at most `width` characters unless that is 0; indentation of cells is kept."""
    cells = [[column.head for column in columns]]
    cells += [[_cut(cell, column.most) for cell, column in zip(row, columns, strict=True)] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    shown = _fit(columns, widths, width) if width else list(range(len(columns)))
    lines = []
    for row in cells:
        parts = []
        for i in shown:
            cell = _cut(row[i], widths[i])
            parts.append(cell.rjust(widths[i]) if columns[i].right else cell.ljust(widths[i]))
        lines.append((" " * _GAP).join(parts).rstrip())
    lines.insert(1, "-" * min(width or 80, max(map(len, lines), default=0)))
    return "\n".join(line if not width or len(line) <= width else _end(line, width) for line in lines)


def _fit(columns: Sequence[Column], widths: list[int], width: int) -> list[int]:
    """Which columns are shown; `widths` are narrowed to what they get."""
    shown = list(range(len(columns)))
    while shown:
        over = sum(widths[i] for i in shown) + _GAP * (len(shown) - 1) - width
        slack = {i: max(0, widths[i] - columns[i].least) for i in shown if columns[i].least}
        last = max(shown, key=lambda i: columns[i].drop)
        if over <= sum(slack.values()) or columns[last].drop == 0:
            for _ in range(max(0, min(over, sum(slack.values())))):
                widest = max(slack, key=lambda i: slack[i])
                slack[widest] -= 1
                widths[widest] -= 1
            break
        shown.remove(last)
    return shown


def _cut(cell: str, most: int) -> str:
    indent = len(cell) - len(cell.lstrip(" "))
    text = " " * indent + one_line(cell)
    return text if not most or len(text) <= most else _end(text, most)


def _end(text: str, most: int) -> str:
    return text[: most - 2] + ".." if most > 2 else text[:most]
