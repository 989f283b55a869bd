"""C++ with OpenMP for the CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forge_tui.proposers.templates.cpp_rows import RowBody, combined, loop, nested, written
from forge_tui.proposers.templates.emit import Dialect, Names, identity, indent, place
from forge_tui.proposers.templates.expr import C_NAME, Expr, Unfit, loads, walk
from forge_tui.proposers.templates.index import Var
from forge_tui.proposers.templates.loops import Nest, Part, Plan, Rows, Store
from forge_tui.proposers.templates.onepass import one_pass
from forge_tui.proposers.templates.passes import dear, fastest_last, lane_of, plan_passes

#: bytes of stack that rows may be kept in, per thread
MOST_STACK = 256 * 1024
#: rows of at least this many elements are worth splitting over threads
_LEAST_SPLIT = 16384

_LIBM = (
    "sqrt", "floor", "ceil", "rint", "trunc", "exp2", "log2", "log10", "sin", "cos", "tan", "atan", "sinh", "cosh",
    "pow", "fmod", "atan2",
)  # fmt: skip
_FUNCTIONS: dict[tuple[str, str], str] = {
    **{(name, "f"): f"forge::{name}" for name in ("log", "tanh", "erf", "rsqrt")},
    **{(name, "f"): f"__builtin_{name}f" for name in _LIBM},
    **{(name, "d"): f"__builtin_{name}" for name in (*_LIBM, "exp", "expm1", "log", "log1p", "tanh", "erf")},
    ("abs", "f"): "__builtin_fabsf", ("abs", "d"): "__builtin_fabs",
}  # fmt: skip
# e^x within 2 ulp where it is a normal number, 0 below, inf above: two thirds of the work of the header's
_EXP = """static inline __attribute__((always_inline)) float forge_t_exp_core(float x) {  // for x from -86.5 to 89
    const float shifted = x * 1.44269504f + 12582912.0f;  // x / ln 2, rounded to an integer in the low bits
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    float p = 0.0013814533f;
    p = p * r + 0.00836874622f;
    p = p * r + 0.041668391f;
    p = p * r + 0.166665204f;
    p = p * r + 0.499999934f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    __builtin_memcpy(&bits, &shifted, 4);
    bits = (bits - 0x4b400000u + 126u) << 23;
    float scale;
    __builtin_memcpy(&scale, &bits, 4);
    return (p * scale) * 2.0f;
}
static inline __attribute__((always_inline)) float forge_t_exp_f(float x) {
    const float result = forge_t_exp_core(x > 89.0f ? 89.0f : x);
    return x < -86.5f ? 0.0f : result;
}"""
# the normal distribution function, 0.5 * (1 + erf(x / sqrt 2)), within 7e-8: its tail is e to a polynomial, so that
# nothing is divided
_NORMAL = """static inline __attribute__((always_inline)) float forge_t_normal_f(float x) {
    float t = __builtin_fabsf(x);
    t = t > 6.0f ? 6.0f : t;
    float q = -5.87046e-06f;
    q = q * t + 3.73581835e-05f;
    q = q * t + 0.000291994139f;
    q = q * t - 0.00512187625f;
    q = q * t + 0.0365227119f;
    q = q * t + 0.318260705f;
    q = q * t + 0.797889305f;
    q = q * t + 0.693147109f;
    const float tail = forge_t_exp_core(-q);
    return x < 0.0f ? tail : 1.0f - tail;
}"""
_PRELUDE: dict[str, str] = {
    "exp:f": _EXP,
    "sigmoid:f": """static inline float forge_t_sigmoid_f(float x) { return 1.0f / (1.0f + forge_t_exp_f(-x)); }""",
    "normal:f": _NORMAL,
    "normal:d": """static inline double forge_t_normal_d(double x) {
    return 0.5 * (1.0 + __builtin_erf(x * 0.7071067811865476));
}""",
    "expm1:f": """static inline float forge_t_expm1_f(float x) {
    return forge::tanh(0.5f * x) * (forge::exp(x) + 1.0f);
}""",
    "log1p:f": """static inline float forge_t_log1p_f(float x) {
    const float u = 1.0f + x;
    return (u == 1.0f || u == kInf) ? x : forge::log(u) * (x / (u - 1.0f));
}""",
    "half_plus_half_tanh:f": """static inline float forge_t_half_plus_half_tanh_f(float x) {
    return 1.0f / (1.0f + forge_t_exp_f(-2.0f * x));
}""",
    "half_plus_half_tanh:d": """static inline double forge_t_half_plus_half_tanh_d(double x) {
    return 1.0 / (1.0 + __builtin_exp(-2.0 * x));
}""",
    "sigmoid:d": "static inline double forge_t_sigmoid_d(double x) { return 1.0 / (1.0 + __builtin_exp(-x)); }",
    "rsqrt:d": "static inline double forge_t_rsqrt_d(double x) { return 1.0 / __builtin_sqrt(x); }",
    "remainder:f": """static inline float forge_t_remainder_f(float a, float b) {
    const float rest = __builtin_fmodf(a, b);
    return rest != 0.0f && ((rest < 0.0f) != (b < 0.0f)) ? rest + b : rest;
}""",
    "remainder:d": """static inline double forge_t_remainder_d(double a, double b) {
    const double rest = __builtin_fmod(a, b);
    return rest != 0.0 && ((rest < 0.0) != (b < 0.0)) ? rest + b : rest;
}""",
    "imod:i": """static inline int64_t forge_t_imod_i(int64_t a, int64_t b) {
    const int64_t rest = a % b;
    return rest != 0 && ((rest < 0) != (b < 0)) ? rest + b : rest;
}""",
    "idiv:i": """static inline int64_t forge_t_idiv_i(int64_t a, int64_t b) {
    const int64_t quotient = a / b;
    return a % b != 0 && ((a < 0) != (b < 0)) ? quotient - 1 : quotient;
}""",
    "round_bfloat16:f": "static inline float forge_t_round_bfloat16_f(float x) { return forge::bfloat16(x); }",
    "round_float16:f": "static inline float forge_t_round_float16_f(float x) { return forge::half(x); }",
}
_HEAD = """\
#pragma GCC optimize("no-math-errno", "no-trapping-math")
#if defined(__x86_64__) && WIDTH == 512
#pragma GCC target("prefer-vector-width=512")
#endif
#include "forge_target.h"

constexpr float kInf = __builtin_inff(), kNaN = __builtin_nanf("");
constexpr int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
"""
_GRAIN = (16384, 4096, 65536, 262144)


def _load(expr: Expr, address: str) -> str:
    text = f"{expr.name}[{address}]"
    if expr.text in ("float32", "float64", "int64", "bool"):
        return text
    return f"static_cast<{C_NAME[expr.ctype]}>({text})"


def variants(plan: Plan, threads: int) -> dict[str, str]:
    """Names of the ways to write a plan for the CPU, the most promising first, each with its idea in one line."""
    rows = plan.rows
    if rows is None:
        loops = max(len(nest.vars) for nest in plan.nests)
        tiled = {"tiled": "square tiles, since reads and writes walk along different dimensions"}
        crossed = len(plan.nests) == 1 and crossing(plan.nests[0]) is not None
        plain = f"one pass over memory in {loops} nested loop{'s' * (loops != 1)}, vectorised along the last"
        return (tiled if crossed else {}) | {"loops": plain}
    found: dict[str, str] = {}
    kept = plan_passes(rows, dear(rows.inner))
    lane = lane_of(rows)
    if lane is not None:
        found["lanes"] = "rows side by side in vector lanes, since memory lies along the rows"
        if kept.slots and kept.row_bytes(rows.row_size) * 64 <= MOST_STACK:
            found["lanes_kept"] = "rows side by side in vector lanes, intermediate values kept on the stack"
    if rows.row_count < 2 * max(threads, 1) and rows.row_size >= _LEAST_SPLIT:
        found["split"] = "each row split over the threads, partial results combined between the passes"
    if kept.slots and kept.row_bytes(rows.row_size) <= MOST_STACK:
        found["kept"] = f"one row after the other, {len(kept.walks)} passes, intermediate values kept in the L1 cache"
    if lane is None and one_pass(plan.pool, rows) is not None:
        found["onepass"] = "mean and variance from one pass over the row, results in a second"
    found["recompute"] = "one row after the other, every pass computes from the inputs again"
    return found


class CppWriter:
    """Writes the source of one variant of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._dialect = Dialect(_FUNCTIONS, _load)
        self._tunes: dict[str, tuple[int, ...]] = {"WIDTH": (512, 256), "GRAIN": _GRAIN}

    def source(self, variant: str) -> str:
        """The whole source."""
        rows = self._plan.rows
        if rows is None:
            body = self._tiled(self._plan.nests[0]) if variant == "tiled" else self._nests(self._plan.nests)
        elif variant.startswith("lanes"):
            body = self._lanes(rows, variant == "lanes_kept")
        elif variant == "split":
            body = self._split(rows)
        else:
            body = self._rows((one_pass(self._plan.pool, rows) or rows) if variant == "onepass" else rows,
                              variant == "kept")  # fmt: skip
        tunes = [f"//@tune {name} {' '.join(map(str, values))}" for name, values in self._tunes.items()]
        used = self._dialect.used
        if used & {"sigmoid:f", "half_plus_half_tanh:f", "normal:f"}:
            used.add("exp:f")
        prelude = [text for name, text in _PRELUDE.items() if name in used]
        lines = ['extern "C" int forge_launch(FORGE_PARAMS) {', *indent(body), "    return 0;", "}"]
        return "\n".join([*tunes, _HEAD, *prelude, *([""] if prelude else []), *lines, ""])

    # ---- loops without reductions ------------------------------------------------------------------------------

    def _nests(self, nests: Sequence[Nest]) -> list[str]:
        work = sum(_work(nest) for nest in nests)
        if len(nests) == 1:
            return self._nest(nests[0], "parallel for", f" if ({work} > GRAIN)")
        body: list[str] = []
        for nest in nests:
            body += self._nest(nest, "for", " nowait")
        return [f"#pragma omp parallel if ({work} > GRAIN)", "{", *indent(body), "}"]

    def _nest(self, nest: Nest, kind: str, tail: str) -> list[str]:
        names = Names(self._dialect)
        for var in nest.vars:
            names.vars[var] = var.name
        if not nest.vars:
            single = [] if kind == "parallel for" else ["#pragma omp single nowait"]
            return [*single, "{", *indent(self._levels(nest.stores, [], names, 0)[0]), "}"]
        *outer, last = nest.vars
        blocked = math.prod(var.extent for var in outer) < 64 and last.extent >= 2048
        shared, count = 0, 1
        while shared < len(outer) and (count < 256 or blocked):
            count *= outer[shared].extent
            shared += 1
        heads = [loop(var) for var in outer[:shared]]
        innermost = loop(last)
        if blocked:
            self._tunes["BLOCK"] = (2048, 1024, 4096, 16384)
            heads.append(f"for (int64_t block = 0; block < {last.extent}; block += BLOCK) {{")
            innermost = loop(last, "block", f"min_of(block + BLOCK, {last.extent})")
        parts = (Part(last, nest.stores),) if blocked else nest.parts(self._plan.pool)
        levels: list[list[str]] = [[] for _ in range(len(outer) - shared + 1)]
        inside: list[str] = []
        simd = "#pragma omp simd" if heads else f"#pragma omp {kind} simd schedule(static){tail}"
        for part in parts:
            names.vars[part.var] = part.var.name
            *above, body = self._levels(part.stores, [*outer, part.var], names, shared)
            for level, lines in zip(levels, above, strict=True):
                level += lines
            if part.var.extent == 1:
                inside += ["{", *indent(body), "}"]
            else:
                head = innermost if part.var == last else loop(part.var)
                inside += [simd, head, *indent(body), "}"]
        if not heads and len(parts) == 1:
            return ["{", *indent([*levels[0], *inside]), "}"]
        return nested(heads, self._within(outer[shared:], levels, inside), self._share(kind, tail, len(heads)))

    def _tiled(self, nest: Nest) -> list[str]:
        """Both the dimension that is written along and the one that is read along in tiles that stay in the cache."""
        other = crossing(nest)
        assert other is not None
        last = nest.vars[-1]
        self._tunes["TILE"] = (32, 16, 64, 128)
        names = Names(self._dialect)
        loops = [*(var for var in nest.vars[:-1] if var != other), other, last]
        for var in loops:
            names.vars[var] = var.name
        heads = [loop(var) for var in loops[:-2]]
        heads += [f"for (int64_t tile_{n} = 0; tile_{n} < {var.extent}; tile_{n} += TILE) {{"
                  for n, var in enumerate((other, last))]  # fmt: skip
        first, middle, body = self._levels(nest.stores, loops, names, len(loops) - 2)
        ends = [f"min_of(tile_{n} + TILE, {var.extent})" for n, var in enumerate((other, last))]
        inner = [loop(last, "tile_1", ends[1]), *indent(body), "}"]
        inside = [*first, loop(other, "tile_0", ends[0]), *indent([*middle, "#pragma omp simd", *inner]), "}"]
        return nested(heads, inside, self._share("parallel for", f" if ({_work(nest)} > GRAIN)", len(heads)))

    def _share(self, kind: str, tail: str, loops: int) -> str:
        if not loops:
            return "#pragma omp single nowait" if kind == "for" else ""
        return f"#pragma omp {kind}{f' collapse({loops})' if loops > 1 else ''} schedule(static){tail}"

    def _within(self, loops: Sequence[Var], levels: list[list[str]], inside: list[str]) -> list[str]:
        """Loops that one thread walks, statements at their depth, and what is innermost."""
        body = [*levels[0]]
        for depth, var in enumerate(loops):
            body += indent([loop(var), *indent(levels[depth + 1])], depth)
        body += indent(inside, len(loops))
        for depth in reversed(range(len(loops))):
            body += indent(["}"], depth)
        return body

    def _levels(self, stores: Sequence[Store], loops: list[Var], names: Names, shared: int) -> list[list[str]]:
        """Statements by depth: first those inside the `shared` outermost loops, then one list per further loop."""
        placed = place([store.value for store in stores], loops, lambda expr: names.find(expr) is not None)
        first = sorted((expr for level in placed[: shared + 1] for expr in level), key=lambda expr: expr.order)
        by_depth = [first, *placed[shared + 1 :]]
        inner = names.child() if len(by_depth) > 1 else names
        lines = [[names.statement(expr) for expr in level] for level in by_depth[:-1]]
        lines.append([inner.statement(expr) for expr in by_depth[-1]])
        lines[-1] += [written(store, inner) for store in stores]
        return lines

    # ---- rows --------------------------------------------------------------------------------------------------

    def _rows(self, rows: Rows, keep: bool) -> list[str]:
        passes = plan_passes(rows, dear(rows.inner) if keep else None)
        body = RowBody(rows, passes, Names(self._dialect)).lines()
        heads = [loop(var) for var in rows.rows]
        return nested(heads, body, self._parallel(rows, len(heads))) if heads else body

    def _parallel(self, rows: Rows, loops: int) -> str:
        work = rows.row_count * rows.row_size * (1 + len(rows.levels))
        collapse = f" collapse({loops})" if loops > 1 else ""
        return f"#pragma omp parallel for{collapse} schedule(static) if ({work} > GRAIN)"

    def _lanes(self, rows: Rows, keep: bool) -> list[str]:
        lane = lane_of(rows)
        assert lane is not None
        passes = plan_passes(rows, dear(rows.inner) if keep else None)
        row = passes.row_bytes(rows.row_size)
        sizes = [size for size in (64, 32, 128, 256, 16) if row * size <= MOST_STACK]
        self._tunes["TILE"] = tuple(sizes) or (16,)
        body = RowBody(rows, passes, Names(self._dialect), lane).lines()
        heads = [loop(var) for var in rows.rows if var != lane]
        heads.append(f"for (int64_t tile = 0; tile < {lane.extent}; tile += TILE) {{")
        width = f"const int64_t width = min_of(TILE, {lane.extent} - tile);"
        return nested(heads, [width, *body], self._parallel(rows, len(heads)))

    def _split(self, rows: Rows) -> list[str]:
        """All threads on every row: a level is a parallel loop over (row, part), with a barrier behind it."""
        self._tunes["SPLIT"] = (32, 8, 16, 64)
        passes = plan_passes(rows, None)
        if any(step.stores and step.loops != rows.inner for step in passes.walks):
            raise Unfit("results of another shape than what is reduced")
        cut = max(rows.inner, key=lambda var: var.extent)
        # an innermost loop is cut into whole cache lines
        chunk = f"(({cut.extent} + SPLIT - 1) / SPLIT + 15) / 16 * 16" if cut == fastest_last(rows, rows.inner)[-1] \
            else f"({cut.extent} + SPLIT - 1) / SPLIT"
        lines = [f"constexpr int64_t chunk = {chunk};"]
        for level in rows.levels:
            lines += [f"{C_NAME[expr.ctype]} p{expr.order}[{rows.row_count} * SPLIT];" for expr in level]
        heads = [*(loop(var) for var in rows.rows), "for (int64_t part = 0; part < SPLIT; ++part) {"]
        collapse = f" collapse({len(heads)})" if len(heads) > 1 else ""
        row_number = self._row_number(rows)
        body: list[str] = []
        steps = list(passes.walks)
        for number, step in enumerate(steps):
            names = Names(self._dialect)
            row = RowBody(rows, passes, names)
            row.limit(cut, "part * chunk", f"min_of((part + 1) * chunk, {cut.extent})")
            inside = [f"const int64_t row = {row_number};"]
            for earlier in steps[:number]:
                inside += self._combine(earlier.level, names)
            inside += row.before(step.roots)
            if step.level:
                inside += [*row.reduce(step), *row.settle(step)]
                inside += [f"p{expr.order}[row * SPLIT + part] = a{expr.order};" for expr in step.level]
            else:
                inside += row.walk(step)
            body += nested(heads, inside, f"#pragma omp for{collapse} schedule(static)")
        if rows.row_stores:
            names = Names(self._dialect)
            row = RowBody(rows, passes, names)
            inside = [f"const int64_t row = {row_number};"]
            for level in rows.levels:
                inside += self._combine(level, names)
            inside += row.row_results()
            if heads[:-1]:
                body += nested(heads[:-1], inside, "#pragma omp for schedule(static)")
            else:
                body += ["#pragma omp single", "{", *indent(inside), "}"]
        work = rows.row_count * rows.row_size * (1 + len(rows.levels))
        return [*lines, f"#pragma omp parallel if ({work} > GRAIN)", "{", *indent(body), "}"]

    def _combine(self, level: Sequence[Expr], names: Names) -> list[str]:
        lines = []
        for expr in level:
            name = f"a{expr.order}"
            lines.append(f"{C_NAME[expr.ctype]} {name} = {identity(expr.text, expr.ctype)};")
            value = f"p{expr.order}[row * SPLIT + other]"
            lines.append(f"for (int64_t other = 0; other < SPLIT; ++other) {combined(expr, name, value)}")
            names.set(expr, name)
        return lines

    def _row_number(self, rows: Rows) -> str:
        text, step = [], 1
        for var in reversed(rows.rows):
            text.append(f"{step} * {var.name}")
            step *= var.extent
        return " + ".join(text) or "0"


def crossing(nest: Nest) -> Var | None:
    """The variable that a load walks along, one element a step, where the stores walk along another."""
    if len(nest.vars) < 2:
        return None
    for expr in loads(store.value for store in nest.stores):
        for var in nest.vars[:-1]:
            assert expr.index is not None
            across = expr.index.coefficient(nest.vars[-1])
            if expr.index.coefficient(var) == 1 and across is not None and across > 1 and var.extent >= 16:
                return var
    return None


def _work(nest: Nest) -> int:
    cost = sum(expr.cost for expr in walk(store.value for store in nest.stores))
    return math.prod(var.extent for var in nest.vars) * max(1, cost // 4)


__all__ = ["CppWriter", "variants"]
