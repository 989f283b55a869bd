"""A question before what cannot be taken back."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from forge_tui.tui.keys import bindings_for


class ConfirmScreen(ModalScreen[bool], inherit_bindings=False):
    """Yes or no; nothing happens on any other key."""

    DEFAULT_CSS = """
    ConfirmScreen { align: center middle; background: $background 60%; }
    ConfirmScreen > Vertical {
        width: 64; max-width: 90%; height: auto; background: $surface; padding: 1 2;
    }
    ConfirmScreen Static { height: auto; width: 1fr; }
    ConfirmScreen .question { text-style: bold; }
    ConfirmScreen .keys { color: $muted; margin-top: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("confirm")

    def __init__(self, question: str, consequence: str, yes: str) -> None:
        super().__init__()
        self.question = question
        self.consequence = consequence
        self.yes = yes

    def compose(self) -> ComposeResult:
        """Question, what follows, keys."""
        with Vertical():
            yield Static(self.question, classes="question", markup=False)
            yield Static(self.consequence, markup=False)
            yield Static(f"y {self.yes}    n leave it as it is", classes="keys", markup=False)

    def do_confirm_yes(self) -> None:
        """Do it."""
        self.dismiss(True)

    def do_confirm_no(self) -> None:
        """Leave it."""
        self.dismiss(False)
