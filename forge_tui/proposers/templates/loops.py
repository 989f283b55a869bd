"""Loops as records: nests without reductions, rows with them; and neighbouring loops joined where one will do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from forge_tui.proposers.templates.expr import Expr, Pool, loads, rebuild, walk
from forge_tui.proposers.templates.index import Index, Var, of

Family = Literal["elementwise", "rows", "pooling"]
_MAX_PARTS = 7


@dataclass(frozen=True)
class Store:
    """One output element: where, and which value."""

    output: str
    dtype: str
    address: Index
    value: Expr


@dataclass(frozen=True)
class Part:
    """A piece of the innermost loop's range, with the stores as they are there: `var` runs from 0 within it."""

    var: Var
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class Nest:
    """Loops without a reduction; `vars` from outer to inner."""

    vars: tuple[Var, ...]
    stores: tuple[Store, ...]

    def parts(self, pool: Pool) -> tuple[Part, ...]:
        """The innermost loop cut where an index stops to be held at an edge; one part where none is."""
        last = self.vars[-1]
        points = {0, last.extent}
        for expr in walk([store.value for store in self.stores]):
            if expr.index is not None:
                points |= expr.index.edges(last)
            if expr.kind == "inside" and expr.index is not None:
                points |= expr.index.clamp(expr.bounds[0], expr.bounds[1] - 1).edges(last)
        bounds = sorted(point for point in points if 0 <= point <= last.extent)
        if len(bounds) == 2 or len(bounds) > _MAX_PARTS:
            return (Part(last, self.stores),)
        parts = []
        for number, (start, end) in enumerate(itertools.pairwise(bounds)):
            var = Var(f"{last.name}_part{number}", end - start)
            mapping = {last: of(var) + start}
            values = rebuild(pool, [store.value for store in self.stores], mapping, {})
            stores = tuple(
                replace(store, address=store.address.substitute(mapping), value=value)
                for store, value in zip(self.stores, values, strict=True)
            )
            parts.append(Part(var, stores))
        return tuple(parts)


@dataclass(frozen=True)
class Rows:
    """Reductions over one index set per row, then what is computed from them.

    `inner` is what the reductions walk, `final` what the stores walk; they are the same tuple wherever the results
    have the shape of what was reduced. `row_stores` are once per row.
    """

    rows: tuple[Var, ...]
    inner: tuple[Var, ...]
    final: tuple[Var, ...]
    levels: tuple[tuple[Expr, ...], ...]
    stores: tuple[Store, ...]
    row_stores: tuple[Store, ...]

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return math.prod(var.extent for var in self.rows)

    @property
    def row_size(self) -> int:
        """Elements reduced per row."""
        return math.prod(var.extent for var in self.inner)


@dataclass(frozen=True)
class Plan:
    """What a kernel for the graph does."""

    family: Family
    pool: Pool
    nests: tuple[Nest, ...] = ()
    rows: Rows | None = None
    aligns: dict[str, int] = field(default_factory=dict)
    """Alignment of every input, bytes."""


def by_stride(variables: Sequence[Var], stores: Sequence[Store]) -> list[Var]:
    """From the largest step through memory to the smallest: that of the first store, else of the biggest load."""
    everything = list(loads([store.value for store in stores]))

    def step(var: Var) -> int:
        for store in stores:
            found = store.address.coefficient(var)
            if found:
                return abs(found)
        steps = [abs(expr.index.coefficient(var) or 0) for expr in everything if expr.index is not None]
        return max(steps, default=0)

    order = {var: number for number, var in enumerate(variables)}
    return sorted(variables, key=lambda var: (-step(var), order[var]))


def merge_all(
    pool: Pool, groups: list[list[Var]], stores: list[Store], reductions: list[Expr],
    inner: tuple[Var, ...] | None = None,
) -> tuple[list[list[Var]], list[Store], list[Expr]]:  # fmt: skip
    """Join neighbouring loops wherever every index walks them as one."""
    roots = [store.value for store in stores] + reductions
    indices = [expr.index for expr in walk(roots) if expr.index is not None]
    indices += [store.address for store in stores]
    mapping: dict[Var, Index] = {}
    result: list[list[Var]] = []
    for group in groups:
        done: list[Var] = []
        for var in group:
            if done and _walked_as_one(done[-1], var, indices):
                outer = done.pop()
                joined = Var(f"{outer.name}_{var.name}", outer.extent * var.extent)
                step = {outer: Index(), var: of(joined)}
                indices = [index.substitute(step) for index in indices]
                mapping = {old: value.substitute(step) for old, value in mapping.items()} | step
                done.append(joined)
            else:
                done.append(var)
        result.append(done)
    over: dict[tuple[Var, ...], tuple[Var, ...]] = {}
    if inner is not None:
        over[inner] = tuple(result[1])
    new = rebuild(pool, roots, mapping, over)
    stores = [
        replace(store, address=store.address.substitute(mapping), value=value)
        for store, value in zip(stores, new, strict=False)
    ]
    return result, stores, new[len(stores) :]


def _walked_as_one(outer: Var, inner: Var, indices: Sequence[Index]) -> bool:
    for index in indices:
        a, b = index.coefficient(outer), index.coefficient(inner)
        if a is None or b is None or a != b * inner.extent:
            return False
    return True
