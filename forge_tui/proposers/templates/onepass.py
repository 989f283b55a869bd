"""Mean and variance from one walk: sums of the values and of their squares around the row's first value."""

from __future__ import annotations

import math
from dataclasses import replace

from forge_tui.proposers.templates.expr import Expr, Pool, rebuild, walk
from forge_tui.proposers.templates.index import ZERO
from forge_tui.proposers.templates.loops import Rows

_SQUARE = "({0} * {0})"
_MINUS = "({0} - {1})"
_TIMES = "({0} * {1})"


def one_pass(pool: Pool, rows: Rows) -> Rows | None:
    """The same results with one level of reductions less, where a variance is among them; None where none is.

    The sum of squares is taken around the row's first value, so that a large mean costs no digits.
    """
    pair = _find(rows)
    if pair is None:
        return None
    total, squares = pair
    value, ctype, count = total.args[0], total.ctype, math.prod(var.extent for var in rows.inner)
    (first,) = rebuild(pool, [value], dict.fromkeys(rows.inner, ZERO), {})
    away = pool.op(ctype, _MINUS, value, first)
    away_sum = pool.reduce("sum", away, rows.inner)
    away_squares = pool.reduce("sum", pool.op(ctype, _SQUARE, away), rows.inner)
    new_total = pool.op(ctype, "({0} + {1} * {2})", away_sum, first, pool.const(count, ctype))
    spread = pool.op(ctype, "({0} - {1} * {1} * {2})", away_squares, away_sum, pool.const(1.0 / count, ctype))
    new_squares = pool.op(ctype, "({0} < 0 ? 0 : {0})", spread)
    return _replaced(pool, rows, {total: new_total, squares: new_squares})


def _find(rows: Rows) -> tuple[Expr, Expr] | None:
    for level in rows.levels:
        for squares in level:
            body = squares.args[0]
            if squares.text != "sum" or body.text != _SQUARE or body.args[0].text != _MINUS:
                continue
            value, mean = body.args[0].args
            if mean.text != _TIMES or mean.args[0].kind != "reduce" or mean.args[1].kind != "const":
                continue
            total = mean.args[0]
            count = math.prod(var.extent for var in rows.inner)
            is_mean = abs(float(mean.args[1].text.rstrip("f")) * count - 1) < 1e-5
            if total.text == "sum" and total.args[0] is value and total.level == 1 and is_mean:
                return total, squares
    return None


def _replaced(pool: Pool, rows: Rows, swaps: dict[Expr, Expr]) -> Rows:
    stores = [*rows.stores, *rows.row_stores]
    new: dict[Expr, Expr] = dict(swaps)
    # what a swap is made of stands as it is: only what was built on the old values is built again
    for expr in walk([store.value for store in stores], stop=lambda item: item in swaps):
        if expr in new:
            continue
        args = tuple(new[arg] for arg in expr.args)
        new[expr] = expr if args == expr.args else pool.remake(expr, args, expr.index, expr.over)
    changed = [replace(store, value=new[store.value]) for store in stores]
    levels: dict[int, list[Expr]] = {}
    for expr in walk([store.value for store in changed]):
        if expr.kind == "reduce":
            levels.setdefault(expr.level, []).append(expr)
    return replace(
        rows, levels=tuple(tuple(levels[level]) for level in sorted(levels)),
        stores=tuple(changed[: len(rows.stores)]), row_stores=tuple(changed[len(rows.stores) :]),
    )  # fmt: skip


__all__ = ["one_pass"]
