"""Rows in CUDA where one group of threads per row will not do: split over blocks, or side by side in threads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forge_tui.core.records import Device
from forge_tui.proposers.templates.cuda_text import decode
from forge_tui.proposers.templates.cuda_walks import GROUP, OPS, UNROLLED, Walks, halving, tune_lines
from forge_tui.proposers.templates.emit import Dialect, Names, indent
from forge_tui.proposers.templates.expr import C_NAME, Expr
from forge_tui.proposers.templates.loops import Plan, Rows
from forge_tui.proposers.templates.passes import Pass, lane_of, plan_passes


class Split(Walks):
    """Blocks of one row each do a part of every walk; a launch per level, partial results in the workspace."""

    def __init__(self, plan: Plan, rows: Rows, dialect: Dialect, device: Device) -> None:
        super().__init__(plan, rows, dialect, plan_passes(rows, None))
        self._sms = device.sms or 100

    def text(self) -> tuple[list[str], list[str]]:
        """Directives and kernels."""
        rows = self.rows
        # enough blocks to fill the device, each with something to do for all of its threads
        aim = max(2, min(4 * self._sms // rows.row_count, rows.row_size // self.most // 256))
        best = 2 ** max(1, min(10, round(math.log2(aim))))
        splits = [value for value in (best, best * 2, best // 2, best * 4, best // 4) if 2 <= value <= 1024]
        tunes: dict[str, tuple[int, ...]] = {"SPLIT": tuple(splits), "THREADS": (256, 128, 512, 1024),
                                             "UNROLL": (4, 1, 2, 8)}  # fmt: skip
        if self.most > 1:
            tunes["VEC"] = halving(self.most)
        reductions = [expr for level in rows.levels for expr in level]
        directives = tune_lines(tunes)
        directives.append(f"//@workspace {8 * rows.row_count * len(reductions)} * SPLIT")
        kernels = [GROUP, *(["#define VEC 1"] if self.most == 1 else [])]
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
            lines.append(f"    a{expr.order} = {OPS[expr.text]}<{C_NAME[expr.ctype]}>::join(a{expr.order}, {value});")
        return lines + self.joined(level, threads, names, f"{threads} / 32 + 1")

    def _kernel(self, name: str, number: int, step: Pass, reductions: Sequence[Expr]) -> list[str]:
        names = Names(self.dialect)
        body = [UNROLLED, "const index_t row = blockIdx.y;", *decode(names, self.rows.rows, "row", None)]
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


class Lanes(Walks):
    """`ACROSS` rows side by side per block, `DEEP` threads on each."""

    def __init__(self, plan: Plan, rows: Rows, dialect: Dialect) -> None:
        super().__init__(plan, rows, dialect, plan_passes(rows, None))

    def vectorised(self, step: Pass) -> tuple[bool, int]:
        """Neighbours are in neighbouring threads already."""
        del step
        return False, 1

    def text(self) -> tuple[list[str], list[str]]:
        """Directives and kernels."""
        rows = self.rows
        lane = lane_of(rows)
        assert lane is not None
        outer = [var for var in rows.rows if var != lane]
        count = math.prod(var.extent for var in outer)
        tunes: dict[str, tuple[int, ...]] = {"ACROSS": (32, 64, 16, 128), "DEEP": (4, 1, 2, 8), "UNROLL": (4, 1, 2, 8)}
        directives = [
            *tune_lines(tunes),
            f"//@launch lanes grid=(ceil_div({lane.extent}, ACROSS) * {count}) block=(ACROSS * DEEP)",
        ]
        names = Names(self.dialect)
        body = [
            UNROLLED,
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
        return directives, [GROUP, head, *indent(body), "}"]

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
                f"        {name} = {OPS[expr.text]}<{ctype}>::join({name}, {scratch}[other * ACROSS + across]);",
                "}",
            ]
            names.set(expr, name)
        return lines
