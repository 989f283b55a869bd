"""From a graph to loops: which index sets are walked, what is reduced in them, what is stored where."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence

from forge_tui.core.records import Graph, KernelOutput, Signature
from forge_tui.proposers.templates.expr import Expr, Unfit, walk
from forge_tui.proposers.templates.index import Index, Space, Var, constant, flat, linear, of, unravel
from forge_tui.proposers.templates.loops import Family, Nest, Plan, Rows, Store, by_stride, merge_all
from forge_tui.proposers.templates.lower import (
    MOST_UNROLLED,
    Inner,
    Lowering,
    SegmentNeeded,
    SplitNeeded,
)
from forge_tui.proposers.templates.naming import op_name, placeholder
from forge_tui.proposers.templates.reductions import REDUCTIONS

_MAX_NESTS = 12
_MAX_RESTARTS = 60


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
    return any(op_name(node) in REDUCTIONS or op_name(node) == "var_mean" for node in graph.nodes)


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
        ordered = by_stride(walked, stores)
        variables, stores, _ = merge_all(self._low.pool, [ordered], stores, [])
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
        groups = [by_stride(rows, every), by_stride(inner, every)]
        if not same:
            groups.append(by_stride(final, every))
        merged, every, reductions = merge_all(self._low.pool, groups, every, reductions, inner)
        new_inner = tuple(merged[1])
        levels: dict[int, list[Expr]] = {}
        for expr in reductions:
            levels.setdefault(expr.level, []).append(expr)
        return Rows(
            tuple(merged[0]), new_inner, new_inner if same else tuple(merged[2]),
            tuple(tuple(levels[level]) for level in sorted(levels)),
            tuple(every[: len(stores)]), tuple(every[len(stores) :]),
        )  # fmt: skip
