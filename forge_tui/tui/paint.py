"""Rows as styled pieces: the theme's styles by name, and rows put together from text and style names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

Piece = tuple[str, str]
"""Text and the name of its style."""

_CURSOR = Style(reverse=True, bold=True)


class Paint:
    """The current theme's styles; `generation` grows when they change, so that caches know."""

    def __init__(self, styles: Mapping[str, Style], *, no_color: bool = False) -> None:
        self._styles = dict(styles)
        self.no_color = no_color
        self.generation = 0

    def use(self, styles: Mapping[str, Style]) -> None:
        """Take another theme's styles."""
        self._styles = dict(styles)
        self.generation += 1

    def style(self, name: str) -> Style:
        """The style of that name; plain text for an unknown one."""
        return self._styles.get(name) or self._styles.get("text") or Style.null()

    def strip(self, pieces: Iterable[Piece], width: int, base: Style, *, cursor: str = "") -> Strip:
        """A row of exactly `width` cells.

        `cursor` is "" for none, "focus" where keys go to this row, "rest" where they go to another pane.
        A focused row is reversed as a whole, so that it shows without any colour.
        """
        if cursor == "focus":
            overlay = base + self.style("text") + _CURSOR
            segments = [Segment(text, overlay) for text, _ in pieces]
            blank = overlay
        else:
            under = base
            if cursor == "rest":
                under = base + (Style(underline=True) if self.no_color else self.style("cursor_rest"))
            segments = [Segment(text, under + self.style(name)) for text, name in pieces]
            blank = under
        used = sum(cell_len(segment.text) for segment in segments)
        if used < width:
            segments.append(Segment(" " * (width - used), blank))
        strip = Strip(segments)
        return strip if used <= width else strip.crop(0, width)


def pieces_text(pieces: Iterable[Piece]) -> str:
    """The plain text of a row."""
    return "".join(text for text, _ in pieces)
