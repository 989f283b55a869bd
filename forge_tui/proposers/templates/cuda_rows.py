"""Row reductions in CUDA: a group of threads per row, rows side by side in threads, or rows split over blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forge_tui.core.records import Device
from forge_tui.proposers.templates.cuda_spread import Lanes, Split
from forge_tui.proposers.templates.cuda_text import decode
from forge_tui.proposers.templates.cuda_walks import GROUP, UNROLLED, Walks, halving, per_thread, tune_lines
from forge_tui.proposers.templates.emit import Dialect, Names, indent
from forge_tui.proposers.templates.expr import C_NAME, Expr, Unfit
from forge_tui.proposers.templates.loops import Plan, Rows
from forge_tui.proposers.templates.onepass import one_pass
from forge_tui.proposers.templates.passes import Pass, lane_of, plan_passes

#: values that a thread may hold in registers
_MOST_HELD = 64
_LEAST_SPLIT = 8192


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
    if _held(rows) * per_thread(rows, 1024) <= _MOST_HELD and rows.final in (rows.inner, ()):
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


def write(plan: Plan, rows: Rows, variant: str, device: Device, dialect: Dialect) -> tuple[list[str], list[str]]:
    """Directives and kernels of a variant."""
    if variant == "lanes":
        return Lanes(plan, rows, dialect).text()
    if variant.startswith("split"):
        if variant == "split_onepass":
            changed = one_pass(plan.pool, rows)
            if changed is None:
                raise Unfit("no variance in it")
            rows = changed
        return Split(plan, rows, dialect, device).text()
    return Group(plan, rows, dialect, keep=variant == "registers").text()


class Group(Walks):
    """`LANES` threads per row, `THREADS / LANES` rows per block."""

    def __init__(self, plan: Plan, rows: Rows, dialect: Dialect, keep: bool) -> None:
        super().__init__(plan, rows, dialect, plan_passes(rows, _everything if keep else None))
        self._keep = keep

    def text(self) -> tuple[list[str], list[str]]:
        """Directives and kernels."""
        rows, most = self.rows, self.most
        slots = max(1, len(self.passes.slots))
        tunes: dict[str, tuple[int, ...]] = {"LANES": self._lanes(slots), "THREADS": (256, 128, 512)}
        if most > 1:
            tunes["VEC"] = halving(most)
        if not self._keep:
            tunes["UNROLL"] = (4, 1, 2, 8)
        directives = tune_lines(tunes)
        lanes = tunes["LANES"]
        fixed = [f"#define LANES {lanes[0]}"] if len(lanes) == 1 else []
        fixed += ["#define VEC 1"] if most == 1 else []
        grid = f"ceil_div({rows.row_count}, max(THREADS / {self._lane_text(lanes)}, 1))"
        directives.append(f"//@launch rows grid={grid} block=max(THREADS, {self._lane_text(lanes)})")
        return directives, [GROUP, *fixed, *self._kernel()]

    def _lane_text(self, lanes: Sequence[int]) -> str:
        return "LANES" if len(lanes) > 1 else str(lanes[0])

    def _lanes(self, slots: int) -> tuple[int, ...]:
        """Threads per row: each holds about 16 values, and never more than fit in registers."""
        fitting = []
        for lanes in (4, 8, 16, 32, 64, 128, 256, 512, 1024):
            each = per_thread(self.rows, lanes)
            held = each * slots <= _MOST_HELD or not self._keep
            busy = lanes == 4 or self.rows.row_size > self.most * lanes // 2
            if held and busy and each <= 1024:
                fitting.append(lanes)
        if not fitting:
            fitting = [1024]
        wanted = 16 if self._keep else 32
        fitting.sort(key=lambda lanes: abs(math.log2(per_thread(self.rows, lanes) / wanted)))
        return tuple(fitting[:4])

    def _kernel(self) -> list[str]:
        rows = self.rows
        names = Names(self.dialect)
        body = [
            *([] if self._keep else [UNROLLED]),
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
