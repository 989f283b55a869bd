"""Where the model spends its time: the profiled call tree with shares and headroom."""

from __future__ import annotations

from collections import deque

from textual.app import ComposeResult

from forge_tui.core.profiles import Hotspot
from forge_tui.core.words import count
from forge_tui.tui.glyphs import Glyphs
from forge_tui.tui.paint import Paint, Piece
from forge_tui.tui.panes.base import Pane
from forge_tui.tui.state import SessionView, TargetView
from forge_tui.tui.text import clean, fit, one_line, shorten_middle, speedup, time_ms
from forge_tui.tui.treemodel import TreeModel
from forge_tui.tui.widgets.lines import Line
from forge_tui.tui.widgets.treelist import TreeList

_BAR = 8
_LEAST_NAME = 24
#: a model whose device waits longer than this share is bound by launches, and faster kernels alone gain little
_LAUNCH_BOUND = 0.3
_TALL = 14
"""Rows of the pane from which on there is a second line of detail."""
#: columns with their widths, and the order in which they go where it is narrow: the last of `_LEAVE` first
_COLUMNS = (("calls", 6), ("total", 9), ("self", 9), ("share", 6), ("floor", 6), ("headroom", 10), ("bar", _BAR),
            ("launches", 8), ("best", 7))  # fmt: skip
_LEAVE = ("headroom", "floor", "calls", "self", "launches", "bar")


class HotspotList(TreeList):
    """The call tree; a row for each callable."""

    def __init__(self, paint: Paint, glyphs: Glyphs, state: SessionView) -> None:
        super().__init__(paint, glyphs, id="hotspot-list")
        self.state = state
        self.spots: dict[int, Hotspot] = {}
        self.shown_target: str | None = None
        self._most = 0.0

    def take(self, hotspots: tuple[Hotspot, ...]) -> None:
        """Show another call tree, opened down to the targets."""
        self.spots = {spot.id: spot for spot in hotspots}
        self._most = max((spot.headroom_ms for spot in hotspots), default=0.0)
        self.reset(tree_of(hotspots))
        self.open_targets()
        offered = [spot for spot in hotspots if spot.target_id is not None]
        if offered:
            self.go_to_node(max(offered, key=lambda spot: spot.headroom_ms).id, by_user=False)

    def open_targets(self) -> None:
        """Open the way to every target, one level at least."""
        for node in list(self.model.rows):
            if self.model.depth(node) == 0:
                self.model.open(node)
        for spot in self.spots.values():
            if spot.target_id is not None:
                self.model.reveal(spot.id)
        self.tree_changed()

    def targets_changed(self) -> None:
        """Paint the rows of targets again, for their best may be another."""
        top = round(self.scroll_y)
        for row in range(top, min(top + self.size.height, len(self.model))):
            if self.spots[self.model.rows[row]].target_id in self.state.targets:
                self.row_changed(row)

    def do_node_open_path(self) -> None:
        """Open the way to every target."""
        self.open_targets()
        self.reveal_cursor()

    def columns(self, width: int) -> list[tuple[str, int]]:
        """Names and widths of the columns beside the name's; fewer where it is narrow."""
        columns = [c for c in _COLUMNS if c[0] != "launches" or self.on_gpu]
        leave = list(_LEAVE)
        while leave and width - sum(size + 1 for _, size in columns) < _LEAST_NAME:
            gone = leave.pop()
            columns = [c for c in columns if c[0] != gone]
        return columns

    @property
    def on_gpu(self) -> bool:
        """Whether launches mean something."""
        profile = self.state.profile
        return profile is not None and profile.device.kind == "cuda"

    def node_pieces(self, node: int, width: int) -> list[Piece]:
        """Name, then the columns."""
        spot = self.spots[node]
        columns = self.columns(width)
        view = self.state.targets.get(spot.target_id or "")
        searched = view is not None and self.state.is_searched(view.target.id)
        mark = self.glyphs.target if searched else self.glyphs.offered if view else " "
        lead = f"{mark} {self.guides(node)}{self.glyphs.kinds[spot.kind]} "
        room = width - len(lead) - sum(size + 1 for _, size in columns)
        name = fit(shorten_middle(clean(spot.name), room, self.glyphs.ellipsis), room, self.glyphs.ellipsis)
        quiet = spot.reason and spot.kind not in ("model", "phase") and view is None
        strong = "strong" if searched else "muted" if quiet else "text"
        if view and view.target.id == self.shown_target:
            strong = "target"
        pieces: list[Piece] = [(lead, "target" if searched else "guide"), (name, strong)]
        for column, size in columns:
            text, style = self._cell(column, spot, view)
            pieces.append((" ", "text"))
            pieces.append((fit(text, size, self.glyphs.ellipsis, right=column != "bar"), style))
        return pieces

    def _cell(self, column: str, spot: Hotspot, view: TargetView | None) -> Piece:
        match column:
            case "calls":
                return str(spot.calls), "muted"
            case "total":
                return time_ms(spot.total_ms), "text"
            case "self":
                return time_ms(spot.self_ms), "muted"
            case "floor":
                return (f"{100 * share:.0f}%", "text") if (share := reached(spot)) is not None else ("", "text")
            case "launches":
                return (str(spot.launches), "muted") if spot.launches else ("", "text")
            case "share":
                return f"{100 * spot.share:.1f}%", "text"
            case "headroom":
                return (time_ms(spot.headroom_ms), "text") if spot.headroom_ms > 0 else ("", "text")
            case "bar":
                return self._bar(spot.headroom_ms), "fill"
            case _:
                best = view.best_node if view else None
                if best is None or best.evaluation is None:
                    return "", "text"
                mark = self.glyphs.verdicts[best.evaluation.verdict]
                return f"{mark.glyph}{speedup(best.evaluation.speedup)}", mark.style

    def _bar(self, headroom_ms: float) -> str:
        if headroom_ms <= 0 or self._most <= 0:
            return ""
        eighths = max(1, round(headroom_ms / self._most * _BAR * 8))
        full, rest = divmod(eighths, 8)
        return self.glyphs.full * full + (self.glyphs.blocks[rest] if rest else "")

    def node_text(self, node: int) -> str:
        """Name, path and reason."""
        spot = self.spots[node]
        return f"{spot.name} {spot.kind} {spot.path} {spot.reason} {spot.signature}"


def tree_of(hotspots: tuple[Hotspot, ...]) -> TreeModel[int]:
    """The call tree, siblings longest first."""
    ids = {spot.id for spot in hotspots}
    children: dict[int | None, list[Hotspot]] = {}
    for spot in hotspots:
        children.setdefault(spot.parent if spot.parent in ids else None, []).append(spot)
    model: TreeModel[int] = TreeModel()
    queue = deque(sorted(children.get(None, []), key=lambda s: -s.total_ms))
    while queue:
        spot = queue.popleft()
        model.add(spot.id, spot.parent)
        queue.extend(sorted(children.get(spot.id, []), key=lambda s: -s.total_ms))
    return model


def reached(spot: Hotspot) -> float | None:
    """How much of its floor a callable reaches, 0 to 1; None where there is no floor."""
    return min(1.0, spot.floor_ms / spot.total_ms) if spot.floor_ms > 0 and spot.total_ms > 0 else None


class HotspotsPane(Pane):
    """The hotspots with a line of detail on the one under the cursor."""

    number = 1
    name_shown = "hotspots"

    def __init__(self, paint: Paint, glyphs: Glyphs, state: SessionView) -> None:
        self.rows = HotspotList(paint, glyphs, state)
        super().__init__(paint, glyphs, state, self.rows)
        self.header = Line(paint)
        self.detail = Line(paint)
        self.numbers = Line(paint)

    def compose(self) -> ComposeResult:
        """Title, column names, tree, detail in one line or two."""
        yield self.title_line
        yield self.header
        yield self.rows
        yield self.detail
        yield self.numbers

    def renew(self, *, rebuilt: bool) -> None:
        """Show the state again; `rebuilt` after a new profile."""
        if rebuilt and (len(self.rows.spots) != len(self.state.hotspots) or not self.rows.spots or
                        tuple(self.rows.spots.values()) != self.state.hotspots):  # fmt: skip
            self.rows.take(self.state.hotspots)
        else:
            self.rows.targets_changed()
        profile = self.state.profile
        title: list[Piece] = []
        if profile is not None:
            title = [(f"{time_ms(profile.model_ms)} a model call", "text")]
            dot = f" {self.glyphs.dot} "
            if profile.device.kind == "cuda" and profile.busy_ms:
                idle = profile.idle_share
                title.append((f"{dot}GPU idle {100 * idle:.0f}%", "warning" if idle > _LAUNCH_BOUND else "muted"))
                title.append((f"{dot}{count(profile.launches, 'launch', 'launches')}", "muted"))
            title.append((f"{dot}{count(len(self.state.order), 'target')}", "muted"))
        self.show_title(title)
        self.show_detail()

    def renew_width(self) -> None:
        """The column names."""
        self.show_detail()

    def show_detail(self) -> None:
        """Say what the hotspot under the cursor is, and why it is no target."""
        width = max(20, self.rows.room)
        names = self.rows.columns(width)
        room = width - 4 - sum(size + 1 for _, size in names)
        head = "    " + fit("callable", room, self.glyphs.ellipsis)
        for name, size in names:
            text = "" if name == "bar" else name
            head += " " + fit(text, size, self.glyphs.ellipsis, right=name != "bar")
        self.header.show([(head, "muted")] if self.rows.spots else [])
        node = self.rows.cursor_node
        spot = self.rows.spots.get(node) if node is not None else None
        self.detail.show(self._detail(spot) if spot is not None else [])
        self.numbers.display = self.size.height >= _TALL
        self.numbers.show(self._numbers(spot) if spot is not None else [])

    def _detail(self, spot: Hotspot) -> list[Piece]:
        """What it is, why it is no target, and its signature."""
        view = self.state.targets.get(spot.target_id or "")
        dot = f" {self.glyphs.dot} "
        if view is not None:
            target = view.target
            if not view.usable:
                return [(f" {clean(target.name)} is left out: {one_line(view.unusable_reason)}", "warning")]
            if not self.state.is_searched(target.id):
                return [(f" {self.glyphs.offered} {clean(target.name)}", "text"),
                        (f"{dot}not among the targets of the search so far", "muted")]  # fmt: skip
            signature = self._arrow(target.signature.describe())
            return [(f" {self.glyphs.target} {clean(target.name)}", "target"),
                    (f"{dot}{target.bound}-bound{dot}{signature}", "muted")]  # fmt: skip
        place = f"{spot.kind} {one_line(spot.path or spot.name)}"
        more = dot.join(filter(None, (place, self._arrow(spot.signature))))
        if spot.reason:
            return [(f" {one_line(spot.reason)}", "text"), (f"{dot}{more}", "muted")]
        return [(f" {more}", "muted")]

    def _numbers(self, spot: Hotspot) -> list[Piece]:
        """What has no column where it is narrow, what the model would gain, and the longest kernels."""
        shown = {name for name, _ in self.rows.columns(max(20, self.rows.room))}
        facts = []
        if "calls" not in shown:
            facts.append(f"{spot.calls} {'call' if spot.calls == 1 else 'calls'}")
        if "self" not in shown:
            facts.append(f"self {time_ms(spot.self_ms)}")
        if (share := reached(spot)) is not None:
            facts.append(f"floor {time_ms(spot.floor_ms)}" + ("" if "floor" in shown else f" ({100 * share:.0f}%)"))
        if self.rows.on_gpu:
            facts.append(f"host {time_ms(spot.host_ms)}")
            facts += [count(spot.launches, "launch", "launches")] if "launches" not in shown else []
        gains = [f"{w.mode} {time_ms(w.gain_ms)}" for w in self.state.profile.what_ifs
                 if w.target_ids == (spot.target_id,) and not w.failure] if self.state.profile else []  # fmt: skip
        facts += [f"at its floor the model gains {', '.join(gains)}"] if gains else []
        facts += [f"{one_line(k.short_name)} {time_ms(k.total_ms)}" for k in spot.kernels]
        return [(" " + f" {self.glyphs.dot} ".join(facts), "muted")] if facts else []

    def _arrow(self, signature: str) -> str:
        return one_line(signature.replace("->", self.glyphs.arrow))

    def set_empty(self, first_run: str) -> None:
        """The sentence for a pane without rows; `first_run` where there is no session at all."""
        live = self.state.live or self.state.info is None
        waiting = "The model is being profiled; its hotspots come here." if live else "This session has no profile."
        self.rows.say_empty(first_run or waiting)

    @property
    def target_id(self) -> str | None:
        """The target under the cursor."""
        node = self.rows.cursor_node
        spot = self.rows.spots.get(node) if node is not None else None
        return spot.target_id if spot is not None and spot.target_id in self.state.targets else None

    def find(self, needle: str, *, step: int = 1, after: bool = False) -> bool:
        """Closed nodes are searched too."""
        node = self.rows.search_nodes(needle, step=step, after=after)
        return node is not None and self.rows.go_to_node(node)

    def copy_text(self) -> tuple[str, str] | None:
        """The callable's path; for a target its Python source."""
        node = self.rows.cursor_node
        spot = self.rows.spots.get(node) if node is not None else None
        if spot is None:
            return None
        view = self.state.targets.get(spot.target_id or "")
        if view is not None and view.target.source:
            return view.target.source, "callable.py"
        return spot.path or spot.name, "callable.txt"
