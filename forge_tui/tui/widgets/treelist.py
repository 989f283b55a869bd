"""A `LineList` over a `TreeModel`: guides, opening and closing, a cursor that stays on its node."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.binding import BindingType

from forge_tui.tui.glyphs import Glyphs
from forge_tui.tui.keys import bindings_for
from forge_tui.tui.paint import Paint, Piece
from forge_tui.tui.treemodel import TreeModel
from forge_tui.tui.widgets.linelist import LineList

MAX_GUIDES = 10
"""Deeper nodes are not indented any further, so that a long chain leaves room for its text."""


class TreeList(LineList):
    """Rows are the visible nodes of `model`."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("tree")

    def __init__(self, paint: Paint, glyphs: Glyphs, *, id: str | None = None, empty: str = "") -> None:  # noqa: A002
        super().__init__(paint, id=id, empty=empty)
        self.model: TreeModel[int] = TreeModel()
        self.glyphs = glyphs
        self.cursor_node: int | None = None

    # ---- rows

    def row_count(self) -> int:
        """The visible nodes."""
        return len(self.model)

    def row_pieces(self, row: int, width: int) -> list[Piece]:
        """What a node's row shows."""
        return self.node_pieces(self.model.rows[row], width)

    def node_pieces(self, node: int, width: int) -> list[Piece]:
        """What a node shows; subclasses."""
        raise NotImplementedError

    def guides(self, node: int) -> str:
        """The lines that lead to a node, and its sign for open, closed or leaf."""
        model, glyphs = self.model, self.glyphs
        children = model.children(node)
        sign = (glyphs.open if model.is_open(node) else glyphs.closed) if children else glyphs.leaf
        depth = model.depth(node)
        if depth == 0:
            return sign
        parts = [glyphs.elbow if model.is_last(node) else glyphs.tee]
        room = min(depth, MAX_GUIDES) - 1
        for above in model.ancestors(node):
            if room <= 0:
                break
            if model.depth(above) == 0:
                break
            parts.append(" " if model.is_last(above) else glyphs.pipe)
            room -= 1
        mark = f"{depth:>2}" if depth > MAX_GUIDES else ""
        return mark + "".join(reversed(parts)) + sign

    # ---- changes

    def reset(self, model: TreeModel[int]) -> None:
        """Show another tree from its top."""
        self.model = model
        self.cursor = 0
        self.cursor_node = model.rows[0] if len(model) else None
        self.rows_changed()
        self.scroll_rows(0)

    def tree_changed(self, first: int = 0) -> None:
        """Nodes came or were opened or closed: keep the cursor on its node and the node on its screen line.

        No row before `first` shows anything new.
        """
        before = self.cursor - round(self.scroll_y)
        node = self.cursor_node
        if node is None and len(self.model):
            node = self.model.rows[min(self.cursor, len(self.model) - 1)]
        if node is not None:
            node = self.model.nearest_visible(node)
        at = None if node is None else self.model.index(node)
        moved = at is not None and at != self.cursor
        if at is not None:
            self.cursor = at
        self.cursor_node = node
        self.rows_changed(first)
        if moved and 0 <= before < max(1, self.size.height):
            self.scroll_rows(self.cursor - before)

    def first_touched(self, node: int) -> int:
        """The first row that looks different after this node was added: a sibling's guides, or the parent's sign."""
        parent = self.model.parent(node)
        siblings = self.model.children(parent) if parent is not None else []
        before = siblings[-2] if len(siblings) > 1 else parent
        at = None if before is None else self.model.index(before)
        if at is not None:
            return at
        own = self.model.index(node)
        return len(self.model) if own is None else own

    def node_changed(self, node: int) -> None:
        """One node shows something else."""
        at = self.model.index(node)
        if at is not None:
            self.row_changed(at)

    def move_to(self, row: int, *, by_user: bool = True) -> None:
        """Put the cursor on a row and remember the node there."""
        if len(self.model):
            self.cursor_node = self.model.rows[max(0, min(row, len(self.model) - 1))]
        super().move_to(row, by_user=by_user)

    def go_to_node(self, node: int, *, by_user: bool = True) -> bool:
        """Open the way to a node and put the cursor there; whether there is such a node."""
        if node not in self.model:
            return False
        if self.model.reveal(node):
            self.tree_changed()
        at = self.model.index(node)
        assert at is not None
        self.move_to(at, by_user=by_user)
        return True

    # ---- actions

    def do_list_left(self) -> None:
        """Close the node, or go to its parent."""
        node = self.cursor_node
        if node is None or node not in self.model:
            return
        if self.model.is_open(node) and self.model.children(node):
            self.model.close(node)
            self.tree_changed()
        elif (parent := self.model.parent(node)) is not None:
            self.go_to_node(parent)

    def do_list_right(self) -> None:
        """Open the node, or go to its first child."""
        node = self.cursor_node
        if node is None or node not in self.model or not self.model.children(node):
            return
        if not self.model.is_open(node):
            self.model.open(node)
            self.tree_changed()
        else:
            self.go_to_node(self.model.children(node)[0])

    def do_node_toggle(self) -> None:
        """Open or close the node."""
        if self.cursor_node is not None and self.cursor_node in self.model:
            self.model.toggle(self.cursor_node)
            self.tree_changed()

    def do_node_close_all(self) -> None:
        """Close every node."""
        self.model.close_all()
        self.tree_changed()
        self.reveal_cursor()

    def node_text(self, node: int) -> str:
        """What search looks at; subclasses may say more than the row shows."""
        return "".join(text for text, _ in self.node_pieces(node, 400))

    def search_nodes(self, needle: str, *, step: int = 1, after: bool = False) -> int | None:
        """The next node, hidden ones included, whose text holds `needle`; from the cursor's node on."""
        self.needle = needle.lower()
        order = list(self.model.preorder())
        if not needle or not order:
            return None
        return self._first(order, step, after, lambda node: self.needle in self.node_text(node).lower())

    def _first(self, order: list[int], step: int, after: bool, wanted: Any) -> int | None:
        start = order.index(self.cursor_node) if self.cursor_node in order else 0
        for offset in range(1 if after else 0, len(order) + 1):
            node = order[(start + step * offset) % len(order)]
            if wanted(node):
                return node
        return None
