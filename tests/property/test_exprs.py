"""Expressions against Python's own arithmetic, and against any text at all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.contract import exprs
from forge_tui.core.errors import ContractError

NAMES = {"x_shape_0": 65536, "x_shape_1": 2048, "SPLIT": 64, "sms": 132, "zero": 0, "minus": -5}


class Broken(Exception):
    """The model of an expression has no value."""


def ceil_div(a, b):
    """The model of ceil_div."""
    if a < 0 or b <= 0:
        raise Broken
    return -(-a // b)


def c_divide(a, b):
    """Division as C has it, in Python's arithmetic."""
    if b == 0:
        raise Broken
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def shift(a, b, left):
    """A shift of a number that is not negative."""
    if a < 0 or not 0 <= b < 62:
        raise Broken
    return a << b if left else a >> b


BINARY = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": c_divide,
    "%": lambda a, b: a - b * c_divide(a, b), "<<": lambda a, b: shift(a, b, True),
    ">>": lambda a, b: shift(a, b, False), "<": lambda a, b: int(a < b), ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b), ">=": lambda a, b: int(a >= b), "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
}  # fmt: skip
FUNCTIONS = {"min": min, "max": max, "ceil_div": ceil_div}


def bounded(value):
    """The value, within the bound of the language."""
    if not -(2**62) < value < 2**62:
        raise Broken
    return value


def leaf():
    """A number or a name, as (text, model)."""
    numbers = st.integers(0, 10**6).map(lambda n: (str(n), lambda: n))
    hexes = st.integers(0, 2**40).map(lambda n: (hex(n), lambda: n))
    names = st.sampled_from(sorted(NAMES)).map(lambda name: (name, lambda: NAMES[name]))
    return st.one_of(numbers, hexes, names)


def grow(inner):
    """Larger expressions of smaller ones, fully in parentheses."""

    def binary(op, a, b):
        return f"({a[0]} {op} {b[0]})", lambda: bounded(BINARY[op](a[1](), b[1]()))

    def logic(op, a, b):
        if op == "&&":
            return f"({a[0]}&&{b[0]})", lambda: int(bool(a[1]()) and bool(b[1]()))
        return f"({a[0]}||{b[0]})", lambda: int(bool(a[1]()) or bool(b[1]()))

    def call(name, a, b):
        return f"{name}({a[0]}, {b[0]})", lambda: bounded(FUNCTIONS[name](a[1](), b[1]()))

    def choice(a, b, c):
        return f"({a[0]} ? {b[0]} : {c[0]})", lambda: b[1]() if a[1]() else c[1]()

    def unary(op, a):
        return f"({op}{a[0]})", {"-": lambda: -a[1](), "+": lambda: a[1](), "!": lambda: int(not a[1]())}[op]

    return st.one_of(
        st.builds(binary, st.sampled_from(sorted(BINARY)), inner, inner),
        st.builds(logic, st.sampled_from(["&&", "||"]), inner, inner),
        st.builds(call, st.sampled_from(sorted(FUNCTIONS)), inner, inner),
        st.builds(choice, inner, inner, inner),
        st.builds(unary, st.sampled_from(["-", "+", "!"]), inner),
    )


@settings(max_examples=400, deadline=None)
@given(st.recursive(leaf(), grow, max_leaves=12))
def test_values_are_those_of_python(case):
    """A generated expression has the value that Python's arithmetic gives, or is refused where that has none."""
    text, model = case
    try:
        right = model()
    except Broken:
        right = None
    try:
        got = exprs.evaluate(text, NAMES)
    except ContractError:
        too_large = len(text) > exprs.MAX_LENGTH or text.count("(") >= exprs.MAX_DEPTH - 1
        assert right is None or too_large, text
    else:
        assert got == right, text


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.text(max_size=80),
        st.text(alphabet="0123456789xab_+-*/%<>=!&|?:(), \n", max_size=60),
        st.lists(st.sampled_from(["(", ")", "min", "ceil_div", "x_shape_0", ",", "?", ":", "-", "1", "<<", "&&"]),
                 max_size=200).map(" ".join),
    )
)  # fmt: skip
def test_any_text_gives_an_integer_or_a_contract_error(text):
    """Nothing but ContractError ever comes out, and a value is always a bounded integer."""
    try:
        value = exprs.evaluate(text, NAMES)
    except ContractError:
        return
    assert type(value) is int
    assert abs(value) < exprs.LIMIT


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7), ("2 * 3 + 1", 7), ("10 - 4 - 3", 3), ("100 / 7 / 2", 7), ("7 % 4 * 2", 6), ("1 << 2 + 1", 8),
        ("1 + 1 << 2", 8), ("1 < 2 == 1", 1), ("0 || 1 && 0", 0), ("1 ? 2 : 3 ? 4 : 5", 2), ("0 ? 2 : 0 ? 4 : 5", 5),
        ("-7 / 2", -3), ("-7 % 2", -1), ("!3 + 1", 1), ("- -3", 3), ("min(4, 2, 9) + max(1, 8)", 10),
        ("ceil_div(x_shape_0, 3)", 21846), ("zero == 0 ? 1 : 5 / zero", 1), ("zero && 1 / zero", 0),
        ("1 || 1 / zero", 1), ("(((((x_shape_1)))))", 2048), ("0x10", 16), ("sms*2", 264),
    ],
)  # fmt: skip
def test_precedence_is_that_of_c(text, value):
    """Operators bind as in C, and only the branch taken is worked out."""
    assert exprs.evaluate(text, NAMES) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it ends too early"), ("1 +", "it ends too early"), ("(1", "expected `)` at the end"),
        ("1 2", "unexpected `2`"), ("a.b", "unexpected `.b`"), ("1e3", "unexpected `1e3`"), ("010", "octal"),
        ("f(1)", "`f` is not a function"), ("ceil_div(1)", "ceil_div takes two arguments"),
        ("min(1)", "min takes two arguments or more"), ("1 ? 2", "expected `:`"),
        ("__import__('os')", "unexpected `'os')`"),
        ("1 / 0", "divides by zero"), ("1 % (3 - 3)", "divides by zero"), ("1 << 62", "shifts"), ("-1 << 1", "shifts"),
        ("1 << 40 << 40", "grows past"), ("4611686018427387904", "grows past"), ("9" * 30, "is too large"),
        ("x_shape_0 * x_shape_0 * x_shape_0 * x_shape_0", "grows past"), ("y + 1", "`y` in `y + 1` is not a name"),
        ("1 ? 1 : nowhere", "`nowhere`"), ("ceil_div(5, 0)", "above 0"), ("ceil_div(minus, 2)", "at least 0"),
        ("(" * 30 + "1" + ")" * 30, "nested"), ("-" * 40 + "1", "nested"), ("1" + "+1" * 400, "characters"),
        ("x_shape_0 // 2", "unexpected `/`"), ("x ** 2", "unexpected `*`"), ("a = 1", "unexpected `= 1`"),
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused_with_the_reason(text, why):
    """Each kind of fault has its words."""
    with pytest.raises(ContractError) as caught:
        exprs.evaluate(text, NAMES)
    assert why in caught.value.what


def test_the_longest_expressions_fit_pythons_stack():
    """Long chains and deep nesting within the bounds work out without a recursion error."""
    chain = "1" + "+1" * ((exprs.MAX_LENGTH - 1) // 2)
    assert exprs.evaluate(chain, {}) == (exprs.MAX_LENGTH + 1) // 2
    deep = "(" * (exprs.MAX_DEPTH - 1) + "1" + ")" * (exprs.MAX_DEPTH - 1)
    assert exprs.evaluate(deep, {}) == 1
