"""Expressions as C statements, shared by both languages: which statement stands in which loop."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from forge_tui.proposers.templates.expr import C_NAME, CType, Expr, walk
from forge_tui.proposers.templates.index import Index, Var

_FUNCTION = re.compile(r"@(\w+)\(")
#: the C type that a function is chosen for is that of its operands, not of its result
IDENTITY = {"sum": "0", "prod": "1", "max": "-inf", "min": "inf"}


@dataclass
class Dialect:
    """How one language spells functions and loads.

    `functions` maps (name, C type) to what stands before the bracket; `load` gives the expression for an element.
    """

    functions: Mapping[tuple[str, str], str]
    load: Callable[[Expr, str], str]
    used: set[str] = field(default_factory=set)
    """Names of functions used, so that the prelude holds only those."""

    def call(self, text: str, ctype: CType) -> str:
        """`text` with `@name(` spelled out."""

        def replace(match: re.Match[str]) -> str:
            name = match[1]
            self.used.add(f"{name}:{ctype}")
            return self.functions.get((name, ctype), f"forge_t_{name}_{ctype}") + "("

        return _FUNCTION.sub(replace, text)


class Names:
    """C names of expressions and loop variables; a child scope sees its parents' names."""

    def __init__(self, dialect: Dialect, parent: Names | None = None) -> None:
        self.dialect = dialect
        self._parent = parent
        self._own: dict[Expr, str] = {}
        self.suffix: str = parent.suffix if parent is not None else ""
        """Set apart the names of statements that are written several times."""
        self.vars: dict[Var, str] = dict(parent.vars) if parent is not None else {}

    def child(self) -> Names:
        """A scope inside this one."""
        return Names(self.dialect, self)

    def find(self, expr: Expr) -> str | None:
        """The name in this scope or one around it."""
        if expr in self._own:
            return self._own[expr]
        return self._parent.find(expr) if self._parent is not None else None

    def set(self, expr: Expr, name: str) -> None:
        """Give a name."""
        self._own[expr] = name

    def index(self, index: Index) -> str:
        """An index as C text."""
        return index.text(self.vars)

    def value(self, expr: Expr) -> str:
        """An operand: a constant as it is, else the name it must have by now."""
        if expr.kind == "const":
            return expr.text
        name = self.find(expr)
        assert name is not None, f"{expr.kind} {expr.text} has no name"
        return name

    def text(self, expr: Expr) -> str:
        """The right-hand side of the statement that computes an expression."""
        if expr.kind == "load":
            assert expr.index is not None
            return self.dialect.load(expr, self.index(expr.index))
        if expr.kind == "index":
            assert expr.index is not None
            return self.index(expr.index)
        if expr.kind == "inside":
            return self._inside(expr)
        kind = expr.args[0].ctype if expr.args else expr.ctype
        return self.dialect.call(expr.text, kind).format(*(self.value(arg) for arg in expr.args))

    def _inside(self, expr: Expr) -> str:
        assert expr.index is not None
        low, high = expr.bounds
        least, most = expr.index.bounds()
        text = self.index(expr.index)
        parts = []
        if least < low:
            parts.append(f"(({text}) >= {low})")
        if most >= high:
            parts.append(f"(({text}) < {high})")
        return " & ".join(parts) or "true"

    def statement(self, expr: Expr) -> str:
        """Name an expression and compute it."""
        name = f"v{expr.order}{self.suffix}"
        text = self.text(expr)
        self.set(expr, name)
        return f"const {C_NAME[expr.ctype]} {name} = {text};"


def place(
    roots: Iterable[Expr], loops: Sequence[Var], known: Callable[[Expr], bool]
) -> list[list[Expr]]:
    """What to compute at each depth: list 0 outside all of `loops`, list n inside the n-th.

    `known` says what has a name already; constants need none.
    """
    depth = {var: number + 1 for number, var in enumerate(loops)}
    levels: list[list[Expr]] = [[] for _ in range(len(loops) + 1)]
    for expr in walk(roots, stop=lambda item: known(item) or item.kind == "reduce"):
        if expr.kind in ("const", "reduce") or known(expr):
            continue
        levels[max((depth.get(var, 0) for var in expr.deps), default=0)].append(expr)
    return levels


def indent(lines: Iterable[str], by: int = 1) -> list[str]:
    """Lines moved to the right; `#` lines stay at the margin of their text."""
    return [("    " * by + line) if line and not line.startswith("#") else line for line in lines]


def identity(kind: str, ctype: CType) -> str:
    """What a reduction starts from."""
    if ctype == "i":
        return {"sum": "0", "prod": "1", "max": "(-9223372036854775807LL - 1)", "min": "9223372036854775807LL"}[kind]
    if ctype == "d":
        return {"sum": "0.0", "prod": "1.0", "max": "-static_cast<double>(kInf)",
                "min": "static_cast<double>(kInf)"}[kind]  # fmt: skip
    return {"sum": "0.0f", "prod": "1.0f", "max": "-kInf", "min": "kInf"}[kind]
