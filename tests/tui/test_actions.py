"""Every action of the registry, pressed as a key in the running app."""

# ruff: noqa: D103 - small helpers and checks say by their names what they do

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from forge_tui.core.paths import Workspace
from forge_tui.tui.actions import ACTIONS, BY_ID
from forge_tui.tui.app import ForgeApp
from forge_tui.tui.screens.confirm import ConfirmScreen
from forge_tui.tui.screens.pick import PickScreen

from .fakes import FakeView, big_session, busy_session, finish
from .harness import make_app

Check = Callable[["Stage"], Awaitable[None]]
CHECKS: dict[str, Check] = {}
SESSION = "20250615-1406-7f3a"


class Stage:
    """The app under test, with what it was made of."""

    def __init__(self, app: ForgeApp, pilot: Pilot[Any], view: FakeView, sent: list[tuple[str, str]]) -> None:
        self.app = app
        self.pilot = pilot
        self.view = view
        self.sent = sent

    @property
    def main(self) -> Any:
        return self.app.main

    @property
    def tree(self) -> Any:
        return self.app.main.candidates.rows

    async def press(self, action: str, key: int = 0) -> None:
        """Press an action's key."""
        await self.pilot.press(BY_ID[action].keys[key])
        await self.pilot.pause()

    async def keys(self, *keys: str) -> None:
        """Press keys as they are."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def settle(self) -> None:
        """Wait for the workers of a command, then for the screen."""
        await self.app.workers.wait_for_complete()
        await self.pilot.pause()

    @property
    def toasts(self) -> str:
        return "\n".join(note.message for note in self.app._notifications)


def covers(action: str) -> Callable[[Check], Check]:
    """This function tests that action."""

    def keep(check: Check) -> Check:
        assert action not in CHECKS
        CHECKS[action] = check
        return check

    return keep


@pytest.mark.parametrize("action", [action.id for action in ACTIONS])
async def test_action(action: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The action's key does what its help says."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("TMUX", raising=False)
    sent: list[tuple[str, str]] = []
    monkeypatch.setattr("forge_tui.tui.remote.command", lambda _, session, op: sent.append((session, op)))
    monkeypatch.setattr("forge_tui.tui.remote.resume", lambda _, session: sent.append((session, "start")))
    view = busy_session()
    app = make_app(view, workspace=Workspace(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.drain()
        await pilot.pause()
        await CHECKS[action](Stage(app, pilot, view, sent))


def test_no_check_is_left_over() -> None:
    """Every check belongs to an action that there is."""
    assert set(CHECKS) == {action.id for action in ACTIONS}


# ---- leaving and the terminal


@covers("app.interrupt")
async def interrupt(stage: Stage) -> None:
    await stage.press("app.interrupt")
    assert stage.app.is_running
    assert "ctrl+c again leaves. The search goes on in the background" in stage.toasts
    await stage.press("app.interrupt")
    assert stage.app.return_value == 0


@covers("app.suspend")
async def suspend(stage: Stage) -> None:
    called: list[str] = []
    stage.app.action_suspend_process = lambda: called.append("suspended")  # type: ignore[method-assign]
    await stage.press("app.suspend")
    assert called == ["suspended"]


@covers("app.redraw")
async def redraw(stage: Stage) -> None:
    painted: list[int] = []
    original = stage.tree.render_line
    stage.tree.render_line = lambda y: (painted.append(y), original(y))[1]
    await stage.press("app.redraw")
    assert set(painted) == set(range(stage.tree.size.height))


@covers("app.quit")
async def quit_(stage: Stage) -> None:
    await stage.press("app.quit")
    assert stage.app.return_value == 0
    assert stage.sent == []


@covers("view.back")
async def back(stage: Stage) -> None:
    await stage.keys("slash", "f", "o")
    assert stage.main.search.display
    await stage.keys("escape")
    assert not stage.main.search.display
    await stage.keys("z")
    await stage.press("view.back")
    assert not stage.main.wish.zoomed
    await stage.press("view.back")
    assert isinstance(stage.app.screen, ConfirmScreen)
    await stage.keys("n")
    assert stage.app.is_running
    await stage.press("view.back")
    await stage.keys("y")
    assert stage.app.return_value == 0


@covers("mouse.toggle")
async def mouse(stage: Stage) -> None:
    written: list[str] = []
    stage.app.write_terminal = written.append  # type: ignore[method-assign]
    await stage.press("mouse.toggle")
    assert "\x1b[?1000l" in written[0]
    assert "M takes it back" in stage.toasts
    await stage.press("mouse.toggle")
    assert "\x1b[?1000h" in written[1]


@covers("copy.thing")
async def copy(stage: Stage) -> None:
    written: list[str] = []
    stage.app.write_terminal = written.append  # type: ignore[method-assign]
    stage.app.go_to(4)
    await stage.pilot.pause()
    stage.app.drain()
    await stage.press("copy.thing")
    await stage.settle()
    files = list((stage.app.workspace.root / "forge-tui" / "copied").iterdir())
    assert [file.name for file in files] == [f"{SESSION}-node4.cu"]
    assert files[0].read_text().startswith("//@tune BLOCK")
    assert written[0].startswith("\x1b]52;c;")
    assert str(files[0]) in stage.toasts


@covers("theme.pick")
async def theme(stage: Stage) -> None:
    before = stage.app.paint.generation
    await stage.press("theme.pick")
    assert isinstance(stage.app.screen, PickScreen)
    await stage.keys("j")
    assert stage.app.theme == "forge-light"
    await stage.keys("escape")
    assert stage.app.theme == "forge-dark"
    await stage.press("theme.pick")
    await stage.keys("j", "enter")
    assert stage.app.theme == "forge-light"
    assert stage.app.paint.generation > before


# ---- lists above


@covers("help.show")
async def help_(stage: Stage) -> None:
    await stage.press("help.show")
    screen = stage.app.screen
    assert isinstance(screen, PickScreen)
    shown = {choice.value for choice in screen.list.choices}
    assert shown >= {action.id for action in ACTIONS if action.scope in ("app", "main", "list", "tree")}
    await stage.keys("slash", *"telemetry")
    await stage.keys("enter")
    assert stage.main.wish.focused == "telemetry"


@covers("palette.open")
async def palette(stage: Stage) -> None:
    await stage.press("palette.open")
    await stage.keys(*"rotary", "enter")
    assert stage.tree.view.target.name == "apply_rotary"
    await stage.press("palette.open")
    await stage.keys(*"#7", "enter")
    assert (stage.tree.view.target.name, stage.tree.cursor_node) == ("RMSNorm", 7)


@covers("session.pick")
async def session(stage: Stage) -> None:
    other = big_session(5)
    stage.view.infos["big"] = other.infos["big"]
    stage.view.profiles["big"] = other.profiles["big"]
    stage.view.node_lists["big"] = other.node_lists["big"]
    stage.view.touch()
    stage.app.drain()
    await stage.press("session.pick")
    assert [choice.value for choice in stage.app.screen.list.choices] == [SESSION, "big"]
    await stage.keys("j", "enter")
    stage.app.drain()
    assert stage.app.view.session == "big"
    assert len(stage.tree.model) == 5


@covers("pick.choose")
async def pick_choose(stage: Stage) -> None:
    await stage.keys("colon", *"hotspots:", "enter")
    assert stage.main.wish.focused == "hotspots"


@covers("pick.cancel")
async def pick_cancel(stage: Stage) -> None:
    await stage.keys("colon", *"hotspots")
    await stage.press("pick.cancel")
    assert not isinstance(stage.app.screen, PickScreen)
    assert stage.main.wish.focused == "tree"


@covers("pick.down")
async def pick_down(stage: Stage) -> None:
    await stage.keys("colon")
    await stage.press("pick.down")
    await stage.press("pick.down")
    assert stage.app.screen.list.cursor == 2


@covers("pick.up")
async def pick_up(stage: Stage) -> None:
    await stage.keys("colon", "down", "down", "down")
    await stage.press("pick.up")
    assert stage.app.screen.list.cursor == 2


@covers("confirm.yes")
async def confirm_yes(stage: Stage) -> None:
    await stage.keys("S")
    await stage.press("confirm.yes")
    await stage.settle()
    assert stage.sent == [(SESSION, "stop")]


@covers("confirm.no")
async def confirm_no(stage: Stage) -> None:
    await stage.keys("S")
    await stage.press("confirm.no")
    await stage.settle()
    assert stage.sent == []
    assert not isinstance(stage.app.screen, ConfirmScreen)


# ---- panes


async def _pane(stage: Stage, name: str) -> None:
    await stage.press("pane.telemetry" if name != "telemetry" else "pane.events")
    await stage.press(f"pane.{name}")
    assert stage.main.wish.focused == name
    assert stage.main.panes[name].display
    assert stage.main.panes[name].list.has_focus
    await stage.press(f"pane.{name}")
    assert stage.main.plan.shown == (name,)


@covers("pane.hotspots")
async def pane_hotspots(stage: Stage) -> None:
    await _pane(stage, "hotspots")


@covers("pane.tree")
async def pane_tree(stage: Stage) -> None:
    await _pane(stage, "tree")


@covers("pane.kernel")
async def pane_kernel(stage: Stage) -> None:
    await _pane(stage, "kernel")


@covers("pane.telemetry")
async def pane_telemetry(stage: Stage) -> None:
    await _pane(stage, "telemetry")


@covers("pane.events")
async def pane_events(stage: Stage) -> None:
    await _pane(stage, "events")


@covers("pane.result")
async def pane_result(stage: Stage) -> None:
    await _pane(stage, "result")


@covers("pane.next")
async def pane_next(stage: Stage) -> None:
    seen = []
    for _ in range(6):
        await stage.press("pane.next")
        seen.append(stage.main.wish.focused)
    assert seen == ["kernel", "telemetry", "events", "result", "hotspots", "tree"]


@covers("pane.previous")
async def pane_previous(stage: Stage) -> None:
    await stage.press("pane.previous")
    assert stage.main.wish.focused == "hotspots"


@covers("pane.zoom")
async def pane_zoom(stage: Stage) -> None:
    await stage.press("pane.zoom")
    assert stage.main.plan.shown == ("tree",)
    assert not stage.main.kernel.display
    await stage.press("pane.zoom")
    assert stage.main.plan.shown == ("tree", "kernel")


# ---- the engine


@covers("run.pause")
async def pause(stage: Stage) -> None:
    await stage.press("run.pause")
    await stage.settle()
    assert stage.sent == [(SESSION, "pause")]
    assert "paused" in stage.main.status.text
    await stage.press("run.pause")
    await stage.settle()
    assert stage.sent[1] == (SESSION, "resume")
    assert "searching" in stage.main.status.text


@covers("run.stop")
async def stop(stage: Stage) -> None:
    await stage.press("run.stop")
    assert isinstance(stage.app.screen, ConfirmScreen)
    assert stage.sent == []
    await stage.keys("y")
    await stage.settle()
    assert stage.sent == [(SESSION, "stop")]


@covers("run.resume")
async def resume(stage: Stage) -> None:
    await stage.press("run.resume")
    await stage.settle()
    assert stage.sent == []
    finish(stage.view, SESSION, "interrupted")
    stage.app.drain()
    await stage.press("run.resume")
    await stage.settle()
    assert stage.sent == [(SESSION, "start")]


# ---- moving


@covers("list.down")
async def down(stage: Stage) -> None:
    await stage.keys("g")
    await stage.press("list.down")
    await stage.press("list.down", 1)
    assert stage.tree.cursor == 2


@covers("list.up")
async def up(stage: Stage) -> None:
    await stage.keys("g", "j", "j", "j")
    await stage.press("list.up")
    await stage.press("list.up", 1)
    assert stage.tree.cursor == 1


@covers("list.top")
async def top(stage: Stage) -> None:
    await stage.press("list.top")
    assert (stage.tree.cursor, stage.tree.cursor_node) == (0, 1)


@covers("list.bottom")
async def bottom(stage: Stage) -> None:
    await stage.press("list.bottom")
    assert (stage.tree.cursor, stage.tree.cursor_node) == (11, 13)


@covers("list.half_down")
async def half_down(stage: Stage) -> None:
    await stage.keys("g")
    await stage.press("list.half_down")
    assert stage.tree.cursor == stage.tree.size.height // 2


@covers("list.half_up")
async def half_up(stage: Stage) -> None:
    await stage.keys("G")
    await stage.press("list.half_up")
    assert stage.tree.cursor == 11 - stage.tree.size.height // 2


@covers("list.page_down")
async def page_down(stage: Stage) -> None:
    await stage.keys("g")
    await stage.press("list.page_down")
    assert stage.tree.cursor == stage.tree.size.height - 1


@covers("list.page_up")
async def page_up(stage: Stage) -> None:
    await stage.keys("G")
    await stage.press("list.page_up")
    assert stage.tree.cursor == 11 - (stage.tree.size.height - 1)


@covers("list.left")
async def left(stage: Stage) -> None:
    stage.app.go_to(5)
    await stage.press("list.left")
    assert stage.tree.cursor_node == 4
    await stage.press("list.left")
    assert not stage.tree.model.is_open(4)
    assert 5 not in stage.tree.model.rows
    stage.main.focus_pane("kernel")
    await stage.keys("l", "h")
    assert stage.main.kernel.source.scroll_x == 0


@covers("list.right")
async def right(stage: Stage) -> None:
    stage.app.go_to(4)
    await stage.keys("h")
    await stage.press("list.right")
    assert stage.tree.model.is_open(4)
    await stage.press("list.right")
    assert stage.tree.cursor_node == 5
    stage.main.focus_pane("kernel")
    stage.app.drain()
    await stage.keys("l")
    assert stage.main.kernel.source.scroll_x == 8


@covers("list.enter")
async def enter(stage: Stage) -> None:
    await stage.press("list.enter")
    assert stage.main.wish.focused == "kernel"
    await stage.keys("1")
    stage.main.hotspots.rows.go_to_node(11)
    await stage.press("list.enter")
    assert stage.main.wish.focused == "tree"
    assert stage.tree.view.target.name == "apply_rotary"
    await stage.keys("5")
    events = stage.main.events.rows
    events.move_to(next(n for n, line in enumerate(events.lines) if line.node == 7))
    await stage.press("list.enter")
    assert (stage.tree.view.target.name, stage.tree.cursor_node) == ("RMSNorm", 7)


# ---- search


@covers("search.start")
async def search_start(stage: Stage) -> None:
    await stage.press("search.start")
    await stage.keys(*"prefetch")
    assert stage.tree.cursor_node == 7
    await stage.keys("enter")
    assert not stage.main.search.display
    assert stage.tree.has_focus


@covers("search.next")
async def search_next(stage: Stage) -> None:
    await stage.keys("g", "slash", *"two", "enter")
    assert stage.tree.cursor_node == 3
    hits = []
    for _ in range(4):
        await stage.press("search.next")
        hits.append(stage.tree.cursor_node)
    assert hits == [4, 8, 9, 3]


@covers("search.previous")
async def search_previous(stage: Stage) -> None:
    await stage.keys("g", "slash", *"two", "enter")
    await stage.press("search.previous")
    assert stage.tree.cursor_node == 9


# ---- trees


@covers("node.toggle")
async def toggle(stage: Stage) -> None:
    stage.app.go_to(4)
    await stage.press("node.toggle")
    assert stage.tree.model.rows == [1, 2, 10, 3, 4, 8, 9, 13]
    await stage.press("node.toggle")
    assert stage.tree.model.rows == [1, 2, 10, 3, 4, 5, 6, 7, 14, 8, 9, 13]


@covers("node.close_all")
async def close_all(stage: Stage) -> None:
    stage.app.go_to(5)
    await stage.press("node.close_all")
    assert stage.tree.model.rows == [1, 8, 13]
    assert stage.tree.cursor_node == 1


@covers("node.open_path")
async def open_path(stage: Stage) -> None:
    await stage.keys("minus")
    await stage.press("node.open_path")
    assert stage.tree.model.rows == [1, 2, 3, 4, 8, 13]
    await stage.keys("1", "minus")
    await stage.press("node.open_path")
    assert {10, 11, 12, 13} <= set(stage.main.hotspots.rows.model.rows)


@covers("tree.best")
async def best(stage: Stage) -> None:
    await stage.keys("minus")
    await stage.press("tree.best")
    assert stage.tree.cursor_node == 4
    assert not stage.app.following


@covers("tree.follow")
async def follow(stage: Stage) -> None:
    await stage.keys("]", "j")
    assert not stage.app.following
    await stage.press("tree.follow")
    assert stage.app.following
    assert (stage.tree.view.target.name, stage.tree.cursor_node) == ("RMSNorm", 14)
    assert "FOLLOW" in stage.main.candidates.title_line.text
    await stage.keys("k")
    assert not stage.app.following
    assert "FOLLOW" not in stage.main.candidates.title_line.text


@covers("tree.next_failed")
async def next_failed(stage: Stage) -> None:
    await stage.keys("g")
    seen = []
    for _ in range(6):
        await stage.press("tree.next_failed")
        seen.append(stage.tree.cursor_node)
    assert seen == [3, 5, 8, 9, 13, 3]


@covers("target.next")
async def target_next(stage: Stage) -> None:
    await stage.press("target.next")
    assert stage.tree.view.target.name == "apply_rotary"
    await stage.keys("3")
    await stage.press("target.next")
    assert stage.main.kernel.view == "log"


@covers("target.previous")
async def target_previous(stage: Stage) -> None:
    await stage.press("target.previous")
    assert stage.tree.view.target.name == "SwiGLU@2"
    await stage.keys("3")
    await stage.press("target.previous")
    assert stage.main.kernel.view == "notes"
