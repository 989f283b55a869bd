"""CUDA for one GPU kernel per target, or a few launches where rows are split."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forge_tui.core.records import ITEMSIZE, Device
from forge_tui.proposers.templates import cuda_rows, cuda_text
from forge_tui.proposers.templates.emit import Names, indent, place
from forge_tui.proposers.templates.expr import loads, walk
from forge_tui.proposers.templates.index import Var
from forge_tui.proposers.templates.loops import Nest, Plan

_THREADS = (256, 128, 512)


def variants(plan: Plan, device: Device) -> dict[str, str]:
    """Names of the ways to write a plan for a GPU, the most promising first, each with its idea in one line."""
    if plan.rows is not None:
        return cuda_rows.variants(plan, plan.rows, device)
    values = widths(plan.nests)
    if len(values) > 1:
        return {"flat": f"one thread per {values[0]} neighbours, one pass over memory, 16-byte loads where they fit"}
    return {"flat": "one thread per element, one pass over memory"}


def widths(nests: Sequence[Nest]) -> tuple[int, ...]:
    """Vector widths to try, the best guess first: 16 bytes of the widest tensor that is walked along."""
    found: set[int] = set()
    for nest in nests:
        if not nest.vars:
            continue
        last = nest.vars[-1]
        sizes = [ITEMSIZE[store.dtype] for store in nest.stores if store.address.coefficient(last) == 1]
        sizes += [
            ITEMSIZE[expr.text] for expr in loads([store.value for store in nest.stores])
            if expr.index is not None and expr.index.coefficient(last) == 1
        ]  # fmt: skip
        if not sizes:
            continue
        most = 16 // min(sizes)
        while most > 1 and last.extent % most:
            most //= 2
        found.add(most)
    most = max(found, default=1)
    values = [most]
    while values[-1] > 1:
        values.append(values[-1] // 2)
    return tuple(values)


class CudaWriter:
    """Writes the source of one variant of a plan."""

    def __init__(self, plan: Plan, device: Device) -> None:
        self._plan = plan
        self._device = device
        dtypes = [store.dtype for nest in plan.nests for store in nest.stores]
        if plan.rows is not None:
            dtypes = [store.dtype for store in (*plan.rows.stores, *plan.rows.row_stores)]
        self._fast = all(dtype not in ("float32", "float64") for dtype in dtypes)

    def source(self, variant: str) -> str:
        """The whole source."""
        dialect = cuda_text.dialect(self._fast)
        if self._plan.rows is not None:
            text = cuda_rows.write(self._plan, self._plan.rows, variant, self._device, dialect)
        else:
            text = self._flat(self._plan.nests, dialect)
        directives, kernels = text
        head = cuda_text.HEAD.replace("INDEX_TYPE", self._index_type())
        helpers = cuda_text.prelude(dialect.used, self._fast)
        return "\n".join([*directives, head, *helpers, *kernels, ""])

    def _index_type(self) -> str:
        """32 bits wherever no offset or count passes them: division by constants is then cheap."""
        most = 0
        stores = [store for nest in self._plan.nests for store in nest.stores]
        rows = self._plan.rows
        if rows is not None:
            stores += [*rows.stores, *rows.row_stores]
            most = rows.row_count * rows.row_size
        for nest in self._plan.nests:
            most = max(most, math.prod(var.extent for var in nest.vars))
        indices = [expr.index for expr in walk(store.value for store in stores) if expr.index is not None]
        for index in (*indices, *(store.address for store in stores)):
            low, high = index.bounds()
            most = max(most, -low, high)
        return "int" if most < 2**31 - 2**20 else "long long"

    def _flat(self, nests: Sequence[Nest], dialect: object) -> tuple[list[str], list[str]]:
        values = widths(nests)
        tunes: dict[str, tuple[int, ...]] = {"THREADS": _THREADS, "UNROLL": (1, 2, 4)}
        if len(values) > 1:
            tunes["VEC"] = values
        body: list[str] = []
        grids: list[str] = []
        single = len(nests) == 1
        for number, nest in enumerate(nests):
            total = math.prod(var.extent for var in nest.vars)
            wide = len(values) > 1 and bool(nest.vars) and nest.vars[-1].extent % values[0] == 0
            grid = f"ceil_div({total}, {'VEC * ' if wide else ''}THREADS * UNROLL)"
            lines = self._nest(nest, wide, values[0], dialect)
            if single:
                body += ["const index_t block = blockIdx.x;", *lines]
            else:
                start = " + ".join(f"blocks{n}" for n in range(number)) or "0"
                count = f"{total} / {'VEC' if wide else '1'}"
                body.append(f"constexpr int blocks{number} = (int)(({count} + THREADS * UNROLL - 1) / "
                            "(THREADS * UNROLL));")  # fmt: skip
                body += [f"if (blockIdx.x >= {start} && blockIdx.x < {start} + blocks{number}) {{",
                         *indent([f"const index_t block = blockIdx.x - ({start});", *lines]), "}"]  # fmt: skip
            grids.append(grid)
        directives = [f"//@tune {name} {' '.join(map(str, found))}" for name, found in tunes.items()]
        directives.append(f"//@launch pointwise grid=({' + '.join(grids)}) block=THREADS")
        head = 'extern "C" __global__ void __launch_bounds__(THREADS) pointwise(FORGE_PARAMS) {'
        return directives, [head, *indent(body), "}"]

    def _nest(self, nest: Nest, wide: bool, most: int, dialect: object) -> list[str]:
        names = Names(dialect)  # type: ignore[arg-type]
        loops = list(nest.vars)
        vec = "VEC" if wide else None
        total = math.prod(var.extent for var in loops)
        lines = cuda_text.decode(names, loops, "item", vec)
        last = loops[-1] if wide else None
        vector = cuda_text.Vector(names, last, "VEC", most, self._plan.aligns, ITEMSIZE)
        lanes = names.child()
        if last is not None:
            lanes.vars[last] = vector.lane_name()
        marked: list[Var] = [last] if last is not None else []
        before, *inside = place([store.value for store in nest.stores], marked, lambda e: lanes.find(e) is not None)
        vector.compute(before, inside[0] if inside else [], lanes)
        vector.store(nest.stores, lanes)
        items = f"{total} / VEC" if wide else str(total)
        return [
            "#pragma unroll",
            "for (int u = 0; u < UNROLL; ++u) {",
            "    const index_t item = (block * UNROLL + u) * THREADS + threadIdx.x;",
            f"    if (item < {items}) {{",
            *indent([*lines, *vector.lines()], 2),
            "    }",
            "}",
        ]
