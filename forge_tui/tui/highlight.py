"""CUDA and C++ into styled lines, by Pygments; a pure function that a thread may run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from forge_tui.tui.paint import Piece
from forge_tui.tui.text import source_lines

if TYPE_CHECKING:
    from pygments.lexer import Lexer  # type: ignore[import-untyped]

OFF_LOOP_LINES = 500
"""Longer sources are highlighted in a thread, shown plain until then."""
_KEPT = 32


def lexer_for(language: str) -> Lexer:
    """The lexer of a candidate's language."""
    if language == "cuda":
        from pygments.lexers.c_like import CudaLexer  # type: ignore[import-untyped]

        return CudaLexer(stripnl=False, ensurenl=True)
    from pygments.lexers.c_cpp import CppLexer  # type: ignore[import-untyped]

    return CppLexer(stripnl=False, ensurenl=True)


def plain(source: str) -> list[list[Piece]]:
    """The lines without colours."""
    return [[(line, "text")] for line in source_lines(source)]


def highlight(source: str, language: str) -> list[list[Piece]]:
    """The lines as pieces with style names. The text is made harmless first, so no escape gets through."""
    lines = source_lines(source)
    out: list[list[Piece]] = [[]]
    for token, text in lexer_for(language).get_tokens("\n".join(lines)):
        name = style_name(token, text)
        first, *rest = text.split("\n")
        if first:
            out[-1].append((first, name))
        out.extend([(part, name)] if part else [] for part in rest)
    del out[len(lines) :]
    out.extend([] for _ in range(len(lines) - len(out)))
    return out


def style_name(token: Any, text: str) -> str:
    """The theme's colour for a token."""
    kind = str(token)[6:]
    if kind.startswith("Comment.Preproc"):
        return "preprocessor"
    if kind.startswith("Comment"):
        return "directive" if text.lstrip().startswith("//@") else "comment"
    for start, name in _NAMES:
        if kind.startswith(start):
            return name
    return "text"


_NAMES = (
    ("Keyword.Type", "type"), ("Keyword", "keyword"), ("Name.Builtin", "builtin"), ("Name.Function", "function"),
    ("Name.Class", "type"), ("Literal.String", "string"), ("Literal.Number", "number"), ("Operator", "operator"),
    ("Punctuation", "operator"),
)  # fmt: skip


class HighlightCache:
    """The last few highlighted sources."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], list[list[Piece]]] = OrderedDict()

    def get(self, source: str, language: str) -> list[list[Piece]] | None:
        """The lines, if they are still known."""
        found = self._kept.get((source, language))
        if found is not None:
            self._kept.move_to_end((source, language))
        return found

    def put(self, source: str, language: str, lines: list[list[Piece]]) -> None:
        """Keep the lines."""
        self._kept[source, language] = lines
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)


def total_width(lines: Iterable[list[Piece]]) -> int:
    """Cells of the longest line."""
    from rich.cells import cell_len

    return max((sum(cell_len(text) for text, _ in line) for line in lines), default=0)
