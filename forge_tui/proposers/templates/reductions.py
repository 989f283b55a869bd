"""Reductions: a loop over the reduced dimensions, or a stand-in while the planner looks which dimensions those are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from forge_tui.core.records import GraphNode
from forge_tui.proposers.templates.expr import CTYPE, CType, Expr, Unfit
from forge_tui.proposers.templates.index import ZERO, Index, Var
from forge_tui.proposers.templates.naming import op_name

if TYPE_CHECKING:
    from forge_tui.proposers.templates.lower import Lowering

Position = tuple[Index, ...]


def _dims(node: GraphNode, rank: int, at: int = 1) -> tuple[int, ...]:
    value = node.args[at] if len(node.args) > at else node.kwargs.get("dim")
    if isinstance(value, dict | bool):
        value = None
    if value is None or value == []:
        return tuple(range(rank))
    listed = value if isinstance(value, list) else [value]
    return tuple(sorted(int(dim) % rank for dim in listed)) if rank else ()


def _reduce(low: Lowering, node: GraphNode, position: Position, kind: str, ctype: CType,
            body: Callable[[Expr, Position], Expr] | None = None, label: str = "") -> Expr:  # fmt: skip
    """Reduce argument 0 of a node; `body` maps the element (and its kept position) to what is combined."""
    source = node.args[0]["ref"]
    shape = low.shape(source)
    dims = _dims(node, len(shape))
    if 0 in shape:
        raise Unfit("an empty tensor")
    kept = [dim for dim in range(len(shape)) if dim not in dims]
    # with keepdim the position has a zero for every reduced dimension
    wide = len(position) == len(shape)
    place: dict[int, Index] = {dim: position[dim if wide else n] for n, dim in enumerate(kept)}
    kept_position = tuple(place[dim] for dim in kept)
    sizes = [shape[dim] for dim in dims]
    if math.prod(sizes) == 1:
        element = low.at(source, tuple(place.get(dim, ZERO) for dim in range(len(shape))))
        value = low.pool.cast(element, ctype)
        return body(value, kept_position) if body else value
    low.reduced[node.name] = (shape, dims)
    if low.probing:
        return low.pool.probe(f"{node.name}{label}", ctype, kept_position)
    if low.inner.vars is None:
        low.inner.vars = _fresh(sizes)
    if any(index.variables() & set(low.inner.vars) for index in kept_position):
        raise Unfit("it reduces the result of a reduction over other dimensions")
    place.update(zip(dims, low.inner.position(sizes, low), strict=True))
    element = low.at(source, tuple(place[dim] for dim in range(len(shape))))
    value = low.pool.cast(element, ctype)
    value = body(value, kept_position) if body else value
    return low.pool.reduce(kind, value, low.inner.vars or ())


def _fresh(sizes: Sequence[int]) -> tuple[Var, ...]:
    return tuple(Var(f"r{n}", size) for n, size in enumerate(sizes) if size > 1)


def _sum(low: Lowering, node: GraphNode, position: Position) -> Expr:
    return _reduce(low, node, position, "sum", CTYPE[node.dtype])


def _count(low: Lowering, node: GraphNode) -> int:
    shape = low.shape(node.args[0]["ref"])
    return math.prod(shape[dim] for dim in _dims(node, len(shape)))


def mean(low: Lowering, node: GraphNode, position: Position) -> Expr:
    """The mean over dimensions."""
    ctype = CTYPE[node.dtype]
    total = _reduce(low, node, position, "sum", ctype)
    return low.pool.op(ctype, "({0} * {1})", total, low.pool.const(1.0 / _count(low, node), ctype))


def variance(low: Lowering, node: GraphNode, position: Position) -> Expr:
    """The variance over dimensions, by a sum of squares around the mean."""
    ctype = CTYPE[node.dtype]
    correction = node.kwargs.get("correction")
    if len(node.args) > 2:
        correction = node.args[2]
    correction = 1 if correction is None else correction
    if isinstance(correction, bool):
        correction = int(correction)
    count = _count(low, node)
    average = mean(low, node, position)
    if count - correction <= 0:
        raise Unfit("a variance over one element")

    def squared(value: Expr, _: Position) -> Expr:
        away = low.pool.op(ctype, "({0} - {1})", value, average)
        return low.pool.op(ctype, "({0} * {0})", away)

    total = _reduce(low, node, position, "sum", ctype, squared, ".squares")
    return low.pool.op(ctype, "({0} * {1})", total, low.pool.const(1.0 / (count - correction), ctype))


def _extreme(low: Lowering, node: GraphNode, position: Position) -> Expr:
    return _reduce(low, node, position, "max" if op_name(node) == "amax" else "min", CTYPE[node.dtype])


def _product(low: Lowering, node: GraphNode, position: Position) -> Expr:
    return _reduce(low, node, position, "prod", CTYPE[node.dtype])


def _truth(low: Lowering, node: GraphNode, position: Position) -> Expr:
    kind = "max" if op_name(node) == "any" else "min"
    as_int = _reduce(low, node, position, kind, "i", lambda value, _: low.pool.cast(low.pool.cast(value, "b"), "i"))
    return low.pool.cast(as_int, "b")


def _vector_norm(low: Lowering, node: GraphNode, position: Position) -> Expr:
    order = node.args[1] if len(node.args) > 1 else 2
    if order not in (2, 2.0):
        raise Unfit(f"a vector norm of order {order}")
    ctype = CTYPE[node.dtype]
    moved = GraphNode(name=node.name, op=node.op, args=[node.args[0], *node.args[2:]], kwargs=node.kwargs,
                      shape=node.shape, dtype=node.dtype)  # fmt: skip
    total = _reduce(low, moved, position, "sum", ctype, lambda value, _: low.pool.op(ctype, "({0} * {0})", value))
    return low.pool.op(ctype, "@sqrt({0})", total)


REDUCTIONS: dict[str, Callable[[Lowering, GraphNode, Position], Expr]] = {
    "sum": _sum, "mean": mean, "var": variance, "amax": _extreme, "amin": _extreme, "prod": _product,
    "any": _truth, "all": _truth, "linalg_vector_norm": _vector_norm,
}  # fmt: skip
