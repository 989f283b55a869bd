"""What the screen shows and does beside its keys: sizes, growth, ends, trouble, hostile text."""

# ruff: noqa: D103 - helpers

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from forge_tui.core.errors import StoreError
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Edge, Verdict
from forge_tui.tui import themes
from forge_tui.tui.actions import ACTIONS
from forge_tui.tui.app import ForgeApp
from forge_tui.tui.glyphs import ASCII
from forge_tui.tui.screens.pick import PickScreen

from .fakes import NOW, SOURCE, FakeFeed, FakeView, big_session, busy_session, finish, make_node, verdict_of, waves
from .harness import SHIPPED, make_app, screen_lines, screen_text

SESSION = "20250615-1406-7f3a"


@asynccontextmanager
async def running(
    view: FakeView, size: tuple[int, int] = (80, 24), **more: Any
) -> AsyncIterator[tuple[ForgeApp, Pilot[Any]]]:
    app = make_app(view, **more)
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot)
        yield app, pilot


async def settle(app: ForgeApp, pilot: Pilot[Any]) -> None:
    await pilot.pause()
    app.drain()
    await pilot.pause()
    app.drain()
    await pilot.pause()


def add(view: FakeView, number: int, parent: int | None = 4, target: str = "t1", **more: Any) -> None:
    view.add(SESSION, make_node(number, target, parent, Edge.IMPROVE, f"idea {number}", None, **more))


# ---- sizes


async def test_everything_at_200_by_50() -> None:
    """All panes at once: hotspots with share and headroom, the tree, the source, telemetry, events, status."""
    async with running(busy_session(), (200, 50)) as (app, _):
        app.go_to(4)
        app.drain()
        await _.pause()
        text = screen_text(app)
    for part in (
        "● searching", "12/60 tried", "best 3.10x apply_rotary", "$0.42/$5.00", "10:12",
        "◆  ├·□ RMSNorm", "31.0%", "12.4 ms", "2 search  RMSNorm 1/4 · 12 nodes, 5 failed · best #4 ▲2.35x",
        "★ └▾ #4 vectorised loads", "repair  ▲F faster       2.35x", "≠W wrong", "✗C compile",
        "2.35x [2.28, 2.42]  175 us against 412 us  repair of #3 by claude-opus", "max error 1.90e-06",
        "//@tune BLOCK 128 64 256", "4 telemetry", "No GPU here", "5 events", "enter select",
    ):  # fmt: skip
        assert part in text, part


async def test_notes_count_samples_only_where_they_are_known() -> None:
    """Nodes of the tree are read without their samples: that is not none."""
    view = busy_session()
    async with running(view, (120, 40)) as (app, pilot):
        await pilot.press("2", "b", "3", "z", "]", "]")
        await settle(app, pilot)
        text = screen_text(app)
    assert "[notes]" in text
    assert "95% interval" in text
    assert "0 paired samples" not in text


@pytest.mark.parametrize("size", [(200, 50), (120, 40), (140, 24), (80, 50), (80, 24), (72, 20), (60, 15), (59, 15)])
async def test_no_size_breaks(size: tuple[int, int]) -> None:
    """At every size the app shows its focused pane, or the sentence that there is no room."""
    async with running(busy_session(), size) as (app, pilot):
        for key in "123456":
            await pilot.press(key)
            await pilot.pause()
            lines = screen_lines(app)
            assert len(lines) == size[1]
            assert all(len(line) == size[0] for line in lines)
            if size == (59, 15):
                assert "too small" in screen_text(app)
            else:
                name = app.main.panes[app.main.wish.focused].name_shown
                assert any(f" {key} {name} " in line for line in lines[1:-2]), (key, name)


async def test_growing_and_shrinking_keeps_the_cursor() -> None:
    """Through every size and back the cursor stays on its node and in the window."""
    async with running(big_session(400), (200, 50)) as (app, pilot):
        tree = app.main.candidates.rows
        app.go_to(333)
        await pilot.pause()
        for size in ((80, 24), (60, 15), (40, 8), (120, 30), (200, 50)):
            await pilot.resize_terminal(*size)
            await settle(app, pilot)
            assert tree.cursor_node == 333
            if size != (40, 8):
                assert tree.row_in_window(tree.cursor), size
                assert tree.has_focus


# ---- empty, many, long


async def test_an_empty_workspace_says_how_to_start() -> None:
    """First run: the command to type is on the screen; a session that appears is shown without a key."""
    view = FakeView()
    async with running(view) as (app, pilot):
        text = " ".join(screen_text(app).split())
        assert "forge-tui run example:tiny-llm" in text
        assert "no session yet" in text
        made = busy_session()
        view.__dict__.update(made.__dict__)
        view.version += 1
        await settle(app, pilot)
        assert app.view.session == SESSION
        assert "12 nodes" in screen_text(app)


async def test_a_workspace_without_a_database() -> None:
    """Where there is no file yet the same sentence is shown."""
    app = make_app(None)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        assert "forge-tui run example:tiny-llm" in " ".join(screen_text(app).split())


async def test_several_sessions_ask_which() -> None:
    """With more than one session and none named, the list opens; escape takes the newest."""
    view = busy_session()
    view.infos["older"] = msgspec.structs.replace(view.infos[SESSION], id="older", created_at=NOW - 9000)
    async with running(view) as (app, pilot):
        assert isinstance(app.screen, PickScreen)
        assert [choice.value for choice in app.screen.list.choices] == [SESSION, "older"]
        await pilot.press("escape")
        await settle(app, pilot)
        assert app.view.session == SESSION
    async with running(view, session="older") as (app, _):
        assert app.view.session == "older"
        assert not isinstance(app.screen, PickScreen)


async def test_a_profiling_session_has_sentences_for_its_panes() -> None:
    """Before there are hotspots, targets or nodes every pane says what will come."""
    view = FakeView()
    busy = busy_session()
    view.infos[SESSION] = msgspec.structs.replace(busy.infos[SESSION], state="profiling")
    async with running(view, (200, 50)) as (app, _):
        text = screen_text(app)
        assert "profiling" in text
        assert "The model is being profiled" in text
        assert "No target to search yet" in text
        assert "Nothing has happened yet." in text


async def test_three_thousand_nodes_open_along_the_best_path() -> None:
    """A big tree starts with its best path open, and opening all is only rows."""
    async with running(big_session(3000), (200, 50)) as (app, pilot):
        tree = app.main.candidates.rows
        assert tree.model.size == 3000
        assert tree.view is not None
        assert tree.view.best in tree.model.rows
        assert len(tree.model) < 200
        tree.model.open_all()
        tree.tree_changed()
        await pilot.press("G")
        await pilot.pause()
        assert tree.cursor == 2999
        assert tree.row_in_window(2999)
        assert f"#{tree.cursor_node} " in screen_text(app)


async def test_a_long_chain_leaves_room_for_its_text() -> None:
    """Deep nodes are no further indented than ten guides, with their depth as a number."""
    async with running(big_session(300, chain=290), (80, 24)) as (app, pilot):
        app.go_to(280)
        await pilot.pause()
        line = next(line for line in screen_lines(app) if "#280 " in line)
        assert line.index("#280") < 20
        assert "277" in line.split("#280")[0]
        assert "idea number 280" in line


HOSTILE = "[bold]no markup[/bold] \x1b[31mred\x1b]0;title\x07 \u202ertl\u200d\ufe0f \x9b5n " + "word " * 400


async def test_hostile_text_is_only_text() -> None:
    """Ideas, reasons, logs and sources with escapes, markup and odd widths neither act nor shift a column."""
    view = busy_session()
    evaluation = verdict_of(Verdict.REJECTED, reason=HOSTILE + "\n\x1b[2J", log=HOSTILE)
    view.add(SESSION, make_node(20, "t1", 4, Edge.IMPROVE, HOSTILE + "日本語\n", evaluation,
                                source=SOURCE + HOSTILE + "\x1b[?1049l\r\n", proposer="m\x1b]52;c;x\x07"))  # fmt: skip
    async with running(view, (200, 50)) as (app, pilot):
        app.go_to(20)
        await settle(app, pilot)
        for keys in ((), ("3", "]"), ("]",), ("5", "G")):
            await pilot.press(*keys) if keys else None
            await settle(app, pilot)
            lines = screen_lines(app)
            joined = "".join(lines)
            assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u200d\ufe0f" for c in joined)
            assert all(len(line) == 200 for line in lines if "日" not in line)
        assert "[bold]no markup[/bold]" in screen_text(app)
        app.say(HOSTILE[:60])
        await pilot.pause()
        assert "\x1b" not in screen_text(app)


async def test_ascii_leaves_nothing_else() -> None:
    """With the ASCII set every cell of every pane, list and toast is ASCII."""
    view = busy_session()
    view.add(
        SESSION, make_node(21, "t1", 4, Edge.IMPROVE, "naïve 日本 → idea…", verdict_of(Verdict.REJECTED, reason="é"))
    )
    async with running(view, (200, 50), glyphs=ASCII) as (app, pilot):
        app.go_to(21)
        for key in ("2", "3", "6", "question_mark", "escape", "colon", "escape", "T", "escape", "x"):
            await pilot.press(key)
            await settle(app, pilot)
            assert screen_text(app).isascii(), key
        app.say("a toast — with a dash")
        await pilot.pause()
        assert screen_text(app).isascii()


# ---- growth


async def test_following_goes_to_each_new_node() -> None:
    """While following, the cursor and the kernel pane go to the newest node of the target, and the best is marked."""
    view = busy_session()
    async with running(view) as (app, pilot):
        tree = app.main.candidates.rows
        assert tree.cursor_node == 14
        for number in range(15, 60):
            add(view, number, parent=4 if number % 2 else None)
        await settle(app, pilot)
        assert tree.cursor_node == 59
        assert tree.row_in_window(tree.cursor)
        assert app.kernel.node is not None
        assert app.kernel.node.id == 59
        fast = msgspec.structs.replace(view.node(SESSION, 59), evaluation=verdict_of(Verdict.FASTER, 4.5))
        view.add(SESSION, fast)
        await settle(app, pilot)
        text = screen_text(app)
        assert "best #59 ▲4.50x" in text
        assert "best 4.50x RMSNorm" in text
        assert "▲F faster 4.50x" in text


async def test_growth_above_does_not_move_the_view() -> None:
    """Without following, the cursor's row stays on its screen line while nodes come in above it."""
    view = big_session(600)
    async with running(view, (120, 30)) as (app, pilot):
        tree = app.main.candidates.rows
        tree.model.open_all()
        tree.tree_changed()
        node = tree.model.rows[300]
        app.go_to(node)
        await pilot.pause()
        line = tree.cursor - round(tree.scroll_y)
        for number in range(700, 740):
            view.add("big", make_node(number, "t1", tree.model.rows[5], Edge.TUNE, "new above", None))
        await settle(app, pilot)
        assert tree.cursor_node == node
        assert tree.cursor == 340
        assert tree.cursor - round(tree.scroll_y) == line
        assert f"#{node} " in screen_lines(app)[line + 2]


async def test_a_verdict_changes_its_row_only() -> None:
    """An evaluation repaints its row and what counts it; no other row of the tree."""
    view = busy_session()
    async with running(view, (200, 50)) as (app, pilot):
        tree = app.main.candidates.rows
        painted: list[int] = []
        original = tree.render_line
        tree.render_line = lambda y: (painted.append(y), original(y))[1]  # type: ignore[method-assign]
        done = msgspec.structs.replace(view.node(SESSION, 14), evaluation=verdict_of(Verdict.SLOWER, 0.7))
        view.add(SESSION, done)
        app.drain()
        await pilot.pause()
        assert set(painted) == {tree.model.index(14)}
        assert "▼S slower" in screen_text(app)


async def test_nodes_of_another_target_leave_the_tree_alone() -> None:
    """Following stays with the target; `.` goes to the newest of all."""
    view = busy_session()
    async with running(view) as (app, pilot):
        add(view, 30, parent=11, target="t2")
        await settle(app, pilot)
        tree = app.main.candidates.rows
        assert tree.view is not None
        assert tree.view.target.id == "t1"
        await pilot.press("full_stop")
        await settle(app, pilot)
        assert (tree.view.target.id, tree.cursor_node) == ("t2", 30)


async def test_a_new_profile_keeps_the_panes_alive() -> None:
    """Targets that come later are shown, and the hotspots keep their cursor when nothing changed."""
    view = busy_session()
    async with running(view, (200, 50)) as (app, pilot):
        spots = app.main.hotspots.rows
        spots.go_to_node(12)
        view.event(SESSION, "target_opened", target="t3", name="F.softmax", usable=False, reason="it is random")
        await settle(app, pilot)
        assert spots.cursor_node == 12
        assert "F.softmax is left out: it is random" in screen_text(app)


# ---- the end


async def test_the_end_shows_the_result_and_rings_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80x24 the result takes the screen when the search ends; one bell; q leaves without a question."""
    view = busy_session()
    bells: list[int] = []
    monkeypatch.setattr(ForgeApp, "bell", lambda _: bells.append(1))
    async with running(view) as (app, pilot):
        finish(view, SESSION)
        await settle(app, pilot)
        await settle(app, pilot)
        text = screen_text(app)
        assert bells == [1]
        assert app.main.plan.shown == ("result",)
        assert "48.2 ms before, 35.6 ms after: 1.35x" in text
        await pilot.press("2")
        await settle(app, pilot)
        assert app.main.plan.shown == ("tree", "result")
        await pilot.press("q")
        assert app.return_value == 0


async def test_the_end_in_a_wide_terminal_keeps_the_keys() -> None:
    """At 200x50 the result takes the kernel's place and the cursor stays where it was."""
    view = busy_session()
    async with running(view, (200, 50)) as (app, pilot):
        finish(view, SESSION)
        await settle(app, pilot)
        assert "result" in app.main.plan.shown
        assert app.main.candidates.rows.has_focus
        assert "model 1.35x" in app.main.status.text
        await pilot.press("3")
        await settle(app, pilot)
        assert "kernel" in app.main.plan.shown


async def test_a_finished_session_opens_with_its_result() -> None:
    """Attaching to what is over shows the result, without a bell."""
    async with running(busy_session(state="done")) as (app, _):
        assert app.main.plan.shown == ("result",)
        assert "★ yes, alone 1.24x" in screen_text(app)


async def test_a_failed_session_says_what_to_do() -> None:
    """The fault and its hint are on the screen."""
    async with running(busy_session(state="failed")) as (app, _):
        text = screen_text(app)
        assert "The workspace's disk is full." in text
        assert "Free some space, then resume." in text


async def test_a_dead_engine_can_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the heartbeat stops the status says so, and R starts an engine."""
    view = busy_session()
    now = [NOW]
    started: list[str] = []
    monkeypatch.setattr("forge_tui.tui.remote.resume", lambda _, session: started.append(session))
    async with running(view, clock=lambda: now[0]) as (app, pilot):
        assert "engine gone" not in app.main.status.text
        now[0] += 60
        app.tick()
        assert "engine gone: R resumes" in app.main.status.text
        await pilot.press("R")
        await app.workers.wait_for_complete()
        assert started == [SESSION]


async def test_a_silent_engine_answers_with_a_toast(tmp_path: Path) -> None:
    """A command that no engine takes is said, and the state stays as it was."""
    async with running(busy_session(), workspace=Workspace(tmp_path)) as (app, pilot):
        await pilot.press("p")
        await app.workers.wait_for_complete()
        await pilot.pause()
        notes = "".join(note.message for note in app._notifications)
        assert "No engine answers" in notes
        assert not app.view.paused


# ---- trouble


async def test_trouble_with_the_store_is_in_the_status_line() -> None:
    """A database that cannot be read is said where one looks first, and what was read stays."""
    view = busy_session()
    async with running(view) as (app, pilot):
        view.fault = StoreError("The database is of a newer version.", "Update Forge TUI.")
        await settle(app, pilot)
        assert "newer version. Update Forge TUI." in app.main.status.text
        assert "#14" in screen_text(app)
        view.fault = None
        view.touch()
        await settle(app, pilot)
        assert "searching" in app.main.status.text


async def test_a_broken_theme_file_is_said(tmp_path: Path) -> None:
    """The toast names file and faults, and the default theme is used."""
    (tmp_path / "bad.toml").write_text("[base]\naccent = 3\n")
    found = themes.load([Path(SHIPPED.themes["forge-dark"].path).parent, tmp_path])
    async with running(busy_session(), theme_set=found, theme_name="nope") as (app, _):
        notes = "".join(note.message for note in app._notifications)
        assert "bad.toml" in notes
        assert "base.accent is no colour: 3" in notes
        assert app.theme == "forge-dark"


# ---- telemetry


async def test_a_gpu_has_its_rows() -> None:
    """Utilisation, memory, power, temperature and clocks, each with a history; what slows it is said."""
    feed = FakeFeed(waves(50, gpus=1))
    feed.waiting[-1]["gpus"][0] |= {"util_percent": 99.0, "throttle": ["power cap"], "temperature_c": None}
    async with running(busy_session(), (200, 50), feed=feed) as (app, pilot):
        await pilot.press("4", "4")
        await settle(app, pilot)
        text = screen_text(app)
        for part in ("GPU 0 NVIDIA H200", "slowed by power cap", "busy   99%", "memory 12.0G/141G", "/700 W",
                     "temp   n/a", "1980/3201 MHz", "cpu"):  # fmt: skip
            assert part in text, part
        assert "█" in text


async def test_many_gpus_get_a_row_each() -> None:
    """Eight GPUs in a small pane are one line each."""
    async with running(busy_session(), (80, 24), feed=FakeFeed(waves(50, gpus=8))) as (app, pilot):
        await pilot.press("4")
        await settle(app, pilot)
        rows = app.main.telemetry.rows
        texts = ["".join(t for t, _ in rows.row_pieces(n, 79)) for n in range(rows.row_count())]
        assert [text.split()[0] for text in texts[:8]] == list("01234567")
        assert "8 GPUs" in screen_text(app)


async def test_a_hung_driver_is_said_and_nothing_else_stops() -> None:
    """Telemetry's trouble is a line in its pane."""
    feed = FakeFeed((), "No sample for 12 s: the driver does not answer.")
    async with running(busy_session(), (200, 50), feed=feed) as (app, _):
        assert "No sample for 12 s" in screen_text(app)
        assert feed.started
    assert feed.stopped


# ---- the whole


def key_storm(seed: int, count: int) -> Iterator[str]:
    rng = random.Random(seed)
    keys = [key for action in ACTIONS for key in action.keys
            if action.id != "app.suspend"]
    for _ in range(count):
        yield rng.choice([*keys, "a", "7", "backspace"])


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_storm_of_keys_and_sizes(seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Random keys and sizes, while nodes come in, leave the app alive and its tree true to its model."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("forge_tui.tui.remote.command", lambda *_: None)
    monkeypatch.setattr("forge_tui.tui.remote.resume", lambda *_: None)
    # help and palette can run what leaves, too
    monkeypatch.setattr(ForgeApp, "exit", lambda *_, **__: None)
    view = busy_session()
    rng = random.Random(seed)
    pressed: list[str] = []
    async with running(view, (120, 40)) as (app, pilot):
        for number, key in enumerate(key_storm(seed, 50)):
            pressed.append(key)
            await pilot.press(key)
            if number % 15 == 0:
                await pilot.resize_terminal(rng.randint(30, 220), rng.randint(8, 60))
            if number % 10 == 0:
                add(view, 100 + number, parent=rng.choice([1, 4, 14, None]))
                app.drain()
            assert app.is_running, pressed
        await settle(app, pilot)
        tree = app.main.candidates.rows
        if len(tree.model):
            assert tree.model.rows[tree.cursor] == tree.cursor_node, pressed


async def test_the_mouse_is_optional_but_works() -> None:
    """A click on a tab goes there, a click on a row puts the cursor, a second one is enter."""
    async with running(busy_session(), (80, 24)) as (app, pilot):
        at = screen_lines(app)[-2].index("4 telemetry")
        await pilot.click("#tabs", offset=(at + 2, 0))
        await pilot.pause()
        assert app.main.wish.focused == "telemetry"
        await pilot.click("#node-list", offset=(12, 4))
        await pilot.pause()
        assert app.main.candidates.rows.cursor == round(app.main.candidates.rows.scroll_y) + 4
        assert app.main.wish.focused == "tree"
        await pilot.click("#node-list", offset=(12, 2), times=2)
        await pilot.pause()
        assert app.main.wish.focused == "kernel"


async def test_only_opened_targets_are_stepped_through() -> None:
    """Once the engine has chosen its targets, the others of the profile are marked as not searched and skipped."""
    view = busy_session()
    opened = [e for e in view.event_lists[SESSION] if e.data.get("target") not in ("t3", "t4")]
    view.event_lists[SESSION] = opened
    async with running(view, (200, 50)) as (app, pilot):
        seen = []
        for _ in range(3):
            await pilot.press("]")
            assert app.main.candidates.rows.view is not None
            seen.append(app.main.candidates.rows.view.target.id)
        assert seen == ["t2", "t1", "t2"]
        assert "◇  ├·□ F.softmax" in screen_text(app)
        app.main.hotspots.rows.go_to_node(12)
        await pilot.pause()
        assert "F.softmax · not among the targets of the search so far" in screen_text(app)


async def test_only_a_search_can_be_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """While profiling or deploying `p` sends nothing and says so, and the footer does not offer it."""
    sent: list[str] = []
    monkeypatch.setattr("forge_tui.tui.remote.command", lambda _, __, op: sent.append(op))
    view = busy_session()
    async with running(view) as (app, pilot):
        assert "p pause" in app.main.footer.text
        view.state(SESSION, "deploying")
        await settle(app, pilot)
        assert "p pause" not in app.main.footer.text
        await pilot.press("p")
        await app.workers.wait_for_complete()
        assert sent == []
        assert "There is no search to pause now." in "".join(note.message for note in app._notifications)
