"""Row reductions in C++: loops over rows, walks along each, buffers between the walks."""

from __future__ import annotations

from collections.abc import Sequence

from forge_tui.proposers.templates.emit import Names, identity, indent, place
from forge_tui.proposers.templates.expr import C_NAME, Expr, walk
from forge_tui.proposers.templates.index import Var
from forge_tui.proposers.templates.loops import Rows, Store
from forge_tui.proposers.templates.passes import Pass, Passes, fastest_last

STORED = {"bfloat16": "forge::bfloat16", "float16": "forge::half", "float32": "float", "float64": "double",
          "bool": "bool", **{name: name + "_t" for name in ("int64", "int32", "int16", "int8", "uint8")}}  # fmt: skip


def written(store: Store, names: Names) -> str:
    """The statement that stores a value."""
    value = names.value(store.value)
    kind = {"float32": "f", "float64": "d", "int64": "i", "bool": "b"}.get(store.dtype)
    if kind != store.value.ctype:
        value = f"{STORED[store.dtype]}({value})"
    return f"{store.output}[{names.index(store.address)}] = {value};"


def loop(var: Var, low: str = "0", high: str = "") -> str:
    """The head of a loop."""
    return f"for (int64_t {var.name} = {low}; {var.name} < {high or var.extent}; ++{var.name}) {{"


def nested(heads: Sequence[str], body: Sequence[str], first: str = "") -> list[str]:
    """`body` inside loops, a pragma line before them."""
    lines = [first] if first else []
    for depth, head in enumerate(heads):
        lines += indent([head], depth)
    lines += indent(body, len(heads))
    for depth in reversed(range(len(heads))):
        lines += indent(["}"], depth)
    return lines


#: a sum over more elements is cut into blocks
_BLOCK = 4096
#: cycles per element up to which several places of a row are summed at once
_CHEAP = 12
_ARITHMETIC = ("({0} / {1})", "({0} * {1})", "({0} + {1})", "({0} - {1})", "(-{0})")


class RowBody:
    """The statements for one row, or with `lane` for a tile of rows side by side."""

    def __init__(self, rows: Rows, passes: Passes, names: Names, lane: Var | None = None) -> None:
        self._rows = rows
        self._passes = passes
        self._names = names
        self._lane = lane
        self._inside = set(rows.inner) | set(rows.final)
        self._ranges: dict[Var, tuple[str, str]] = {}
        self._nan_shows = nan_shows(rows)
        self._last_values: list[tuple[Expr, str]] = []
        for var in (*rows.rows, *rows.inner, *rows.final):
            names.vars[var] = var.name
        if lane is not None:
            names.vars[lane] = "(tile + l)"

    def limit(self, var: Var, low: str, high: str) -> None:
        """Walk only a part of a variable's range."""
        self._ranges[var] = (low, high)

    def buffers(self) -> list[str]:
        """Declarations of what is kept between walks."""
        size = self._rows.row_size
        tile = " * TILE" if self._lane is not None else ""
        return [f"{C_NAME[kind]} kept{slot}[{size}{tile}];" for slot, kind in enumerate(self._passes.slots)]

    def lines(self) -> list[str]:
        """Everything for one row (or tile)."""
        result = self.buffers()
        for step in self._passes.walks:
            result += self.before(step.roots)
            result += self.reduce(step) if step.level else []
            result += self.walk(step) if step.stores else []
            if step.level:
                result += self.settle(step)
        return result + self.row_results()

    def row_results(self) -> list[str]:
        """Stores that happen once per row."""
        stores = self._rows.row_stores
        if not stores:
            return []
        if self._lane is None:
            return [*self.before([store.value for store in stores]), *(written(s, self._names) for s in stores)]
        scope = self._names.child()
        body = [scope.statement(expr) for expr in self._row_exprs([s.value for s in stores], scope)]
        body += [written(store, scope) for store in stores]
        return self._lane_loop(body)

    def before(self, roots: Sequence[Expr]) -> list[str]:
        """What does not change along the row, computed once; over a tile of rows, kept as an array."""
        names = self._names
        lines = [
            names.statement(expr) for expr in self._row_exprs(roots, names)
            if self._lane is None or self._lane not in expr.deps
        ]  # fmt: skip
        if self._lane is None:
            return lines
        needed = [expr for expr in self._frontier(roots) if names.find(expr) is None]
        if not needed:
            return lines
        scope = names.child()
        body = [scope.statement(expr) for expr in self._row_exprs(needed, scope)]
        for expr in needed:
            lines.append(f"{C_NAME[expr.ctype]} s{expr.order}[TILE];")
            body.append(f"s{expr.order}[l] = {scope.value(expr)};")
        lines += self._lane_loop(body)
        for expr in needed:
            names.set(expr, f"s{expr.order}[l]")
        return lines

    def _row_exprs(self, roots: Sequence[Expr], names: Names) -> list[Expr]:
        """Unnamed expressions below `roots` that are constant along the row, operands first."""
        found = walk(roots, stop=lambda item: names.find(item) is not None or item.kind == "reduce")
        return [
            expr for expr in found
            if expr.kind not in ("const", "reduce") and names.find(expr) is None and not expr.deps & self._inside
        ]  # fmt: skip

    def _frontier(self, roots: Sequence[Expr]) -> list[Expr]:
        """What is constant along the row, differs between lanes, and is used in the walk."""
        assert self._lane is not None
        return [
            expr for expr in walk(roots, stop=lambda item: not item.deps & self._inside)
            if not expr.deps & self._inside and self._lane in expr.deps and expr.kind != "reduce"
        ]  # fmt: skip

    def reduce(self, step: Pass) -> list[str]:
        """Accumulators and the walk that fills them."""
        lines = []
        for expr in step.level:
            start = identity(expr.text, expr.ctype)
            if self._lane is None:
                lines += [f"{C_NAME[expr.ctype]} a{expr.order} = {start};"]
                lines += [f"int n{expr.order} = 0;"] if self._notes_nan(expr) else []
            else:
                lines.append(f"{C_NAME[expr.ctype]} a{expr.order}[TILE];")
                lines.append(f"for (int l = 0; l < TILE; ++l) a{expr.order}[l] = {start};")
        return lines + self.walk(step)

    def settle(self, step: Pass) -> list[str]:
        """Give the finished reductions their names."""
        lines = []
        for expr in step.level:
            if self._lane is None:
                lines += [f"if (n{expr.order}) a{expr.order} = kNaN;"] if self._notes_nan(expr) else []
                self._names.set(expr, f"a{expr.order}")
            else:
                self._names.set(expr, f"a{expr.order}[l]")
        return lines

    def _notes_nan(self, expr: Expr) -> bool:
        return can_be_nan(expr) and expr not in self._nan_shows

    def walk(self, step: Pass) -> list[str]:
        """The loops of one walk."""
        if self._lane is None:
            loops = list(fastest_last(self._rows, step.loops))
            return self._along(step, loops, self._streams(step, loops))
        loops = list(step.loops)
        lines = self._statements(step, [*loops, self._lane], self._names.child())
        lines[-1] += [combined(expr, f"a{expr.order}[l]", lines_value) for expr, lines_value in self._last_values]
        result = [*lines[0]]
        for depth, var in enumerate(loops):
            result += indent([self._head(var), *indent(lines[depth + 1])], depth)
        result += indent(self._lane_loop(lines[-1]), len(loops))
        for depth in reversed(range(len(loops))):
            result += indent(["}"], depth)
        return result

    def _streams(self, step: Pass, loops: Sequence[Var]) -> int:
        """How many places of a row are summed at once: one chain of additions alone waits for itself."""
        if not step.level or not loops or loops[-1] in self._ranges:
            return 1
        inside = walk(step.roots, stop=lambda item: item in step.reads or item.kind == "reduce")
        if sum(expr.cost for expr in inside if expr.deps & self._inside) > _CHEAP:
            return 1
        extent = loops[-1].extent
        return next((count for count in (4, 2) if extent % count == 0 and extent // count >= 32), 1)

    def _statements(self, step: Pass, loops: Sequence[Var], names: Names) -> list[list[str]]:
        """Statements of a walk by depth, reads of kept values first, what is kept and stored last."""

        def known(expr: Expr) -> bool:
            return expr in step.reads or names.find(expr) is not None

        placed = place(step.roots, loops, known)
        lines: list[list[str]] = [[] for _ in placed]
        position = self._at(step, names)
        for expr, slot in step.reads.items():
            name = f"k{expr.order}{names.suffix}"
            lines[-1].append(f"const {C_NAME[expr.ctype]} {name} = kept{slot}[{position}];")
            names.set(expr, name)
        for depth, exprs in enumerate(placed):
            lines[depth] += [names.statement(expr) for expr in exprs]
        lines[-1] += [f"kept{slot}[{position}] = {names.value(expr)};" for expr, slot in step.writes.items()]
        lines[-1] += [written(store, names) for store in step.stores]
        self._last_values = [(expr, names.value(expr.args[0])) for expr in step.level]
        return lines

    def _along(self, step: Pass, loops: list[Var], streams: int) -> list[str]:
        """Loops over a row whose innermost one is vectorised."""
        last = loops[-1] if loops else None
        merged: list[list[str]] = [[] for _ in range(len(loops) + 1)]
        totals: list[tuple[Expr, str]] = []
        above = self._names.child()
        for stream in range(streams):
            names = above.child()
            names.suffix = f"_{stream}" if streams > 1 else ""
            if last is not None and stream:
                names.vars[last] = f"({last.name} + {stream * (last.extent // streams)})"
            for level, lines in zip(merged, self._statements(step, loops, names), strict=True):
                level += lines
            for expr, value in self._last_values:
                total = f"t{expr.order}{names.suffix}"
                totals.append((expr, total))
                merged[-1] += self._accumulate(expr, total, value)
        if last is None:
            starts = [f"{C_NAME[expr.ctype]} {name} = {identity(expr.text, expr.ctype)};" for expr, name in totals]
            ends = [combined(expr, f"a{expr.order}", name) for expr, name in totals]
            return [*starts, *merged[0], *ends]
        low, high = self._ranges.get(last, ("0", str(last.extent // streams)))
        inner = self._innermost(step, last, (low, high), totals, merged[-1])
        result = [*merged[0]]
        for depth, var in enumerate(loops[:-1]):
            result += indent([self._head(var), *indent(merged[depth + 1])], depth)
        result += indent(inner, len(loops) - 1)
        for depth in reversed(range(len(loops) - 1)):
            result += indent(["}"], depth)
        return result

    def _innermost(
        self, step: Pass, var: Var, bounds: tuple[str, str], totals: Sequence[tuple[Expr, str]], body: Sequence[str]
    ) -> list[str]:
        """The vectorised loop; long sums in blocks, each with accumulators of its own, so that rounding stays small."""
        low, high = bounds
        if not step.level:
            return ["#pragma omp simd", loop(var, low, high), *indent(body), "}"]
        blocked = var.extent > 2 * _BLOCK
        start, end = ("block", f"min_of(block + {_BLOCK}, {high})") if blocked else (low, high)
        lines = [f"{C_NAME[expr.ctype]} {name} = {identity(expr.text, expr.ctype)};" for expr, name in totals]
        clauses = _clauses(totals, [expr for expr in step.level if self._notes_nan(expr)])
        lines += ["#pragma omp simd" + clauses, loop(var, start, end), *indent(body), "}"]
        lines += [combined(expr, f"a{expr.order}", name) for expr, name in totals]
        if blocked:
            return [f"for (int64_t block = {low}; block < {high}; block += {_BLOCK}) {{", *indent(lines), "}"]
        return ["{", *indent(lines), "}"]

    def _head(self, var: Var) -> str:
        return loop(var, *self._ranges.get(var, ("0", "")))

    def _lane_loop(self, body: Sequence[str]) -> list[str]:
        return ["#pragma omp simd", "for (int64_t l = 0; l < width; ++l) {", *indent(body), "}"]

    def _at(self, step: Pass, names: Names) -> str:
        """Where an element lives in a buffer; the same in every walk."""
        text, scale = [], 1
        for var in reversed(step.loops):
            text.append(names.vars[var] if scale == 1 else f"{scale} * {names.vars[var]}")
            scale *= var.extent
        place_text = " + ".join(reversed(text)) or "0"
        return f"({place_text}) * TILE + l" if self._lane is not None else place_text

    def _accumulate(self, expr: Expr, name: str, value: str) -> list[str]:
        if expr.text in ("sum", "prod"):
            return [f"{name} {'+' if expr.text == 'sum' else '*'}= {value};"]
        sign = ">" if expr.text == "max" else "<"
        lines = [f"{name} = {value} {sign} {name} ? {value} : {name};"]
        # the plain maximum is what compilers vectorise; NaN is noted beside it
        return lines + ([f"n{expr.order} |= ({value} != {value});"] if self._notes_nan(expr) else [])


def combined(expr: Expr, name: str, value: str) -> str:
    """`name` combined with one more value; NaN wins over every number."""
    if expr.text in ("sum", "prod"):
        return f"{name} {'+' if expr.text == 'sum' else '*'}= {value};"
    sign = ">" if expr.text == "max" else "<"
    nan = f" | ({value} != {value})" if can_be_nan(expr) else ""
    return f"{name} = (({value} {sign} {name}){nan}) ? {value} : {name};"


def can_be_nan(expr: Expr) -> bool:
    """Whether a reduction has to look after NaN by itself."""
    return expr.text in ("max", "min") and expr.ctype in ("f", "d")


def nan_shows(rows: Rows) -> frozenset[Expr]:
    """Maxima that need not look for NaN: it reaches every result by the sum of what is computed from the difference.

    That is softmax: its exponentials are summed, a NaN among them makes the sum NaN, and every result uses the sum.
    """
    stores = (*rows.stores, *rows.row_stores)
    everything = walk([store.value for store in stores])
    found = set()
    for top in (expr for level in rows.levels for expr in level if can_be_nan(expr)):
        users = [expr for expr in everything if top in expr.args]
        away = [expr for expr in users if expr.text == "({0} - {1})" and expr.args == (top.args[0], top)]
        if len(users) != 1 or len(away) != 1:
            continue
        sums = [
            expr for level in rows.levels for expr in level
            if expr.text == "sum" and expr.args[0].text == "@exp({0})" and expr.args[0].args[0] is away[0]
        ]  # fmt: skip
        if sums and all(_divides_or_adds(store.value, sums[0]) for store in stores):
            found.add(top)
    return frozenset(found)


def _divides_or_adds(value: Expr, total: Expr) -> bool:
    """Whether NaN in `total` makes `value` NaN for certain: arithmetic all the way down to it."""
    if value is total:
        return True
    arithmetic = value.text in _ARITHMETIC or value.text.startswith("@log(")
    return value.kind == "op" and arithmetic and any(_divides_or_adds(arg, total) for arg in value.args)


def _clauses(totals: Sequence[tuple[Expr, str]], flagged: Sequence[Expr]) -> str:
    text = ""
    for kind, sign in (("sum", "+"), ("prod", "*"), ("max", "max"), ("min", "min")):
        mine = [name for expr, name in totals if expr.text == kind]
        text += f" reduction({sign} : {', '.join(mine)})" if mine else ""
    flags = [f"n{expr.order}" for expr in flagged]
    return text + (f" reduction(| : {', '.join(flags)})" if flags else "")
