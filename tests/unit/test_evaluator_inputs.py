"""Made-up inputs look like the captured ones, and are the same in every process."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from evaluator_support import same

from forge_tui.core.records import KernelInput, Signature, TensorSpec
from forge_tui.evaluator.inputs import generate, is_mask, patch, renew
from forge_tui.evaluator.sets import ADVERSARIAL, InputSet, Kind, draw, fresh, patched, standard


def signature(*tensors: torch.Tensor, source: str = "arg") -> Signature:
    """A signature whose inputs are these tensors."""
    specs = [
        TensorSpec(shape=tuple(t.shape), dtype=str(t.dtype).removeprefix("torch."), strides=t.stride()) for t in tensors
    ]
    inputs = tuple(KernelInput(name=f"x{i}", spec=s, source=source, path=f"x{i}") for i, s in enumerate(specs))
    return Signature(inputs=inputs, outputs=(), scalars=(), call={}, result={})


def made(kind: Kind, *tensors: torch.Tensor, source: str = "arg", seed: int = 5) -> list[torch.Tensor]:
    """A set of this kind from these captured tensors."""
    return generate(tensors, signature(*tensors, source=source), InputSet(kind=kind, seed=seed))


def test_captured_inputs_are_copies_with_their_strides():
    """Values and strides are the captured ones, the memory is not."""
    x = torch.randn(4, 6).t()
    (copy,) = made(Kind.CAPTURED, x)
    assert torch.equal(copy, x)
    assert copy.stride() == (1, 6)
    assert copy.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("kind", [k for k in Kind if k is not Kind.CAPTURED])
def test_shapes_strides_and_dtypes_stay(kind):
    """Transposed, expanded, gapped and 0-dim tensors of several dtypes keep their form in every kind of set."""
    tensors = [
        torch.randn(5, 8).t(), torch.randn(1, 7).expand(3, 7), torch.randn(4, 10)[:, :6], torch.tensor(2.5),
        torch.randn(3, 4, dtype=torch.bfloat16), torch.randint(0, 9, (12,)), torch.empty(0, 3), torch.rand(8) > 0.5,
        torch.randn(20).as_strided((4, 5), (3, 1)),
    ]  # fmt: skip
    for old, new in zip(tensors, made(kind, *tensors), strict=True):
        assert (new.shape, new.stride(), new.dtype) == (old.shape, old.stride(), old.dtype)


@pytest.mark.parametrize("kind", [Kind.FRESH, Kind.NORMAL])
def test_fresh_values_follow_the_captured_distribution(kind):
    """Mean and deviation are about the captured ones, and no value is where it was."""
    x = torch.randn(300, 200) * 3 + 5
    (new,) = made(kind, x)
    assert new.mean() == pytest.approx(float(x.mean()), rel=0.05)
    assert new.std() == pytest.approx(float(x.std()), rel=0.1)
    assert (new == x).double().mean() < 0.001


@pytest.mark.parametrize("kind", [Kind.FRESH, Kind.NORMAL])
def test_signs_stay(kind):
    """What is never negative stays so: variances, probabilities."""
    (positive, negative) = made(kind, torch.rand(1000), -torch.rand(1000))
    assert bool((positive >= 0).all())
    assert bool((negative <= 0).all())


def test_constant_parameters_are_disturbed():
    """Weights of ones and biases of zeros get values of their own, in a range that keeps ones positive."""
    ones, zeros = made(Kind.FRESH, torch.ones(500), torch.zeros(500), source="param")
    assert ones.std() > 0.1
    assert 0.4 < float(ones.min()) < float(ones.max()) < 1.6
    assert zeros.std() > 0.01
    assert float(zeros.abs().max()) <= 0.1


def test_integers_stay_in_their_range():
    """Indices are drawn between the captured extremes; sorted ones, repeated runs and single ones stay."""
    wild, ramp, again, one = made(
        Kind.FRESH, torch.tensor([7, 3, 9, 3, 5, 8]), torch.arange(10), torch.arange(4).repeat(3), torch.tensor(6)
    )  # fmt: skip
    assert bool(((wild >= 3) & (wild <= 9)).all())
    assert torch.equal(ramp, torch.arange(10))
    assert torch.equal(again, torch.arange(4).repeat(3))
    assert one.item() == 6


def test_masks_stay_masks():
    """A causal mask of -inf is left alone in fresh sets and replaced by another mask in the set for that."""
    mask = torch.full((8, 8), float("-inf")).triu(1)
    assert is_mask(mask)
    assert is_mask(torch.full((8, 8), torch.finfo(torch.float32).min).triu(1))
    assert not is_mask(torch.randn(8, 8))
    assert torch.equal(made(Kind.FRESH, mask)[0], mask)
    (other,) = made(Kind.MASKS, mask)
    assert not torch.equal(other, mask)
    assert set(other.unique().tolist()) <= {float("-inf"), 0.0}
    assert bool((other[:, 0] == 0).all())


def test_boolean_masks_keep_a_true_in_every_row():
    """Another boolean mask masks some places, never a whole row."""
    (other,) = made(Kind.MASKS, torch.ones(40, 16, dtype=torch.bool))
    assert not bool(other.all())
    assert bool(other[:, 0].all())


def test_adversarial_sets_are_what_they_say():
    """Constant rows, one outlier, scaled values and negative zeros."""
    x = torch.randn(20, 30)
    (rows,) = made(Kind.CONSTANT_ROWS, x)
    assert bool((rows == rows[:, :1]).all())
    assert rows[:, 0].unique().numel() > 10
    (outlier,) = made(Kind.OUTLIER, x)
    top = outlier.abs().flatten().topk(2).values
    assert top[0] > 30 * top[1]
    shifted = made(Kind.SHIFTED, x)[0]
    assert shifted.mean() == pytest.approx(256 * float(x.square().mean().sqrt()), rel=0.1)
    assert shifted.std() == pytest.approx(float(x.std()), rel=0.2)
    assert made(Kind.SHIFTED, -x.abs())[0].max() < 0
    assert made(Kind.LARGE, x)[0].std() == pytest.approx(64 * float(x.std()), rel=0.2)
    assert made(Kind.TINY, x)[0].std() == pytest.approx(float(x.std()) / 1024, rel=0.2)
    (zeros,) = made(Kind.NEGATIVE_ZERO, x)
    assert bool(torch.signbit(zeros[zeros == 0]).all())
    assert int((zeros == 0).sum()) > 50


def test_parameters_are_not_scaled():
    """An adversarial set changes what is passed in, not what the model owns."""
    assert float(made(Kind.LARGE, torch.randn(100), source="param")[0].abs().max()) < 10


def test_different_seeds_differ_and_equal_ones_do_not():
    """A set is a function of its name."""
    x = torch.randn(50)
    assert torch.equal(made(Kind.FRESH, x)[0], made(Kind.FRESH, x)[0])
    assert not torch.equal(made(Kind.FRESH, x)[0], made(Kind.FRESH, x, seed=6)[0])
    a, b = made(Kind.FRESH, x, x)
    assert not torch.equal(a, b)


@pytest.mark.parametrize("threads", [1, 2])
def test_sets_do_not_depend_on_the_process(threads, tmp_path):
    """Another process with another number of threads makes the same bits; judge and runner rely on it."""
    torch.manual_seed(1)
    captured = [torch.randn(700, 301), torch.randn(513) * 7, torch.randn(64, 64, dtype=torch.bfloat16).t()]
    kinds = list(Kind)
    torch.save(captured, tmp_path / "in.pt")
    code = f"""
        import sys, torch
        sys.path[:0] = ["tests", "tests/unit"]
        torch.set_num_threads({threads})
        from forge_tui.evaluator.inputs import generate
        from forge_tui.evaluator.sets import InputSet, Kind
        from test_evaluator_inputs import signature
        x = torch.load("{tmp_path}/in.pt")
        torch.save([generate(x, signature(*x), InputSet(kind=k, seed=9, patch=4)) for k in Kind], "{tmp_path}/out.pt")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
    for kind, other in zip(kinds, torch.load(tmp_path / "out.pt"), strict=True):
        assert same(generate(captured, signature(*captured), InputSet(kind=kind, seed=9, patch=4)), other), kind


def test_a_patch_changes_one_element_of_one_floating_tensor():
    """Repeated with the same seed it is the same; integers and single values stay; every other tensor has its turn."""
    tensors = [torch.randn(6, 7), torch.arange(5), torch.tensor(1.5), torch.randn(9).to(torch.float16)]
    counts = [0, 0, 0, 0]
    for seed in range(1, 60):
        copies = [t.clone() for t in tensors]
        again = [t.clone() for t in tensors]
        patch(copies, seed)
        patch(again, seed)
        assert same(copies, again)
        changed = [int((a != b).sum()) for a, b in zip(tensors, copies, strict=True)]
        assert sum(changed) <= 1  # 0 where an element was already the other's
        counts = [a + b for a, b in zip(counts, changed, strict=True)]
    assert counts[0] > 15
    assert counts[3] > 5
    assert counts[1] == counts[2] == 0
    copies = [t.clone() for t in tensors]
    patch(copies, 0)
    assert same(copies, tensors)


def test_renewed_tensors_have_hardly_a_value_that_they_had():
    """The same by the same seed; signs, zeros, masks and ordered integers stay, other integers turn."""
    mask = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), float("-inf"))
    tensors = [torch.randn(100, 70), torch.randn(9, 33).to(torch.bfloat16).t(), torch.randint(9, (50,)),
               torch.arange(5), mask, torch.zeros(6), torch.full((8,), 65504.0).half()]  # fmt: skip
    tensors[0][3, 4] = float("inf")
    copies, again, other = ([t.clone() for t in tensors] for _ in range(3))
    renew(copies, 7)
    renew(again, 7)
    renew(other, 8)
    assert same(copies, again)
    for made in (copies, other):
        equal = [float((a == b).double().mean()) for a, b in zip(made, tensors, strict=True)]
        assert equal[0] < 0.01
        assert equal[1] < 0.1
        assert not torch.equal(made[2], tensors[2])
        assert torch.equal(made[2].sort().values, tensors[2].sort().values)
        assert equal[3] == equal[5] == 1.0
        assert torch.equal(made[4], mask)
        assert bool(((made[0] > 0) == (tensors[0] > 0)).all())
        assert bool(made[6].isfinite().all())
    assert float((copies[0] == other[0]).double().mean()) < 0.01
    patch(tensors, -7)
    assert sum(int((a != b).sum()) for a, b in zip(copies, tensors, strict=True)) <= 1


def test_names_of_sets():
    """Standard sets are the same for every candidate, fresh ones differ by evaluation, seeds are hard to guess."""
    assert [s.kind for s in standard(5, 1)] == [Kind.CAPTURED] * 4 + list(ADVERSARIAL)
    assert standard(2, 1) == standard(2, 1)
    assert {s.key for s in fresh(2, 1)}.isdisjoint(s.key for s in fresh(2, 2))
    assert len({draw(1, i) for i in range(100)}) == 100
    assert all(0 < draw(i) < 2**62 for i in range(100))


def test_patched_copies_follow_their_set():
    """The first set comes again with one element changed at a time, right behind itself, the others as they were."""
    own = fresh(2, 1)
    found = patched(own, 9)
    assert [found[0], *found[-2:]] == own
    copies = found[1:-2]
    assert len(copies) >= 2
    assert len({s.patch for s in copies}) == len(copies)
    assert all((s.kind, s.seed, s.call) == (own[0].kind, own[0].seed, own[0].call) and s.patch for s in copies)
