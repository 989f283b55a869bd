"""A list to choose from, filtered as one types; palette, help, sessions and themes are all this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Input

from forge_tui.tui.glyphs import Glyphs
from forge_tui.tui.keys import bindings_for
from forge_tui.tui.paint import Paint, Piece
from forge_tui.tui.text import fit
from forge_tui.tui.widgets.linelist import LineList
from forge_tui.tui.widgets.lines import Line


@dataclass(frozen=True, slots=True)
class Choice:
    """One line of a list: what is returned, what is shown, and a hint at its right."""

    value: str
    text: str
    hint: str = ""
    style: str = "text"
    heading: bool = False
    """A line that only divides; it cannot be chosen."""

    def matches(self, words: list[str]) -> bool:
        """Whether every word is in what is shown or returned."""
        shown = f"{self.value} {self.text} {self.hint}".lower()
        return all(word in shown for word in words)


class ChoiceList(LineList):
    """The choices that match the filter."""

    def __init__(self, paint: Paint, glyphs: Glyphs) -> None:
        super().__init__(paint, id="choices", empty="Nothing matches.")
        self.glyphs = glyphs
        self.choices: list[Choice] = []

    def take(self, choices: list[Choice]) -> None:
        """Show other choices, the first that can be chosen marked."""
        self.choices = choices
        self.cursor = next((n for n, choice in enumerate(choices) if not choice.heading), 0)
        self.rows_changed()
        self.scroll_rows(0)

    def move_to(self, row: int, *, by_user: bool = True) -> None:
        """Skip the headings."""
        row = max(0, min(row, len(self.choices) - 1))
        step = 1 if row >= self.cursor else -1
        at = row
        while 0 <= at < len(self.choices) and self.choices[at].heading:
            at += step
        if not 0 <= at < len(self.choices):
            return
        super().move_to(at, by_user=by_user)

    def row_count(self) -> int:
        """The choices."""
        return len(self.choices)

    def row_pieces(self, row: int, width: int) -> list[Piece]:
        """Text at the left, hint at the right."""
        choice = self.choices[row]
        if choice.heading:
            return [(f" {choice.text}", "accent")]
        hint = choice.hint[: max(0, width - 12)]
        room = width - len(hint) - 4
        return [(f"  {fit(choice.text, room, self.glyphs.ellipsis)} ", choice.style), (hint, "muted")]


class FilterInput(Input):
    """One line of typing; up and down go to the list."""

    DEFAULT_CSS = """
    FilterInput, FilterInput:focus { border: none; height: 1; padding: 0 1; background: $panel; }
    """


class PickScreen(ModalScreen[str | None], inherit_bindings=False):
    """Choose one of a list; None when closed without a choice.

    `typing` puts the keys into the filter at once; without it they move in the list, and `/` goes to the filter.
    `preview` is told the marked value as it changes.
    """

    DEFAULT_CSS = """
    PickScreen { align: center middle; background: $background 60%; }
    PickScreen > Vertical {
        width: 92%; max-width: 110; height: 90%; max-height: 44; background: $surface; padding: 1 2;
    }
    PickScreen ChoiceList { height: 1fr; background: $surface; }
    PickScreen .title { background: $surface; }
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("pick")

    def __init__(
        self, paint: Paint, glyphs: Glyphs, title: str, choices: Sequence[Choice], *, typing: bool = False,
        preview: Callable[[str], None] | None = None, current: str | None = None, note: str = "",
        extra: Callable[[str], list[Choice]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.paint = paint
        self.title_line = Line(paint, classes="title")
        self.note_line = Line(paint, classes="title")
        self.list = ChoiceList(paint, glyphs)
        self.filter = FilterInput(placeholder="type to filter", select_on_focus=False)
        self.filter.cursor_blink = False
        self._title_text = title
        self._all = list(choices)
        self._typing = typing
        self._preview = preview
        self._current = current
        self._note = note
        self._extra = extra

    def compose(self) -> ComposeResult:
        """Title, filter, list, note."""
        with Vertical():
            yield self.title_line
            yield self.filter
            yield self.list
            yield self.note_line

    def on_mount(self) -> None:
        """Fill and focus."""
        self.title_line.show([(self._title_text, "strong")])
        note = self._note or "enter chooses, esc closes" + ("" if self._typing else ", / filters")
        self.note_line.show([(note, "muted")])
        self._renew("")
        if self._current is not None:
            for number, choice in enumerate(self._all):
                if choice.value == self._current and not choice.heading:
                    self.list.cursor = number
        (self.filter if self._typing else self.list).focus()
        self.call_after_refresh(self.list.reveal_cursor)

    def on_resize(self, _: Resize) -> None:
        """The list keeps its mark in the window."""
        self.call_after_refresh(self.list.reveal_cursor)

    def _renew(self, needle: str) -> None:
        words = needle.lower().split()
        found = [
            choice for choice in self._all
            if not words or (not choice.heading and choice.matches(words))
        ]  # fmt: skip
        if self._extra is not None and words:
            found = self._extra(needle.strip()) + found
        self.list.take(found)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter as one types."""
        self._renew(event.value)

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Enter in the filter takes the marked line."""
        self.do_pick_choose()

    def on_line_list_moved(self, event: LineList.Moved) -> None:
        """Preview what is marked."""
        if self._preview is not None and self.list.choices:
            self._preview(self.list.choices[event.row].value)

    def on_line_list_entered(self, _: LineList.Entered) -> None:
        """Enter in the list takes the line."""
        self.do_pick_choose()

    # ---- actions

    def do_pick_choose(self) -> None:
        """Take the marked line."""
        if self.list.choices and not self.list.choices[self.list.cursor].heading:
            self.dismiss(self.list.choices[self.list.cursor].value)

    def do_pick_cancel(self) -> None:
        """Close without a choice."""
        self.dismiss(None)

    def do_pick_down(self) -> None:
        """The next line, from the filter too."""
        self.list.do_list_down()

    def do_pick_up(self) -> None:
        """The line before, from the filter too."""
        self.list.do_list_up()

    def do_search_start(self) -> None:
        """To the filter."""
        self.filter.focus()

    def do_search_next(self) -> None:
        """As down."""
        self.list.do_list_down()

    def do_search_previous(self) -> None:
        """As up."""
        self.list.do_list_up()
