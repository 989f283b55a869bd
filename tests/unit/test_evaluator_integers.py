"""Integers of made-up inputs stay what the captured ones are: within their range, in order where those are."""

from __future__ import annotations

import pytest
import torch
from evaluator_support import judge_of
from targets_fixture import make_target, spec
from torch import Tensor

from forge_tui.evaluator import integers
from forge_tui.evaluator.sets import InputSet, Kind

DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
OTHERS = [k for k in Kind if k not in (Kind.CAPTURED, Kind.INTEGERS)]
WILD = [7, 3, 9, 3, 5, 8, 4, 4, 6, 3]


def drawn(values: Tensor, kind: Kind, seed: int = 1) -> Tensor:
    """The values that a set of this kind has."""
    return integers.drawn(values.clone(), kind, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [k for k in Kind if k is not Kind.CAPTURED])
def test_no_value_leaves_the_captured_range(kind, dtype):
    """Nor the type, in any kind of set."""
    for seed in range(5):
        made = drawn(torch.tensor(WILD * 20, dtype=dtype), kind, seed)
        assert made.dtype is dtype
        assert (int(made.min()) >= 3, int(made.max()) <= 9) == (True, True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [Kind.FRESH, Kind.EXTREMES, Kind.INTEGERS])
def test_the_whole_range_of_a_type(kind, dtype):
    """The lowest and the highest number that a type has may be captured, as a mark for what is absent."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    for values in ([high, 3, 0, high, 2], [low, high, 1, 0, 5]):
        made = drawn(torch.tensor(values, dtype=dtype), kind)
        assert int(made.min()) >= min(values)
    assert drawn(torch.tensor([high, 3, 0, 2], dtype=dtype), Kind.EXTREMES)[-1] == high


def test_extremes_are_at_many_places():
    """Both ends come often, and each at least once; values between them come as well."""
    made = drawn(torch.tensor(WILD * 20), Kind.EXTREMES)
    counts = torch.bincount(made, minlength=10)
    assert counts.sum() == counts[3:].sum() == 200
    assert int(counts[3]) > 30
    assert int(counts[9]) > 30
    assert int(counts[4:9].sum()) > 30
    for seed in range(20):
        few = drawn(torch.tensor([7, 3, 9, 3]), Kind.EXTREMES, seed)
        assert (few[0], few[-1]) == (3, 9)


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize(
    "values",
    [torch.arange(10), torch.arange(4).repeat(3), torch.tensor([0, 2, 2, 7]), torch.full((6,), 5), torch.tensor([6]),
     torch.empty(0, dtype=torch.int64), torch.tensor([True, False, False])],
    ids=["positions", "repeated positions", "offsets", "constant", "single", "empty", "flags"],
)  # fmt: skip
def test_what_has_a_meaning_stays(kind, values):
    """Positions, offsets, constants, single numbers and flags are the captured ones in all sets but their own."""
    assert torch.equal(drawn(values, kind), values)


def test_integers_of_their_own_set_keep_their_order():
    """Offsets stay sorted between the same ends, repeated positions ascend in each run."""
    for seed in range(10):
        offsets = drawn(torch.tensor([2, 2, 5, 9, 30]), Kind.INTEGERS, seed)
        assert (offsets[0], offsets[-1]) == (2, 30)
        assert bool((offsets.diff() >= 0).all())
        runs = drawn(torch.arange(4).repeat(3), Kind.INTEGERS, seed).view(3, 4)
        assert bool((runs.diff(dim=-1) >= 0).all())
        assert (int(runs.min()) >= 0, int(runs.max()) <= 3) == (True, True)


@pytest.mark.parametrize(("value", "allowed"), [(0, {0, 1}), (1, {0, 1}), (5, {1, 2, 3, 4, 5}), (-100, {-100})])
def test_constants_of_their_own_set(value, allowed):
    """Flags become flags, lengths become shorter but not nothing, and a negative mark stays."""
    seen = set()
    for seed in range(20):
        seen |= set(drawn(torch.full((6,), value), Kind.INTEGERS, seed).tolist())
    assert seen == allowed


@pytest.mark.parametrize("value", [0, 1, 2, 5, 1000])
def test_a_single_number_becomes_another(value):
    """One that a length, a flag or a step might be."""
    for seed in range(10):
        made = int(drawn(torch.tensor([value]), Kind.INTEGERS, seed))
        assert made != value or value == 2
        assert 0 <= made <= max(value, 1)


def test_a_single_flag_is_turned():
    """There is only one other."""
    assert drawn(torch.tensor([True]), Kind.INTEGERS).tolist() == [False]


def lookup(index: Tensor, rows: int):
    """A judge of a table looked up with these indices."""
    table = torch.randn(rows, 8, generator=torch.Generator().manual_seed(2))
    target = make_target(
        "embedding", [("table", spec(rows, 8), "param"), ("index", spec(len(index), dtype="int64"), "arg")],
        [spec(len(index), 8)],
    )  # fmt: skip
    return judge_of(lambda tensors: [tensors[0][tensors[1]] * 2], target, [table, index])


def test_a_table_is_looked_up_within_its_rows():
    """Every kind of set that is offered has indices of the table; the extremes are among them."""
    judge, message = lookup(torch.tensor(WILD), 10)
    answer = judge.open(message)
    assert answer["usable"], answer["reason"]
    assert "extremes" in answer["kinds"]
    assert answer["left_out"] == {}


def test_indices_beyond_the_table_are_no_set():
    """Where another number than the captured one would be out of range, that set is left out with the reason."""
    judge, message = lookup(torch.zeros(12, dtype=torch.int64), 1)
    opened = judge._targets.open(message)
    found = judge._expect(opened, InputSet(kind=Kind.INTEGERS, seed=3))
    assert found.reason.startswith("the original raises IndexError on inputs with other integers: ")
    assert judge._expect(opened, InputSet(kind=Kind.FRESH, seed=3)).reason == ""
