"""Source text with line numbers and colours, painted line by line; also shows plain text."""

from __future__ import annotations

from rich.segment import Segment
from textual.strip import Strip
from textual.worker import get_current_worker

from forge_tui.tui.highlight import OFF_LOOP_LINES, HighlightCache, highlight, plain, total_width
from forge_tui.tui.paint import Paint, Piece
from forge_tui.tui.text import clean, wrap
from forge_tui.tui.widgets.linelist import LineList

MAX_LINE = 2000
"""Longer lines end in the sign for more."""


class SourceView(LineList):
    """Lines of a source. The cursor marks a line by its number only, so that the colours stay."""

    def __init__(self, paint: Paint, *, id: str | None = None, empty: str = "") -> None:  # noqa: A002
        super().__init__(paint, id=id, empty=empty)
        self._lines: list[list[Piece]] = []
        self._cache = HighlightCache()
        self._shown: tuple[str, str] | None = None
        self._numbers = False
        self._width = 0
        self._prose = ""

    @property
    def text(self) -> str:
        """What is shown, as it was given."""
        return self._shown[0] if self._shown else self._prose

    def show_source(self, source: str, language: str) -> None:
        """Show a source with line numbers; the place is kept when the same source comes again."""
        if self._shown == (source, language):
            return
        self._shown, self._prose, self._numbers = (source, language), "", True
        lines = self._cache.get(source, language)
        if lines is None and source.count("\n") < OFF_LOOP_LINES:
            lines = highlight(source, language)
            self._cache.put(source, language, lines)
        self._take(lines if lines is not None else plain(source))
        if lines is None:
            self.run_worker(lambda: self._highlight(source, language), thread=True, exclusive=True,
                            exit_on_error=False, group="highlight")  # fmt: skip

    def show_lines(self, lines: list[list[Piece]], *, keep: bool = False) -> None:
        """Show styled lines without numbers; `keep` stays at the same place, for a text that is renewed."""
        same = self._shown is None and not self._numbers and lines == self._lines
        self._shown, self._numbers = None, False
        self._prose = "\n".join("".join(text for text, _ in line) for line in lines)
        if same:
            return
        if keep and self._lines:
            self._lines = lines
            self._width = min(MAX_LINE, total_width(lines))
            self.rows_changed()
        else:
            self._take(lines)

    def show_text(self, text: str, style: str = "text") -> None:
        """Show plain text, wrapped to the window."""
        width = max(20, self.size.width - 2)
        self.show_lines([
            [(clean(line, wide=True), style)] for line in wrap(text.replace("\r", ""), width)
        ])  # fmt: skip
        self._prose = text

    def clear(self) -> None:
        """Show nothing but the sentence for it."""
        self._shown, self._prose = None, ""
        self._take([])

    def _highlight(self, source: str, language: str) -> None:
        lines = highlight(source, language)
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._highlighted, source, language, lines)

    def _highlighted(self, source: str, language: str, lines: list[list[Piece]]) -> None:
        self._cache.put(source, language, lines)
        if self._shown == (source, language):
            self._lines = lines
            self.refresh()

    def _take(self, lines: list[list[Piece]]) -> None:
        self._lines = lines
        self._width = min(MAX_LINE, total_width(lines))
        self.cursor = 0
        self.rows_changed()
        self.scroll_to(x=0, y=0, animate=False, force=True, immediate=True)

    # ---- LineList

    @property
    def number_width(self) -> int:
        """Cells of the line numbers, the blank after them included."""
        return len(str(max(1, len(self._lines)))) + 2 if self._numbers else 1

    def row_count(self) -> int:
        """The lines."""
        return len(self._lines)

    def content_width(self) -> int:
        """The longest line."""
        return self._width + self.number_width if self._lines else 0

    def row_pieces(self, row: int, width: int) -> list[Piece]:  # noqa: ARG002 - rows are cut by the base
        """A line without its number."""
        return self._lines[row]

    def row_text(self, row: int) -> str:
        """A line's text."""
        return "".join(text for text, _ in self._lines[row])

    def cursor_kind(self, row: int) -> str:
        """Only numbered lines are marked; other text is scrolled."""
        return super().cursor_kind(row) if self._numbers else ""

    def do_list_down(self) -> None:
        """A line down; text without numbers scrolls."""
        self._step(1)

    def do_list_up(self) -> None:
        """A line up; text without numbers scrolls."""
        self._step(-1)

    def _step(self, rows: int) -> None:
        if self._numbers:
            self.move_to(self.cursor + rows)
            return
        top = max(0, min(round(self.scroll_y) + rows, self.max_scroll_y))
        self.scroll_rows(top)
        self.move_to(top if rows < 0 else top + self.size.height - 1)

    def render_line(self, y: int) -> Strip:
        """Number, then the part of the line that the window is scrolled to."""
        row = y + round(self.scroll_y)
        if row >= len(self._lines):
            return super().render_line(y)
        width, gutter, base = self.size.width, self.number_width, self.base_style()
        kind = self.cursor_kind(row)
        left = round(self.scroll_x)
        inner = max(0, width - gutter - 1)
        number = f"{row + 1:>{gutter - 1}} " if self._numbers else " "
        head = self.paint.strip([(number, "comment")], gutter, base, cursor=kind)
        pieces = self._lines[row]
        if self.needle and self.needle in self.row_text(row).lower():
            pieces = [(self.row_text(row), "hit")]
        body = Strip([Segment(text, base + self.paint.style(name)) for text, name in pieces])
        return Strip.join([head, body.crop_extend(left, left + inner, base), Strip.blank(1, base)])
