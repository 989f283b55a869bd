"""Tolerances follow from dtype, eager and condition: right results pass, cheaper arithmetic does not."""

from __future__ import annotations

import pytest
import torch
from targets_fixture import rms_norm_target, softmax_target
from torch.nn import functional as F

from forge_tui.core.records import Signature
from forge_tui.evaluator import tolerance
from forge_tui.evaluator.inputs import generate
from forge_tui.evaluator.reference import reference
from forge_tui.evaluator.sets import InputSet, Kind


def rms_norm(tensors):
    """RMSNorm as Hugging Face writes it, with its own casts."""
    x, weight = tensors
    dtype = x.dtype
    x = x.to(torch.float32)
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return [weight * x.to(dtype)]


def softmax(tensors):
    """Softmax in float32, given back in the input's dtype."""
    return [F.softmax(tensors[0], dim=-1, dtype=torch.float32).to(tensors[0].dtype)]


def layer_norm(tensors):
    """LayerNorm without parameters."""
    return [F.layer_norm(tensors[0], tensors[0].shape[-1:])]


CASES = [(rms_norm, rms_norm_target), (softmax, softmax_target), (layer_norm, softmax_target)]
DTYPES = ("float32", "bfloat16", "float16")


def case(function, make, dtype: str, kind: Kind = Kind.FRESH):
    """Inputs, reference and bound of a function on a set."""
    signature: Signature = make(64, 256, dtype).signature
    generator = torch.Generator().manual_seed(3)
    captured = [torch.randn(i.spec.shape, generator=generator).to(getattr(torch, dtype)) for i in signature.inputs]
    inputs = generate(captured, signature, InputSet(kind=kind, seed=8))
    found = reference(function, signature, inputs, 1)
    return inputs, found, tolerance.bound(found.expected[0], found.eager[0], found.disturbed[0])


@pytest.mark.parametrize("kind", [k for k in Kind if k is not Kind.MASKS])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("function", "make"), CASES)
def test_eager_and_float32_arithmetic_pass(function, make, dtype, kind):
    """On every kind of inputs eager itself and a result computed in float32, rounded once, are right."""
    inputs, found, bound = case(function, make, dtype, kind)
    assert found.note == ""
    assert tolerance.compare(found.eager[0], bound).right
    widened = function([t.float() for t in inputs])[0].to(bound.dtype)
    assert tolerance.compare(widened, bound).right


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("function", "make"), CASES)
def test_empty_answers_fail(function, make, dtype):
    """Zeros, the mean, a copy of the input and one wrong element are wrong."""
    inputs, found, bound = case(function, make, dtype)
    right = found.eager[0]
    assert not tolerance.compare(torch.zeros_like(right), bound).right
    assert not tolerance.compare(torch.full_like(right, float(right.double().mean())), bound).right
    assert not tolerance.compare(inputs[0], bound).right
    one = right.clone()
    one[40, 200] *= 1.05
    assert int(tolerance.compare(one, bound).wrong.sum()) == 1


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("function", "make"), CASES)
def test_narrow_arithmetic_fails_on_float32(function, make, narrow):
    """A result computed or rounded in half precision is not right for a float32 callable."""
    inputs, found, bound = case(function, make, "float32")
    assert not tolerance.compare(function([t.to(narrow) for t in inputs])[0].float(), bound).right
    assert not tolerance.compare(found.expected[0].to(narrow).float(), bound).right


def test_cut_mantissas_fail():
    """Inputs cut to ten bits, as TF32 does, are seen in the output."""
    inputs, _, bound = case(rms_norm, rms_norm_target, "float32")
    cut = [(t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in inputs]
    assert not tolerance.compare(rms_norm(cut)[0], bound).right


def test_a_small_bias_everywhere_fails_in_the_mean():
    """Errors each within the tolerance, but all of them larger than eager's, are caught by the mean."""
    _, found, bound = case(softmax, softmax_target, "bfloat16")
    steps = found.eager[0].view(torch.int16) + 1
    result = tolerance.compare(steps.view(torch.bfloat16), bound)
    assert not result.right


def test_casts_inside_do_not_limit_the_reference():
    """The float64 reference of a module that casts to float32 is far more exact than float32."""
    x = torch.randn(4, 64, dtype=torch.float64)
    found = reference(rms_norm, rms_norm_target(4, 64, "float32").signature, [x.float(), torch.ones(64)], 0)
    wide = x.float().double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert float((found.expected[0] - exact).abs().max()) < 1e-14
    assert found.note == ""


def test_factories_inside_are_wide_too():
    """A callable that makes its own float tensors gets float64 ones for the reference, float32 ones in eager."""

    def positions(tensors):
        frequencies = 1.0 / (10000.0 ** (torch.arange(0, 8) / 8))
        return [tensors[0] * torch.cos(torch.arange(100.0)[:, None] * frequencies)]

    x = torch.randn(100, 8)
    signature = softmax_target(100, 8).signature
    found = reference(positions, signature, [x], 0)
    n = torch.arange(100.0, dtype=torch.float64)[:, None]
    exact = x.double() * torch.cos(n / 10000.0 ** (torch.arange(0, 8, dtype=torch.float64) / 8))
    assert float((found.expected[0] - exact).abs().max()) < 1e-12
    assert found.eager[0].dtype is torch.float32
    assert torch.get_default_dtype() is torch.float32


def test_a_callable_that_knows_no_float64_says_so():
    """The reference falls back to float32 with a reason, and still tells right from wrong."""

    def narrow_only(tensors):
        if tensors[0].dtype is torch.float64:
            raise TypeError("no doubles")
        return softmax(tensors)

    signature = softmax_target(16, 64).signature
    found = reference(narrow_only, signature, [torch.randn(16, 64)], 0)
    assert "does not run in float64 (TypeError)" in found.note
    bound = tolerance.bound(found.expected[0], found.eager[0], found.disturbed[0])
    assert tolerance.compare(found.eager[0], bound).right
    assert not tolerance.compare(found.eager[0].half().float(), bound).right


def test_nan_and_infinities_must_be_where_they_belong():
    """Their positions and signs are compared; they are no wildcards and do not hide their neighbours."""

    def logs(tensors):
        return [torch.log(tensors[0])]

    x = torch.tensor([[1.0, 0.0, -1.0, 2.0, 5.0]])
    found = reference(logs, softmax_target(1, 5).signature, [x], 0)
    bound = tolerance.bound(found.expected[0], found.eager[0], found.disturbed[0])
    right = torch.log(x)
    assert tolerance.compare(right, bound).right
    inf, nan = float("inf"), float("nan")
    for place, value in [(1, 5.0), (1, inf), (1, nan), (2, 0.0), (2, -inf), (3, nan), (3, inf), (4, 1.7)]:
        wrong = right.clone()
        wrong[0, place] = value
        assert not tolerance.compare(wrong, bound).right, (place, value)


@pytest.mark.parametrize("shape", [(), (1,), (3, 5)])
@pytest.mark.parametrize("value", [1e200, -1e308, float("inf"), float("nan")])
def test_what_is_far_off_is_wrong(shape, value):
    """A float64 result whose error has no square in float64 is refused as any other, one number or many."""
    right = torch.ones(shape, dtype=torch.float64)
    bound = tolerance.bound(right, right, right)
    result = tolerance.compare(torch.full_like(right, value), bound)
    assert not result.right
    assert bool(result.wrong.all())


def test_integers_are_exact():
    """One off is wrong; a byte that is no boolean is wrong."""
    index = torch.arange(100)
    bound = tolerance.bound(index, index, index)
    assert tolerance.compare(index.clone(), bound).right
    assert tolerance.compare(index + (index == 40), bound).wrong.nonzero().tolist() == [[40]]
    flags = torch.tensor([True, False, True])
    bound = tolerance.bound(flags, flags, flags)
    assert tolerance.compare(flags.clone(), bound).right
    odd = torch.tensor([0xFF, 0, 1], dtype=torch.uint8).view(torch.bool)
    assert not tolerance.compare(odd, bound).right


def test_small_rows_have_small_tolerances():
    """A row a million times smaller than the others is not covered by their tolerance."""

    def double(tensors):
        return [tensors[0] * 2]

    x = torch.randn(10, 64)
    x[3] *= 1e-6
    found = reference(double, softmax_target(10, 64).signature, [x], 0)
    bound = tolerance.bound(found.expected[0], found.eager[0], found.disturbed[0])
    wrong = found.eager[0].clone()
    wrong[3] = 0
    assert int(tolerance.compare(wrong, bound).wrong.any(-1).nonzero()) == 3


def test_a_problem_in_bad_condition_is_allowed_more():
    """Where a rounding of the inputs moves the result by much, honest float32 arithmetic is not called wrong."""

    def centred(tensors):
        return [F.layer_norm(tensors[0], tensors[0].shape[-1:])]

    x = 1000.0 + 0.01 * torch.randn(8, 512)
    found = reference(centred, softmax_target(8, 512).signature, [x], 0)
    bound = tolerance.bound(found.expected[0], found.eager[0], found.disturbed[0])
    mean = x.sum(-1, keepdim=True) / 512
    other = (x - mean) * torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + 1e-5)
    assert tolerance.compare(other, bound).right
    assert not tolerance.compare(torch.zeros_like(x), bound).right


def test_a_plain_loop_over_equal_terms_is_right():
    """Equal terms round the same way, so one after the other errs by far more than eager's tree; bf16 stays wrong."""
    length = 1000
    torch.manual_seed(0)
    x = torch.full((6, length), 0.0)
    x[:, ::20] = torch.randn(6, len(range(0, length, 20)))
    found = reference(softmax, softmax_target(6, length).signature, [x], 0)
    parts = (found.expected[0], found.eager[0], found.disturbed[0])
    exponents = torch.exp(x - 2.2)
    total = torch.zeros(6)
    for column in exponents.T:
        total += column
    plain = exponents / total[:, None]
    assert not tolerance.compare(plain, tolerance.bound(*parts)).right
    repeated = tolerance.bound(*parts, equal_terms=length)
    assert tolerance.compare(plain, repeated).right
    assert not tolerance.compare(found.eager[0].bfloat16().float(), repeated).right
    assert not tolerance.compare(plain * 1.01, repeated).right


def test_words_name_numbers():
    """The tolerance in words has the bound of every output."""
    _, _, bound = case(softmax, softmax_target, "float32")
    index = torch.arange(3)
    text = tolerance.words([bound, tolerance.bound(index, index, index)])
    assert text.startswith("|out0 - ref| <= 1.9e-06 |ref| + ")
    assert text.endswith("out1 exactly")
