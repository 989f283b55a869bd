"""Pooling windows, unrolled into the expression of one output element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from forge_tui.core.records import GraphNode
from forge_tui.proposers.templates import ops
from forge_tui.proposers.templates.expr import CTYPE, Expr, Unfit
from forge_tui.proposers.templates.index import Index, constant

if TYPE_CHECKING:
    from forge_tui.proposers.templates.lower import Lowering

Position = tuple[Index, ...]
_MAX_WINDOW = 64


def _pair(value: Any, default: tuple[int, int] | None = None) -> tuple[int, int]:
    if value is None or value == []:
        assert default is not None
        return default
    if isinstance(value, int):
        return value, value
    return (int(value[0]), int(value[0])) if len(value) == 1 else (int(value[0]), int(value[1]))


def _get(node: GraphNode, number: int, name: str, default: Any) -> Any:
    return node.args[number] if len(node.args) > number else node.kwargs.get(name, default)


def max_pool(low: Lowering, node: GraphNode, shape: Sequence[int], position: Position) -> Expr:
    """Values of max_pool2d_with_indices.

    An index outside the input is held at its edge: the edge element is in the window as well, and a maximum does not
    mind to see it twice.
    """
    del shape
    kernel = _pair(node.args[1])
    stride = _pair(_get(node, 2, "stride", None), kernel)
    padding = _pair(_get(node, 3, "padding", 0))
    if _pair(_get(node, 4, "dilation", 1)) != (1, 1):
        raise Unfit("a dilated pooling window")
    if kernel[0] * kernel[1] > _MAX_WINDOW:
        raise Unfit("a pooling window of more than 64 elements")
    source = node.args[0]["ref"]
    ctype = low.ctype(source)
    height, width = low.shape(source)[-2:]
    values: list[Expr] = []
    for y in range(kernel[0]):
        for x in range(kernel[1]):
            at_y = (position[-2] * stride[0] + (y - padding[0])).clamp(0, height - 1)
            at_x = (position[-1] * stride[1] + (x - padding[1])).clamp(0, width - 1)
            value = low.at(source, (*position[:-2], at_y, at_x))
            if value not in values:
                values.append(value)
    return ops.largest(low.pool, ctype, values)


def _avg_pool(low: Lowering, node: GraphNode, position: Position) -> Expr:
    kernel = _pair(node.args[1])
    stride = _pair(_get(node, 2, "stride", None), kernel)
    padding = _pair(_get(node, 3, "padding", 0))
    ceil_mode, count_pad = bool(_get(node, 4, "ceil_mode", False)), bool(_get(node, 5, "count_include_pad", True))
    divisor = _get(node, 6, "divisor_override", None)
    source = node.args[0]["ref"]
    height, width = low.shape(source)[-2:]
    if kernel[0] * kernel[1] > _MAX_WINDOW:
        raise Unfit("a pooling window of more than 64 elements")
    over = any(
        (out - 1) * step - pad + size > full + pad
        for out, step, pad, size, full in zip(node.shape[-2:], stride, padding, kernel, (height, width), strict=True)
    )
    if ceil_mode and over:
        raise Unfit("a pooling window that passes the padded edge")
    if not count_pad and padding != (0, 0) and divisor is None:
        raise Unfit("average pooling that does not count its padding")
    ctype = CTYPE[node.dtype]
    total = low.pool.const(0, ctype)
    zero = low.pool.const(0, ctype)
    for y in range(kernel[0]):
        for x in range(kernel[1]):
            at_y = position[-2] * stride[0] + (y - padding[0])
            at_x = position[-1] * stride[1] + (x - padding[1])
            value = low.at(source, (*position[:-2], at_y.clamp(0, height - 1), at_x.clamp(0, width - 1)))
            for condition in (low.pool.inside(at_y, 0, height), low.pool.inside(at_x, 0, width)):
                if condition.kind != "const":
                    value = low.pool.op(ctype, "({0} ? {1} : {2})", condition, value, zero)
            total = value if (y, x) == (0, 0) else ops.binary(low.pool, "add", ctype, total, value)
    count = divisor or kernel[0] * kernel[1]
    return low.pool.op(ctype, "({0} * {1})", total, low.pool.const(1.0 / count, ctype))


def _adaptive(low: Lowering, node: GraphNode, position: Position) -> Expr:
    """_adaptive_avg_pool2d; windows of unequal sizes only where the output is small enough to be unrolled."""
    source = node.args[0]["ref"]
    height, width = low.shape(source)[-2:]
    out_height, out_width = node.shape[-2:]
    if height % out_height or width % out_width:
        raise Unfit("adaptive pooling with windows of unequal sizes")
    kernel = [height // out_height, width // out_width]
    plain = GraphNode(name=node.name, op="aten.avg_pool2d.default", args=[node.args[0], kernel], kwargs={},
                      shape=node.shape, dtype=node.dtype)  # fmt: skip
    return _avg_pool(low, plain, position)


WINDOWS: dict[str, Callable[[Lowering, GraphNode, Position], Expr]] = {
    "avg_pool2d": _avg_pool, "_adaptive_avg_pool2d": _adaptive,
}  # fmt: skip
__all__ = ["WINDOWS", "constant", "max_pool"]
