"""Point-wise ATen operations as C expressions, with torch's rules for types, NaN and integers."""

from __future__ import annotations

from forge_tui.proposers.templates.expr import CType, Expr, Pool, Unfit

# No `&&` and `||`: a branch inside a loop keeps it from being vectorised.
#: `@name(` in a text is a function that the emitter maps to the language and the C type of its arguments
UNARY_FLOAT: dict[str, str] = {
    "exp": "@exp({0})", "exp2": "@exp2({0})", "expm1": "@expm1({0})", "log": "@log({0})", "log2": "@log2({0})",
    "log10": "@log10({0})", "log1p": "@log1p({0})", "sqrt": "@sqrt({0})", "rsqrt": "@rsqrt({0})",
    "reciprocal": "(1 / {0})", "sin": "@sin({0})", "cos": "@cos({0})", "tan": "@tan({0})", "tanh": "@tanh({0})",
    "sigmoid": "@sigmoid({0})", "erf": "@erf({0})", "atan": "@atan({0})", "sinh": "@sinh({0})",
    "cosh": "@cosh({0})", "silu": "({0} * @sigmoid({0}))",
}  # fmt: skip
#: operations whose result has the type of the argument; the second text is for integers, None where it is the identity
UNARY_SAME: dict[str, tuple[str, str | None]] = {
    "neg": ("(-{0})", "(-{0})"), "abs": ("@abs({0})", "({0} < 0 ? -{0} : {0})"),
    "relu": ("({0} < 0 ? 0 : {0})", "({0} < 0 ? 0 : {0})"), "square": ("({0} * {0})", "({0} * {0})"),
    "sign": ("(({0} > 0) - ({0} < 0))", "(({0} > 0) - ({0} < 0))"),
    "sgn": ("(({0} > 0) - ({0} < 0))", "(({0} > 0) - ({0} < 0))"),
    "floor": ("@floor({0})", None), "ceil": ("@ceil({0})", None), "round": ("@rint({0})", None),
    "trunc": ("@trunc({0})", None), "positive": ("{0}", None),
}  # fmt: skip
COMPARE: dict[str, str] = {
    "eq": "({0} == {1})", "ne": "({0} != {1})", "lt": "({0} < {1})", "le": "({0} <= {1})", "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
}  # fmt: skip
LOGICAL: dict[str, str] = {
    "logical_and": "({0} & {1})", "logical_or": "({0} | {1})", "logical_xor": "({0} != {1})", "logical_not": "(!{0})",
}  # fmt: skip
BITWISE: dict[str, str] = {
    "bitwise_and": "({0} & {1})", "bitwise_or": "({0} | {1})", "bitwise_xor": "({0} ^ {1})",
}  # fmt: skip
#: NaN is looked for beside the plain maximum, not within it: so compilers vectorise it
MAXIMUM = "((({0} != {0}) | ({1} != {1})) ? {0} + {1} : ({0} > {1} ? {0} : {1}))"
MINIMUM = "((({0} != {0}) | ({1} != {1})) ? {0} + {1} : ({0} < {1} ? {0} : {1}))"
_C_INT = {"int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t"}

#: operations whose result jumps: what they read must be rounded as eager rounds it
DISCONTINUOUS = frozenset({
    *COMPARE, *LOGICAL, "floor", "ceil", "round", "trunc", "sign", "sgn", "fmod", "remainder", "floor_divide",
    "isnan", "isinf", "isfinite",
})  # fmt: skip


def wrap(pool: Pool, value: Expr, dtype: str) -> Expr:
    """An integer computed in 64 bits, wrapped to its own width."""
    if dtype in _C_INT:
        return pool.op("i", f"static_cast<int64_t>(static_cast<{_C_INT[dtype]}>({{0}}))", value)
    return value


def binary(pool: Pool, name: str, ctype: CType, a: Expr, b: Expr) -> Expr:
    """`add`, `sub`, `mul`, `maximum`, `minimum`, `div`, `fmod`, `remainder`, `floor_divide` of one C type."""
    if name in ("add", "sub", "mul"):
        if ctype == "b":
            if name == "sub":
                raise Unfit("subtraction of booleans")
            return pool.op("b", "({0} | {1})" if name == "add" else "({0} & {1})", a, b)
        return pool.op(ctype, f"({{0}} {'+-*'[('add', 'sub', 'mul').index(name)]} {{1}})", a, b)
    if name in ("maximum", "minimum"):
        if ctype in ("i", "b"):
            sign = ">" if name == "maximum" else "<"
            return pool.op(ctype, f"({{0}} {sign} {{1}} ? {{0}} : {{1}})", a, b)
        return pool.op(ctype, MAXIMUM if name == "maximum" else MINIMUM, a, b)
    if name == "div":
        return pool.op(ctype, "({0} / {1})", a, b)
    if name == "fmod":
        return pool.op(ctype, "({0} % {1})" if ctype == "i" else "@fmod({0}, {1})", a, b)
    if name == "remainder":
        return pool.op(ctype, "@imod({0}, {1})" if ctype == "i" else "@remainder({0}, {1})", a, b)
    if name == "floor_divide":
        return pool.op(ctype, "@idiv({0}, {1})" if ctype == "i" else "@floor({0} / {1})", a, b)
    if name == "atan2":
        return pool.op(ctype, "@atan2({0}, {1})", a, b)
    raise Unfit(f"operation {name}")


def largest(pool: Pool, ctype: CType, values: list[Expr]) -> Expr:
    """The largest of many values; NaN if one is NaN."""
    best = values[0]
    for value in values[1:]:
        best = pool.op(ctype, "({0} > {1} ? {0} : {1})", best, value)
    if ctype not in ("f", "d"):
        return best
    text = " | ".join(f"({{{number}}} != {{{number}}})" for number in range(len(values)))
    nan = pool.op("b", f"({text})", *values)
    return pool.op(ctype, "({0} ? {1} : {2})", nan, pool.const("nan", ctype), best)


BINARY = ("add", "sub", "mul", "maximum", "minimum", "fmod", "remainder", "floor_divide", "atan2")


def power(pool: Pool, ctype: CType, base: Expr, exponent: float) -> Expr:
    """A tensor to the power of a number."""
    simple: dict[float, str] = {
        0: "1", 1: "{0}", 2: "({0} * {0})", 3: "({0} * {0} * {0})", 4: "(({0} * {0}) * ({0} * {0}))",
    }  # fmt: skip
    fractions: dict[float, str] = {
        0.5: "@sqrt({0})", -0.5: "@rsqrt({0})", -1: "(1 / {0})", -2: "(1 / ({0} * {0}))",
    }  # fmt: skip
    if exponent == 0:
        return pool.const(1, ctype)
    if exponent in simple:
        return pool.op(ctype, simple[exponent], base)
    if ctype == "i":
        raise Unfit(f"an integer to the power of {exponent}")
    if exponent in fractions:
        return pool.op(ctype, fractions[exponent], base)
    return pool.op(ctype, "@pow({0}, {1})", base, pool.const(exponent, ctype))


def gelu(pool: Pool, ctype: CType, x: Expr, approximate: str) -> Expr:
    """GELU, exact or by tanh."""
    if approximate == "tanh":
        inner = pool.op(ctype, "({0} * ({1} + {2} * {0} * {0}))", x, pool.const(0.7978845608028654, ctype),
                        pool.const(0.7978845608028654 * 0.044715, ctype))  # fmt: skip
        return pool.op(ctype, "({0} * @half_plus_half_tanh({1}))", x, inner)
    return pool.op(ctype, "({0} * @normal({0}))", x)


def clamp(pool: Pool, ctype: CType, x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    """Held between two values; NaN stays NaN."""
    if low is not None:
        x = pool.op(ctype, "({0} < {1} ? {1} : {0})", x, low)
    if high is not None:
        x = pool.op(ctype, "({0} > {1} ? {1} : {0})", x, high)
    return x
