"""Views, copies, fills and joins: operations that move values and compute none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from forge_tui.core.records import GraphNode
from forge_tui.proposers.templates import ops
from forge_tui.proposers.templates.expr import CTYPE, Expr, Unfit
from forge_tui.proposers.templates.index import (
    ZERO,
    Index,
    Var,
    constant,
    linear,
    row_major,
    unravel,
)
from forge_tui.proposers.templates.naming import op_name

if TYPE_CHECKING:
    from forge_tui.proposers.templates.lower import Lowering

Position = tuple[Index, ...]
_MAX_PIECES = 16


def _source(node: GraphNode) -> str:
    name: str = node.args[0]["ref"]
    return name


def _argument(node: GraphNode, number: int, name: str, default: Any) -> Any:
    if len(node.args) > number:
        return node.args[number]
    return node.kwargs.get(name, default)


def _same(low: Lowering, node: GraphNode, position: Position) -> Expr:
    return low.at(_source(node), position)


def _copy(low: Lowering, node: GraphNode, position: Position) -> Expr:
    """`copy(self, source)`: the values of the second, broadcast, in the type of the first."""
    value = low.ref(node.args[1], position, node.shape, node.dtype)
    return ops.wrap(low.pool, low.pool.cast(value, CTYPE[node.dtype]), node.dtype)


def _view(low: Lowering, node: GraphNode, position: Position) -> Expr:
    if CTYPE[low.dtype(_source(node))] != CTYPE[node.dtype]:
        raise Unfit("a view as another dtype")
    shape = low.shape(_source(node))
    if shape == node.shape:
        return low.at(_source(node), position)
    place = linear(position, row_major(node.shape))
    return low.at(_source(node), low.resolved(unravel(place, shape)))


def _permute(low: Lowering, node: GraphNode, position: Position) -> Expr:
    rank = len(node.shape)
    order = [int(dim) % rank for dim in node.args[1]]
    place = [ZERO] * rank
    for out_dim, in_dim in enumerate(order):
        place[in_dim] = position[out_dim]
    return low.at(_source(node), tuple(place))


def _transpose(low: Lowering, node: GraphNode, position: Position) -> Expr:
    place = list(position)
    if len(place) >= 2:
        a, b = (node.args[1] % len(place), node.args[2] % len(place)) if len(node.args) > 2 else (0, 1)
        place[a], place[b] = place[b], place[a]
    return low.at(_source(node), tuple(place))


def _unsqueeze(low: Lowering, node: GraphNode, position: Position) -> Expr:
    dim = int(node.args[1]) % len(node.shape)
    return low.at(_source(node), position[:dim] + position[dim + 1 :])


def _squeeze(low: Lowering, node: GraphNode, position: Position) -> Expr:
    """Every form of squeeze: sizes that are gone were 1."""
    shape = low.shape(_source(node))
    dims = node.args[1] if len(node.args) > 1 else list(range(len(shape)))
    listed = dims if isinstance(dims, list) else [dims]
    gone = {int(dim) % len(shape) for dim in listed if shape and shape[int(dim) % len(shape)] == 1}
    rest = iter(position)
    return low.at(_source(node), tuple(ZERO if dim in gone else next(rest) for dim in range(len(shape))))


def _expand(low: Lowering, node: GraphNode, position: Position) -> Expr:
    return low.at(_source(node), low.broadcast(_source(node), position, node.shape))


def _broadcast_in_dim(low: Lowering, node: GraphNode, position: Position) -> Expr:
    shape = low.shape(_source(node))
    place = [position[int(dim)] for dim in node.args[2]]
    return low.at(_source(node), tuple(ZERO if size == 1 else i for size, i in zip(shape, place, strict=True)))


def _select(low: Lowering, node: GraphNode, position: Position) -> Expr:
    shape = low.shape(_source(node))
    dim = int(node.args[1]) % len(shape)
    return low.at(_source(node), (*position[:dim], constant(int(node.args[2]) % shape[dim]), *position[dim:]))


def _span(node: GraphNode, size: int, first: int) -> tuple[int, int, int]:
    """Start, end and step of a slice."""
    start, end, step = _argument(node, first, "start", 0), _argument(node, first + 1, "end", None), 1
    step = int(_argument(node, first + 2, "step", 1))
    start, end, _ = slice(start, end, step).indices(size)
    return start, end, step


def _slice(low: Lowering, node: GraphNode, position: Position) -> Expr:
    shape = low.shape(_source(node))
    dim = int(_argument(node, 1, "dim", 0)) % len(shape)
    start, _, step = _span(node, shape[dim], 2)
    return low.at(_source(node), (*position[:dim], position[dim] * step + start, *position[dim + 1 :]))


def piece(low: Lowering, node: GraphNode, number: int, position: Position) -> Expr:
    """Result `number` of split, split_with_sizes or unbind."""
    shape = low.shape(_source(node))
    if "unbind" in node.op:
        dim = int(_argument(node, 1, "dim", 0)) % len(shape)
        return low.at(_source(node), (*position[:dim], constant(number), *position[dim:]))
    dim = int(_argument(node, 2, "dim", 0)) % len(shape)
    sizes = node.args[1]
    start = sum(sizes[:number]) if isinstance(sizes, list) else int(sizes) * number
    return low.at(_source(node), (*position[:dim], position[dim] + start, *position[dim + 1 :]))


def _flip(low: Lowering, node: GraphNode, position: Position) -> Expr:
    place = list(position)
    for dim in node.args[1]:
        at = int(dim) % len(place)
        place[at] = constant(node.shape[at] - 1) - place[at]
    return low.at(_source(node), tuple(place))


def _repeat(low: Lowering, node: GraphNode, position: Position) -> Expr:
    shape = low.shape(_source(node))
    tail = position[len(position) - len(shape) :]
    place = tuple(ZERO if size == 1 else i.modulo(size) for size, i in zip(shape, tail, strict=True))
    return low.at(_source(node), low.resolved(place))


def _nearest(low: Lowering, node: GraphNode, position: Position) -> Expr:
    """upsample_nearest2d by whole factors."""
    shape = low.shape(_source(node))
    place = list(position)
    for dim in (-2, -1):
        if node.shape[dim] % shape[dim]:
            raise Unfit("upsampling by a factor that is not whole")
        place[dim] = position[dim].floordiv(node.shape[dim] // shape[dim])
    return low.at(_source(node), low.resolved(tuple(place)))


def _pieces(low: Lowering, index: Index, sizes: Sequence[int], value: Callable[[int, Index], Expr]) -> Expr:
    """The value of the piece that `index` lies in; `value(number, index within it)` must hold for any clamped index."""
    starts = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    least, most = index.bounds()
    inside = [n for n, size in enumerate(sizes) if size and least < starts[n + 1] and most >= starts[n]]
    if len(inside) == 1:
        return value(inside[0], index + -starts[inside[0]])
    if low.segments and len(inside) <= _MAX_PIECES and len(index.terms) == 1:
        from forge_tui.proposers.templates.lower import SegmentNeeded

        atom, coef = index.terms[0]
        if isinstance(atom, Var) and coef == 1:
            points = [starts[n] - index.const for n in inside[1:]]
            raise SegmentNeeded(atom, tuple(points))
    result: Expr | None = None
    for number in reversed(inside):
        part = value(number, (index + -starts[number]).clamp(0, sizes[number] - 1))
        if result is None:
            result = part
        else:
            below = low.pool.inside(index, 0, starts[number + 1])
            result = low.pool.op(part.ctype, "({0} ? {1} : {2})", below, part, result)
    assert result is not None
    return result


def _cat(low: Lowering, node: GraphNode, position: Position) -> Expr:
    sources = [item["ref"] for item in node.args[0]]
    # torch lets an empty one-dimensional tensor pass as neutral
    sources = [name for name in sources if low.shape(name) != (0,) or node.shape == (0,)]
    dim = int(_argument(node, 1, "dim", 0)) % len(node.shape)

    def value(number: int, index: Index) -> Expr:
        place = (*position[:dim], index, *position[dim + 1 :])
        part = low.pool.cast(low.at(sources[number], place), CTYPE[node.dtype])
        return ops.wrap(low.pool, part, node.dtype)

    return _pieces(low, position[dim], [low.shape(name)[dim] for name in sources], value)


def _stack(low: Lowering, node: GraphNode, position: Position) -> Expr:
    sources = [item["ref"] for item in node.args[0]]
    dim = int(_argument(node, 1, "dim", 0)) % len(node.shape)
    place = (*position[:dim], *position[dim + 1 :])

    def value(number: int, index: Index) -> Expr:
        del index
        return low.pool.cast(low.at(sources[number], place), CTYPE[node.dtype])

    return _pieces(low, position[dim], [1] * len(sources), value)


def _slice_scatter(low: Lowering, node: GraphNode, position: Position) -> Expr:
    dim = int(_argument(node, 2, "dim", 0)) % len(node.shape)
    start, end, step = _span(node, node.shape[dim], 3)
    if step != 1:
        raise Unfit("a scatter with a step")
    if end <= start:
        return low.at(_source(node), position)

    def value(number: int, index: Index) -> Expr:
        if number == 1:
            return low.pool.cast(low.at(node.args[1]["ref"], (*position[:dim], index, *position[dim + 1 :])),
                                 CTYPE[node.dtype])  # fmt: skip
        place = (*position[:dim], index + (0 if number == 0 else end), *position[dim + 1 :])
        return low.at(_source(node), place)

    return _pieces(low, position[dim], [start, end - start, node.shape[dim] - end], value)


def _select_scatter(low: Lowering, node: GraphNode, position: Position) -> Expr:
    dim = int(node.args[2]) % len(node.shape)
    at = int(node.args[3]) % node.shape[dim]

    def value(number: int, index: Index) -> Expr:
        if number == 1:
            return low.pool.cast(low.at(node.args[1]["ref"], position[:dim] + position[dim + 1 :]), CTYPE[node.dtype])
        return low.at(_source(node), (*position[:dim], index + (0 if number == 0 else at + 1), *position[dim + 1 :]))

    return _pieces(low, position[dim], [at, 1, node.shape[dim] - at - 1], value)


def _pad(low: Lowering, node: GraphNode, position: Position) -> Expr:
    """constant_pad_nd: no loop is cut for it, edges are narrow."""
    shape = low.shape(_source(node))
    pads = [int(pad) for pad in node.args[1]]
    ctype = CTYPE[node.dtype]
    fill = low.pool.const(_argument(node, 2, "value", 0) or 0, ctype)
    place = list(position)
    conditions = []
    for number in range(len(pads) // 2):
        dim = len(shape) - 1 - number
        moved = position[dim] + -pads[2 * number]
        conditions.append(low.pool.inside(moved, 0, shape[dim]))
        place[dim] = moved.clamp(0, shape[dim] - 1)
    value = low.at(_source(node), tuple(place))
    for condition in conditions:
        value = low.pool.op(ctype, "({0} ? {1} : {2})", condition, value, fill)
    return value


def _fill(low: Lowering, node: GraphNode, position: Position) -> Expr:
    del position
    number = {"full": 1, "full_like": 1, "scalar_tensor": 0, "fill": 1}[op_name(node)]
    value = node.args[number]
    if isinstance(value, dict):
        raise Unfit("a fill by a tensor")
    return low.pool.const(value, CTYPE[node.dtype])


def _constant(value: int) -> Callable[[Lowering, GraphNode, Position], Expr]:
    def handler(low: Lowering, node: GraphNode, position: Position) -> Expr:
        del position
        return low.pool.const(value, CTYPE[node.dtype])

    return handler


def _arange(low: Lowering, node: GraphNode, position: Position) -> Expr:
    args = [item for item in node.args if not isinstance(item, str)]
    start, step = 0, 1
    if len(args) >= 2:
        start = args[0]
    if len(args) >= 3:
        step = args[2]
    if op_name(node) == "iota":
        start, step = node.kwargs.get("start", 0), node.kwargs.get("step", 1)
    if not isinstance(start, int) or not isinstance(step, int):
        raise Unfit("a range of fractions")
    return low.pool.cast(low.pool.index(position[0] * step + start), CTYPE[node.dtype])


def _tri(low: Lowering, node: GraphNode, position: Position) -> Expr:
    offset = int(_argument(node, 1, "diagonal", 0))
    away = position[-1] - position[-2]
    size = math.prod(node.shape)
    below = (-size - 1, offset + 1) if op_name(node) == "tril" else (offset, size + 1)
    keep = low.pool.inside(away, *below)
    ctype = CTYPE[node.dtype]
    return low.pool.op(ctype, "({0} ? {1} : {2})", keep, low.at(_source(node), position), low.pool.const(0, ctype))


VIEWS: dict[str, Callable[[Lowering, GraphNode, Position], Expr]] = {
    **dict.fromkeys(
        ("alias", "clone", "detach", "contiguous", "lift_fresh_copy", "lift_fresh", "_conj", "view_of"), _same
    ),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy", "reshape_copy"), _view),
    "copy": _copy, "permute": _permute, "transpose": _transpose, "t": _transpose, "unsqueeze": _unsqueeze,
    "squeeze": _squeeze, "expand": _expand, "broadcast_in_dim": _broadcast_in_dim, "select": _select,
    "slice": _slice, "flip": _flip, "repeat": _repeat, "upsample_nearest2d": _nearest, "cat": _cat, "stack": _stack,
    "slice_scatter": _slice_scatter, "select_scatter": _select_scatter, "constant_pad_nd": _pad,
    "full": _fill, "full_like": _fill, "scalar_tensor": _fill, "fill": _fill, "zeros": _constant(0),
    "zeros_like": _constant(0), "ones": _constant(1), "ones_like": _constant(1), "empty": _constant(0),
    "empty_like": _constant(0), "new_empty": _constant(0), "new_zeros": _constant(0), "arange": _arange,
    "iota": _arange, "tril": _tri, "triu": _tri,
}  # fmt: skip
