"""The last step before an ASCII terminal: no cell leaves with anything else in it."""

from __future__ import annotations

from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_INSTEAD = {
    "│": "|", "┃": "|", "║": "|", "▏": "|", "▎": "|", "▌": "|", "▐": "|", "─": "-", "━": "-", "═": "-", "…": "~",
    "•": "*", "·": ".", "\u00d7": "x", "→": ">", "“": '"', "”": '"', "\u2018": "'", "\u2019": "'",
    "\u2013": "-", "—": "-", "µ": "u",
    "▁": " ", "▂": " ", "▃": " ", "▄": " ", "▅": " ", "▆": " ", "▇": " ", "▉": " ", "▊": " ", "▋": " ", "▍": " ",
    "┌": "+", "┐": "+", "└": "+", "┘": "+", "├": "+", "┤": "+", "█": "#", "░": ".", "▒": ":", "▓": "#",
}  # fmt: skip


@lru_cache(maxsize=4096)
def to_ascii(text: str) -> str:
    """Text with every other character replaced, cell for cell."""
    if text.isascii():
        return text
    return "".join(
        char if char.isascii() else _INSTEAD.get(char, "?" * cell_len(char)) for char in text
    )


class AsciiFilter(LineFilter):
    """Replaces what is not ASCII in every line that is painted."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - the base class has it
        """The segments in ASCII."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]
