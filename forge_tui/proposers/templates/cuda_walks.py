"""What the ways to walk rows on a GPU share: helper functions of the source, and the statements of one walk."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forge_tui.core.records import ITEMSIZE
from forge_tui.proposers.templates.cuda_text import Vector, decode, to_stored
from forge_tui.proposers.templates.emit import Dialect, Names, identity, indent, place
from forge_tui.proposers.templates.expr import C_NAME, Expr, loads, walk
from forge_tui.proposers.templates.index import Var
from forge_tui.proposers.templates.loops import Plan, Rows
from forge_tui.proposers.templates.passes import Pass, Passes, fastest_last

GROUP = """\
template <class T> struct Sum { static __device__ __forceinline__ T join(T a, T b) { return a + b; } };
template <class T> struct Prod { static __device__ __forceinline__ T join(T a, T b) { return a * b; } };
template <class T> struct Max {
    static __device__ __forceinline__ T join(T a, T b) { return (a > b || a != a) ? a : b; }
};
template <class T> struct Min {
    static __device__ __forceinline__ T join(T a, T b) { return (a < b || a != a) ? a : b; }
};

// combines a value over `Size` neighbouring threads, a power of two; every thread gets the result
template <int Size, class Op, class T>
__device__ __forceinline__ T over_group(T value, T* scratch) {
    #pragma unroll
    for (int step = (Size < 32 ? Size : 32) / 2; step > 0; step /= 2)
        value = Op::join(value, __shfl_xor_sync(0xffffffffu, value, step));
    if constexpr (Size > 32) {
        constexpr int warps = Size / 32;
        T* mine = scratch + (threadIdx.x / Size) * warps;
        if (threadIdx.x % 32 == 0) mine[(threadIdx.x % Size) / 32] = value;
        __syncthreads();
        value = mine[0];
        #pragma unroll
        for (int other = 1; other < warps; ++other) value = Op::join(value, mine[other]);
    }
    return value;
}
"""
#: macros are not expanded in a pragma
UNROLLED = "constexpr int unrolled = UNROLL;"
OPS = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min"}


def width(rows: Rows, loops: Sequence[Var]) -> int:
    """Neighbours that a thread takes at once along the last loop."""
    if not loops:
        return 1
    last = loops[-1]
    every = (*rows.stores, *rows.row_stores)
    sizes = [ITEMSIZE[store.dtype] for store in every if store.address.coefficient(last) == 1]
    sizes += [
        ITEMSIZE[expr.text] for expr in loads([store.value for store in every])
        if expr.index is not None and expr.index.coefficient(last) == 1
    ]  # fmt: skip
    most = 16 // min(sizes) if sizes else 1
    while most > 1 and last.extent % most:
        most //= 2
    return most


def per_thread(rows: Rows, threads: int) -> int:
    """Elements of a row per thread of a group, padding counted."""
    each = width(rows, fastest_last(rows, rows.inner))
    return each * math.ceil(rows.row_size / each / threads)


def tune_lines(tunes: dict[str, tuple[int, ...]]) -> list[str]:
    """Directives for the tunables that have a choice."""
    return [f"//@tune {name} {' '.join(map(str, values))}" for name, values in tunes.items() if len(values) > 1]


def halving(most: int) -> tuple[int, ...]:
    """A power of two and all below it, the largest first."""
    values = [most]
    while values[-1] > 1:
        values.append(values[-1] // 2)
    return tuple(values)


class Walks:
    """Walks of a group of threads along a row."""

    def __init__(self, plan: Plan, rows: Rows, dialect: Dialect, passes: Passes) -> None:
        self.plan = plan
        self.rows = rows
        self.dialect = dialect
        self.passes = passes
        self.inside = set(rows.inner) | set(rows.final)
        self.loops = list(fastest_last(rows, rows.inner))
        self.most = width(rows, self.loops)

    def ordered(self, step: Pass) -> list[Var]:
        """Loops of a walk with the one along memory last."""
        return list(fastest_last(self.rows, step.loops))

    def before(self, roots: Sequence[Expr], names: Names) -> list[str]:
        """What does not change along the row."""
        found = walk(roots, stop=lambda item: names.find(item) is not None or item.kind == "reduce")
        return [
            names.statement(expr) for expr in found
            if expr.kind not in ("const", "reduce") and names.find(expr) is None and not expr.deps & self.inside
        ]  # fmt: skip

    def vectorised(self, step: Pass) -> tuple[bool, int]:
        """Whether a walk takes VEC neighbours at once, and how many at most."""
        most = width(self.rows, self.ordered(step))
        return most > 1 and most >= self.most, self.most

    def element(self, step: Pass, names: Names, held: str, guard: str) -> list[str]:
        """The statements for one position (VEC neighbours) of a walk; `held` is the register slot's first index."""
        loops = self.ordered(step)
        wide, most = self.vectorised(step)
        lines = decode(names, loops, "item", "VEC" if wide else None)
        last = loops[-1] if wide and loops else None
        vector = Vector(names, last, "VEC", most, self.plan.aligns, ITEMSIZE)
        lanes = names.child() if last is not None else names
        if last is not None:
            lanes.vars[last] = vector.lane_name()
        slot = f"{held} * VEC + j" if wide else held
        for expr, number in step.reads.items():
            first = vector.inside if last is not None else vector.before
            first.append(f"const {C_NAME[expr.ctype]} k{expr.order} = kept{number}[{slot}];")
            lanes.set(expr, f"k{expr.order}")
        marked = [last] if last is not None else []
        before, *inside = place(step.roots, marked, lambda expr: lanes.find(expr) is not None)
        vector.compute(before, inside[0] if inside else [], lanes)
        for expr, number in step.writes.items():
            vector.inside.append(f"kept{number}[{slot}] = {lanes.value(expr)};")
        for expr in step.level:
            value = lanes.value(expr.args[0])
            join = f"{OPS[expr.text]}<{C_NAME[expr.ctype]}>::join(a{expr.order}, {value})"
            vector.inside.append(f"a{expr.order} = {join};")
        vector.store(step.stores, lanes, guard)
        return [*lines, *vector.lines()]

    def size(self, step: Pass) -> tuple[int, bool]:
        """Elements of a walk and whether VEC divides them."""
        return math.prod(var.extent for var in step.loops), self.vectorised(step)[0]

    def accumulators(self, level: Sequence[Expr]) -> list[str]:
        """Accumulators at their start."""
        return [f"{C_NAME[expr.ctype]} a{expr.order} = {identity(expr.text, expr.ctype)};" for expr in level]

    def joined(self, level: Sequence[Expr], group: str, names: Names, count: str) -> list[str]:
        """Combine accumulators over a group of threads."""
        lines = []
        for expr in level:
            ctype = C_NAME[expr.ctype]
            lines.append(f"__shared__ {ctype} scratch{expr.order}[{count}];")
            lines.append(f"a{expr.order} = over_group<{group}, {OPS[expr.text]}<{ctype}>>(a{expr.order}, "
                         f"scratch{expr.order});")  # fmt: skip
            names.set(expr, f"a{expr.order}")
        return lines

    def row_stores(self, names: Names, condition: str) -> list[str]:
        """Results that are once per row."""
        stores = self.rows.row_stores
        if not stores:
            return []
        lines = self.before([store.value for store in stores], names)
        written = [
            f"{store.output}[{names.index(store.address)}] = "
            f"{to_stored(names.value(store.value), store.dtype, store.value.ctype)};"
            for store in stores
        ]
        return [*lines, f"if ({condition}) {{", *indent(written), "}"]
