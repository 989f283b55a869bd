"""The main screen: status line, panes for the terminal's size, tabs, footer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.events import DescendantFocus, Resize
from textual.screen import Screen
from textual.widgets import Input, Static

from forge_tui.tui import layout
from forge_tui.tui.actions import Action, footer_for, show_key
from forge_tui.tui.glyphs import Glyphs
from forge_tui.tui.keys import bindings_for
from forge_tui.tui.paint import Paint, Piece
from forge_tui.tui.panes.base import Pane
from forge_tui.tui.panes.events import EventsPane
from forge_tui.tui.panes.hotspots import HotspotsPane
from forge_tui.tui.panes.kernel import KernelPane
from forge_tui.tui.panes.result import ResultPane
from forge_tui.tui.panes.telemetry import TelemetryPane
from forge_tui.tui.panes.tree import TreePane
from forge_tui.tui.screens.pick import FilterInput
from forge_tui.tui.state import SessionView
from forge_tui.tui.widgets.lines import Line, Tabs

if TYPE_CHECKING:
    from forge_tui.tui.app import ForgeApp


class MainScreen(Screen[None], inherit_bindings=False):
    """Panes and what is around them. What the keys do beyond the panes themselves is in the app."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("main")

    def __init__(self, paint: Paint, glyphs: Glyphs, state: SessionView) -> None:
        super().__init__()
        self.paint = paint
        self.glyphs = glyphs
        self.state = state
        self.wish = layout.Wish()
        self.plan = layout.Plan()
        self._telemetry_height: int | str = ""
        self.auto_zoomed = False
        """Whether the zoom came by itself, when the session ended on a small terminal."""
        self.status = Line(paint, id="status")
        self.hotspots = HotspotsPane(paint, glyphs, state)
        self.candidates = TreePane(paint, glyphs, state)
        self.kernel = KernelPane(paint, glyphs, state)
        self.telemetry = TelemetryPane(paint, glyphs, state)
        self.events = EventsPane(paint, glyphs, state)
        self.result = ResultPane(paint, glyphs, state)
        self.panes: dict[str, Pane] = {
            pane.pane_id(): pane
            for pane in (self.hotspots, self.candidates, self.kernel, self.telemetry, self.events, self.result)
        }
        self.tabs = Tabs(paint, self._tab_names)
        self.footer = Line(paint, id="footer")
        self.search = FilterInput(id="search", placeholder="search in this pane", select_on_focus=False)
        self.search.cursor_blink = False
        self.small = Static(
            f"This terminal is too small: at least {layout.MIN_WIDTH} by {layout.MIN_HEIGHT} is needed. "
            "The search goes on.", id="small", markup=False,
        )  # fmt: skip
        self.left = Vertical(id="left")
        self.right = Vertical(id="right")
        self.body = Horizontal(id="body")

    @property
    def forge(self) -> ForgeApp:
        """The app, by its own type."""
        return cast("ForgeApp", self.app)

    def compose(self) -> ComposeResult:
        """Everything, once; sizes only show and hide."""
        yield self.status
        with self.body:
            with self.left:
                yield self.hotspots
                yield self.candidates
            with self.right:
                yield self.kernel
                yield self.result
                yield self.telemetry
                yield self.events
        yield self.tabs
        yield self.search
        yield self.footer
        yield self.small

    def on_mount(self) -> None:
        """Start in the search tree, if nothing else was asked for already."""
        self.search.display = False
        self.relayout()
        self._keep_focus()

    # ---- layout

    def on_resize(self, _: Resize) -> None:
        """Other sizes show other panes."""
        self.relayout()
        self.call_after_refresh(self.forge.renew_status)
        self.call_after_refresh(self._keep_focus)

    def relayout(self) -> None:
        """Show and hide for the present size and wish."""
        self.plan = layout.plan(self.size.width, self.size.height, self.wish)
        shown = self.plan.shown
        for name, pane in self.panes.items():
            pane.display = name in shown
        self.left.display = any(name in layout.LEFT for name in shown)
        self.right.display = any(name in layout.RIGHT for name in shown)
        self.body.display = not self.plan.too_small
        self.status.display = not self.plan.too_small
        self.small.display = self.plan.too_small
        self.tabs.display = not self.plan.too_small
        self.footer.display = not self.plan.too_small and not self.search.display
        self.set_class(self.plan.stacked, "-stacked")
        self.set_class(len(self.plan.right) > 1, "-shared")
        self.fit_telemetry()
        self.renew_around()

    def fit_telemetry(self) -> None:
        """Beside other panes the telemetry is as high as what it has to say."""
        shared = len(self.plan.right) > 1
        height: int | str = self.telemetry.height_for(self.size.height) if shared else "1fr"
        if height != self._telemetry_height:
            self._telemetry_height = height
            self.telemetry.styles.height = height

    def _keep_focus(self) -> None:
        """A hidden pane loses the focus, and at the start none could take it yet."""
        if not self.plan.too_small and not self.search.display:
            self.focused_pane.list.focus(scroll_visible=False)

    def focus_pane(self, name: str) -> None:
        """Show a pane and give it the keys; asked for again, it is zoomed."""
        if self.auto_zoomed and name != self.wish.focused:
            self.set_zoom(False)
        self.wish = layout.after_focus(self.wish, name)
        self.relayout()
        self.panes[name].list.focus(scroll_visible=False)

    def show_pane(self, name: str) -> None:
        """Show a pane in its place without taking the keys from the present one."""
        wish = layout.after_focus(self.wish, name)
        self.wish = layout.Wish(focused=self.wish.focused, upper=wish.upper, lower=wish.lower, zoomed=self.wish.zoomed)
        self.relayout()

    def set_zoom(self, zoomed: bool) -> None:
        """Show the focused pane alone, or not."""
        self.auto_zoomed = False
        self.wish = layout.Wish(
            focused=self.wish.focused, upper=self.wish.upper, lower=self.wish.lower, zoomed=zoomed
        )
        self.relayout()

    @property
    def focused_pane(self) -> Pane:
        """The pane that has the keys."""
        return self.panes[self.wish.focused]

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """A click may have moved the focus; what is told late of a focus that went on counts for nothing."""
        if event.widget is not self.focused:
            return
        for node in event.widget.ancestors_with_self:
            if isinstance(node, Pane) and node.id != self.wish.focused:
                self.wish = layout.after_focus(self.wish, str(node.id))
                self.relayout()
        self.renew_around()

    def on_tabs_chosen(self, event: Tabs.Chosen) -> None:
        """A tab was clicked."""
        self.focus_pane(event.pane)

    # ---- tabs and footer

    def _tab_names(self) -> list[tuple[str, str, str]]:
        shown = self.plan.shown
        gap = " " if self.size.width >= 72 else ""
        return [
            (name, f"{self.panes[name].number} {self.panes[name].name_shown}{gap}",
             "focus" if name == self.wish.focused else "shown" if name in shown else "")
            for name in layout.PANES
        ]  # fmt: skip

    def renew_around(self) -> None:
        """Tabs, titles and footer again."""
        self.tabs.renew()
        for pane in self.panes.values():
            pane.renew_title()
        shown = [self._key_hint(action) for action in footer_for(self.wish.focused, live=self.state.searching)]
        # the way to help and the way out stay, whatever has to go
        tail = shown[-2:]
        kept = shown[:-2]
        while kept and sum(len(key) + len(label) for key, label in kept + tail) > self.size.width:
            kept.pop()
        pieces: list[Piece] = []
        for key, label in kept + tail:
            pieces += [(key, "primary"), (label, "muted")]
        self.footer.show(pieces)

    def _key_hint(self, action: Action) -> tuple[str, str]:
        label = action.label
        if action.id == "run.pause" and self.state.paused:
            label = "go on"
        elif action.id == "target.next" and self.wish.focused == "kernel":
            label = "next view"
        return f" {show_key(action.keys[0])}", f" {label} "

    # ---- search

    def start_search(self) -> None:
        """Open the search line."""
        self.search.value = ""
        self.search.display = True
        self.footer.display = False
        self.search.focus(scroll_visible=False)

    def end_search(self, *, keep: bool) -> None:
        """Close the search line; without `keep` nothing stays marked."""
        if not self.search.display:
            return
        self.search.display = False
        self.footer.display = not self.plan.too_small
        if not keep:
            self.focused_pane.end_search()
        self.focused_pane.list.focus(scroll_visible=False)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Go to the first hit as one types."""
        if event.input is self.search and self.search.display and event.value:
            found = self.focused_pane.find(event.value)
            self.search.set_class(not found, "-missing")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Stay at the hit."""
        if event.input is self.search:
            if event.value and not self.focused_pane.find(event.value):
                self.forge.say(f"Nothing here has {event.value!r}.")
            self.end_search(keep=True)

    def find_again(self, step: int) -> None:
        """The next or previous hit of what was searched last."""
        pane = self.focused_pane
        needle = self.search.value
        if not needle:
            self.forge.say("Nothing was searched for yet; / starts.")
        elif not pane.find(needle, step=step, after=True):
            self.forge.say(f"Nothing here has {needle!r}.")
