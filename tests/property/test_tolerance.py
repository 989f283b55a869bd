"""What the tolerance lets pass and what it refuses, for random inputs of several operations and dtypes."""

from __future__ import annotations

import math

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from forge_tui.core.records import Signature
from forge_tui.evaluator import tolerance
from forge_tui.evaluator.reference import Reference, reference

few = settings(max_examples=100, database=None, derandomize=True, deadline=None)


def softmax(x: Tensor, _: Tensor) -> Tensor:
    """Along rows."""
    return torch.softmax(x, -1)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    """With a weight, its sum in float32 as models write it."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w[0]


def matmul(x: Tensor, w: Tensor) -> Tensor:
    """A product with a square matrix."""
    return x @ w


def chain(x: Tensor, w: Tensor) -> Tensor:
    """Elementwise operations, each rounded."""
    return torch.nn.functional.silu(x) * w[0] + x * 0.5


def centred(x: Tensor, _: Tensor) -> Tensor:
    """Linear, with a sum over each row."""
    return x * 3 - x.mean(-1, keepdim=True)


def summed(x: Tensor, _: Tensor) -> Tensor:
    """Linear, with sums of every length."""
    return x.cumsum(-1)


OPERATIONS = (softmax, rms_norm, matmul, chain)
LINEAR = (matmul, centred, summed)
NARROW = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *NARROW)
SIZES = st.tuples(st.sampled_from([1, 2, 5, 16, 33]), st.sampled_from([16, 17, 32, 64, 100]))
SEEDS = st.integers(0, 2**32)
#: shapes of inputs that are hard on a bound
ODD = ("plain", "zero row", "small row", "outlier", "constant", "shifted", "sparse")


def inputs(size: tuple[int, int], dtype: torch.dtype, seed: int, odd: str = "plain") -> tuple[Tensor, Tensor]:
    """Normal values of this size and a matrix for them, changed in one way."""
    rows, columns = size
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    w = torch.randn(columns, columns, generator=generator) / math.sqrt(columns)
    if odd == "zero row":
        x[-1] = 0
    elif odd == "small row":
        x[-1] *= 2.0**-14
    elif odd == "outlier":
        x[0, 3] = 500.0
    elif odd == "constant":
        x[:] = x[:, :1].clone()
    elif odd == "shifted":
        x += 30
    elif odd == "sparse":
        x *= torch.rand(x.shape, generator=generator) < 0.1
    return x.to(dtype), w.to(dtype)


def judged(operation, x: Tensor, w: Tensor) -> tuple[Reference, tolerance.Bound]:
    """The reference of an operation and the bound of its result."""
    signature = Signature(inputs=(), outputs=(), scalars=(), call={}, result={})
    found = reference(lambda given: [operation(*given)], signature, [x, w], 5)
    assert found.note == ""
    return found, tolerance.bound(found.expected[0], found.eager[0], found.disturbed[0])


def sizes_of_rows(right: Tensor) -> Tensor:
    """The root mean square of each row."""
    return right.double().square().mean(-1, keepdim=True).sqrt()


@few
@given(st.sampled_from((*OPERATIONS, *LINEAR)), SIZES, st.sampled_from((*DTYPES, torch.float64)), SEEDS,
       st.sampled_from(ODD), st.integers(-140, 120))  # fmt: skip
def test_eager_passes_its_own_bound(operation, size, dtype, seed, odd, exponent):
    """And so does the float64 result rounded once, whatever the inputs are like."""
    x, w = inputs(size, dtype, seed, odd)
    found, bound = judged(operation, x * 2.0**exponent, w)
    assume(bool(found.eager[0].isfinite().all()))
    assert tolerance.passes(found.eager[0], bound)
    assert tolerance.passes(found.expected[0].to(dtype), bound)


@few
@given(st.sampled_from(OPERATIONS), SIZES, st.sampled_from(NARROW), SEEDS, st.sampled_from(ODD))
def test_more_precise_arithmetic_passes(operation, size, dtype, seed, odd):
    """A half-precision result computed in float32 and rounded once is right."""
    x, w = inputs(size, dtype, seed, odd)
    found, bound = judged(operation, x, w)
    assume(bool(found.eager[0].isfinite().all()))
    assert tolerance.passes(operation(x.float(), w.float()).to(dtype), bound)


@few
@given(st.sampled_from(LINEAR), SIZES, st.sampled_from([torch.float32, torch.bfloat16]), SEEDS, st.sampled_from(ODD),
       st.integers(-40, 40), st.floats(-22, -2))  # fmt: skip
def test_scaling_a_linear_operation_changes_no_verdict(operation, size, dtype, seed, odd, exponent, error):
    """With inputs and answer times a power of two the same elements are wrong."""
    x, w = inputs(size, dtype, seed, odd)
    scale = 2.0**exponent
    (found, one), (_, other) = judged(operation, x, w), judged(operation, x * scale, w)
    noise = torch.randn(found.eager[0].shape, generator=torch.Generator().manual_seed(seed + 1))
    answer = (found.expected[0] + 2.0**error * noise * sizes_of_rows(found.expected[0])).to(dtype)
    before, after = tolerance.compare(answer, one), tolerance.compare(answer * scale, other)
    assert before.right == after.right
    assert (before.wrong is None) == (after.wrong is None)
    assert before.wrong is None or torch.equal(before.wrong, after.wrong)
    assert after.max_error == before.max_error * scale


@few
@given(st.sampled_from(OPERATIONS), SIZES, SEEDS, st.sampled_from(ODD), st.integers(-6, 6))
def test_a_float32_result_rounded_to_bfloat16_is_wrong(operation, size, seed, odd, exponent):
    """Wherever rounding changes it, unless a few roundings of the inputs change it nearly as much."""
    x, w = inputs(size, torch.float32, seed, odd)
    found, bound = judged(operation, x * 2.0**exponent, w)
    right = found.expected[0]
    rounded = right.bfloat16().float()
    rows = sizes_of_rows(right)
    assume(bool(((found.disturbed[0] - right).abs() <= 1e-4 * rows).all()))
    assume(bool(((rounded - right).abs() > 1e-3 * rows).any()))
    assert not tolerance.passes(rounded, bound)


@few
@given(st.sampled_from(OPERATIONS), SIZES, st.sampled_from(DTYPES), SEEDS, st.sampled_from(ODD),
       st.sampled_from(["zero", "stale", "constant", "shifted", "row before"]), st.data())  # fmt: skip
def test_a_tile_left_as_something_else_is_wrong(operation, size, dtype, seed, odd, filled, data):
    """Sixteen neighbours of an otherwise right result that are zero, of other inputs, of a neighbour, or one value."""
    x, w = inputs(size, dtype, seed, odd)
    found, bound = judged(operation, x, w)
    assume(bool(found.eager[0].isfinite().all()))
    right = found.expected[0].to(dtype)
    row, column = data.draw(st.integers(0, size[0] - 1)), data.draw(st.integers(0, size[1] - 16))
    at = (row, slice(column, column + 16))
    wrong = right.clone()
    wrong[at] = {
        "zero": lambda: torch.zeros(16, dtype=dtype), "stale": lambda: operation(*inputs(size, dtype, seed + 1))[at],
        "constant": lambda: right[row, column].expand(16), "shifted": lambda: right[at].roll(1),
        "row before": lambda: right[row - 1, at[1]],
    }[filled]()  # fmt: skip
    moved = (wrong.double() - right.double()).abs()
    meant = max(64 * torch.finfo(dtype).eps, 1e-3) * sizes_of_rows(right)
    assume(bool((moved > meant).any()))
    result = tolerance.compare(wrong, bound)
    assert not result.right
    outside = torch.ones_like(right, dtype=torch.bool)
    outside[at] = False
    assert result.wrong is None or not bool((result.wrong & outside).any())


@few
@given(st.sampled_from([torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]), SIZES, SEEDS)
def test_integers_and_flags_are_exact(dtype, size, seed):
    """A single element that is one off is refused and found, also where float64 does not tell the two apart."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        right = torch.rand(size, generator=generator) < 0.5
    else:
        right = torch.randint(torch.iinfo(dtype).min, torch.iinfo(dtype).max, size, generator=generator, dtype=dtype)
    bound = tolerance.bound(right, right, right)
    assert tolerance.passes(right.clone(), bound)
    place = int(torch.randint(right.numel(), (1,), generator=generator))
    wrong = right.clone().flatten()
    wrong[place] = ~wrong[place] if dtype is torch.bool else wrong[place] + 1
    result = tolerance.compare(wrong.view(size), bound)
    assert not result.right
    assert result.wrong.flatten().nonzero().tolist() == [[place]]


@few
@given(SIZES, st.sampled_from([*DTYPES, torch.float64, torch.int64, torch.int32, torch.bool]), SEEDS)
def test_another_shape_or_dtype_is_refused(size, dtype, seed):
    """Parts that would broadcast, the values in another type; other strides of the same shape are not."""
    right = inputs(size, torch.float32, seed)[0].round().to(dtype)
    right[:] = right[:1].clone()
    bound = tolerance.bound(right.double(), right, right.double())
    others = [right[None], right.flatten(), right[:, :-1], right[:, :1], torch.cat([right, right]), right[0, 0]]
    if size[0] > 1:
        others += [right[:1], right[0], right[:-1], right[:0]]
    others += [right.to(t) for t in (torch.float32, torch.float64, torch.int32, torch.int8) if t is not dtype]
    for other in others:
        assert not tolerance.passes(other, bound)
        result = tolerance.compare(other, bound)
        assert (result.right, result.wrong.shape) == (False, right.shape)
    assert tolerance.passes(right.t().contiguous().t(), bound)


@few
@given(st.lists(st.sampled_from([0, 1, 3]), max_size=3), st.sampled_from([*DTYPES, torch.int64]))
def test_results_of_any_rank_even_empty_ones(shape, dtype):
    """An empty output is right as it is, and its tolerance can be said."""
    right = torch.ones(shape, dtype=dtype)
    bound = tolerance.bound(right.double(), right, right.double())
    result = tolerance.compare(right, bound)
    assert (result.right, result.max_error, result.rms_error) == (True, 0.0, 0.0)
    assert tolerance.words([bound]).startswith(("out0 exactly", "|out0 - ref| <= "))
    assert not right.numel() or not tolerance.passes(right * 2, bound)
