"""A list that paints only the rows on the screen, with a cursor; the base of every pane's body."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from textual.binding import BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from forge_tui.tui.keys import bindings_for
from forge_tui.tui.paint import Paint, Piece

_STEP = 64


class LineList(ScrollView, can_focus=True, inherit_bindings=False):
    """Rows by number. Subclasses say how many there are and what is in one.

    The cursor is a row number here; subclasses whose rows move keep it on what it stood for. Movement goes
    through `move_to`, which scrolls no more than is needed and tells the parent by `Moved`.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("list")
    ALLOW_MAXIMIZE = False

    class Moved(Message):
        """The cursor went to another row. `by_user` is false where the list itself moved it."""

        def __init__(self, sender: LineList, row: int, *, by_user: bool) -> None:
            super().__init__()
            self.sender = sender
            self.row = row
            self.by_user = by_user

        @property
        def control(self) -> LineList:
            """The list."""
            return self.sender

    class Entered(Message):
        """Enter was pressed on a row."""

        def __init__(self, sender: LineList, row: int) -> None:
            super().__init__()
            self.sender = sender
            self.row = row

        @property
        def control(self) -> LineList:
            """The list."""
            return self.sender

    def __init__(self, paint: Paint, *, id: str | None = None, empty: str = "") -> None:  # noqa: A002
        super().__init__(id=id)
        self.paint = paint
        self.cursor = 0
        self.empty = empty
        """The sentence shown while there are no rows."""
        self._base: Style | None = None
        self.needle = ""
        """What is searched for, in lower case."""

    # ---- for subclasses

    def row_count(self) -> int:
        """How many rows there are."""
        raise NotImplementedError

    def row_pieces(self, row: int, width: int) -> list[Piece]:
        """What a row shows."""
        raise NotImplementedError

    def row_text(self, row: int) -> str:
        """What search looks at and copy takes: the row's own text."""
        return "".join(text for text, _ in self.row_pieces(row, 400)).strip()

    def content_width(self) -> int:
        """Cells of the widest row where rows can be scrolled sideways; 0 where they are cut instead."""
        return 0

    # ---- changes

    def rows_changed(self, first: int = 0) -> None:
        """The number or the order of rows changed from row `first` on: sizes and that part are renewed."""
        count = self.row_count()
        if self.cursor >= count:
            self.cursor = max(0, count - 1)
        # another virtual size costs a layout of the whole screen, so it grows in steps; max_scroll_y keeps the
        # rows that are not there out of reach
        step = 1 << max(0, min(count // 16, _STEP).bit_length() - 1)
        height = -(-count // step) * step
        size = Size(self.content_width(), max(height, 1))
        if size != self.virtual_size:
            self.virtual_size = size
        top = round(self.scroll_y)
        if first <= top:
            self.refresh()
        elif first < top + self.size.height:
            # only what changed goes over the wire: a terminal gets every cell of a dirty region
            self.refresh_lines(first, top + self.size.height - first)

    def say_empty(self, sentence: str) -> None:
        """Another sentence for while there are no rows."""
        if sentence != self.empty:
            self.empty = sentence
            if not self.row_count():
                self.refresh()

    def row_changed(self, row: int) -> None:
        """One row shows something else."""
        if self.row_in_window(row):
            self.refresh_line(row)

    def row_in_window(self, row: int) -> bool:
        """Whether a row is within the window."""
        top = round(self.scroll_y)
        return top <= row < top + self.size.height

    def move_to(self, row: int, *, by_user: bool = True) -> None:
        """Put the cursor on a row and bring it into the window."""
        count = self.row_count()
        if not count:
            return
        row = max(0, min(row, count - 1))
        if row != self.cursor:
            old, self.cursor = self.cursor, row
            self.row_changed(old)
            self.row_changed(row)
        self.reveal_cursor()
        self.post_message(self.Moved(self, row, by_user=by_user))

    def reveal_cursor(self) -> None:
        """Scroll so that the cursor's row is in the window, by as little as possible."""
        height = self.size.height
        if height <= 0:
            return
        top = round(self.scroll_y)
        if self.cursor < top:
            self.scroll_rows(self.cursor)
        elif self.cursor >= top + height:
            self.scroll_rows(self.cursor - height + 1)

    def scroll_rows(self, top: int) -> None:
        """Make `top` the first row of the window."""
        self.scroll_to(y=max(0, top), animate=False, force=True, immediate=True)

    @property
    def max_scroll_y(self) -> int:
        """The last row at the bottom of the window."""
        return max(0, self.row_count() - self.size.height)

    @property
    def room(self) -> int:
        """Cells for a row's content; one column is kept for the scroll bar, so that rows do not jump for it."""
        return max(1, self.size.width - 1)

    # ---- painting

    def render_line(self, y: int) -> Strip:
        """One line of the window."""
        width = self.size.width
        row = y + round(self.scroll_y)
        base = self.base_style()
        count = self.row_count()
        if not count:
            lines = self._empty_lines(width)
            text = lines[y - 1] if 0 < y <= len(lines) else ""
            return self.paint.strip([(f" {text}", "muted")], width, base)
        if row >= count:
            return Strip.blank(width, base)
        return self.paint.strip(self.row_pieces(row, self.room), width, base, cursor=self.cursor_kind(row))

    def cursor_kind(self, row: int) -> str:
        """How the row is marked: "focus", "rest" or not at all."""
        if row != self.cursor:
            return ""
        return "focus" if self.has_focus else "rest"

    def base_style(self) -> Style:
        """The widget's own background; kept, since working it out costs more than painting a row."""
        if self._base is None:
            self._base = self.rich_style
        return self._base

    def notify_style_update(self) -> None:
        """Styles changed: the background is worked out again."""
        self._base = None
        super().notify_style_update()

    def _empty_lines(self, width: int) -> list[str]:
        from forge_tui.tui.text import wrap

        return wrap(self.empty, max(10, width - 2)) if self.empty else []

    def on_focus(self) -> None:
        """The cursor looks different with the focus."""
        self.row_changed(self.cursor)

    def on_blur(self) -> None:
        """The cursor looks different without the focus."""
        self.row_changed(self.cursor)

    def on_resize(self, _: Resize) -> None:
        """Keep the cursor in the window."""
        self.rows_changed()
        self.call_after_refresh(self.reveal_cursor)

    def on_click(self, event: Click) -> None:
        """The mouse puts the cursor; a second click is enter."""
        row = event.y + round(self.scroll_y)
        if row < self.row_count():
            self.move_to(row)
            if event.chain == 2:
                self.do_list_enter()

    # ---- actions of the registry

    def do_list_down(self) -> None:
        """One row down."""
        self.move_to(self.cursor + 1)

    def do_list_up(self) -> None:
        """One row up."""
        self.move_to(self.cursor - 1)

    def do_list_top(self) -> None:
        """First row."""
        self.move_to(0)

    def do_list_bottom(self) -> None:
        """Last row."""
        self.move_to(self.row_count() - 1)

    def do_list_half_down(self) -> None:
        """Half a window down."""
        self._page(max(1, self.size.height // 2))

    def do_list_half_up(self) -> None:
        """Half a window up."""
        self._page(-max(1, self.size.height // 2))

    def do_list_page_down(self) -> None:
        """A window down."""
        self._page(max(1, self.size.height - 1))

    def do_list_page_up(self) -> None:
        """A window up."""
        self._page(-max(1, self.size.height - 1))

    def _page(self, rows: int) -> None:
        count = self.row_count()
        top = max(0, min(round(self.scroll_y) + rows, count - self.size.height))
        self.scroll_rows(top)
        self.move_to(self.cursor + rows)

    def do_list_left(self) -> None:
        """Scroll sideways; trees close nodes instead."""
        self.scroll_to(x=max(0, self.scroll_x - 8), animate=False, immediate=True)

    def do_list_right(self) -> None:
        """Scroll sideways; trees open nodes instead."""
        self.scroll_to(x=self.scroll_x + 8, animate=False, immediate=True)

    def do_list_enter(self) -> None:
        """Take the row."""
        if self.row_count():
            self.post_message(self.Entered(self, self.cursor))

    # ---- search

    def search(self, needle: str, *, start: int, step: int = 1) -> int | None:
        """The first row from `start` on, round the end, whose text holds `needle`."""
        self.needle = needle.lower()
        count = self.row_count()
        if not needle or not count:
            return None
        for offset in range(count):
            row = (start + step * offset) % count
            if self.needle in self.row_text(row).lower():
                return row
        return None
