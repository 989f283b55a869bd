"""The value expressions that kernels compute: loads, constants, operations and reductions, shared parts once.

A C type is one letter: `f` float, `d` double, `i` int64_t, `b` bool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from forge_tui.proposers.templates.index import Index, Var

CType = Literal["f", "d", "i", "b"]

#: what a kernel computes in, by the dtype of the result
CTYPE: dict[str, CType] = {
    "float64": "d", "float32": "f", "float16": "f", "bfloat16": "f",
    "int64": "i", "int32": "i", "int16": "i", "int8": "i", "uint8": "i", "bool": "b",
}  # fmt: skip
C_NAME: dict[CType, str] = {"f": "float", "d": "double", "i": "int64_t", "b": "bool"}

Kind = Literal["load", "const", "index", "inside", "op", "reduce", "probe"]


class Unfit(Exception):
    """The graph does not fit; the message is the reason."""


@dataclass(frozen=True, eq=False)
class Expr:
    """One value as a function of loop variables.

    Kinds: `load` reads input `name` at `index`; `const` is `text`; `index` is an index as a value; `inside` says
    whether `index` is within `bounds`; `op` fills `text` with `args`; `reduce` combines `args[0]` over `over` by
    `text` (sum, max, min, prod); `probe` stands for a reduction whose body is not looked at yet.
    Made by `Pool` only, so that equal expressions are the same object.
    """

    kind: Kind
    ctype: CType
    text: str = ""
    name: str = ""
    index: Index | None = None
    bounds: tuple[int, int] = (0, 0)
    args: tuple[Expr, ...] = ()
    over: tuple[Var, ...] = ()
    order: int = field(default=0, compare=False)
    """When it was made: operands come before what uses them."""

    @cached_property
    def deps(self) -> frozenset[Var]:
        """Loop variables that the value depends on."""
        found: set[Var] = set()
        for arg in self.args:
            found |= arg.deps
        if self.index is not None:
            found |= self.index.variables()
        return frozenset(found - set(self.over))

    @cached_property
    def level(self) -> int:
        """How many reductions, one upon the other, the value needs."""
        below = max((arg.level for arg in self.args), default=0)
        return below + (self.kind == "reduce")

    @cached_property
    def cost(self) -> int:
        """Rough number of cycles of the operation itself."""
        if self.kind != "op":
            return 1
        return 10 if any(name in self.text for name in _DEAR) else 1


_DEAR = ("exp", "normal", "tanh", "sigmoid", "erf", "log", "pow", "sin", "cos", "fmod", "tan")


class Pool:
    """Makes expressions, equal ones once."""

    def __init__(self) -> None:
        self._known: dict[object, Expr] = {}

    def __len__(self) -> int:
        return len(self._known)

    def _make(self, expr: Expr) -> Expr:
        key = (
            expr.kind, expr.ctype, expr.text, expr.name, expr.index, expr.bounds,
            tuple(id(arg) for arg in expr.args), expr.over,
        )  # fmt: skip
        known = self._known.get(key)
        if known is None:
            known = Expr(
                expr.kind, expr.ctype, expr.text, expr.name, expr.index, expr.bounds, expr.args, expr.over,
                len(self._known),
            )  # fmt: skip
            self._known[key] = known
        return known

    def remake(self, expr: Expr, args: tuple[Expr, ...], index: Index | None, over: tuple[Var, ...]) -> Expr:
        """The same operation on other operands."""
        if expr.kind == "index" and index is not None:
            return self.index(index)
        if expr.kind == "inside" and index is not None:
            return self.inside(index, *expr.bounds)
        return self._make(Expr(expr.kind, expr.ctype, expr.text, expr.name, index, expr.bounds, args, over))

    def load(self, name: str, dtype: str, index: Index) -> Expr:
        """The element of an input at an offset, in elements."""
        return self._make(Expr("load", CTYPE[dtype], dtype, name, index))

    def const(self, value: float | bool | str, ctype: CType) -> Expr:
        """A number; text is `inf`, `-inf` or `nan`."""
        return self._make(Expr("const", ctype, literal(value, ctype)))

    def index(self, index: Index) -> Expr:
        """An index as an integer value."""
        if not index.terms:
            return self.const(index.const, "i")
        return self._make(Expr("index", "i", index=index))

    def inside(self, index: Index, low: int, high: int) -> Expr:
        """Whether `low` <= index < `high`."""
        a, b = index.bounds()
        if low <= a and b < high:
            return self.const(True, "b")
        if b < low or a >= high:
            return self.const(False, "b")
        return self._make(Expr("inside", "b", index=index, bounds=(low, high)))

    def op(self, ctype: CType, text: str, *args: Expr) -> Expr:
        """`text` with {0}, {1}, ... for the arguments."""
        return self._make(Expr("op", ctype, text, args=args))

    def reduce(self, kind: str, body: Expr, over: tuple[Var, ...]) -> Expr:
        """`body` combined over variables."""
        return self._make(Expr("reduce", body.ctype, kind, args=(body,), over=over))

    def probe(self, name: str, ctype: CType, at: tuple[Index, ...]) -> Expr:
        """A reduction node at a position, its body not looked at."""
        total = Index()
        for number, index in enumerate(at):
            total = total + index * 1_000_003 ** (number + 1)
        return self._make(Expr("probe", ctype, name=name, index=total))

    def cast(self, value: Expr, ctype: CType) -> Expr:
        """Converted as C (and torch) convert."""
        if value.ctype == ctype:
            return value
        if ctype == "b":
            return self.op("b", "({0} != 0)", value)
        return self.op(ctype, f"static_cast<{C_NAME[ctype]}>({{0}})", value)


def literal(value: float | bool | str, ctype: CType) -> str:
    """A C constant of the type."""
    number = float(value) if isinstance(value, str) else value
    if ctype == "b":
        return "true" if number else "false"
    if ctype == "i":
        whole = int(number)
        # the smallest int64 has no literal of its own
        return f"({whole}LL)" if whole != -(2**63) else "(-9223372036854775807LL - 1)"
    number = float(number)
    if number != number:
        return "kNaN" if ctype == "f" else "static_cast<double>(kNaN)"
    if number in (float("inf"), float("-inf")):
        text = "kInf" if ctype == "f" else "static_cast<double>(kInf)"
        return text if number > 0 else f"(-{text})"
    if ctype == "f" and abs(number) > _FLOAT_MAX:
        return "kInf" if number > 0 else "(-kInf)"
    text = repr(number)
    if "e" not in text and "." not in text:
        text += ".0"
    text += "f" if ctype == "f" else ""
    return f"({text})" if number < 0 else text


_FLOAT_MAX = 3.4028235677973366e38


def walk(roots: Iterable[Expr], stop: Callable[[Expr], bool] = lambda _: False) -> list[Expr]:
    """Expressions below `roots`, roots included, operands first; what `stop` holds is listed but not entered."""
    found: set[Expr] = set()
    stack = list(roots)
    while stack:
        expr = stack.pop()
        if expr in found:
            continue
        found.add(expr)
        if not stop(expr):
            stack.extend(expr.args)
    return sorted(found, key=lambda expr: expr.order)


def loads(roots: Iterable[Expr]) -> Iterator[Expr]:
    """Every load below `roots`, bodies of reductions included."""
    return (expr for expr in walk(roots) if expr.kind == "load")


def rebuild(pool: Pool, roots: list[Expr], mapping: dict[Var, Index], over: dict[tuple[Var, ...], tuple[Var, ...]]
            ) -> list[Expr]:  # fmt: skip
    """The same values with variables replaced; `over` says what the variables of reductions become."""
    new: dict[Expr, Expr] = {}
    for expr in walk(roots):
        args = tuple(new[arg] for arg in expr.args)
        index = expr.index.substitute(mapping) if expr.index is not None else None
        new[expr] = pool.remake(expr, args, index, over.get(expr.over, expr.over))
    return [new[root] for root in roots]
