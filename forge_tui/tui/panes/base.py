"""What every pane is: a title line over a list, and a search in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import Resize

from forge_tui.tui.glyphs import Glyphs
from forge_tui.tui.paint import Paint, Piece
from forge_tui.tui.state import SessionView
from forge_tui.tui.widgets.linelist import LineList
from forge_tui.tui.widgets.lines import Line

if TYPE_CHECKING:
    from forge_tui.tui.app import ForgeApp


class Pane(Vertical):
    """A pane of the main screen. Its id is the pane's name; its body takes the keys."""

    DEFAULT_CSS = """
    Pane { height: 1fr; }
    Pane > .title { background: $surface; color: $foreground; }
    Pane:focus-within > .title { background: $panel; }
    Pane > LineList { height: 1fr; }
    """

    number = 0
    name_shown = ""

    def __init__(self, paint: Paint, glyphs: Glyphs, state: SessionView, body: LineList) -> None:
        super().__init__(id=type(self).pane_id())
        self.paint = paint
        self.glyphs = glyphs
        self.state = state
        self.list = body
        self.title_line = Line(paint, classes="title")
        self._title: list[Piece] = []

    @classmethod
    def pane_id(cls) -> str:
        """The id in the layout."""
        return cls.__name__.removesuffix("Pane").lower()

    @property
    def forge(self) -> ForgeApp:
        """The app, by its own type."""
        return cast("ForgeApp", self.app)

    def compose(self) -> ComposeResult:
        """Title over body."""
        yield self.title_line
        yield self.list

    def show_title(self, pieces: list[Piece]) -> None:
        """What stands after the pane's number and name."""
        self._title = pieces
        self.renew_title()

    def renew_title(self) -> None:
        """Paint the title again, stronger with the focus."""
        strong = self.forge.main.wish.focused == self.id
        head: Piece = (f" {self.number} {self.name_shown} ", "tab_focus" if strong else "strong")
        self.title_line.show([head, (" ", "text"), *self._title])

    def on_resize(self, _: Resize) -> None:
        """What is made for a width is made again."""
        self.call_after_refresh(self.renew_width)

    def renew_width(self) -> None:
        """Make what hangs on the width again; panes that have such things."""

    # ---- search, for every list alike

    def find(self, needle: str, *, step: int = 1, after: bool = False) -> bool:
        """Go to the next row that holds `needle`; whether there is one."""
        count = self.list.row_count()
        start = (self.list.cursor + (step if after else 0)) % max(1, count)
        row = self.list.search(needle, start=start, step=step)
        self.list.refresh()
        if row is None:
            return False
        self.list.move_to(row)
        return True

    def end_search(self) -> None:
        """Forget what was searched for."""
        self.list.needle = ""
        self.list.refresh()

    # ---- copying

    def copy_text(self) -> tuple[str, str] | None:
        """Text and file name of what `y` copies here."""
        if not self.list.row_count():
            return None
        return self.list.row_text(self.list.cursor), f"{self.id}.txt"
