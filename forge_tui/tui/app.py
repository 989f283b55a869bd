"""The screen process: one Textual app over a view of the store."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.app import App, InvalidThemeError
from textual.binding import BindingType

from forge_tui.core.paths import Workspace
from forge_tui.core.records import Node
from forge_tui.tui import glyphs as glyphs_module
from forge_tui.tui import themes
from forge_tui.tui.asciifilter import AsciiFilter
from forge_tui.tui.commands import Commands
from forge_tui.tui.feed import Feed, NoFeed, SamplerFeed
from forge_tui.tui.follow import Follower
from forge_tui.tui.keys import bindings_for
from forge_tui.tui.paint import Paint
from forge_tui.tui.panes.kernel import KernelPane
from forge_tui.tui.pickers import Pickers
from forge_tui.tui.screens.main import MainScreen
from forge_tui.tui.source import OpenSource
from forge_tui.tui.state import SessionView, Touched
from forge_tui.tui.status import first_run, status_pieces
from forge_tui.tui.summary import one_sentence
from forge_tui.tui.updates import NodesRead, SourceRead, Update

if TYPE_CHECKING:
    from textual.dom import DOMNode

DRAIN_S = 0.1
CLOCK_S = 1.0
_SOURCES_KEPT = 256
EXIT_HANGUP = 128 + signal.SIGHUP
EXIT_TERMINATED = 128 + signal.SIGTERM


class ForgeApp(Commands, Pickers, App[int], inherit_bindings=False):
    """Drains what the follower read, shows it, and sends what the user asks for.

    `threaded` false polls the store in the loop: for tests, where every step is wanted at once.
    """

    CSS_PATH = "forge.tcss"
    TITLE = "Forge TUI"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = bindings_for("app", priority=True)

    def __init__(
        self, workspace: Workspace, open_source: OpenSource, session: str | None = None, *,
        feed: Feed | None = None, glyphs: glyphs_module.Glyphs | None = None, clock: Callable[[], float] = time.time,
        theme_set: themes.ThemeSet | None = None, threaded: bool = True, theme_name: str | None = None,
    ) -> None:  # fmt: skip
        no_color = "NO_COLOR" in os.environ
        super().__init__(ansi_color=True if no_color else None)
        self.workspace = workspace
        self.wanted_session = session
        self.glyphs = glyphs or glyphs_module.choose()
        self.clock = clock
        self.theme_set = theme_set or themes.load(themes.folders())
        name = theme_name or os.environ.get("FORGE_TUI_THEME") or themes.DEFAULT_THEME
        self.start_theme = name if name in self.theme_set.themes else themes.DEFAULT_THEME
        self.theme_missing = name if name not in self.theme_set.themes else ""
        self.paint = Paint(self.theme_set.themes[self.start_theme].styles(), no_color=no_color)
        self.view = SessionView()
        self.follower = Follower(open_source)
        self.feed: Feed = feed or NoFeed()
        self.threaded = threaded
        self.following = True
        self.sources: dict[int, str] = {}
        self.main = MainScreen(self.paint, self.glyphs, self.view)
        self.mouse_on = True
        self.asked_sessions = False
        self.quit_at = float("-inf")
        self.animation_level = "none"
        if self.glyphs.ascii:
            self._filters.append(AsciiFilter())

    # ---- life

    @property
    def kernel(self) -> KernelPane:
        """The kernel pane."""
        return self.main.kernel

    def get_default_screen(self) -> MainScreen:
        """The main screen is the only one that stays."""
        return self.main

    def on_mount(self) -> None:
        """Themes, timers, signals, threads."""
        for theme in self.theme_set.themes.values():
            self.register_theme(theme.textual())
        self.use_theme(self.start_theme)
        if self.theme_set.errors:
            self.notify("\n".join(self.theme_set.errors), title="Theme files left out", severity="warning",
                        timeout=15, markup=False)  # fmt: skip
        elif self.theme_missing:
            self.say(f"There is no theme {self.theme_missing!r}; {self.start_theme} is used.", severity="warning")
        self._handle_signals()
        # the shell wrote over the screen meanwhile
        self.app_resume_signal.subscribe(self, lambda _: self.do_app_redraw())
        if self.wanted_session is not None:
            self.follower.attach(self.wanted_session)
        self.feed.start()
        if self.threaded:
            self.follower.start()
        self.set_interval(DRAIN_S, self.drain)
        self.set_interval(CLOCK_S, self.tick)
        # what comes first depends on the terminal's size, which the first layout brings
        self.call_after_refresh(self.drain)
        self.tick()

    def on_unmount(self) -> None:
        """Let go of threads and the sampler."""
        self.feed.stop()
        self.follower.stop()

    def _handle_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread() or self.is_headless:
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self.exit, EXIT_HANGUP)
        loop.add_signal_handler(signal.SIGTERM, self.exit, EXIT_TERMINATED)

    def use_theme(self, name: str) -> None:
        """Show another theme."""
        theme = self.theme_set.themes.get(name)
        if theme is None:
            return
        self.paint.use(theme.styles())
        try:
            self.theme = name
        except InvalidThemeError:
            self.register_theme(theme.textual())
            self.theme = name
        self.renew_all()

    def say(self, text: str, *, severity: str = "information", timeout: float = 5.0) -> None:
        """A toast; its text is never read as markup."""
        from forge_tui.tui.text import clean

        lines = "\n".join(clean(line, wide=True) for line in text.split("\n"))
        self.notify(lines, severity="warning" if severity == "warning" else
                    "error" if severity == "error" else "information", timeout=timeout, markup=False)  # fmt: skip

    # ---- actions

    def action_act(self, action: str) -> None:
        """Run an action of the registry: the focused widget's own, its pane's, the screen's, else the app's."""
        from forge_tui.tui.actions import BY_ID

        name = BY_ID[action].handler
        start: DOMNode = self.focused or self.screen
        for node in start.ancestors_with_self:
            handler = getattr(node, name, None)
            if handler is not None:
                handler()
                return

    # ---- the ten-a-second drain

    def drain(self) -> None:
        """Take what was read and renew what it concerns."""
        if not self.threaded:
            self.follower.poll()
        touched = Touched.NOTHING
        changed: list[Node] = []
        for update in self.follower.drain():
            touched |= self.view.apply(update)
            self._after_update(update, changed)
        if touched:
            self._renew(touched, changed)

    def _after_update(self, update: Update, changed: list[Node]) -> None:
        if isinstance(update, NodesRead):
            changed.extend(update.nodes)
        elif isinstance(update, SourceRead):
            self.sources[update.node.id] = update.node.source
            while len(self.sources) > _SOURCES_KEPT:
                del self.sources[next(iter(self.sources))]

    def _renew(self, touched: Touched, changed: list[Node]) -> None:
        main = self.main
        if Touched.RESET in touched:
            self.sources.clear()
            self.following = True
            main.candidates.rows.take(None)
            main.kernel.show_node(None, None)
        if Touched.SESSIONS in touched:
            self._choose_session()
        if touched & (Touched.HOTSPOTS | Touched.RESET):
            main.hotspots.renew(rebuilt=True)
        if touched & (Touched.NODES | Touched.HOTSPOTS | Touched.RESET):
            self._renew_tree(changed)
        if touched & (Touched.SOURCE | Touched.NODES):
            self.show_selected()
        if touched & (Touched.EVENTS | Touched.RESET):
            main.events.renew()
        if touched & (Touched.RESULT | Touched.STATUS):
            main.result.renew(self.clock())
        self.renew_status()
        if Touched.FINISHED in touched:
            self._finished()
        elif Touched.RESULT in touched and self.view.info is not None and not self.view.live:
            self._show_result_once()

    def _renew_tree(self, changed: list[Node]) -> None:
        tree = self.main.candidates.rows
        first = self._first_target()
        if first is not None:
            self.select_target(first, follow=self.following)
        elif tree.view is not None:
            mine = [node for node in changed if node.target_id == tree.view.target.id]
            if mine:
                tree.grow(mine)
                if self.following and tree.view.newest is not None:
                    tree.go_to_node(tree.view.newest, by_user=False)
        self.main.candidates.renew(follow=self.following and self.view.live)

    def _first_target(self) -> str | None:
        """The target to show where the user has chosen none yet: the first that has nodes, else the first."""
        shown = self.main.candidates.rows.view
        order = self.view.order
        if shown is not None and (shown.nodes or not self.following):
            return None
        found = next((key for key in order if self.view.targets[key].nodes), None)
        if found is None and (shown is None or shown.target.id not in order):
            found = next((key for key in order if self.view.targets[key].usable), None)
        return found

    def _choose_session(self) -> None:
        if self.view.session is not None or self.wanted_session is not None or not self.view.sessions:
            return
        if len(self.view.sessions) == 1:
            self.follower.attach(self.view.sessions[0].id)
        elif not self.asked_sessions:
            self.asked_sessions = True
            self.do_session_pick()

    def _show_result_once(self) -> None:
        """A session that is over shows its result first."""
        main = self.main
        if len(main.plan.shown) <= 2:
            main.focus_pane("result")
            main.set_zoom(True)
            main.auto_zoomed = True
        elif main.wish.lower == "kernel":
            main.show_pane("result")
        main.result.renew(self.clock())

    def _finished(self) -> None:
        self.bell()
        self._show_result_once()
        main = self.main
        info = self.view.info
        severity = "information" if info is not None and info.state == "done" else "warning"
        self.say(one_sentence(self.view), severity=severity, timeout=15)
        main.renew_around()

    def tick(self) -> None:
        """Once a second: clock, telemetry."""
        self.main.telemetry.take(self.feed.drain(), self.feed.trouble())
        self.renew_status()
        if self.view.live:
            self.main.result.renew(self.clock())

    def renew_status(self) -> None:
        """The status line and what hangs on it."""
        main = self.main
        main.status.show(status_pieces(self.view, self.glyphs, main.size.width or 80, self.clock()))
        main.hotspots.set_empty(first_run(self.view, str(self.workspace.root)))
        main.candidates.set_empty(first_run(self.view, str(self.workspace.root)))
        main.renew_around()

    def renew_all(self) -> None:
        """Paint everything again, as another theme needs."""
        if not self.main.is_mounted:
            return
        main = self.main
        main.hotspots.renew(rebuilt=False)
        main.hotspots.rows.refresh()
        main.candidates.renew(follow=self.following and self.view.live)
        for pane in main.panes.values():
            pane.renew_title()
            pane.list.refresh()
        self.show_selected()
        self.renew_status()
        main.tabs.renew()


def run_screen(workspace: Workspace, session: str | None) -> int:
    """Show a session until the user leaves; returns an exit code.

    0 when the user left (the engine goes on), 129 when the terminal went away, 143 for SIGTERM, 1 for a bug.
    Without a session: the only one, else a list to choose from; an empty workspace says how to start.
    """
    from forge_tui.tui.terminal import RESET, Guard, prepare_colors, prepare_size

    prepare_colors()
    prepare_size()
    app = ForgeApp(workspace, _opener(workspace), session, feed=SamplerFeed())
    hook, threading.excepthook = threading.excepthook, _leave_with_the_terminal(app)
    guard = Guard()
    guard.open()
    try:
        code = app.run()
    except BaseException:
        sys.stderr.write(RESET)
        raise
    finally:
        threading.excepthook = hook
        guard.close()
        app.feed.stop()
    if app.return_code:
        return app.return_code
    return code or 0


def _leave_with_the_terminal(app: ForgeApp) -> Callable[[threading.ExceptHookArgs], None]:
    """A hook for threads: the output thread's OSError means that the terminal is gone, and so must we."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs, /) -> None:
        if args.thread is not None and args.thread.name == "textual-output" and isinstance(args.exc_value, OSError):
            # the loop blocks on the dead thread's queue sooner or later, so there is no clean way out
            app.feed.stop()
            os._exit(EXIT_HANGUP)
        before(args)

    return hook


def _opener(workspace: Workspace) -> OpenSource:
    from forge_tui.store.reader import Reader

    def open_source() -> Reader | None:
        if not workspace.database.exists():
            return None
        return Reader.open(workspace)

    return open_source

