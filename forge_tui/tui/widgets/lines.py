"""One-line widgets: the status line, a pane's title, the tabs, the footer."""

from __future__ import annotations

from collections.abc import Callable

from textual.events import Click
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from forge_tui.tui.paint import Paint, Piece


class Line(Widget):
    """A widget of one row, painted from pieces; painted again only when they change."""

    DEFAULT_CSS = """
    Line { height: 1; width: 1fr; }
    """

    def __init__(self, paint: Paint, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self.paint = paint
        self._pieces: list[Piece] = []
        self._generation = -1

    @property
    def text(self) -> str:
        """The plain text."""
        return "".join(text for text, _ in self._pieces)

    def show(self, pieces: list[Piece]) -> None:
        """Show these pieces."""
        if pieces != self._pieces or self._generation != self.paint.generation:
            self._pieces, self._generation = pieces, self.paint.generation
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """The row."""
        if y:
            return Strip.blank(self.size.width, self.rich_style)
        return self.paint.strip(self._pieces, self.size.width, self.rich_style)


class Tabs(Line):
    """Names of panes with their number keys; a click goes there."""

    class Chosen(Message):
        """A name was clicked."""

        def __init__(self, pane: str) -> None:
            super().__init__()
            self.pane = pane

    def __init__(self, paint: Paint, names: Callable[[], list[tuple[str, str, str]]]) -> None:
        super().__init__(paint, id="tabs")
        self._names = names
        self._spans: list[tuple[int, int, str]] = []

    def renew(self) -> None:
        """Read names, keys and state ("focus", "shown", "") again."""
        pieces: list[Piece] = [(" ", "text")]
        self._spans = []
        at = 1
        for pane, text, state in self._names():
            label = f"{text} "
            pieces.append((label, {"focus": "tab_focus", "shown": "strong"}.get(state, "muted")))
            self._spans.append((at, at + len(label), pane))
            at += len(label)
        self.show(pieces)

    def on_click(self, event: Click) -> None:
        """Go to the pane under the mouse."""
        for start, end, pane in self._spans:
            if start <= event.x < end:
                self.post_message(self.Chosen(pane))
