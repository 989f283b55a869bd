"""From a graph to loops: which index sets are walked, what is reduced in them, what is stored where."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from forge_tui.core.records import Graph, KernelOutput, Signature
from forge_tui.proposers.templates import ops
from forge_tui.proposers.templates.expr import Expr, Pool, Unfit, loads, rebuild, walk
from forge_tui.proposers.templates.index import Index, Space, Var, constant, flat, linear, of, unravel
from forge_tui.proposers.templates.lower import (
    MOST_UNROLLED,
    Inner,
    Lowering,
    SegmentNeeded,
    SplitNeeded,
    op_name,
)
from forge_tui.proposers.templates.naming import placeholder

Family = Literal["elementwise", "rows", "pooling"]
_MAX_NESTS = 12
_MAX_PARTS = 7
_MAX_RESTARTS = 60


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


def make_plan(graph: Graph, signature: Signature) -> Plan:
    """Plan loops for a graph.

    Raises:
        Unfit: no family of kernels here fits; the message is the reason.
    """
    _check(graph, signature)
    low = Lowering(graph, signature)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 20_000))
    try:
        rows = _Planner(low, graph, signature).rows() if _reduces(graph) else None
        low.probing = False
        nests = () if rows is not None else _Planner(low, graph, signature).nests()
    except RecursionError:
        raise Unfit("the graph is too deep") from None
    finally:
        low.probing = False
        sys.setrecursionlimit(limit)
    pools = any("pool2d" in node.op for node in graph.nodes)
    family: Family = "rows" if rows is not None else "pooling" if pools else "elementwise"
    return Plan(
        family, low.pool, nests, rows,
        {placeholder(number): item.align for number, item in enumerate(signature.inputs)},
    )  # fmt: skip


def _check(graph: Graph, signature: Signature) -> None:
    if not signature.outputs:
        raise Unfit("it has no outputs")
    for output in signature.outputs:
        spec = output.spec
        if spec.numel == 0:
            raise Unfit("an empty output")
        if any(size > 1 and stride <= 0 for size, stride in zip(spec.shape, spec.strides, strict=True)):
            raise Unfit("an output whose elements share memory")
    if graph.outputs and len(graph.outputs) != len(signature.outputs):
        raise Unfit("the graph has other outputs than the signature")


def _reduces(graph: Graph) -> bool:
    names = ("sum", "mean", "var", "var_mean", "amax", "amin", "prod", "any", "all", "linalg_vector_norm")
    return any(op_name(node) in names for node in graph.nodes)


class _Planner:
    def __init__(self, low: Lowering, graph: Graph, signature: Signature) -> None:
        self._low = low
        self._outputs = [
            (name, output) for name, output in zip(graph.outputs, signature.outputs, strict=True)
        ]
        self._shapes = {name: low.shape(name) for name in graph.outputs}
        for name, output in self._outputs:
            if self._shapes[name] != output.spec.shape:
                raise Unfit("an output of the graph has another shape than the signature says")

    # ---- loops without reductions ------------------------------------------------------------------------------

    def nests(self) -> tuple[Nest, ...]:
        groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[str, KernelOutput]]] = {}
        for name, output in self._outputs:
            groups.setdefault((output.spec.shape, output.spec.strides), []).append((name, output))
        for segments in (True, False):
            self._low.segments = segments
            found: list[Nest] = []
            for (shape, _), outputs in groups.items():
                found += self._cut(Space(shape, "i"), (), outputs)
            if len(found) <= _MAX_NESTS:
                return tuple(found)
        return tuple(found)

    def _cut(self, space: Space, unrolled: tuple[Var, ...], outputs: list[tuple[str, KernelOutput]]) -> list[Nest]:
        """Evaluate; split, unroll and cut loops as the expressions ask for it."""
        low = self._low
        for _ in range(_MAX_RESTARTS):
            low.forget()
            walked = [var for var in space.vars if var not in unrolled]
            low.innermost = walked[-1] if walked else None
            try:
                return [self._nest(space, unrolled, outputs)]
            except SplitNeeded as need:
                at = space.vars.index(need.var)
                space.split(need.var, need.inner)
                if need.var == low.innermost and need.inner <= MOST_UNROLLED:
                    unrolled = (*unrolled, space.vars[at + 1])
            except SegmentNeeded as need:
                bounds = (0, *need.points, need.var.extent)
                sizes = {b - a for a, b in itertools.pairwise(bounds)}
                if len(sizes) == 1 and len(bounds) - 1 <= MOST_UNROLLED:
                    at = space.vars.index(need.var)
                    space.split(need.var, sizes.pop())
                    # a part of length 1 leaves no inner variable: the outer one is unrolled all the same
                    unrolled = (*unrolled, space.vars[at])
                    continue
                parts: list[Nest] = []
                for start, end in itertools.pairwise(bounds):
                    part = space.copy()
                    var = part.fresh(end - start)
                    part.replace(need.var, [var], of(var) + start)
                    parts += self._cut(part, unrolled, outputs)
                return parts
        raise Unfit("its index arithmetic does not settle")

    def _nest(self, space: Space, unrolled: tuple[Var, ...], outputs: list[tuple[str, KernelOutput]]) -> Nest:
        stores: list[Store] = []
        for step in range(math.prod(var.extent for var in unrolled)):
            place = unravel(constant(step), [var.extent for var in unrolled])
            values = dict(zip(unrolled, place, strict=True))
            position = tuple(index.substitute(values) for index in space.indices)
            for name, output in outputs:
                stores.append(self._store(name, output, position))
        walked = [var for var in space.vars if var not in unrolled]
        ordered = _by_stride(walked, stores)
        variables, stores, _ = _merge_all(self._low.pool, [ordered], stores, [])
        return Nest(tuple(variables[0]), tuple(stores))

    def _store(self, name: str, output: KernelOutput, position: tuple[Index, ...]) -> Store:
        value = self._low.at(name, position)
        if name in self._low.nodes and self._low.dtype(name) != output.spec.dtype:
            raise Unfit("an output of the graph has another dtype than the signature says")
        return Store(output.name, output.spec.dtype, linear(position, output.spec.strides), value)

    # ---- rows --------------------------------------------------------------------------------------------------

    def rows(self) -> Rows | None:
        """None if no output needs a reduction after all."""
        low = self._low
        low.segments = False
        primary = max(self._outputs, key=lambda item: item[1].spec.numel)[1]
        space = Space(primary.spec.shape, "i")
        fresh: tuple[Var, ...] | None = None
        for _ in range(_MAX_RESTARTS):
            try:
                found = self._attempt(space, fresh)
            except SplitNeeded as need:
                if need.var in space.vars:
                    space.split(need.var, need.inner)
                else:
                    inner = low.inner.vars or ()
                    at = inner.index(need.var)
                    name, outer = need.var.name, need.var.extent // need.inner
                    pair = (Var(f"{name}_o", outer), Var(f"{name}_i", need.inner))
                    fresh = (*inner[:at], *pair, *inner[at + 1 :])
                continue
            return found
        raise Unfit("its index arithmetic does not settle")

    def _attempt(self, space: Space, fresh: tuple[Var, ...] | None) -> Rows | None:
        low = self._low
        low.innermost = None
        row_vars, final = self._probe(space)
        if row_vars is None:
            return None
        low.forget()
        low.probing = False
        counts = {math.prod(shape[dim] for dim in dims) for shape, dims in low.reduced.values()}
        if len(counts) != 1:
            raise Unfit("it reduces over sets of different sizes")
        row_count = math.prod(var.extent for var in row_vars)
        for shape, _ in low.reduced.values():
            if row_count * min(counts) != math.prod(shape):
                raise Unfit("it reduces over different dimensions")
        same = math.prod(var.extent for var in final) == min(counts)
        low.inner = Inner(final if same else fresh)
        stores, row_stores = self._stores(space, row_vars, final)
        roots = [store.value for store in (*stores, *row_stores)]
        reductions = [expr for expr in walk(roots) if expr.kind == "reduce"]
        inner = low.inner.vars or ()
        for expr in reductions:
            if not expr.deps <= set(row_vars):
                raise Unfit("it reduces over different dimensions")
        return self._arrange(row_vars, inner, final, stores, row_stores, reductions)

    def _probe(self, space: Space) -> tuple[tuple[Var, ...] | None, tuple[Var, ...]]:
        """The variables that number the rows, and the others; reductions are not entered."""
        low = self._low
        low.forget()
        low.probing = True
        low.reduced.clear()
        found: set[Var] = set()
        any_probe = False
        for name, output in self._outputs:
            if output.spec.numel != space.numel:
                continue
            value = low.at(name, self._position(output.spec.shape, space))
            for expr in walk([value]):
                if expr.kind == "probe":
                    any_probe = True
                    found |= expr.deps
        if not any_probe:
            # the big output needs no reduction; others may
            if any(output.spec.numel != space.numel for _, output in self._outputs):
                raise Unfit("only some of its outputs are reduced")
            return None, ()
        rows = tuple(var for var in space.vars if var in found)
        return rows, tuple(var for var in space.vars if var not in found)

    def _position(self, shape: Sequence[int], space: Space) -> tuple[Index, ...]:
        if tuple(shape) == space.shape:
            return tuple(space.indices)
        return self._low.resolved(unravel(flat(space.vars), shape))

    def _stores(
        self, space: Space, rows: tuple[Var, ...], final: tuple[Var, ...]
    ) -> tuple[list[Store], list[Store]]:
        stores: list[Store] = []
        row_stores: list[Store] = []
        row_count = math.prod(var.extent for var in rows)
        for name, output in self._outputs:
            if output.spec.numel == space.numel:
                store = self._store(name, output, self._position(output.spec.shape, space))
                (stores if final else row_stores).append(store)
            elif output.spec.numel == row_count:
                position = self._low.resolved(unravel(flat(rows), output.spec.shape))
                store = self._store(name, output, position)
                if not store.value.deps <= set(rows):
                    raise Unfit("its outputs are over different index sets")
                row_stores.append(store)
            else:
                raise Unfit("its outputs have sizes that do not go together")
        return stores, row_stores

    def _arrange(
        self, rows: tuple[Var, ...], inner: tuple[Var, ...], final: tuple[Var, ...],
        stores: list[Store], row_stores: list[Store], reductions: list[Expr],
    ) -> Rows:  # fmt: skip
        every = [*stores, *row_stores]
        same = inner == final
        groups = [_by_stride(rows, every), _by_stride(inner, every)]
        if not same:
            groups.append(_by_stride(final, every))
        merged, every, reductions = _merge_all(self._low.pool, groups, every, reductions, inner)
        new_inner = tuple(merged[1])
        levels: dict[int, list[Expr]] = {}
        for expr in reductions:
            levels.setdefault(expr.level, []).append(expr)
        return Rows(
            tuple(merged[0]), new_inner, new_inner if same else tuple(merged[2]),
            tuple(tuple(levels[level]) for level in sorted(levels)),
            tuple(every[: len(stores)]), tuple(every[len(stores) :]),
        )  # fmt: skip


def _by_stride(variables: Sequence[Var], stores: Sequence[Store]) -> list[Var]:
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


def _merge_all(
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


__all__ = ["Nest", "Plan", "Rows", "Store", "make_plan", "ops"]
