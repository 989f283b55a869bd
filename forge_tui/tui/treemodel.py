"""The rows of an expandable tree: a flat list that is spliced, never rebuilt, when the tree grows. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

Id = TypeVar("Id", bound=Hashable)


class TreeModel(Generic[Id]):
    """Parents, children, what is open, and the visible rows in order.

    The visible rows are by definition the nodes met walking the open nodes from the roots in order of their
    addition. Every change keeps that by splicing the flat list; nothing recurses, so depth does not matter.
    """

    def __init__(self) -> None:
        self._parent: dict[Id, Id | None] = {}
        self._children: dict[Id, list[Id]] = {}
        self._roots: list[Id] = []
        self._depth: dict[Id, int] = {}
        self._open: set[Id] = set()
        self._rows: list[Id] = []
        self._index: dict[Id, int] | None = {}
        self.version = 0
        """Grows with every change of the visible rows."""

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, node: Id) -> bool:
        return node in self._parent

    @property
    def rows(self) -> list[Id]:
        """The visible rows; not to be changed by the caller."""
        return self._rows

    @property
    def size(self) -> int:
        """Number of nodes, visible or not."""
        return len(self._parent)

    def add(self, node: Id, parent: Id | None) -> bool:
        """Add a node as the last child of its parent (None, or unknown: a root); whether it is visible.

        A node that is there already stays as it is.
        """
        if node in self._parent:
            return self.is_visible(node)
        if parent is not None and parent not in self._parent:
            parent = None
        self._parent[node] = parent
        if parent is None:
            self._depth[node] = 0
            self._roots.append(node)
            at = len(self._rows)
        else:
            self._depth[node] = self._depth[parent] + 1
            shown = parent in self._open and self.is_visible(parent)
            at = self._end(parent) if shown else 0
            self._children.setdefault(parent, []).append(node)
            if not shown:
                return False
        self._splice(at, at, [node])
        return True

    def parent(self, node: Id) -> Id | None:
        """The parent, None for a root."""
        return self._parent[node]

    def children(self, node: Id) -> list[Id]:
        """The children in order; not to be changed by the caller."""
        return self._children.get(node, [])

    def depth(self, node: Id) -> int:
        """0 for a root."""
        return self._depth[node]

    def is_open(self, node: Id) -> bool:
        """Whether the node's children are shown where the node is."""
        return node in self._open

    def is_last(self, node: Id) -> bool:
        """Whether no sibling follows."""
        parent = self._parent[node]
        siblings = self._roots if parent is None else self._children[parent]
        return siblings[-1] == node

    def index(self, node: Id) -> int | None:
        """Row of a node, None where it is not visible."""
        if self._index is None:
            self._index = {row: number for number, row in enumerate(self._rows)}
        return self._index.get(node)

    def is_visible(self, node: Id) -> bool:
        """Whether all ancestors are open."""
        return all(above in self._open for above in self.ancestors(node))

    def ancestors(self, node: Id) -> Iterator[Id]:
        """The parent, its parent, and so on to the root."""
        above = self._parent[node]
        while above is not None:
            yield above
            above = self._parent[above]

    def open(self, node: Id) -> bool:
        """Open a node; whether rows changed."""
        if node in self._open:
            return False
        self._open.add(node)
        at = self.index(node)
        if at is None or not self._children.get(node):
            return False
        self._splice(at + 1, at + 1, list(self._walk(self._children[node])))
        return True

    def close(self, node: Id) -> bool:
        """Close a node; what was open below stays open for next time. Whether rows changed."""
        if node not in self._open:
            return False
        at = self.index(node)
        if at is None:
            self._open.discard(node)
            return False
        end = self._end(node)
        self._open.discard(node)
        if end == at + 1:
            return False
        self._splice(at + 1, end, [])
        return True

    def toggle(self, node: Id) -> bool:
        """Open a closed node, close an open one."""
        return self.close(node) if node in self._open else self.open(node)

    def reveal(self, node: Id) -> bool:
        """Open every ancestor, from the top; whether rows changed."""
        changed = False
        for above in reversed(list(self.ancestors(node))):
            changed |= self.open(above)
        return changed

    def close_all(self) -> None:
        """Close every node."""
        self._open.clear()
        self._splice(0, len(self._rows), list(self._roots))

    def open_all(self) -> None:
        """Open every node that has children."""
        self._open.update(self._children)
        self._splice(0, len(self._rows), list(self._walk(self._roots)))

    def preorder(self) -> Iterator[Id]:
        """Every node, visible or not, in the order of the walk."""
        stack = list(reversed(self._roots))
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(self._children.get(node, [])))

    def nearest_visible(self, node: Id) -> Id | None:
        """The node itself, or its lowest ancestor that is visible."""
        if node not in self._parent:
            return None
        chain = [node, *self.ancestors(node)]
        for number in range(len(chain) - 1, 0, -1):
            if chain[number] not in self._open:
                return chain[number]
        return node

    def _walk(self, start: Iterable[Id]) -> Iterator[Id]:
        stack = list(reversed(list(start)))
        while stack:
            node = stack.pop()
            yield node
            if node in self._open:
                stack.extend(reversed(self._children.get(node, [])))

    def _end(self, node: Id) -> int:
        """One past the last visible row below a visible node."""
        last = node
        while last in self._open and self._children.get(last):
            last = self._children[last][-1]
        at = self.index(last)
        assert at is not None
        return at + 1

    def _splice(self, start: int, end: int, rows: list[Id]) -> None:
        appended = start == len(self._rows)
        self._rows[start:end] = rows
        if self._index is not None and appended:
            self._index.update((row, start + number) for number, row in enumerate(rows))
        else:
            self._index = None
        self.version += 1
