"""Help, command palette, sessions and themes: the lists that open above the main screen."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from forge_tui.tui.actions import ACTIONS, footer_for, show_key
from forge_tui.tui.screens.pick import Choice, PickScreen
from forge_tui.tui.text import clean, duration, one_line

if TYPE_CHECKING:
    from textual.app import App

    from forge_tui.tui.app import ForgeApp

    _Base = App[int]
else:
    _Base = object


class Pickers(_Base):
    """Handlers of the actions that open a list; mixed into the app."""

    @property
    def _forge(self) -> ForgeApp:
        return cast("ForgeApp", self)

    def _pick(
        self, screen: PickScreen, chosen: Callable[[str], None], cancelled: Callable[[], None] | None = None
    ) -> None:
        def done(value: str | None) -> None:
            if value is not None:
                chosen(value)
            elif cancelled is not None:
                cancelled()

        self._forge.push_screen(screen, done)

    def do_help_show(self) -> None:
        """Keys of the focused pane first, then the others; enter does one."""
        app = self._forge
        pane = app.main.focused_pane
        own = {"list", "tree"} if pane.id in ("tree", "hotspots") else {"list"}
        first = [action for action in footer_for(str(pane.id), live=app.view.searching) if action.scope != "app"]
        choices = [Choice("", f"{pane.name_shown} pane", heading=True)]
        choices += [Choice(a.id, f"{_keys(a.keys):<14}{a.help}") for a in first]
        for scopes, name in ((own - {"main"}, "lists and trees"), ({"main"}, "everywhere"), ({"app"}, "always")):
            choices.append(Choice("", name, heading=True))
            choices += [Choice(a.id, f"{_keys(a.keys):<14}{a.help}") for a in ACTIONS
                        if a.scope in scopes and a not in first]  # fmt: skip
        choices.append(Choice("", "verdicts", heading=True))
        for verdict, mark in app.glyphs.verdicts.items():
            word = "being evaluated" if verdict is None else str(verdict).replace("_", " ")
            choices.append(Choice("verdict", f"{mark.glyph}{mark.letter}            {word}", style=mark.style))
        choices.append(Choice("verdict", f"{app.glyphs.best}{app.glyphs.path}            best node, and the path to it",
                              style="best"))  # fmt: skip
        screen = PickScreen(app.paint, app.glyphs, "Keys", choices,
                            note="enter does it, / filters, esc closes")  # fmt: skip
        self._pick(screen, self._act)

    def _act(self, action: str) -> None:
        if action != "verdict":
            self._forge.action_act(action)

    def do_palette_open(self) -> None:
        """Every action, target and node by a few letters of its name."""
        app = self._forge
        choices = [Choice(f"do {a.id}", a.help, hint=f"{a.id}  {_keys(a.keys)}") for a in ACTIONS
                   if a.scope not in ("pick", "confirm")]  # fmt: skip
        choices += [Choice(f"target {key}", f"Target {clean(app.view.targets[key].target.name)}", hint="search tree")
                    for key in app.view.order]  # fmt: skip

        def nodes(text: str) -> list[Choice]:
            match = re.fullmatch(r"#?(\d+)", text)
            if match is None:
                return []
            return [Choice(f"node {match[1]}", f"Go to node #{match[1]}", hint="node")]

        def chosen(value: str) -> None:
            kind, _, name = value.partition(" ")
            if kind == "do":
                app.action_act(name)
            elif kind == "target":
                app.select_target(name)
                app.main.focus_pane("tree")
            else:
                app.go_to(int(name))

        screen = PickScreen(app.paint, app.glyphs, "Commands", choices, typing=True, extra=nodes)
        self._pick(screen, chosen)

    def do_session_pick(self) -> None:
        """Choose another session of the workspace."""
        app = self._forge
        if not app.view.sessions:
            app.say("There is no session in this workspace yet.")
            return
        now = app.clock()
        choices = []
        for info in sorted(app.view.sessions, key=lambda s: -s.created_at):
            text = f"{clean(info.id)}  {one_line(info.options.model.text)}  {info.options.device}"
            hint = f"{info.state}, {info.evaluations} tried, {duration(now - info.created_at)} ago"
            choices.append(Choice(info.id, text, hint=hint))
        screen = PickScreen(app.paint, app.glyphs, "Sessions of this workspace, newest first", choices,
                            current=app.view.session)  # fmt: skip

        def chosen(session: str) -> None:
            app.wanted_session = session
            app.follower.attach(session)
            app.drain()

        def cancelled() -> None:
            # a screen without a session is of no use: the newest one it is
            if app.view.session is None and choices:
                chosen(choices[0].value)

        self._pick(screen, chosen, cancelled)

    def do_theme_pick(self) -> None:
        """Choose a theme; the marked one is shown at once."""
        app = self._forge
        before = app.theme
        choices = [Choice(theme.name, theme.name, hint="dark" if theme.dark else "light")
                   for theme in sorted(app.theme_set.themes.values(), key=lambda t: t.name)]  # fmt: skip
        screen = PickScreen(app.paint, app.glyphs, "Themes", choices, preview=app.use_theme, current=before)
        self._pick(screen, app.use_theme, lambda: app.use_theme(before))


def _keys(keys: tuple[str, ...]) -> str:
    return " ".join(show_key(key) for key in keys[:3])
