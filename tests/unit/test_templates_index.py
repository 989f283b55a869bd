"""Index arithmetic of the templates."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tui.proposers.templates.index import (
    ZERO,
    Index,
    Space,
    Var,
    constant,
    flat,
    linear,
    of,
    row_major,
    unravel,
    wanted_split,
)

A, B = Var("a", 6), Var("b", 8)


def value(index: Index, at: dict[Var, int]) -> int:
    """An index worked out through its C text, as the compiler would."""
    names = {var: f"({number})" for var, number in at.items()}
    text = index.text(names).replace("/", "//")
    scope = {"min_of": min, "max_of": max}
    return int(eval(text, scope))


def test_division_of_a_flat_position_resolves() -> None:
    """What flattening put together, division and remainder take apart without a trace."""
    position = flat([A, B])
    assert position.floordiv(8) == of(A)
    assert position.modulo(8) == of(B)
    assert unravel(position, (6, 8)) == (of(A), of(B))


def test_view_and_its_address_cancel() -> None:
    """Addressing a contiguous tensor through a view is the flat position again."""
    place = unravel(of(Var("n", 48)), (6, 8))
    assert linear(place, row_major((6, 8))) == of(Var("n", 48))


def test_wanted_split_names_the_inner_extent() -> None:
    """A variable that a division cuts evenly is offered to be split there."""
    assert wanted_split(of(B).floordiv(4)) == (B, 4)
    assert wanted_split((of(A) * 8 + of(B)).floordiv(16)) == (A, 2)
    assert wanted_split(of(B).floordiv(3)) is None


def test_split_space_keeps_its_positions() -> None:
    """After a split the indices still walk the same positions in the same order."""
    space = Space((6, 8), "i")
    space.split(space.vars[1], 4)
    seen = []
    for numbers in itertools.product(*(range(var.extent) for var in space.vars)):
        at = dict(zip(space.vars, numbers, strict=True))
        seen.append(tuple(value(index, at) for index in space.indices))
    assert seen == list(itertools.product(range(6), range(8)))


def test_coefficient_is_unknown_inside_a_division() -> None:
    """A variable under a division has no single step."""
    assert (of(A) * 3 + of(B).floordiv(3)).coefficient(A) == 3
    assert of(B).floordiv(3).coefficient(B) is None
    assert of(B).coefficient(A) == 0


def test_clamp_disappears_where_it_cannot_act() -> None:
    """Bounds decide; edges name where it begins to act."""
    assert of(B).clamp(0, 7) == of(B)
    assert (of(B) + 20).clamp(0, 9) == constant(9)
    assert (of(B) * 2 + -1).clamp(0, 100).edges(B) == {1, 51}


def test_reversed_index_divides_as_a_whole() -> None:
    """C divides towards zero, so a partly negative rest is never divided."""
    back = constant(7) - of(B)
    for number in range(8):
        assert value(back.floordiv(4), {B: number}) == (7 - number) // 4
        assert value(back.modulo(4), {B: number}) == (7 - number) % 4


@given(
    coefficients=st.lists(st.integers(0, 24), min_size=2, max_size=2), offset=st.integers(0, 30),
    by=st.integers(1, 24), second=st.integers(1, 12), at=st.tuples(st.integers(0, 5), st.integers(0, 7)),
)  # fmt: skip
def test_division_means_what_it_says(
    coefficients: list[int], offset: int, by: int, second: int, at: tuple[int, int]
) -> None:
    """Quotients and remainders of remainders and quotients, simplified, have the plain values."""
    index = of(A) * coefficients[0] + of(B) * coefficients[1] + offset
    number = coefficients[0] * at[0] + coefficients[1] * at[1] + offset
    place = {A: at[0], B: at[1]}
    assert value(index.floordiv(by), place) == number // by
    assert value(index.modulo(by), place) == number % by
    assert value(index.floordiv(by).floordiv(second), place) == number // by // second
    assert value(index.floordiv(by).modulo(second), place) == number // by % second
    assert value(index.modulo(by).floordiv(second), place) == number % by // second
    assert value(index.floordiv(by) * by + index.modulo(by), place) == number
    low, high = index.modulo(by).bounds()
    assert low <= number % by <= high


@pytest.mark.parametrize("shape", [(), (1, 1), (2, 3, 4), (5, 1, 2)])
def test_unravel_visits_every_position_once(shape: tuple[int, ...]) -> None:
    """The linear position in row-major order and back."""
    count = math.prod(shape)
    var = Var("n", count)
    seen = [tuple(value(i, {var: n}) for i in unravel(of(var), shape)) for n in range(count)]
    assert seen == list(itertools.product(*(range(size) for size in shape)))


def test_substitution_works_divisions_out() -> None:
    """A division that a split resolves is gone after substitution."""
    outer, inner = Var("o", 2), Var("i", 4)
    assert of(B).floordiv(4).substitute({B: of(outer) * 4 + of(inner)}) == of(outer)
    assert of(B).modulo(4).substitute({B: ZERO}) == ZERO
