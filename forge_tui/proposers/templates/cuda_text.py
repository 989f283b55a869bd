"""CUDA spellings shared by the emitters: functions, helpers, packed loads and stores."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forge_tui.proposers.templates.emit import Dialect, Names
from forge_tui.proposers.templates.expr import C_NAME, Expr
from forge_tui.proposers.templates.index import Index, Var
from forge_tui.proposers.templates.loops import Store

STORED = {"bfloat16": "__nv_bfloat16", "float16": "__half", "float32": "float", "float64": "double", "bool": "bool",
          **{name: name + "_t" for name in ("int64", "int32", "int16", "int8", "uint8")}}  # fmt: skip
_LIBM = (
    "sqrt", "floor", "ceil", "rint", "trunc", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos",
    "tan", "atan", "sinh", "cosh", "tanh", "erf", "pow", "fmod", "atan2", "rsqrt",
)  # fmt: skip
FUNCTIONS: dict[tuple[str, str], str] = {
    **{(name, "f"): f"{name}f" for name in _LIBM}, **{(name, "d"): name for name in _LIBM},
    ("abs", "f"): "fabsf", ("abs", "d"): "fabs",
}  # fmt: skip
#: where results are rounded to half precision anyway, the hardware's own exponential and division are exact enough
FAST: dict[tuple[str, str], str] = {("exp", "f"): "__expf", ("log", "f"): "__logf"}
PRELUDE: dict[str, str] = {
    "sigmoid:f": "__device__ __forceinline__ float forge_t_sigmoid_f(float x) { return 1.0f / (1.0f + expf(-x)); }",
    "sigmoid:fast": "__device__ __forceinline__ float forge_t_sigmoid_f(float x) "
                    "{ return __fdividef(1.0f, 1.0f + __expf(-x)); }",
    "sigmoid:d": "__device__ __forceinline__ double forge_t_sigmoid_d(double x) { return 1.0 / (1.0 + exp(-x)); }",
    "half_plus_half_tanh:f": "__device__ __forceinline__ float forge_t_half_plus_half_tanh_f(float x) "
                             "{ return 1.0f / (1.0f + expf(-2.0f * x)); }",
    "half_plus_half_tanh:fast": "__device__ __forceinline__ float forge_t_half_plus_half_tanh_f(float x) "
                                "{ return __fdividef(1.0f, 1.0f + __expf(-2.0f * x)); }",
    "half_plus_half_tanh:d": "__device__ __forceinline__ double forge_t_half_plus_half_tanh_d(double x) "
                             "{ return 1.0 / (1.0 + exp(-2.0 * x)); }",
    "normal:f": "__device__ __forceinline__ float forge_t_normal_f(float x) "
                "{ return 0.5f + 0.5f * erff(x * 0.707106781f); }",
    "normal:d": "__device__ __forceinline__ double forge_t_normal_d(double x) "
                "{ return 0.5 + 0.5 * erf(x * 0.7071067811865476); }",
    "remainder:f": """__device__ __forceinline__ float forge_t_remainder_f(float a, float b) {
    const float rest = fmodf(a, b);
    return rest != 0.0f && ((rest < 0.0f) != (b < 0.0f)) ? rest + b : rest;
}""",
    "remainder:d": """__device__ __forceinline__ double forge_t_remainder_d(double a, double b) {
    const double rest = fmod(a, b);
    return rest != 0.0 && ((rest < 0.0) != (b < 0.0)) ? rest + b : rest;
}""",
    "imod:i": """__device__ __forceinline__ int64_t forge_t_imod_i(int64_t a, int64_t b) {
    const int64_t rest = a % b;
    return rest != 0 && ((rest < 0) != (b < 0)) ? rest + b : rest;
}""",
    "idiv:i": """__device__ __forceinline__ int64_t forge_t_idiv_i(int64_t a, int64_t b) {
    const int64_t quotient = a / b;
    return a % b != 0 && ((a < 0) != (b < 0)) ? quotient - 1 : quotient;
}""",
    "round_bfloat16:f": "__device__ __forceinline__ float forge_t_round_bfloat16_f(float x) "
                        "{ return __bfloat162float(__float2bfloat16_rn(x)); }",
    "round_float16:f": "__device__ __forceinline__ float forge_t_round_float16_f(float x) "
                       "{ return __half2float(__float2half_rn(x)); }",
}  # fmt: skip
HEAD = """\
#include "forge_target.h"

#define kInf __int_as_float(0x7f800000)
#define kNaN __int_as_float(0x7fffffff)
typedef INDEX_TYPE index_t;
__host__ __device__ constexpr index_t min_of(index_t a, index_t b) { return a < b ? a : b; }
__host__ __device__ constexpr index_t max_of(index_t a, index_t b) { return a > b ? a : b; }

// N neighbours in memory, moved as one where `Aligned` elements are known to be aligned
__host__ __device__ constexpr int pack_bytes(int bytes) { return bytes >= 16 ? 16 : bytes; }
template <class T, int N, int Aligned>
struct alignas(pack_bytes(int(sizeof(T)) * (N < Aligned ? N : Aligned))) Pack {
    T v[N];
};
"""
LOADS = {"bfloat16": "__bfloat162float", "float16": "__half2float"}
STORES = {"bfloat16": "__float2bfloat16_rn", "float16": "__float2half_rn"}


def to_value(text: str, dtype: str, ctype: str) -> str:
    """A stored element as what it is computed in."""
    if dtype in LOADS:
        return f"{LOADS[dtype]}({text})"
    if dtype in ("float32", "float64", "int64", "bool"):
        return text
    return f"static_cast<{C_NAME[ctype]}>({text})"  # type: ignore[index]


def to_stored(value: str, dtype: str, ctype: str) -> str:
    """A computed value as what is stored."""
    if dtype in STORES:
        return f"{STORES[dtype]}({value})" if ctype == "f" else f"{STORES[dtype]}(static_cast<float>({value}))"
    if {"float32": "f", "float64": "d", "int64": "i", "bool": "b"}.get(dtype) == ctype:
        return value
    return f"static_cast<{STORED[dtype]}>({value})"


def load(expr: Expr, address: str) -> str:
    """One element of an input."""
    return to_value(f"{expr.name}[{address}]", expr.text, expr.ctype)


def dialect(fast: bool) -> Dialect:
    """Functions for CUDA; `fast` where every floating result has half precision."""
    return Dialect(FUNCTIONS | FAST if fast else FUNCTIONS, load)


def prelude(used: set[str], fast: bool) -> list[str]:
    """Helper functions that the source calls."""
    lines = []
    for name in sorted(used):
        quick = name.removesuffix(":f") + ":fast"
        text = PRELUDE.get(quick) if fast and name.endswith(":f") else None
        text = text or PRELUDE.get(name)
        if text:
            lines.append(text)
    return lines


def aligned(index: Index, var: Var, vec: int, align: int, itemsize: int) -> int:
    """How many elements at a vector's first address are known to be aligned together: a power of two up to `vec`.

    0 if the index does not step by one with `var`; `align` is the alignment of the pointer in bytes.
    """
    if index.coefficient(var) != 1:
        return 0
    known = math.gcd(vec, max(1, align // itemsize) if align < vec * itemsize and align < 16 else vec, index.const)
    for atom, coef in index.terms:
        if atom != var:
            known = math.gcd(known, coef)
    return known & -known


def decode(names: Names, loops: Sequence[Var], item: str, vec: str | None) -> list[str]:
    """Statements that take a flat position apart into loop variables; the last one steps by `vec`."""
    lines = []
    rest = item
    for number, var in enumerate(reversed(loops)):
        name = f"{var.name}_at"
        extent = str(var.extent) if number or vec is None else f"({var.extent} / {vec})"
        first = number == len(loops) - 1
        value = rest if first else f"{rest} % {extent}"
        scale = f" * {vec}" if vec is not None and not number else ""
        lines.append(f"const index_t {name} = ({value}){scale};")
        if not first:
            lines.append(f"const index_t {item}_{number} = {rest} / {extent};")
            rest = f"{item}_{number}"
        names.vars[var] = name
    return lines


class Vector:
    """Statements for VEC neighbours along one variable: packed loads, a loop over lanes, packed stores."""

    def __init__(self, names: Names, var: Var | None, vec: str, most: int, aligns: dict[str, int],
                 sizes: dict[str, int]) -> None:  # fmt: skip
        self._names = names
        self._var = var
        self._vec = vec
        self._most = most
        self._aligns = aligns
        self._sizes = sizes
        self.before: list[str] = []
        """What stands before the loop over lanes."""
        self.inside: list[str] = []
        """What stands inside it."""
        self.after: list[str] = []
        """What stands behind it."""

    def lane_name(self) -> str:
        """Text of the variable inside the loop over lanes."""
        assert self._var is not None
        return f"({self._names.vars[self._var]} + j)"

    def compute(self, before: Sequence[Expr], inside: Sequence[Expr], lanes: Names) -> None:
        """Name and compute expressions; `lanes` is the scope inside the loop over lanes."""
        for expr in before:
            self.before.append(self._names.statement(expr))
        for expr in inside:
            known = self._aligned(expr)
            if not known:
                self.inside.append(lanes.statement(expr))
                continue
            assert expr.index is not None
            pack = f"Pack<{STORED[expr.text]}, {self._vec}, {known}>"
            name = f"p{expr.order}{lanes.suffix}"
            address = self._names.index(expr.index)
            self.before.append(f"const {pack} {name} = *reinterpret_cast<const {pack}*>({expr.name} + ({address}));")
            value = to_value(f"{name}.v[j]", expr.text, expr.ctype)
            self.inside.append(f"const {C_NAME[expr.ctype]} v{expr.order}{lanes.suffix} = {value};")
            lanes.set(expr, f"v{expr.order}{lanes.suffix}")

    def _aligned(self, expr: Expr) -> int:
        if expr.kind != "load" or self._var is None or expr.index is None:
            return 0
        return aligned(expr.index, self._var, self._most, self._aligns.get(expr.name, 1), self._sizes[expr.text])

    def store(self, stores: Sequence[Store], lanes: Names, guard: str = "") -> None:
        """Write outputs; `guard` is a condition without which nothing is written."""
        condition = f"if ({guard}) " if guard else ""
        for number, store in enumerate(stores):
            value = to_stored(lanes.value(store.value), store.dtype, store.value.ctype)
            known = 0
            if self._var is not None:
                known = aligned(store.address, self._var, self._most, 16, self._sizes[store.dtype])
            if not known:
                self.inside.append(f"{condition}{store.output}[{lanes.index(store.address)}] = {value};")
                continue
            pack = f"Pack<{STORED[store.dtype]}, {self._vec}, {known}>"
            name = f"s{number}{lanes.suffix}"
            self.before.append(f"{pack} {name};")
            self.inside.append(f"{name}.v[j] = {value};")
            address = self._names.index(store.address)
            self.after.append(f"{condition}*reinterpret_cast<{pack}*>({store.output} + ({address})) = {name};")

    def lines(self) -> list[str]:
        """The whole."""
        if self._var is None:
            return [*self.before, *self.inside, *self.after]
        loop = ["#pragma unroll", f"for (int j = 0; j < {self._vec}; ++j) {{", *("    " + x for x in self.inside), "}"]
        return [*self.before, *loop, *self.after]
