"""The source of the selected node, under a header that says what became of it."""

from __future__ import annotations

from textual.app import ComposeResult

from forge_tui.core.records import Confirmation, Node
from forge_tui.tui.glyphs import EDGE_WORDS, Glyphs
from forge_tui.tui.paint import Paint, Piece
from forge_tui.tui.panes.base import Pane
from forge_tui.tui.state import SessionView
from forge_tui.tui.text import clean, interval, one_line, speedup, time_us, wrap
from forge_tui.tui.widgets.lines import Line
from forge_tui.tui.widgets.sourceview import SourceView

#: of what the compiler says of a kernel, in this order
_RESOURCES = {"registers": "registers a thread", "spill_bytes": "bytes spilled", "smem_bytes": "bytes of shared memory",
              "stack_bytes": "bytes of stack"}  # fmt: skip
VIEWS = ("source", "log", "notes")


def confirmation_words(found: Confirmation | None) -> list[str]:
    """What became of a winner when it was tried once more, a line each."""
    if found is None:
        return []
    if not found.passed:
        return [f"Not confirmed, {str(found.verdict).replace('_', ' ')}: {found.reason}"]
    words = [f"In fresh processes: {speedup(found.speedup)}, 95% interval {interval(found.speedup_ci)}."]
    if found.sanitised:
        words.append(f"Sanitised: {', '.join(found.sanitised)}.")
    if found.unsanitised:
        words.append(f"Unsanitised: {found.unsanitised}")
    return words


class KernelPane(Pane):
    """Three views of one node: its source, the compiler's or worker's log, and everything else known of it."""

    number = 3
    name_shown = "kernel"

    def __init__(self, paint: Paint, glyphs: Glyphs, state: SessionView) -> None:
        self.source = SourceView(paint, id="source",
                                 empty="The source of the node selected in the search tree comes here.")  # fmt: skip
        super().__init__(paint, glyphs, state, self.source)
        self.headers = [Line(paint) for _ in range(3)]
        self.node: Node | None = None
        self.code: str | None = None
        self.view = "source"

    def compose(self) -> ComposeResult:
        """Title, header, source."""
        yield self.title_line
        yield from self.headers
        yield self.source

    def show_node(self, node: Node | None, code: str | None) -> None:
        """Show a node; `code` is None while its source is being read."""
        changed = node is None or self.node is None or node.id != self.node.id
        self.node, self.code = node, code
        if changed:
            self.source.needle = ""
        self._renew_header()
        if node is None:
            self.source.clear()
        elif self.view != "source" or code is not None:
            self.renew_view()

    def next_view(self, step: int) -> None:
        """Go to the next of source, log and notes."""
        self.view = VIEWS[(VIEWS.index(self.view) + step) % len(VIEWS)]
        self._renew_header()
        self.renew_view()

    def renew_view(self) -> None:
        """Fill the body again, for instance at another width."""
        node = self.node
        if node is None:
            return
        if self.view == "source":
            self.source.show_source(self.code or "", node.language)
        elif self.view == "log":
            log = node.evaluation.log if node.evaluation else ""
            self.source.show_text(log.strip() or "Nothing was logged for this node.", "text" if log else "muted")
        else:
            self.source.show_lines(self._notes(node, max(30, self.source.size.width - 2)))

    def renew_width(self) -> None:
        """Log and notes are wrapped."""
        if self.view != "source":
            self.renew_view()

    def _renew_header(self) -> None:
        node = self.node
        views: list[Piece] = []
        for name in VIEWS:
            views += [(f"[{name}]" if name == self.view else f" {name} ", "strong" if name == self.view else "muted")]
        if node is None:
            self.show_title([])
            for line in self.headers:
                line.show([])
            return
        self.show_title([(f"#{node.id} ", "strong"), *views])
        evaluation = node.evaluation
        mark = self.glyphs.verdicts[evaluation.verdict if evaluation else None]
        first: list[Piece] = [(f" {mark.glyph}{mark.letter} {self._verdict_word(node)}", mark.style)]
        if evaluation is not None and evaluation.verdict.right:
            first.append((f" {speedup(evaluation.speedup)} {interval(evaluation.speedup_ci)}", mark.style))
            first.append((f"  {time_us(evaluation.time_us)} against {time_us(evaluation.baseline_us)}", "text"))
        first.append((f"  {self._origin(node)}", "muted"))
        self.headers[0].show(first)
        self.headers[1].show([(f" {one_line(node.idea) or 'No idea was written down.'}", "text")])
        self.headers[2].show(self._reason(node))

    def _verdict_word(self, node: Node) -> str:
        return "being evaluated" if node.evaluation is None else str(node.evaluation.verdict).replace("_", " ")

    def _origin(self, node: Node) -> str:
        text = EDGE_WORDS[node.edge]
        if node.repairs is not None:
            text += f" of #{node.repairs}"
        elif node.parent is not None:
            text += f" of #{node.parent}"
        return f"{text} by {clean(node.proposer)}"

    def _reason(self, node: Node) -> list[Piece]:
        evaluation = node.evaluation
        if evaluation is None:
            return []
        dot = f" {self.glyphs.dot} "
        if evaluation.reason and not evaluation.verdict.right:
            return [(f" {one_line(evaluation.reason)}", "error")]
        parts = []
        if evaluation.max_abs_error is not None:
            parts.append(f"max error {evaluation.max_abs_error:.2e}")
        if evaluation.error_vs_eager is not None:
            parts.append(f"{evaluation.error_vs_eager:.2g}x PyTorch's own error")
        parts.append(f"compile {evaluation.compile_s:.2f} s, verify {evaluation.verify_s:.2f} s, "
                     f"time {evaluation.timing_s:.2f} s")  # fmt: skip
        if evaluation.reason:
            parts.insert(0, one_line(evaluation.reason))
        found = evaluation.confirmation
        if found is not None and found.passed:
            mark = "unsanitised" if found.unsanitised else "sanitised"
            parts.insert(0, f"confirmed {speedup(found.speedup)}, {mark}")
        return [(f" {dot.join(parts)}", "muted")]

    def _notes(self, node: Node, width: int) -> list[list[Piece]]:
        lines: list[list[Piece]] = []

        def section(name: str, text: str, style: str = "text") -> None:
            if text.strip():
                lines.append([(name, "strong")])
                lines.extend([("  " + clean(line, wide=True), style)] for line in wrap(text.strip(), width - 2))
                lines.append([])

        section("Idea", node.idea)
        section("Family", node.family)
        section("Tunables", "\n".join(f"{name} = {value}" for name, value in node.tunables.items()))
        evaluation = node.evaluation
        if evaluation is not None:
            section("Reason", evaluation.reason)
            section("Resources", "\n".join(
                f"{kernel}: " + ", ".join(f"{found[key]} {words}" for key, words in _RESOURCES.items() if key in found)
                for kernel, found in evaluation.resources.items()
            ))  # fmt: skip
            if evaluation.speedup is not None:
                # nodes read in one go come without their samples
                pairs = f", {len(evaluation.samples)} paired samples" if evaluation.samples else ""
                section("Timing", f"{time_us(evaluation.time_us)} against {time_us(evaluation.baseline_us)}: "
                        f"{speedup(evaluation.speedup)}, 95% interval {interval(evaluation.speedup_ci)}"
                        f"{pairs}")  # fmt: skip
            section("Confirmation", "\n".join(confirmation_words(evaluation.confirmation)))
            section("Built file", evaluation.sha256, "muted")
        section("Origin", self._origin(node) + (f", ${node.cost_usd:.4f}" if node.cost_usd else ""), "muted")
        return lines

    def copy_text(self) -> tuple[str, str] | None:
        """The source in the source view, else the text of the view."""
        if self.node is None:
            return None
        suffix = "cu" if self.node.language == "cuda" else "cpp"
        name = f"{self.state.session}-node{self.node.id}"
        if self.view == "source":
            return None if self.code is None else (self.code, f"{name}.{suffix}")
        return self.source.text, f"{name}-{self.view}.txt"
