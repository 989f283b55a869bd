"""The result: the whole model before and after, and each target's end."""

from __future__ import annotations

from forge_tui.tui.glyphs import Glyphs
from forge_tui.tui.paint import Paint, Piece
from forge_tui.tui.panes.base import Pane
from forge_tui.tui.state import SessionView
from forge_tui.tui.summary import model_pieces, summary
from forge_tui.tui.widgets.sourceview import SourceView


class ResultPane(Pane):
    """The summary as it stands now."""

    number = 6
    name_shown = "result"

    def __init__(self, paint: Paint, glyphs: Glyphs, state: SessionView) -> None:
        self.rows = SourceView(paint, id="result-lines", empty="The result comes here when there is one.")
        super().__init__(paint, glyphs, state, self.rows)

    def renew_width(self) -> None:
        """The text is wrapped."""
        self.renew(self.forge.clock())

    def renew(self, now: float) -> None:
        """Make the lines again."""
        if not self.display:
            return
        lines = summary(self.state, self.glyphs, max(40, self.rows.room - 1), now)
        self.rows.show_lines(lines, keep=True)
        title: list[Piece] = []
        if self.state.deployment is not None:
            title = model_pieces(self.state.deployment)
        self.show_title(title)

    def copy_text(self) -> tuple[str, str] | None:
        """All of it."""
        return (self.rows.text, f"{self.state.session}-result.txt") if self.rows.row_count() else None
