"""The pane of hotspots: columns by width, phases, kinds, and the detail of the row under the cursor."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from forge_tui.tui.app import ForgeApp
from forge_tui.tui.glyphs import UNICODE
from forge_tui.tui.paint import Paint
from forge_tui.tui.panes.hotspots import HotspotList, reached, tree_of
from forge_tui.tui.state import SessionView
from forge_tui.tui.updates import Attached, ProfileRead

from .fakes import FakeView, busy_session, phased_session
from .harness import make_app, screen_lines, screen_text

SESSION = "20250615-1406-7f3a"


async def _open(app: ForgeApp, pilot: Pilot[Any], node: int) -> None:
    for _ in range(3):
        await pilot.pause()
        app.drain()
    await pilot.press("1")
    app.main.hotspots.rows.go_to_node(node)
    await pilot.pause()


def rows_of(view: FakeView) -> HotspotList:
    """The list over a session, without a screen."""
    state = SessionView()
    state.apply(Attached(SESSION))
    profile = view.profiles[SESSION]
    state.apply(ProfileRead(profile, profile.hotspots, profile.targets))
    rows = HotspotList(Paint({}), UNICODE, state)
    rows.spots = {spot.id: spot for spot in profile.hotspots}
    rows.model = tree_of(profile.hotspots)
    rows.model.open_all()
    return rows


@pytest.mark.parametrize(("make", "width", "names"), [
    (phased_session, 120, ["calls", "total", "self", "share", "floor", "headroom", "bar", "launches", "best"]),
    (phased_session, 99, ["calls", "total", "self", "share", "floor", "headroom", "launches", "best"]),
    (phased_session, 79, ["calls", "total", "share", "floor", "headroom", "best"]),
    (phased_session, 60, ["total", "share", "headroom", "best"]), (phased_session, 30, ["total", "share", "best"]),
    (busy_session, 120, ["calls", "total", "self", "share", "floor", "headroom", "bar", "best"]),
    (busy_session, 79, ["calls", "total", "share", "floor", "headroom", "best"]),
])  # fmt: skip
def test_columns_by_width(make: Any, width: int, names: list[str]) -> None:
    """The narrower, the fewer columns; launches on a GPU only; every row is exactly as wide as it may be."""
    rows = rows_of(make())
    assert [name for name, _ in rows.columns(width)] == names
    for node in rows.spots:
        assert sum(len(text) for text, _ in rows.node_pieces(node, max(width, 60))) == max(width, 60)


async def test_phases_and_kinds_are_nodes_of_the_tree() -> None:
    """A phase is a row with its callables below it; what a row is shows without colour; search finds kinds too."""
    app = make_app(phased_session())
    async with app.run_test(size=(100, 40)) as pilot:
        await _open(app, pilot, 10)
        text = screen_text(app)
        for part in ("▾▣ TinyLLM", "├▾◐ prefill", "├·□ RMSNorm", "└·▫ dropout", "└·◐ decode", "GPU idle 40%",
                     "5932 launches"):  # fmt: skip
            assert part in text, part
        await pilot.press("minus")
        assert app.main.hotspots.rows.model.rows == [1]
        assert app.main.hotspots.find("torch")
        assert app.main.hotspots.rows.cursor_node == 40


async def test_detail_of_a_row_that_is_no_target() -> None:
    """The reason first, then what and where it is and its signature; where there is room, numbers and kernels."""
    app = make_app(phased_session())
    async with app.run_test(size=(160, 50)) as pilot:
        await _open(app, pilot, 4)
        pane = app.main.hotspots
        assert pane.detail.text == (" a vendor library does this near its floor · module blocks.*.mlp.up · "
                                    "f32[2,512,256] → f32[2,512,256]")  # fmt: skip
        assert pane.numbers.display
        assert pane.numbers.text == " self 17.9 ms · host 26.8 ms · 84 launches", "what has no column at 80 columns"
        app.main.hotspots.rows.go_to_node(10)
        await pilot.pause()
        assert pane.detail.text.startswith(" ◆ RMSNorm · memory-bound · f32[2,512,256], f32[256] → ")
        assert pane.numbers.text.split(" · ") == [
            " self 1.00 ms", "floor 742 us", "host 5.56 ms", "63 launches",
            "at its floor the model gains eager 9.00 ms, compile 0.00 us", "elementwise_kernel<4, float> 3.00 ms",
        ]  # fmt: skip
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        await pilot.pause()
        assert not pane.numbers.display, "a small pane keeps its rows"


async def test_cpu_profiles_say_nothing_of_launches() -> None:
    """On the CPU there is neither a column nor a word of launches, host time or idle time."""
    app = make_app(busy_session())
    async with app.run_test(size=(200, 50)) as pilot:
        await _open(app, pilot, 3)
        text = "\n".join(screen_lines(app)[:20])
        assert "launches" not in text
        assert "idle" not in text
        assert app.main.hotspots.numbers.text == ""
        await pilot.resize_terminal(72, 50)
        await pilot.pause()
        await pilot.pause()
        assert app.main.hotspots.numbers.text == " 12 calls · self 17.9 ms"


async def test_foreign_text_cannot_drive_the_terminal() -> None:
    """Names, reasons, signatures and kernel names of the model's making are shown harmless, at any width."""
    view = phased_session()
    evil = "\x1b]52;c;aGk=\x07\u202e" + "w" * 300
    profile = view.profiles[SESSION]
    spots = tuple(
        msgspec.structs.replace(s, name=evil, reason=evil, signature=evil, path=evil, kernels=tuple(
            msgspec.structs.replace(k, name=evil) for k in s.kernels))
        for s in profile.hotspots
    )  # fmt: skip
    view.profiles[SESSION] = msgspec.structs.replace(profile, hotspots=spots)
    app = make_app(view)
    async with app.run_test(size=(80, 40)) as pilot:
        for node in (1, 4, 10):
            await _open(app, pilot, node)
            lines = screen_lines(app)
            assert all(len(line) == 80 for line in lines)
            assert "\x1b" not in "".join(lines)
            assert "\u202e" not in "".join(lines)


def test_floor_reached() -> None:
    """Never above one, and unknown where floor or time are."""
    spot = rows_of(phased_session()).spots[10]
    assert reached(spot) == pytest.approx(0.2)
    assert reached(msgspec.structs.replace(spot, floor_ms=100.0)) == 1.0
    assert reached(msgspec.structs.replace(spot, floor_ms=0.0)) is None
    assert reached(msgspec.structs.replace(spot, total_ms=0.0)) is None
