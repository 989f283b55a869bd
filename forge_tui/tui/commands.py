"""What the keys of the main screen do, apart from the panes' own movement."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from forge_tui.core.errors import ForgeError
from forge_tui.tui import clipboard, layout, remote
from forge_tui.tui.panes.hotspots import HotspotList
from forge_tui.tui.panes.tree import NodeList
from forge_tui.tui.screens.confirm import ConfirmScreen
from forge_tui.tui.widgets.linelist import LineList

if TYPE_CHECKING:
    from textual.app import App

    from forge_tui.tui.app import ForgeApp

    _Base = App[int]
else:
    _Base = object

_QUIT_WINDOW_S = 3.0
GOES_ON = "The search goes on in the background"


class Commands(_Base):
    """Handlers of the registry's `main` and `app` actions; mixed into the app."""

    @property
    def _forge(self) -> ForgeApp:
        return cast("ForgeApp", self)

    # ---- leaving

    def do_app_interrupt(self) -> None:
        """The first ctrl+c says what the second does."""
        app = self._forge
        now = app.clock()
        if now - app.quit_at <= _QUIT_WINDOW_S:
            app.exit(0)
            return
        app.quit_at = now
        tail = f" {GOES_ON}; S stops it." if app.view.live and not app.view.engine_gone(now) else ""
        app.say(f"ctrl+c again leaves.{tail}", timeout=_QUIT_WINDOW_S)

    def do_app_quit(self) -> None:
        """Leave at once."""
        self._forge.exit(0)

    def do_app_suspend(self) -> None:
        """Back to the shell."""
        self._forge.action_suspend_process()

    def do_app_redraw(self) -> None:
        """Every cell again, for a terminal that something else wrote to."""
        app = self._forge
        for widget in app.screen.walk_children():
            widget.refresh()
        app.screen.refresh(layout=True)

    def do_view_back(self) -> None:
        """Close the search, then the zoom; at the top level leave, asking while a search runs."""
        app = self._forge
        main = app.main
        if main.search.display:
            main.end_search(keep=False)
        elif main.wish.zoomed and not main.auto_zoomed:
            main.set_zoom(False)
        elif app.view.live and not app.view.engine_gone(app.clock()):
            def answered(yes: bool | None) -> None:
                if yes:
                    app.exit(0)

            app.push_screen(ConfirmScreen("Leave the screen?", f"{GOES_ON}; forge-tui shows it again.", "leave"),
                            answered)  # fmt: skip
        else:
            app.exit(0)

    # ---- panes

    def _pane(self, name: str) -> None:
        main = self._forge.main
        if main.wish.focused == name and main.focused_pane.list.has_focus:
            main.set_zoom(not main.wish.zoomed)
        else:
            main.focus_pane(name)

    def do_pane_hotspots(self) -> None:
        """To the hotspots."""
        self._pane("hotspots")

    def do_pane_tree(self) -> None:
        """To the search tree."""
        self._pane("tree")

    def do_pane_kernel(self) -> None:
        """To the source."""
        self._pane("kernel")

    def do_pane_telemetry(self) -> None:
        """To the telemetry."""
        self._pane("telemetry")

    def do_pane_events(self) -> None:
        """To the events."""
        self._pane("events")

    def do_pane_result(self) -> None:
        """To the result."""
        self._pane("result")

    def do_pane_next(self) -> None:
        """To the next pane."""
        main = self._forge.main
        main.focus_pane(layout.neighbour(main.wish.focused, 1))

    def do_pane_previous(self) -> None:
        """To the pane before."""
        main = self._forge.main
        main.focus_pane(layout.neighbour(main.wish.focused, -1))

    def do_pane_zoom(self) -> None:
        """This pane alone, or not."""
        main = self._forge.main
        main.set_zoom(not main.wish.zoomed)

    # ---- selection

    def select_target(self, target: str, *, follow: bool = False) -> None:
        """Show a target's tree, at its newest node when following, else at its best."""
        app = self._forge
        view = app.view.targets.get(target)
        if view is None:
            return
        app.following = follow
        tree = app.main.candidates.rows
        tree.take(view)
        app.main.hotspots.rows.shown_target = target
        app.main.hotspots.rows.refresh()
        at = view.newest if follow else view.best if view.best is not None else view.newest
        if at is not None:
            tree.go_to_node(at, by_user=False)
        app.main.candidates.renew(follow=follow and app.view.live)
        self.show_selected()

    def set_following(self, following: bool) -> None:
        """Follow the newest node, or no more; the tree's title says so."""
        app = self._forge
        app.following = following
        app.main.candidates.renew(follow=following and app.view.live)

    def show_selected(self) -> None:
        """Show the tree's node in the kernel pane; read its source if it is not known."""
        app = self._forge
        tree = app.main.candidates.rows
        node = tree.view.nodes.get(tree.cursor_node) if tree.view and tree.cursor_node is not None else None
        if node is None:
            app.kernel.show_node(None, None)
            return
        code = app.sources.get(node.id)
        app.kernel.show_node(node, code)
        if code is None:
            app.follower.want_source(node.id)
            if app.threaded:
                app.set_timer(0.03, app.drain)

    def on_line_list_moved(self, event: LineList.Moved) -> None:
        """The cursor moved in some pane."""
        app = self._forge
        if isinstance(event.sender, NodeList):
            if event.by_user and app.following:
                self.set_following(False)
            self.show_selected()
        elif isinstance(event.sender, HotspotList):
            app.main.hotspots.show_detail()

    def on_line_list_entered(self, event: LineList.Entered) -> None:
        """Enter in some pane."""
        app = self._forge
        main = app.main
        if event.sender is main.candidates.rows:
            main.focus_pane("kernel")
        elif event.sender is main.hotspots.rows:
            target = main.hotspots.target_id
            if target is None:
                main.hotspots.rows.do_node_toggle()
            else:
                self.select_target(target)
                main.focus_pane("tree")
        elif event.sender is main.events.rows and main.events.node is not None:
            self.go_to(main.events.node)

    def go_to(self, node: int) -> None:
        """Show a node, of whatever target."""
        app = self._forge
        for key, view in app.view.targets.items():
            if node in view.nodes:
                if app.main.candidates.rows.view is not view:
                    self.select_target(key)
                self.set_following(False)
                app.main.candidates.rows.go_to_node(node)
                app.main.focus_pane("tree")
                return
        app.say(f"There is no node #{node}.")

    def do_tree_best(self) -> None:
        """To the target's best node."""
        app = self._forge
        view = app.main.candidates.rows.view
        if view is None or view.best is None:
            app.say("No kernel of this target is right yet.")
            return
        self.set_following(False)
        app.main.candidates.rows.go_to_node(view.best)

    def do_tree_follow(self) -> None:
        """To the newest node of all, and on with it."""
        app = self._forge
        newest = app.view.newest
        if newest is None:
            app.say("There is no node yet.")
            return
        target, node = newest
        tree = app.main.candidates.rows
        if tree.view is None or tree.view.target.id != target:
            self.select_target(target, follow=True)
        tree.go_to_node(node, by_user=False)
        self.set_following(True)

    def do_target_next(self) -> None:
        """The next target; in the kernel pane the next view."""
        self._step_target(1)

    def do_target_previous(self) -> None:
        """The target before; in the kernel pane the view before."""
        self._step_target(-1)

    def _step_target(self, step: int) -> None:
        app = self._forge
        if app.main.wish.focused == "kernel":
            app.kernel.next_view(step)
            return
        order = app.view.order
        if not order:
            app.say("There are no targets yet.")
            return
        view = app.main.candidates.rows.view
        at = order.index(view.target.id) if view is not None and view.target.id in order else -step
        self.select_target(order[(at + step) % len(order)])

    # ---- search

    def do_search_start(self) -> None:
        """Search in the focused pane."""
        self._forge.main.start_search()

    def do_search_next(self) -> None:
        """The next hit."""
        self._forge.main.find_again(1)

    def do_search_previous(self) -> None:
        """The hit before."""
        self._forge.main.find_again(-1)

    # ---- the engine

    def _send(self, op: str, after: Callable[[], None]) -> None:
        app = self._forge
        session = app.view.session
        if session is None:
            app.say("There is no session yet.")
            return

        def work() -> None:
            try:
                remote.command(app.workspace, session, op)
            except ForgeError as error:
                app.call_from_thread(app.say, str(error), severity="error", timeout=8.0)
            else:
                app.call_from_thread(after)

        app.run_worker(work, thread=True, group="engine", exit_on_error=False)

    def do_run_pause(self) -> None:
        """Pause, or go on."""
        app = self._forge
        if not app.view.searching:
            app.say("There is no search to pause now.")
            return
        paused = app.view.paused

        def told() -> None:
            app.view.paused = not paused
            app.renew_status()
            app.say("The search goes on." if paused else "No new step begins until p is pressed again.")

        self._send("resume" if paused else "pause", told)

    def do_run_stop(self) -> None:
        """Stop the search, asking first."""
        app = self._forge
        if not app.view.live:
            app.say("The search is not running.")
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._send("stop", lambda: app.say("Stopping: the evaluation at work is finished first."))

        app.push_screen(ConfirmScreen(
            "Stop the search?", "Nothing is lost: R, or forge-tui resume, goes on where it was. Nothing is deployed.",
            "stop it",
        ), answered)  # fmt: skip

    def do_run_resume(self) -> None:
        """Start an engine for a session that has none."""
        app = self._forge
        info = app.view.info
        if info is None or info.state == "done":
            app.say("There is nothing to resume." if info is None else "This session is done.")
            return
        if app.view.live and not app.view.engine_gone(app.clock()):
            app.say("The engine is at work.")
            return
        session = info.id
        app.say("Starting the engine ...")

        def work() -> None:
            try:
                remote.resume(app.workspace, session)
            except ForgeError as error:
                app.call_from_thread(app.say, str(error), severity="error", timeout=10.0)
            else:
                app.call_from_thread(app.say, "The engine is at work again.")

        app.run_worker(work, thread=True, group="engine", exit_on_error=False)

    # ---- terminal

    def do_copy_thing(self) -> None:
        """Copy what the focused pane is about."""
        app = self._forge
        thing = app.main.focused_pane.copy_text()
        if thing is None:
            app.say("There is nothing to copy here yet.")
            return
        text, name = thing
        name = re.sub(r"[^A-Za-z0-9._-]", "_", name)[-120:]

        def write(sequence: str) -> None:
            app.call_from_thread(app.write_terminal, sequence)

        def work() -> None:
            done = clipboard.copy(text, name, write)
            app.call_from_thread(app.say, done.sentence(), timeout=8.0)

        app.run_worker(work, thread=True, group="copy", exit_on_error=False)

    def write_terminal(self, sequence: str) -> None:
        """Send an escape sequence to the terminal."""
        driver: Any = self._forge._driver  # noqa: SLF001 - a mixin of the app itself
        if driver is not None:
            driver.write(sequence)
            driver.flush()

    def do_mouse_toggle(self) -> None:
        """Give the mouse to the terminal, or take it back."""
        app = self._forge
        app.mouse_on = not app.mouse_on
        end = "h" if app.mouse_on else "l"
        self.write_terminal("".join(f"\x1b[?{mode}{end}" for mode in (1000, 1003, 1015, 1006)))
        app.say("The mouse is ours again." if app.mouse_on
                else "The mouse is the terminal's: select as usual; M takes it back.")  # fmt: skip
