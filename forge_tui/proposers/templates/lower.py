"""A graph node at a position, as an expression: views become index arithmetic, reductions become loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from forge_tui.core.records import Graph, GraphNode, Signature, TensorSpec
from forge_tui.proposers.templates import ops, pooling, reductions, views
from forge_tui.proposers.templates.expr import CTYPE, CType, Expr, Pool, Unfit
from forge_tui.proposers.templates.index import (
    ZERO,
    Index,
    Var,
    flat,
    linear,
    unravel,
    wanted_split,
)
from forge_tui.proposers.templates.naming import op_name, placeholder

Position = tuple[Index, ...]
_VENDOR = (
    "mm", "bmm", "addmm", "addbmm", "baddbmm", "convolution", "dot", "mv", "_convolution", "linear", "einsum",
)  # fmt: skip
_MAX_EXPRS = 20_000
#: an innermost loop of up to this length is unrolled
MOST_UNROLLED = 4
#: an innermost loop shorter than this is worse than a division in the index
_SHORTEST_INNER = 8


class SplitNeeded(Exception):
    """A loop variable must become two for an index to be free of division."""

    def __init__(self, var: Var, inner: int) -> None:
        super().__init__(var.name)
        self.var = var
        self.inner = inner


class SegmentNeeded(Exception):
    """A loop must be cut at `points`, for the expression differs from part to part."""

    def __init__(self, var: Var, points: tuple[int, ...]) -> None:
        super().__init__(var.name)
        self.var = var
        self.points = points


class Inner:
    """What a reduction loops over: variables fixed by the planner, or made from the first reduction's own sizes."""

    def __init__(self, variables: Sequence[Var] | None) -> None:
        self.vars = tuple(variables) if variables is not None else None

    def position(self, sizes: Sequence[int], lower: Lowering) -> Position:
        """Where the loop stands in the reduced dimensions."""
        count = math.prod(sizes)
        assert self.vars is not None
        if math.prod(var.extent for var in self.vars) != count:
            raise Unfit("it reduces over sets of different sizes")
        return lower.resolved(unravel(flat(self.vars), sizes))


class Lowering:
    """Evaluates nodes of one graph; `probing` leaves the bodies of reductions out."""

    def __init__(self, graph: Graph, signature: Signature) -> None:
        self.graph = graph
        self.pool = Pool()
        self.nodes = {node.name: node for node in graph.nodes}
        self.specs: dict[str, TensorSpec] = {item.name: item.spec for item in signature.inputs}
        self._numbers = {item.name: number for number, item in enumerate(signature.inputs)}
        self.inner = Inner(None)
        self.probing = False
        self.innermost: Var | None = None
        """The variable of the innermost loop: it is split into what can be unrolled, or into what is long enough."""
        self.segments = True
        """Whether the planner can cut loops into segments."""
        self.reduced: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """Reduction nodes seen: input shape and dimensions."""
        self._memo: dict[tuple[str, Position], Expr] = {}
        self._rounded = _rounded_nodes(graph)

    def forget(self) -> None:
        """Drop what was evaluated: the loop variables changed."""
        self._memo.clear()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a node or input."""
        return self.nodes[name].shape if name in self.nodes else self.specs[name].shape

    def dtype(self, name: str) -> str:
        """Dtype of a node or input."""
        return self.nodes[name].dtype if name in self.nodes else self.specs[name].dtype

    def ctype(self, name: str) -> CType:
        """What a node is computed in."""
        return CTYPE[self.dtype(name)]

    def at(self, name: str, position: Position) -> Expr:
        """The value of a node or input at a position."""
        key = (name, position)
        found = self._memo.get(key)
        if found is None:
            found = self._evaluate(name, position)
            if name in self._rounded:
                found = self.pool.op("f", f"@round_{self.dtype(name)}({{0}})", found)
            self._memo[key] = found
            if len(self.pool) > _MAX_EXPRS:
                raise Unfit("the graph is too big for one kernel")
        return found

    def ref(self, value: Any, position: Position, shape: Sequence[int], dtype: str) -> Expr:
        """An argument of a point-wise operation: a number, or a tensor broadcast to `shape`."""
        if isinstance(value, dict) and "ref" in value:
            name = value["ref"]
            return self.at(name, self.broadcast(name, position, shape))
        if isinstance(value, bool | int | float | str):
            kind = CTYPE[dtype]
            if kind in ("i", "b") and isinstance(value, float | str):
                kind = "f"
            return self.pool.const(value, kind)
        raise Unfit(f"an argument {value!r}")

    def broadcast(self, name: str, position: Position, shape: Sequence[int]) -> Position:
        """The position in a tensor that broadcasts to `shape`."""
        own = self.shape(name)
        tail = position[len(shape) - len(own) :]
        return tuple(ZERO if size == 1 else index for size, index in zip(own, tail, strict=True))

    def resolved(self, position: Position) -> Position:
        """The position, once no loop variable has to be split for it."""
        for index in position:
            split = wanted_split(index)
            if split is not None and not (split[0] == self.innermost and MOST_UNROLLED < split[1] < _SHORTEST_INNER):
                raise SplitNeeded(*split)
        return position

    def _evaluate(self, name: str, position: Position) -> Expr:
        if name in self.specs:
            spec = self.specs[name]
            return self.pool.load(placeholder(self._numbers[name]), spec.dtype, linear(position, spec.strides))
        node = self.nodes[name]
        if node.op == "getitem":
            return self._item(node, position)
        base = op_name(node)
        if 0 in node.shape:
            raise Unfit("an empty tensor")
        if base in _VENDOR or "attention" in base or "scaled_mm" in base:
            raise Unfit(f"it contains {base}, which a vendor library does best")
        for table in (views.VIEWS, reductions.REDUCTIONS, pooling.WINDOWS):
            handler: Callable[[Lowering, GraphNode, Position], Expr] | None = table.get(base)
            if handler is not None:
                return handler(self, node, position)
        return self._pointwise(base, node, position)

    def _item(self, node: GraphNode, position: Position) -> Expr:
        source = self.nodes[node.args[0]["ref"]]
        base, number = op_name(source), int(node.args[1])
        if base == "var_mean":
            return (reductions.variance if number == 0 else reductions.mean)(self, source, position)
        if base == "max_pool2d_with_indices" and number == 0:
            return pooling.max_pool(self, source, node.shape, position)
        if base in ("split", "split_with_sizes", "unbind", "unsafe_split"):
            return views.piece(self, source, number, position)
        raise Unfit(f"result {number} of {base}")

    def _pointwise(self, base: str, node: GraphNode, position: Position) -> Expr:
        pool, ctype = self.pool, CTYPE[node.dtype]

        def arg(number: int, to: CType | None = None) -> Expr:
            value = self.ref(node.args[number], position, node.shape, node.dtype)
            return pool.cast(value, to or ctype)

        if base in ops.UNARY_FLOAT:
            return pool.op(ctype, ops.UNARY_FLOAT[base], arg(0))
        if base in ops.UNARY_SAME:
            text = ops.UNARY_SAME[base][ctype in ("i", "b")]
            return arg(0) if text is None else ops.wrap(pool, pool.op(ctype, text, arg(0)), node.dtype)
        if base in ops.COMPARE:
            a, b, _ = self._promoted(node, position)
            return pool.op("b", ops.COMPARE[base], a, b)
        if base in ops.LOGICAL:
            return pool.op("b", ops.LOGICAL[base], *(arg(n, "b") for n in range(len(node.args))))
        if base in ops.BITWISE:
            return pool.op(ctype, ops.BITWISE[base], arg(0), arg(1))
        if base == "bitwise_not":
            return pool.op(ctype, "(!{0})" if ctype == "b" else "(~{0})", arg(0))
        if base in ops.BINARY or base in ("div", "true_divide", "rsub"):
            return self._arithmetic(base, node, arg)
        if base in ("_to_copy", "convert_element_type"):
            return self._convert(node, position)
        if base in ("isnan", "isinf", "isfinite"):
            return self._class_of(base, node, position)
        return self._special(base, node, arg)

    def _special(self, base: str, node: GraphNode, arg: Callable[..., Expr]) -> Expr:
        pool, ctype = self.pool, CTYPE[node.dtype]
        if base == "pow":
            return self._power(node, arg)
        if base == "gelu":
            return ops.gelu(pool, ctype, arg(0), node.kwargs.get("approximate", "none"))
        if base in ("clamp", "clamp_min", "clamp_max", "hardtanh"):
            return self._clamp(base, node, arg)
        if base == "where":
            return pool.op(ctype, "({0} ? {1} : {2})", arg(0, "b"), arg(1), arg(2))
        if base == "masked_fill":
            return pool.op(ctype, "({1} ? {2} : {0})", arg(0), arg(1, "b"), arg(2))
        raise Unfit(f"operation {base}")

    def _arithmetic(self, base: str, node: GraphNode, arg: Callable[..., Expr]) -> Expr:
        pool, ctype = self.pool, CTYPE[node.dtype]
        if base == "div" and node.kwargs.get("rounding_mode"):
            if node.kwargs["rounding_mode"] == "floor":
                return ops.wrap(pool, ops.binary(pool, "floor_divide", ctype, arg(0), arg(1)), node.dtype)
            quotient = ops.binary(pool, "div", ctype, arg(0), arg(1))
            return quotient if ctype == "i" else pool.op(ctype, "@trunc({0})", quotient)
        if base in ("div", "true_divide"):
            return ops.binary(pool, "div", ctype, arg(0), arg(1))
        a, b = arg(0), arg(1)
        if base == "rsub":
            base, a, b = "sub", b, a
        alpha = node.kwargs.get("alpha", 1)
        if alpha != 1:
            scaled = a if node.op.startswith("aten.rsub") else b
            scaled = pool.op(ctype, "({0} * {1})", scaled, pool.const(alpha, ctype))
            a, b = (scaled, b) if node.op.startswith("aten.rsub") else (a, scaled)
        return ops.wrap(pool, ops.binary(pool, base, ctype, a, b), node.dtype)

    def _power(self, node: GraphNode, arg: Callable[..., Expr]) -> Expr:
        ctype = CTYPE[node.dtype]
        exponent = node.args[1]
        if isinstance(exponent, int | float) and not isinstance(exponent, bool):
            return ops.wrap(self.pool, ops.power(self.pool, ctype, arg(0), exponent), node.dtype)
        if ctype not in ("f", "d"):
            raise Unfit("a power of integers")
        return self.pool.op(ctype, "@pow({0}, {1})", arg(0), arg(1))

    def _clamp(self, base: str, node: GraphNode, arg: Callable[..., Expr]) -> Expr:
        def bound(number: int, name: str, default: float | None = None) -> Expr | None:
            if number < len(node.args):
                return arg(number) if node.args[number] is not None else None
            value = node.kwargs.get(name, default)
            return None if value is None else self.pool.const(value, CTYPE[node.dtype])

        low = high = None
        if base != "clamp_max":
            low = bound(1, "min" if base != "hardtanh" else "min_val", -1.0 if base == "hardtanh" else None)
        if base != "clamp_min":
            number = 1 if base == "clamp_max" else 2
            high = bound(number, "max" if base != "hardtanh" else "max_val", 1.0 if base == "hardtanh" else None)
        return ops.clamp(self.pool, CTYPE[node.dtype], arg(0), low, high)

    def _convert(self, node: GraphNode, position: Position) -> Expr:
        name = node.args[0]["ref"]
        value = self.at(name, position)
        return ops.wrap(self.pool, self.pool.cast(value, CTYPE[node.dtype]), node.dtype)

    def _class_of(self, base: str, node: GraphNode, position: Position) -> Expr:
        value = self.ref(node.args[0], position, node.shape, "float32")
        if value.ctype in ("i", "b"):
            return self.pool.const(base == "isfinite", "b")
        text = {"isnan": "({0} != {0})", "isinf": "((({0} - {0}) != ({0} - {0})) & ({0} == {0}))",
                "isfinite": "(({0} - {0}) == 0)"}[base]  # fmt: skip
        return self.pool.op("b", text, value)

    def _promoted(self, node: GraphNode, position: Position) -> tuple[Expr, Expr, CType]:
        """Both sides of a comparison in their common type; a number does not widen a tensor of its own category."""
        left, right = node.args[0], node.args[1]
        a = self.ref(left, position, node.shape, self._tensor_dtype(node))
        b = self.ref(right, position, node.shape, self._tensor_dtype(node))
        order: list[CType] = ["b", "i", "f", "d"]
        common = max(a.ctype, b.ctype, key=order.index)
        return self.pool.cast(a, common), self.pool.cast(b, common), common

    def _tensor_dtype(self, node: GraphNode) -> str:
        for value in node.args[:2]:
            if isinstance(value, dict) and "ref" in value:
                return self.dtype(value["ref"])
        return node.dtype


def _rounded_nodes(graph: Graph) -> frozenset[str]:
    """Half-precision results that a jumping operation reads, directly or through more half-precision operations."""
    nodes = {node.name: node for node in graph.nodes}

    def operands(node: GraphNode) -> list[str]:
        return [name for name in _references([node.args, node.kwargs]) if name in nodes]

    pending: list[str] = []
    for node in graph.nodes:
        to_whole = CTYPE.get(node.dtype) in ("i", "b")
        if op_name(node) in ops.DISCONTINUOUS or to_whole:
            pending += operands(node)
    found: set[str] = set()
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        node = nodes[name]
        if node.dtype in ("bfloat16", "float16") and op_name(node) not in views.VIEWS and node.op != "getitem":
            found.add(name)
        pending += operands(node)
    return frozenset(found)


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [value["ref"]] if set(value) == {"ref"} else []
    if isinstance(value, list):
        return [name for item in value for name in _references(item)]
    return []
