"""The one registry of actions: keys, footer, help, palette and tests are all derived from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["app", "main", "list", "tree", "pick", "confirm"]

_NAMES = {
    "question_mark": "?", "colon": ":", "slash": "/", "full_stop": ".", "minus": "-", "equals_sign": "=",
    "left_square_bracket": "[", "right_square_bracket": "]", "escape": "esc", "pagedown": "PgDn", "pageup": "PgUp",
    "home": "Home", "end": "End", "backspace": "bksp", "shift+tab": "S-tab",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action:
    """Something the user can do, with its default keys."""

    id: str
    keys: tuple[str, ...]
    label: str
    """A word or two for the footer."""
    help: str
    """One line for help and palette."""
    scope: Scope
    footer: int = 0
    """Rank in the footer of its scope, 1 first; 0 is not shown there."""

    @property
    def handler(self) -> str:
        """Name of the method that does it."""
        return "do_" + self.id.replace(".", "_").replace("-", "_")

    @property
    def key_text(self) -> str:
        """The first two keys as a person reads them."""
        return " ".join(show_key(key) for key in self.keys[:2])


def show_key(key: str) -> str:
    """A Textual key name as a person reads it: `?`, `^d`, `Q`."""
    if key.startswith("ctrl+"):
        return "^" + key[5:]
    return _NAMES.get(key, key)


ACTIONS: tuple[Action, ...] = (
    # anywhere, modal screens included
    Action("app.interrupt", ("ctrl+c",), "quit", "Twice: leave; the search goes on in the background", "app"),
    Action("app.suspend", ("ctrl+z",), "suspend", "Back to the shell; fg returns", "app"),
    Action("app.redraw", ("ctrl+l",), "redraw", "Paint the whole screen again", "app"),
    # the main screen, whatever pane has the focus
    Action("help.show", ("question_mark", "f1"), "help", "Keys of this pane, then all others", "main", 90),
    Action("palette.open", ("colon", "ctrl+p"), "commands", "Find a command, a target or a node by its number", "main"),
    Action("view.back", ("q", "escape", "backspace"), "back", "Close the search or the zoom; at the top: leave",
           "main", 91),
    Action("app.quit", ("Q",), "quit", "Leave; the search goes on in the background", "main"),
    Action("pane.hotspots", ("1",), "hotspots", "Hotspots: where the model spends its time", "main"),
    Action("pane.tree", ("2",), "tree", "Search tree of the selected target", "main"),
    Action("pane.kernel", ("3",), "kernel", "Source of the selected node", "main"),
    Action("pane.telemetry", ("4",), "telemetry", "GPUs, or CPU and memory", "main"),
    Action("pane.events", ("5",), "events", "What happened, in order", "main"),
    Action("pane.result", ("6",), "result", "Result: the whole model before and after", "main"),
    Action("pane.next", ("tab",), "next pane", "Next pane", "main"),
    Action("pane.previous", ("shift+tab",), "previous pane", "Previous pane", "main"),
    Action("pane.zoom", ("z",), "zoom", "This pane alone on the screen, and back", "main", 80),
    Action("run.pause", ("p",), "pause", "Pause the search, or let a paused one go on", "main", 70),
    Action("run.stop", ("S",), "stop", "Stop searching and deploy what was found (asks)", "main"),
    Action("run.resume", ("R",), "resume", "Start the engine again for a session that is not finished", "main"),
    Action("session.pick", ("s",), "sessions", "Show another session of this workspace", "main"),
    Action("theme.pick", ("T",), "theme", "Pick a theme, with live preview", "main"),
    Action("mouse.toggle", ("M",), "mouse", "Give the mouse to the terminal, for its own selection, and back", "main"),
    Action("copy.thing", ("y",), "copy", "Copy: the source of the node, or the line under the cursor", "main"),
    Action("tree.best", ("b",), "best", "Go to the best node of the target", "main"),
    Action("tree.follow", ("full_stop",), "follow", "Go to the newest node and follow; any move ends it", "main"),
    Action("target.next", ("right_square_bracket",), "next target", "Next target; in the source pane: next view",
           "main"),
    Action("target.previous", ("left_square_bracket",), "previous target",
           "Previous target; in the source pane: previous view", "main"),
    # every list
    Action("list.down", ("j", "down"), "down", "One row down", "list"),
    Action("list.up", ("k", "up"), "up", "One row up", "list"),
    Action("list.top", ("g", "home"), "top", "First row", "list"),
    Action("list.bottom", ("G", "end"), "bottom", "Last row", "list"),
    Action("list.half_down", ("ctrl+d",), "half page", "Half a page down", "list"),
    Action("list.half_up", ("ctrl+u",), "half page", "Half a page up", "list"),
    Action("list.page_down", ("pagedown",), "page", "A page down", "list"),
    Action("list.page_up", ("pageup",), "page", "A page up", "list"),
    Action("list.left", ("h", "left"), "close", "Close the node, or go to its parent; in text: scroll left", "list"),
    Action("list.right", ("l", "right"), "open", "Open the node, or go to its first child; in text: scroll right",
           "list"),
    Action("list.enter", ("enter",), "select", "Hotspots: search tree of the target; tree: source; events: the node",
           "list", 10),
    Action("search.start", ("slash",), "search", "Search in this pane as you type", "list", 60),
    Action("search.next", ("n",), "next hit", "Next hit", "list"),
    Action("search.previous", ("N",), "previous hit", "Previous hit", "list"),
    # trees
    Action("node.toggle", ("space",), "toggle", "Open or close the node", "tree", 20),
    Action("node.close_all", ("minus",), "close all", "Close every node", "tree"),
    Action("node.open_path", ("equals_sign",), "best path",
           "Open the path to the best node; in hotspots: to all targets", "tree"),
    Action("tree.next_failed", ("x",), "failed", "Next failed node", "tree", 30),
    # lists that open above the main screen
    Action("pick.choose", ("enter",), "choose", "Take the marked line", "pick"),
    Action("pick.cancel", ("escape",), "cancel", "Close without a choice", "pick"),
    Action("pick.down", ("down",), "down", "One line down", "pick"),
    Action("pick.up", ("up",), "up", "One line up", "pick"),
    Action("confirm.yes", ("y",), "yes", "Do it", "confirm"),
    Action("confirm.no", ("n", "escape", "q"), "no", "Leave it as it is", "confirm"),
)  # fmt: skip

BY_ID: dict[str, Action] = {action.id: action for action in ACTIONS}


def footer_for(pane: str, *, live: bool) -> list[Action]:
    """The actions that the footer shows for a pane, at most nine; the last two are the ways to help and out."""
    wanted = {
        "hotspots": ("list.enter", "node.toggle", "target.next"),
        "tree": ("list.enter", "node.toggle", "tree.best", "tree.follow"),
        "kernel": ("target.next", "copy.thing"),
        "telemetry": (),
        "events": ("list.enter", "tree.follow"),
        "result": ("copy.thing",),
    }.get(pane, ())
    common = ["pane.zoom", "search.start"] if pane != "telemetry" else ["pane.next", "pane.zoom"]
    if pane == "tree":
        common.insert(1, "tree.next_failed")
    if live:
        common.insert(0, "run.pause")
    return [BY_ID[name] for name in (*(*wanted, *common)[:7], "help.show", "view.back")]


def for_scope(*scopes: str) -> list[Action]:
    """The actions of some scopes, in the registry's order."""
    return [action for action in ACTIONS if action.scope in scopes]


def key_clashes(pairs: tuple[tuple[str, ...], ...]) -> list[str]:
    """Keys that two actions of scopes that are active together both claim."""
    clashes = []
    for scopes in pairs:
        seen: dict[str, str] = {}
        for action in for_scope(*scopes):
            for key in action.keys:
                if key in seen:
                    clashes.append(f"{key}: {seen[key]} and {action.id}")
                seen[key] = action.id
    return clashes
