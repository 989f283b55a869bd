"""A callable written for narrower types runs in float64, but for what has no float64 form, and that is said."""

from __future__ import annotations

import pytest
import torch
from evaluator_support import judge_of
from targets_fixture import softmax_target
from torch import Tensor
from torch.nn import functional as F

from forge_tui.evaluator import tolerance, widened
from forge_tui.evaluator.reference import in_float64, reference

X = torch.randn(16, 32, generator=torch.Generator().manual_seed(4))


@torch.library.custom_op("forge_tests::halved", mutates_args=())
def halved(x: Tensor) -> Tensor:
    """An operation that knows float32 alone."""
    if x.dtype is not torch.float32:
        raise RuntimeError(f"halved is not written for {x.dtype}\nand more of that")
    return x / 3


@torch.library.custom_op("forge_tests::brain", mutates_args=())
def brain(x: Tensor) -> Tensor:
    """An operation that knows bfloat16 alone."""
    if x.dtype is not torch.bfloat16:
        raise RuntimeError("bfloat16 only")
    return x / 3


@torch.library.custom_op("forge_tests::grown", mutates_args={"x"})
def grown(x: Tensor, by: Tensor) -> None:
    """An operation that writes into its argument and knows float32 alone."""
    if x.dtype is not torch.float32:
        raise RuntimeError("float32 only")
    x.add_(by)


@torch.library.custom_op("forge_tests::thirds", mutates_args=())
def thirds(x: Tensor) -> Tensor:
    """An operation that gives float32 whatever it gets."""
    return x.to(torch.float32) / 3


@torch.library.custom_op("forge_tests::both", mutates_args=())
def both(x: Tensor) -> tuple[Tensor, Tensor]:
    """An operation with two results that are always float32."""
    return x.to(torch.float32) / 3, x.to(torch.float32).sum(-1)


def ran(function, *tensors):
    """The result in float64 and what is said of the operations that were not."""
    outputs, narrowed = in_float64(lambda given: [function(*given)], tensors)
    return outputs[0], widened.words(narrowed)


def off(result: Tensor, exact: Tensor) -> float:
    """The largest relative error."""
    return float(((result - exact).abs() / exact.abs().max()).max())


@pytest.mark.parametrize(
    "cast",
    [lambda x: x.float(), lambda x: x.half(), lambda x: x.bfloat16(), lambda x: x.to(torch.float32),
     lambda x: x.to(dtype=torch.bfloat16), lambda x: x.to("cpu", torch.float16), lambda x: x.type(torch.float32),
     lambda x: x + torch.zeros(32, dtype=torch.float16), lambda x: x * torch.tensor(1.0, dtype=torch.float32)],
)  # fmt: skip
def test_casts_are_widened(cast):
    """However a callable names a narrower type, its values keep all their bits."""
    result, said = ran(lambda x: cast(x.double() / 3) * 3, X)
    assert (result.dtype, said) == (torch.float64, "")
    assert off(result, X.double()) < 1e-15


def test_an_operation_that_names_its_dtype_runs_in_float64():
    """`softmax(dtype=float32)` is exact, and nothing is said of it."""
    result, said = ran(lambda x: F.softmax(x, -1, dtype=torch.float32).to(torch.bfloat16), X)
    assert said == ""
    assert off(result, torch.softmax(X.double(), -1)) < 1e-15


def test_a_torch_operation_without_float64_runs_in_float32():
    """What is around it stays float64; the kernel and torch's own reason are named."""

    def quantised(x):
        return torch.fake_quantize_per_channel_affine(x, torch.full((16,), 0.1), torch.zeros(16).int(), 0, -8, 7)

    result, said = ran(lambda x: quantised(x) + x / 3, X)
    assert said.startswith("float32 is the reference of aten.fake_quantize_per_channel_affine")
    assert "(RuntimeError: Scale must be Float or BFloat16, found Double)" in said
    assert off(result, quantised(X).double() + X.double() / 3) < 1e-15


def test_a_custom_operation_runs_in_float32_alone():
    """The reason is its error's first line; what is around it is exact."""
    result, said = ran(lambda x: halved(x) + x / 7, X)
    assert said == (
        "float32 is the reference of forge_tests.halved (RuntimeError: halved is not written for torch.float64)"
    )
    assert off(result, halved(X).double() + X.double() / 7) < 1e-15


def test_what_an_operation_writes_stays_with_its_argument():
    """An operation in place changes the tensor it was given, and no other argument loses bits."""

    def add(tensors):
        total, by = tensors[0] / 3, tensors[0] / 7
        grown(total, by)
        return [total, by]

    (total, by), narrowed = in_float64(add, [X])
    assert widened.words(narrowed) == "float32 is the reference of forge_tests.grown (RuntimeError: float32 only)"
    assert total.dtype is by.dtype is torch.float64
    assert torch.equal(total, (X / 3 + X / 7).double())
    assert torch.equal(by, X.double() / 7)


def test_the_type_that_was_used_is_named():
    """Where only bfloat16 is taken, the reference is not said to be float32."""
    _, said = ran(lambda x: brain(x) + halved(x), X)
    assert said == (
        "bfloat16 is the reference of forge_tests.brain (RuntimeError: bfloat16 only); "
        "float32 is the reference of forge_tests.halved (RuntimeError: halved is not written for torch.float64)"
    )


@pytest.mark.parametrize(("name", "operation"), [("thirds", thirds), ("both", lambda x: both(x)[0])])
def test_what_gives_float32_by_itself_is_named(name, operation):
    """One result or several: they go on as float64, and the note says what they are worth."""
    result, said = ran(lambda x: operation(x) + x / 7, X)
    assert said == f"float32 is the reference of forge_tests.{name} (it gives float32 by itself)"
    assert result.dtype is torch.float64
    assert off(result, (X / 3).double() + X.double() / 7) < 1e-15
    alone, _ = ran(operation, X)
    assert alone.dtype is torch.float64


@pytest.mark.parametrize("use", [lambda c, x: c.expand_as(x) + x, lambda c, x: torch.broadcast_tensors(c, x)[0] + x,
                                 lambda c, x: c * x, lambda c, x: x @ c.reshape(32, 1)])  # fmt: skip
def test_constants_of_the_callable_are_taken_as_they_are(use):
    """Float32 tensors that are no inputs are exact: nothing is said of them, and nothing around them is narrowed."""
    constant = torch.randn(1, 32, generator=torch.Generator().manual_seed(5))
    result, said = ran(lambda x: use(constant, x / 3), X)
    assert said == ""
    assert off(result, use(constant.double(), X.double() / 3)) < 1e-15


@pytest.mark.parametrize("view", [lambda x, dtype: x.view(dtype), lambda x, dtype: x.view(dtype=dtype)])
def test_bits_are_those_of_float32(view):
    """Bits read as integers are the float32's, however the view is written, and the note says so."""
    result, said = ran(lambda x: view(view(x, torch.int32) & ~0x1FFF, torch.float32), X)
    assert said == "float32 is the reference of view (it reads the bits of float32)"
    assert result.dtype is torch.float64
    assert torch.equal(result, (X.view(torch.int32) & ~0x1FFF).view(torch.float32).double())


def test_bits_of_a_half_are_read_in_its_own_type():
    """Neither float64 nor float32 has them; the note says that the reference is less exact, and eager passes."""

    def cut(tensors):
        return [(tensors[0].view(torch.int16) & ~0xF).view(torch.bfloat16)]

    found = reference(cut, softmax_target(16, 32, "bfloat16").signature, [X.bfloat16()], 1)
    assert found.note
    assert torch.equal(found.expected[0], found.eager[0].double())
    assert tolerance.bound(found.expected[0], found.eager[0], found.disturbed[0]).expected.shape == X.shape


def test_what_the_callable_refuses_is_refused_as_it_is():
    """An error of the callable's own is the one it raises, and the default type is back afterwards."""

    def picky(x):
        raise ValueError("every word of it " * 20)

    with pytest.raises(ValueError, match="every word"):
        ran(picky, X)
    with pytest.raises(IndexError):
        ran(lambda x: x[100], X)
    assert torch.get_default_dtype() is torch.float32


def test_reasons_are_cut_at_a_word():
    """A long message ends in dots; an empty one leaves the error's name."""
    assert widened._why(ValueError("seven words " * 20)) == "ValueError: " + "seven words " * 6 + "seven..."
    assert widened._why(ValueError()) == "ValueError"


def test_the_reason_arrives_in_the_tolerance():
    """What the judge says of a target names the operation that is less exact."""
    judge, message = judge_of(lambda tensors: [torch.sin(halved(tensors[0]))], softmax_target(16, 32), [X], [X + 1])
    answer = judge.open(message)
    assert answer["usable"], answer["reason"]
    assert answer["tolerance"].endswith(
        " (float32 is the reference of forge_tests.halved (RuntimeError: halved is not written for torch.float64))"
    )
