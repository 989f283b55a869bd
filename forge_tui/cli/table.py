"""Plain tables: columns as wide as their content, long text cut at a limit."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from forge_tui.report.format import one_line


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, the most characters a cell may have (0: any), and on which side it is aligned."""

    head: str
    most: int = 0
    right: bool = False


def render(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int = 0) -> str:
    """The table as lines, cut at `width` unless that is 0; indentation of cells is kept."""
    cells = [[column.head for column in columns]]
    cells += [[_cut(cell, column.most) for cell, column in zip(row, columns, strict=True)] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = [
        "  ".join(
            cell.rjust(size) if column.right else cell.ljust(size)
            for cell, size, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in cells
    ]
    lines.insert(1, "-" * min(80, max(map(len, lines))))
    return "\n".join(line if not width or len(line) <= width else line[: width - 2] + ".." for line in lines)


def terminal_width() -> int:
    """The terminal's columns; 0, without limit, where stdout is none."""
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if on_terminal else 0


def _cut(cell: str, most: int) -> str:
    indent = len(cell) - len(cell.lstrip(" "))
    text = " " * indent + one_line(cell)
    return text if not most or len(text) <= most else text[: most - 2] + ".."
