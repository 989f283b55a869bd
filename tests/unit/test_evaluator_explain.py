"""Reasons for a wrong output name what is wrong, for people and for language models."""

from __future__ import annotations

import pytest
import torch

from forge_tui.evaluator import tolerance
from forge_tui.evaluator.explain import explain

EXPECTED = torch.randn(70, 40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
EAGER = EXPECTED.float()
BOUND = tolerance.bound(EXPECTED, EAGER, EXPECTED * (1 + 1e-7))


def said(output: torch.Tensor, bound: tolerance.Bound = BOUND, poison: int = 0xFF, inputs=()) -> str:
    """The reason for an output."""
    return explain("out0", output, bound, tolerance.compare(output, bound), poison, inputs)


def changed(rows=slice(None), columns=slice(None), by=5.0) -> torch.Tensor:
    """The right output with a part changed."""
    out = EAGER.clone()
    out[rows, columns] += by
    return out


def test_the_first_wrong_element_is_shown():
    """Index, value, expectation and tolerance are numbers to look for."""
    out = EAGER.clone()
    out[3, 7] = 12.5
    text = said(out)
    assert text.startswith("out0 differs at less than 0.1% of its elements, first at [3, 7]: got 12.5, expected ")
    assert "(tolerance " in text
    assert text.endswith(" The wrong elements are in row 3 of 70.")


@pytest.mark.parametrize(
    ("output", "hint"),
    [
        (changed(slice(64, None)), "in rows 64 to the end of 70: is the tail handled?"),
        (changed(slice(3, 9)), "in rows 3 to 8 of 70."),
        (changed(columns=slice(32, None)), "in columns 32 to 39 of 40: is the tail handled?"),
        (changed(slice(0, None, 7)), "in 10 of 70 rows, the first of them 0."),
        (torch.zeros(70, 40), "It is all zeros."),
        (torch.full((70, 40), 2.0), "It is the same number everywhere."),
        (changed(slice(5, 6), by=float("nan")), "It has NaN where there should be numbers in row 5 of 70."),
        (EAGER.bfloat16().float(), "times eager's own; compute and accumulate in float32"),
    ],
)  # fmt: skip
def test_patterns_are_named(output, hint):
    """Tails, stripes, constants, NaN and lost precision have their own words."""
    assert hint in said(output)


def test_what_was_never_written_is_seen_by_the_poison():
    """Bytes that still are the poison were not written."""
    out = EAGER.clone()
    out.view(torch.uint8).view(70, -1)[10:] = 0x4B
    assert "It was never written in rows 10 to the end of 70: is the tail handled?" in said(out, poison=0x4B)
    assert "never written" not in said(out, poison=0xFF)


def test_a_copy_of_an_input_is_named():
    """An output equal to an input is called a copy of it."""
    x = torch.randn(70, 40)
    assert "It is a copy of hidden." in said(x.clone(), inputs=[("mask", torch.zeros(3)), ("hidden", x)])


def test_too_little_precision_in_the_mean():
    """Where only the mean is off, the numbers of the mean are given."""
    out = (EAGER.double() + 0.9 * float(BOUND.atol.min()) * torch.sign(EAGER.double())).float()
    text = said(out)
    assert text.startswith("out0 is less exact than allowed in the mean: rms error ")
    assert "eager has" in text


def test_integers_and_scalars():
    """Integers have no tolerance to tell; a 0-dim output has no index."""
    index = torch.arange(6)
    bound = tolerance.bound(index, index, index)
    assert said(index + (index == 2) * 9, bound) == (
        "out0 differs at 17% of its elements, first at [2]: got 11, expected 2. The wrong elements are at place 2 of 6."
    )
    one = torch.tensor(2.0)
    bound = tolerance.bound(one.double(), one, one.double())
    assert said(torch.tensor(3.0), bound).startswith("out0 differs everywhere, first: got 3, expected 2 (tolerance ")
