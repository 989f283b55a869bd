"""The registry of actions is consistent in itself."""

from __future__ import annotations

from textual.keys import Keys

from forge_tui.tui.actions import ACTIONS, BY_ID, footer_for, key_clashes
from forge_tui.tui.app import ForgeApp
from forge_tui.tui.layout import PANES
from forge_tui.tui.screens.confirm import ConfirmScreen
from forge_tui.tui.screens.pick import PickScreen
from forge_tui.tui.widgets.linelist import LineList
from forge_tui.tui.widgets.treelist import TreeList


def test_no_key_has_two_meanings() -> None:
    """In every set of scopes that is active at once a key stands for one action."""
    pairs = (("app", "main", "list", "tree"), ("app", "pick", "list"), ("app", "confirm"))
    assert key_clashes((pairs[0],)) == []
    assert key_clashes((pairs[2],)) == []
    # enter, up and down mean the same in the list and in the filter above it
    assert {clash.split(":")[0] for clash in key_clashes((pairs[1],))} <= {"enter", "up", "down"}


def test_ids_are_unique_and_told() -> None:
    """Every action has a name of its own and a sentence for the help."""
    assert len(BY_ID) == len(ACTIONS)
    assert all(action.help and action.label and action.keys for action in ACTIONS)


def test_no_forbidden_keys() -> None:
    """No Alt, and of the control letters only those that no multiplexer or shell takes."""
    for action in ACTIONS:
        for key in action.keys:
            assert not key.startswith(("alt+", "super+", "meta+"))
            if key.startswith("ctrl+"):
                assert key in {"ctrl+c", "ctrl+z", "ctrl+l", "ctrl+d", "ctrl+u", "ctrl+p"}
            assert len(key) == 1 or key.startswith("ctrl+") or key in {k.value for k in Keys} or key in {
                "question_mark", "colon", "slash", "full_stop", "minus", "equals_sign", "left_square_bracket",
                "right_square_bracket", "space", "shift+tab",
            }, key  # fmt: skip


def test_every_action_has_a_handler() -> None:
    """Where its scope is active there is a method for it."""
    owners = {"app": (ForgeApp,), "main": (ForgeApp,), "list": (LineList, ForgeApp), "tree": (TreeList, ForgeApp),
              "pick": (PickScreen,), "confirm": (ConfirmScreen,)}  # fmt: skip
    from forge_tui.tui.panes.hotspots import HotspotList
    from forge_tui.tui.panes.tree import NodeList

    for action in ACTIONS:
        found = [owner for owner in (*owners[action.scope], NodeList, HotspotList) if hasattr(owner, action.handler)]
        assert found, action.id


def test_the_footer_is_short() -> None:
    """Every pane's footer has at most nine keys and always the ways to help and out."""
    for pane in PANES:
        for live in (True, False):
            ids = [action.id for action in footer_for(pane, live=live)]
            assert 4 <= len(ids) <= 9
            assert ids[-2:] == ["help.show", "view.back"]
            assert ("run.pause" in ids) == live
