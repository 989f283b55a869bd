"""The search tree of one target: a row for each candidate."""

from __future__ import annotations

from forge_tui.core.records import Edge, Node
from forge_tui.tui.glyphs import EDGE_WORDS, Glyphs
from forge_tui.tui.paint import Paint, Piece
from forge_tui.tui.panes.base import Pane
from forge_tui.tui.state import SessionView, TargetView
from forge_tui.tui.text import clean, fit, one_line, speedup
from forge_tui.tui.treemodel import TreeModel
from forge_tui.tui.widgets.treelist import TreeList

_FULL_WIDTH = 64


class NodeList(TreeList):
    """Candidates below the ones they came from."""

    def __init__(self, paint: Paint, glyphs: Glyphs) -> None:
        super().__init__(paint, glyphs, id="node-list")
        self.view: TargetView | None = None
        self._path: set[int] = set()
        self._known_best: int | None = None

    def take(self, view: TargetView | None) -> None:
        """Show another target's tree, opened along the best path."""
        self.view = view
        model: TreeModel[int] = TreeModel()
        if view is not None:
            for node in view.nodes.values():
                model.add(node.id, node.parent)
        self._path = view.best_path() if view else set()
        self._known_best = view.best if view else None
        for node_id in self._path:
            model.open(node_id)
        if model.size <= 200:
            model.open_all()
        self.reset(model)

    def grow(self, nodes: list[Node]) -> None:
        """Take new and changed nodes of the shown target."""
        if self.view is None:
            return
        first = len(self.model)
        grew = False
        for node in nodes:
            if node.id in self.model:
                at = self.model.index(node.id)
                if at is not None:
                    self.row_changed(at)
                continue
            grew = True
            parent = node.parent if node.parent is not None and node.parent in self.model else None
            fresh = parent is not None and not self.model.children(parent)
            if self.model.add(node.id, parent):
                first = min(first, self.model.index(node.id) or 0)
            elif fresh and parent is not None and self.model.is_visible(parent):
                # the first child of a visible node is shown: growth is what one watches for
                self.model.open(parent)
            first = min(first, self.first_touched(node.id))
        if self.view.best != self._known_best:
            self._known_best = self.view.best
            self._path = self.view.best_path()
            first = 0
        if grew or first == 0:
            self.tree_changed(first)

    def node_pieces(self, node: int, width: int) -> list[Piece]:
        """Mark, guides, number and idea; then edge, verdict and speedup in columns."""
        assert self.view is not None
        record = self.view.nodes[node]
        evaluation = record.evaluation
        mark = self.glyphs.verdicts[evaluation.verdict if evaluation else None]
        best = node == self.view.best
        sign = self.glyphs.best if best else self.glyphs.path if node in self._path else " "
        lead = f"{self.guides(node)} "
        number = f"#{node} "
        full = width >= _FULL_WIDTH
        word = _confirmed(record) or mark.word
        verdict = f"{mark.glyph}{mark.letter} {word}" if full else f"{mark.glyph}{mark.letter}"
        edge = EDGE_WORDS[record.edge]
        right = 8 + (1 + 13 if full else 1 + 2) + 1 + 7
        room = width - 2 - len(lead) - len(number) - right
        value = speedup(evaluation.speedup) if evaluation is not None and evaluation.verdict.right else ""
        quiet = evaluation is not None and not evaluation.verdict.right
        idea = fit(node_idea(record), room, self.glyphs.ellipsis)
        return [
            (f"{sign} ", "best"), (lead, "best" if node in self._path else "guide"),
            (number, "best" if best else "strong"), (idea, "muted" if quiet else "text"),
            (f" {fit(edge, 7, self.glyphs.ellipsis)}", "edge"),
            (f" {fit(verdict, 13 if full else 2, self.glyphs.ellipsis)}", mark.style),
            (f" {fit(value, 7, self.glyphs.ellipsis, right=True)}", mark.style),
        ]  # fmt: skip

    def node_text(self, node: int) -> str:
        """Number, verdict, idea, family, reason and proposer."""
        assert self.view is not None
        record = self.view.nodes[node]
        said = record.evaluation
        words = self.glyphs.verdicts[said.verdict if said else None]
        reason = f"{said.verdict} {said.reason} {_confirmed(record)}" if said else ""
        return f"#{record.id} {record.edge} {words.word} {record.family} {record.idea} {record.proposer} {reason}"

    def do_node_open_path(self) -> None:
        """Open the path to the best node."""
        if self.view is not None and self.view.best is not None:
            self.model.reveal(self.view.best)
            self.tree_changed()

    def do_tree_next_failed(self) -> None:
        """Go to the next node that failed, closed ones included."""
        if self.view is None:
            return
        nodes = self.view.nodes

        def failed(node: int) -> bool:
            evaluation = nodes[node].evaluation
            return evaluation is not None and evaluation.verdict.repairable

        found = self._first(list(self.model.preorder()), 1, True, failed)
        if found is None:
            self.app.notify("No node of this target failed.", timeout=3)
        else:
            self.go_to_node(found)


def _confirmed(node: Node) -> str:
    """A winner that held up once more; the mark says that no sanitizer saw all of it."""
    found = node.evaluation.confirmation if node.evaluation else None
    if found is None or not found.passed:
        return ""
    return "confirmed!" if found.unsanitised else "confirmed"


def node_idea(node: Node) -> str:
    """What a node tries, in one line: its idea, else the values a tuning step chose, else its family."""
    tuned = " ".join(f"{name}={value}" for name, value in node.tunables.items()) if node.edge is Edge.TUNE else ""
    return one_line(node.idea or tuned or node.family) or clean(node.proposer)


class TreePane(Pane):
    """The search tree with its target's name and best."""

    number = 2
    name_shown = "search"

    def __init__(self, paint: Paint, glyphs: Glyphs, state: SessionView) -> None:
        self.rows = NodeList(paint, glyphs)
        super().__init__(paint, glyphs, state, self.rows)

    def renew(self, *, follow: bool) -> None:
        """Show title and empty sentence again."""
        view = self.rows.view
        if view is None:
            self.show_title([])
            return
        at = self.state.order.index(view.target.id) + 1 if view.target.id in self.state.order else 0
        dot, count = f" {self.glyphs.dot} ", len(view.nodes)
        title: list[Piece] = [(clean(view.target.name), "target"), (f" {at}/{len(self.state.order)}", "muted"),
                              (f"{dot}{count} node{'' if count == 1 else 's'}", "text")]  # fmt: skip
        if view.failed:
            title.append((f", {view.failed} failed", "muted"))
        best = view.best_node
        if best is not None and best.evaluation is not None:
            mark = self.glyphs.verdicts[best.evaluation.verdict]
            value = f"#{best.id} {mark.glyph}{speedup(best.evaluation.speedup)}"
            title += [(f"{dot}best ", "muted"), (value, mark.style)]
            confirmation = best.evaluation.confirmation
            if confirmation is not None and confirmation.unsanitised:
                title.append((" unsanitised", "warning"))
        if follow:
            title.append((f"{dot}FOLLOW", "accent"))
        self.show_title(title)

    def set_empty(self, first_run: str) -> None:
        """The sentence for a pane without rows; `first_run` where there is no session at all."""
        view = self.rows.view
        if view is None:
            live = self.state.live or self.state.info is None
            wait, none = "No target to search yet; they come from the profile.", "This session has no targets."
            text = wait if live else none
        elif not view.usable:
            text = f"This target is left out: {one_line(view.unusable_reason)}"
        elif self.state.live:
            text = "No candidates yet; they come here as the search writes them."
        else:
            text = "No candidate was written for this target."
        self.rows.say_empty(first_run or text)

    def find(self, needle: str, *, step: int = 1, after: bool = False) -> bool:
        """Closed nodes are searched too."""
        node = self.rows.search_nodes(needle, step=step, after=after)
        return node is not None and self.rows.go_to_node(node)

    def copy_text(self) -> tuple[str, str] | None:
        """The source of the node, as the kernel pane copies it."""
        return self.forge.kernel.copy_text()
