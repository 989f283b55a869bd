"""The app over a fake session, without threads, with a fixed clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forge_tui.core.paths import Workspace
from forge_tui.tui import themes
from forge_tui.tui.app import ForgeApp
from forge_tui.tui.glyphs import UNICODE

from .fakes import NOW, FakeFeed, FakeView, waves

SHIPPED = themes.load(themes.folders({"XDG_CONFIG_HOME": "/nonexistent"}))


def make_app(view: FakeView | None, session: str | None = None, **more: Any) -> ForgeApp:
    """An app; every poll of the store happens in its own loop."""
    fields: dict[str, Any] = {
        "feed": FakeFeed(waves()), "glyphs": UNICODE, "clock": lambda: NOW, "theme_set": SHIPPED, "threaded": False,
    } | more  # fmt: skip
    workspace = fields.pop("workspace", Workspace(Path("/w")))
    return ForgeApp(workspace, lambda: view, session, **fields)


def screen_lines(app: ForgeApp) -> list[str]:
    """The text on the screen, line by line, as it would go to the terminal."""
    return [strip.text for strip in app.screen._compositor.render_strips()]


def screen_text(app: ForgeApp) -> str:
    """The text on the screen."""
    return "\n".join(screen_lines(app))
