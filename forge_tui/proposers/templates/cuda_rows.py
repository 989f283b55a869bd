"""Row reductions in CUDA: a group of threads per row, rows side by side in threads, or rows split over blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forge_tui.core.records import ITEMSIZE, Device
from forge_tui.proposers.templates.cuda_text import Vector, decode, to_stored
from forge_tui.proposers.templates.emit import Dialect, Names, identity, indent, place
from forge_tui.proposers.templates.expr import C_NAME, Expr, Unfit, loads, walk
from forge_tui.proposers.templates.index import Var
from forge_tui.proposers.templates.onepass import one_pass
from forge_tui.proposers.templates.passes import Pass, Passes, fastest_last, lane_of, plan_passes
from forge_tui.proposers.templates.plan import Plan, Rows

#: values that a thread may hold in registers
_MOST_HELD = 64
_LEAST_SPLIT = 8192
_GROUP = """\
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
_UNROLLED = "constexpr int unrolled = UNROLL;"
_OPS = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min"}


def variants(plan: Plan, rows: Rows, device: Device) -> dict[str, str]:
    """Ways to walk rows, the most promising first."""
    found: dict[str, str] = {}
    lane = lane_of(rows)
    if lane is not None:
        found["lanes"] = "rows side by side in threads, since memory lies along the rows"
    sms = device.sms or 100
    alike = not rows.stores or rows.final == rows.inner
    splits = rows.row_count < 2 * sms and rows.row_size >= _LEAST_SPLIT and alike
    if splits:
        if one_pass(plan.pool, rows) is not None:
            found["split_onepass"] = "rows split over blocks, mean and variance from one read, results in a second"
        found["split"] = "rows split over blocks, one launch per reduction, partial results in the workspace"
    if _held(rows) * _per_thread(rows, 1024) <= _MOST_HELD and rows.final in (rows.inner, ()):
        found["registers"] = "a group of threads per row, one read of memory, the row kept in registers"
    if not (splits and rows.row_count * 4 < sms):
        found["reread"] = "a group of threads per row that reads it again in every pass"
    if not found:
        found["reread"] = "a group of threads per row that reads it again in every pass"
    return found


def _held(rows: Rows) -> int:
    return max(1, len(plan_passes(rows, _everything).slots))


def _everything(expr: Expr) -> bool:
    return expr.kind in ("op", "load")


def _width(rows: Rows, loops: Sequence[Var]) -> int:
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


def _per_thread(rows: Rows, threads: int) -> int:
    """Elements of a row per thread of a group, padding counted."""
    width = _width(rows, fastest_last(rows, rows.inner))
    return width * math.ceil(rows.row_size / width / threads)


def write(plan: Plan, rows: Rows, variant: str, device: Device, dialect: Dialect) -> tuple[list[str], list[str]]:
    """Directives and kernels of a variant."""
    if variant == "lanes":
        return _Lanes(plan, rows, dialect).text()
    if variant.startswith("split"):
        if variant == "split_onepass":
            changed = one_pass(plan.pool, rows)
            if changed is None:
                raise Unfit("no variance in it")
            rows = changed
        return _Split(plan, rows, dialect, device).text()
    return _Group(plan, rows, dialect, keep=variant == "registers").text()


def _tunes(tunes: dict[str, tuple[int, ...]]) -> list[str]:
    return [f"//@tune {name} {' '.join(map(str, values))}" for name, values in tunes.items() if len(values) > 1]


def _halving(most: int) -> tuple[int, ...]:
    values = [most]
    while values[-1] > 1:
        values.append(values[-1] // 2)
    return tuple(values)


class _Walks:
    """Walks of a group of threads along a row."""

    def __init__(self, plan: Plan, rows: Rows, dialect: Dialect, passes: Passes) -> None:
        self.plan = plan
        self.rows = rows
        self.dialect = dialect
        self.passes = passes
        self.inside = set(rows.inner) | set(rows.final)
        self.loops = list(fastest_last(rows, rows.inner))
        self.most = _width(rows, self.loops)

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
        most = _width(self.rows, self.ordered(step))
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
            join = f"{_OPS[expr.text]}<{C_NAME[expr.ctype]}>::join(a{expr.order}, {value})"
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
            lines.append(f"a{expr.order} = over_group<{group}, {_OPS[expr.text]}<{ctype}>>(a{expr.order}, "
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


class _Group(_Walks):
    """`LANES` threads per row, `THREADS / LANES` rows per block."""

    def __init__(self, plan: Plan, rows: Rows, dialect: Dialect, keep: bool) -> None:
        super().__init__(plan, rows, dialect, plan_passes(rows, _everything if keep else None))
        self._keep = keep

    def text(self) -> tuple[list[str], list[str]]:
        rows, most = self.rows, self.most
        slots = max(1, len(self.passes.slots))
        tunes: dict[str, tuple[int, ...]] = {"LANES": self._lanes(slots), "THREADS": (256, 128, 512)}
        if most > 1:
            tunes["VEC"] = _halving(most)
        if not self._keep:
            tunes["UNROLL"] = (4, 1, 2, 8)
        directives = _tunes(tunes)
        lanes = tunes["LANES"]
        fixed = [f"#define LANES {lanes[0]}"] if len(lanes) == 1 else []
        fixed += ["#define VEC 1"] if most == 1 else []
        grid = f"ceil_div({rows.row_count}, max(THREADS / {self._lane_text(lanes)}, 1))"
        directives.append(f"//@launch rows grid={grid} block=max(THREADS, {self._lane_text(lanes)})")
        return directives, [_GROUP, *fixed, *self._kernel()]

    def _lane_text(self, lanes: Sequence[int]) -> str:
        return "LANES" if len(lanes) > 1 else str(lanes[0])

    def _lanes(self, slots: int) -> tuple[int, ...]:
        """Threads per row: each holds about 16 values, and never more than fit in registers."""
        fitting = []
        for lanes in (4, 8, 16, 32, 64, 128, 256, 512, 1024):
            each = _per_thread(self.rows, lanes)
            held = each * slots <= _MOST_HELD or not self._keep
            busy = lanes == 4 or self.rows.row_size > self.most * lanes // 2
            if held and busy and each <= 1024:
                fitting.append(lanes)
        if not fitting:
            fitting = [1024]
        wanted = 16 if self._keep else 32
        fitting.sort(key=lambda lanes: abs(math.log2(_per_thread(self.rows, lanes) / wanted)))
        return tuple(fitting[:4])

    def _kernel(self) -> list[str]:
        rows = self.rows
        names = Names(self.dialect)
        body = [
            *([] if self._keep else [_UNROLLED]),
            "constexpr int threads = THREADS > LANES ? THREADS : LANES, together = threads / LANES;",
            "const int lane = threadIdx.x % LANES;",
            "const index_t given = (index_t)blockIdx.x * together + threadIdx.x / LANES;",
            f"const bool valid = given < {rows.row_count};",
            f"const index_t row = valid ? given : {rows.row_count - 1};",
            *decode(names, rows.rows, "row", None),
        ]
        if self.passes.slots:
            size, wide = self.size(self.passes.walks[0])
            count = f"({size} / VEC + LANES - 1) / LANES * VEC" if wide else f"({size} + LANES - 1) / LANES"
            body += [f"{C_NAME[kind]} kept{slot}[{count}];" for slot, kind in enumerate(self.passes.slots)]
        for step in self.passes.walks:
            body += self.before(step.roots, names)
            body += self.accumulators(step.level)
            body += self._loop(step, names)
            body += self.joined(step.level, "LANES", names, "threads / 32 + 1")
        body += self.row_stores(names, "valid && lane == 0")
        head = 'extern "C" __global__ void __launch_bounds__(THREADS > LANES ? THREADS : LANES) rows(FORGE_PARAMS) {'
        return [head, *indent(body), "}"]

    def _loop(self, step: Pass, names: Names) -> list[str]:
        size, wide = self.size(step)
        items = f"({size} / VEC)" if wide else str(size)
        unroll = "#pragma unroll" if self._keep else "#pragma unroll unrolled"
        scope = names.child()
        # a group whose row does not exist walks the last row along, so that all threads meet at barriers
        inner = self.element(step, scope, "n", "valid" if step.stores else "")
        return [
            "{",
            f"    constexpr int items = {items};",
            unroll,
            "    for (int n = 0; n < (items + LANES - 1) / LANES; ++n) {",
            "        const index_t item = n * LANES + lane;",
            "        if (items % LANES == 0 || item < items) {",
            *indent(inner, 3),
            "        }",
            "    }",
            "}",
        ]


class _Split(_Walks):
    """Blocks of one row each do a part of every walk; a launch per level, partial results in the workspace."""

    def __init__(self, plan: Plan, rows: Rows, dialect: Dialect, device: Device) -> None:
        super().__init__(plan, rows, dialect, plan_passes(rows, None))
        self._sms = device.sms or 100

    def text(self) -> tuple[list[str], list[str]]:
        rows = self.rows
        # enough blocks to fill the device, each with something to do for all of its threads
        aim = max(2, min(4 * self._sms // rows.row_count, rows.row_size // self.most // 256))
        best = 2 ** max(1, min(10, round(math.log2(aim))))
        splits = [value for value in (best, best * 2, best // 2, best * 4, best // 4) if 2 <= value <= 1024]
        tunes: dict[str, tuple[int, ...]] = {"SPLIT": tuple(splits), "THREADS": (256, 128, 512, 1024),
                                             "UNROLL": (4, 1, 2, 8)}  # fmt: skip
        if self.most > 1:
            tunes["VEC"] = _halving(self.most)
        reductions = [expr for level in rows.levels for expr in level]
        directives = _tunes(tunes)
        directives.append(f"//@workspace {8 * rows.row_count * len(reductions)} * SPLIT")
        kernels = [_GROUP, *(["#define VEC 1"] if self.most == 1 else [])]
        for number, step in enumerate(self.passes.walks):
            name = f"level{number}" if step.level else "results"
            directives.append(f"//@launch {name} grid=(SPLIT, {rows.row_count}) block=THREADS")
            kernels += ["", *self._kernel(name, number, step, reductions)]
        if not self.passes.walks[-1].stores:
            directives.append(f"//@launch results grid={rows.row_count} block=32")
            kernels += ["", *self._finish(reductions)]
        return directives, kernels

    def _part(self, expr: Expr, reductions: Sequence[Expr]) -> str:
        """Where partial results of a reduction begin; 8 bytes are kept for each, whatever the type."""
        offset = 8 * self.rows.row_count * reductions.index(expr)
        return f"(reinterpret_cast<{C_NAME[expr.ctype]}*>(static_cast<char*>(workspace) + {offset}LL * SPLIT))"

    def _gather(self, level: Sequence[Expr], names: Names, reductions: Sequence[Expr], threads: str) -> list[str]:
        """Every thread gets the finished reductions of an earlier launch."""
        lines = self.accumulators(level)
        for expr in level:
            lines.append(f"for (int other = threadIdx.x; other < SPLIT; other += {threads})")
            value = f"{self._part(expr, reductions)}[row * SPLIT + other]"
            lines.append(f"    a{expr.order} = {_OPS[expr.text]}<{C_NAME[expr.ctype]}>::join(a{expr.order}, {value});")
        return lines + self.joined(level, threads, names, f"{threads} / 32 + 1")

    def _kernel(self, name: str, number: int, step: Pass, reductions: Sequence[Expr]) -> list[str]:
        names = Names(self.dialect)
        body = [_UNROLLED, "const index_t row = blockIdx.y;", *decode(names, self.rows.rows, "row", None)]
        for level in self.rows.levels[:number]:
            body += self._gather(level, names, reductions, "THREADS")
        body += self.before(step.roots, names)
        body += self.accumulators(step.level)
        size, wide = self.size(step)
        items = f"({size} / VEC)" if wide else str(size)
        inner = self.element(step, names.child(), "0", "")
        body += [
            f"constexpr int items = {items}, chunk = (items + SPLIT - 1) / SPLIT;",
            "const int begin = blockIdx.x * chunk, end = begin + chunk < items ? begin + chunk : items;",
            "#pragma unroll unrolled",
            "for (int item = begin + threadIdx.x; item < end; item += THREADS) {",
            *indent(inner),
            "}",
        ]
        body += self.joined(step.level, "THREADS", names, "THREADS / 32 + 1")
        if step.level:
            stores = [
                f"{self._part(expr, reductions)}[row * SPLIT + blockIdx.x] = a{expr.order};" for expr in step.level
            ]
            body += ["if (threadIdx.x == 0) {", *indent(stores), "}"]
        else:
            body += self.row_stores(names, "blockIdx.x == 0 && threadIdx.x == 0")
        head = f'extern "C" __global__ void __launch_bounds__(THREADS) {name}(FORGE_PARAMS) {{'
        return [head, *indent(body), "}"]

    def _finish(self, reductions: Sequence[Expr]) -> list[str]:
        names = Names(self.dialect)
        body = ["const index_t row = blockIdx.x;", *decode(names, self.rows.rows, "row", None)]
        for level in self.rows.levels:
            body += self._gather(level, names, reductions, "32")
        body += self.row_stores(names, "threadIdx.x == 0")
        return ['extern "C" __global__ void __launch_bounds__(32) results(FORGE_PARAMS) {', *indent(body), "}"]


class _Lanes(_Walks):
    """`ACROSS` rows side by side per block, `DEEP` threads on each."""

    def __init__(self, plan: Plan, rows: Rows, dialect: Dialect) -> None:
        super().__init__(plan, rows, dialect, plan_passes(rows, None))

    def vectorised(self, step: Pass) -> tuple[bool, int]:
        """Neighbours are in neighbouring threads already."""
        del step
        return False, 1

    def text(self) -> tuple[list[str], list[str]]:
        rows = self.rows
        lane = lane_of(rows)
        assert lane is not None
        outer = [var for var in rows.rows if var != lane]
        count = math.prod(var.extent for var in outer)
        tunes: dict[str, tuple[int, ...]] = {"ACROSS": (32, 64, 16, 128), "DEEP": (4, 1, 2, 8), "UNROLL": (4, 1, 2, 8)}
        directives = [
            *_tunes(tunes),
            f"//@launch lanes grid=(ceil_div({lane.extent}, ACROSS) * {count}) block=(ACROSS * DEEP)",
        ]
        names = Names(self.dialect)
        body = [
            _UNROLLED,
            f"constexpr int tiles = ({lane.extent} + ACROSS - 1) / ACROSS;",
            "const int across = threadIdx.x % ACROSS, deep = threadIdx.x / ACROSS;",
            "const index_t outer = blockIdx.x / tiles;",
            "const index_t place = (index_t)(blockIdx.x % tiles) * ACROSS + across;",
            f"const bool valid = place < {lane.extent};",
            f"const index_t lane = valid ? place : {lane.extent - 1};",
            *decode(names, outer, "outer", None),
        ]
        names.vars[lane] = "lane"
        for step in self.passes.walks:
            body += self.before(step.roots, names)
            body += self.accumulators(step.level)
            size, _ = self.size(step)
            inner = self.element(step, names.child(), "0", "valid" if step.stores else "")
            body += [
                "#pragma unroll unrolled",
                f"for (index_t item = deep; item < {size}; item += DEEP) {{",
                *indent(inner),
                "}",
            ]
            body += self._over_deep(step.level, names)
        body += self.row_stores(names, "valid && deep == 0")
        head = 'extern "C" __global__ void __launch_bounds__(ACROSS * DEEP) lanes(FORGE_PARAMS) {'
        return directives, [_GROUP, head, *indent(body), "}"]

    def _over_deep(self, level: Sequence[Expr], names: Names) -> list[str]:
        lines = []
        for expr in level:
            ctype, name, scratch = C_NAME[expr.ctype], f"a{expr.order}", f"scratch{expr.order}"
            lines += [
                f"__shared__ {ctype} {scratch}[ACROSS * DEEP];",
                "if constexpr (DEEP > 1) {",
                f"    {scratch}[threadIdx.x] = {name};",
                "    __syncthreads();",
                f"    {name} = {scratch}[across];",
                "#pragma unroll",
                "    for (int other = 1; other < DEEP; ++other)",
                f"        {name} = {_OPS[expr.text]}<{ctype}>::join({name}, {scratch}[other * ACROSS + across]);",
                "}",
            ]
            names.set(expr, name)
        return lines


__all__ = ["Unfit", "variants", "write"]
