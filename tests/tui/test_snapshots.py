"""Pictures of fixed sessions, compared cell by cell; `pytest --snapshot-update` accepts a change on purpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from textual.pilot import Pilot

from forge_tui.tui.app import ForgeApp
from forge_tui.tui.glyphs import ASCII

from .fakes import FakeFeed, FakeView, busy_session, phased_session, waves
from .harness import make_app


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clock times in the events do not hang on the machine's zone."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at_node(app: ForgeApp, node: int) -> Callable[[Pilot[Any]], Any]:
    """Go to a node and wait for its source."""

    async def go(pilot: Pilot[Any]) -> None:
        await pilot.pause()
        app.drain()
        await pilot.pause()
        app.go_to(node)
        await pilot.pause()
        app.drain()
        await pilot.pause()

    return go


CASES: dict[str, tuple[Callable[[], FakeView], tuple[int, int], int | None, dict[str, Any]]] = {
    "busy_200x50": (busy_session, (200, 50), 4, {}),
    "busy_80x24": (busy_session, (80, 24), 4, {}),
    "busy_ascii_80x24": (busy_session, (80, 24), 4, {"glyphs": ASCII}),
    "busy_light_120x36": (busy_session, (120, 36), 3, {"theme_name": "forge-light"}),
    "done_80x24": (lambda: busy_session(state="done"), (80, 24), None, {}),
    "gpu_200x50": (busy_session, (200, 50), 4, {"feed": 1}),
    "empty_80x24": (FakeView, (80, 24), None, {}),
}


@pytest.mark.parametrize("case", list(CASES))
def test_picture(case: str, snap_compare: Any) -> None:
    """The screen looks as it did when a person last looked at it."""
    make_view, size, node, more = CASES[case]
    if more.get("feed"):
        more = {"feed": FakeFeed(waves(60, gpus=1))}
    app = make_app(make_view(), **more)

    async def wait(pilot: Pilot[Any]) -> None:
        for _ in range(3):
            await pilot.pause()
            app.drain()
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=wait if node is None else at_node(app, node))


@pytest.mark.parametrize(("case", "size", "more"), [
    ("wide", (200, 50), {}), ("narrow", (80, 24), {}),
    ("ascii", (110, 30), {"glyphs": ASCII, "theme_name": "forge-contrast"}),
], ids=["wide", "narrow", "ascii"])  # fmt: skip
def test_hotspots_picture(case: str, size: tuple[int, int], more: dict[str, Any], snap_compare: Any) -> None:
    """Phases, kinds, floors and launches of a profile on a GPU, and the detail of the row under the cursor."""
    app = make_app(phased_session(), **more)

    async def look(pilot: Pilot[Any]) -> None:
        for _ in range(3):
            await pilot.pause()
            app.drain()
        await pilot.press("1")
        app.main.hotspots.rows.go_to_node(4 if case == "narrow" else 10)
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=look)
