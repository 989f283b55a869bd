"""A target is offered where wrong answers are refused on its inputs and every input is seen to matter."""

import re

import msgspec
import pytest
import targets_fixture as fixture
import torch
from evaluator_support import MODEL, judge_of, make_target, spec, workspace

from forge_tui.evaluator.canaries import Canaries
from forge_tui.evaluator.judge import Judge
from forge_tui.evaluator.opened import Targets
from forge_tui.evaluator.sets import InputSet, Kind
from forge_tui.evaluator.tolerance import passes

MODULES = MODEL.with_name("screened.py")


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A judge in this process, and a function that asks it about a module of the model."""
    place = workspace(tmp_path_factory.mktemp("screened"))
    targets = Targets("cpu", place.artifacts, 0)
    judge = Judge(targets, 5)

    def message(name):
        target = make_target(place, name, model=MODULES, id=name)
        return {"target": msgspec.to_builtins(target), "spec": msgspec.to_builtins(spec("build", MODULES))}

    return judge, targets, message


@pytest.mark.parametrize("name", ["softmax", "norm", "product", "largest", "positive", "mean", "narrow"])
def test_what_can_be_judged_is_offered(judged, name):
    """Whatever the type and number of its results, without a remark."""
    judge, _, message = judged
    answer = judge.open(message(name))
    assert (answer["usable"], answer["reason"], answer["remarks"]) == (True, "", [])
    assert {"captured", "fresh", "normal"} <= set(answer["kinds"])


@pytest.mark.parametrize(("name", "said"), [
    ("zero", r"^A result of zeros passes for its result"),
    ("copied", r"^A copy of x passes for its result"),
    ("constant", r"^The mean of the result passes for its result"),
    ("expert", r"^The results are the same whatever unused holds"),
    ("faint", r"^What faint does to the results is smaller than the tolerance"),
])  # fmt: skip
def test_what_cannot_be_judged_is_left_out(judged, name, said):
    """With the wrong answer that would pass, or the input that might be left out unnoticed."""
    judge, _, message = judged
    answer = judge.open(message(name))
    assert not answer["usable"]
    assert re.search(said, answer["reason"]), answer["reason"]


@pytest.mark.parametrize(("name", "remark"), [
    ("counted", "count leads to no result; a kernel may ignore it"),
    ("shifted", "shift cancels out of the result; a kernel may ignore it"),
])  # fmt: skip
def test_an_input_that_no_value_makes_matter_is_remarked(judged, name, remark):
    """A kernel without it is right for every value, so the target is offered."""
    judge, _, message = judged
    answer = judge.open(message(name))
    assert (answer["usable"], answer["remarks"]) == (True, [remark])


@pytest.mark.parametrize("name", ["softmax", "norm", "product"])
def test_wrong_answers_are_refused(judged, name):
    """Rounded to bfloat16, with a tile of zeros, with the last row of other inputs; the right one passes."""
    judge, targets, message = judged
    opened = targets.open(message(name))
    sets = [InputSet(kind=Kind.CAPTURED, call=call) for call in (0, 1)]
    (right,), (other,) = (judge._expect(opened, which).bounds for which in sets)
    result = right.expected.float()
    assert passes(result, right)
    tile, row = result.clone(), result.clone()
    tile[:16, :16] = 0
    row[-1] = other.expected[-1].float()
    for wrong in (result.bfloat16().float(), tile, row, other.expected.float(), result * (1 + 1e-4)):
        assert not passes(wrong, right)


def test_canaries_need_to_be_met(judged):
    """Before any set none has passed; a result that never changes lets its mean pass."""
    judge, targets, message = judged
    opened = targets.open(message("constant"))
    canaries = Canaries(opened.signature, opened.call)
    assert canaries.passing() == ""
    for call in (0, 1):
        which = InputSet(kind=Kind.CAPTURED, call=call)
        canaries.meet(judge._expect(opened, which).bounds, opened.values(which))
    assert canaries.passing() == "The mean of the result"
    assert torch.equal(opened.call(opened.captured[0])[0], opened.call(opened.captured[1])[0])


def test_an_empty_result_beside_another_is_no_hindrance():
    """A target of two results is judged by the one that has elements."""
    x = torch.randn(16, 32)
    results = [fixture.spec(16, 0), fixture.spec(16, 32)]
    target = fixture.make_target("two", [("x", fixture.spec(16, 32), "arg")], results)
    judge, message = judge_of(lambda tensors: [tensors[0][:, :0], tensors[0] * 2], target, [x], [x + 1])
    answer = judge.open(message)
    assert (answer["usable"], answer["reason"]) == (True, "")


def test_a_mark_as_large_as_its_type_is_judged():
    """The largest int64 among the captured integers, as models mark what is absent."""
    x, mark = torch.randn(16, 32), torch.iinfo(torch.int64).max
    rows = torch.tensor([3, mark, 0, 7, mark, 2, 2, 9, 1, mark, 0, 4, mark, 8, 5, 6])
    inputs = [("x", fixture.spec(16, 32), "arg"), ("rows", fixture.spec(16, dtype="int64"), "arg")]
    target = fixture.make_target("marked", inputs, [fixture.spec(16, 32)])
    judge, message = judge_of(lambda t: [torch.where(t[1][:, None] > 5, t[0], t[0] * 2)], target, [x, rows])
    answer = judge.open(message)
    assert (answer["usable"], answer["reason"]) == (True, "")
    assert "extremes" in answer["kinds"]


def test_a_result_whose_shape_follows_the_data_is_left_out():
    """Also where already rounded inputs give another number of rows."""
    x = torch.linspace(-3, 3, 512).view(16, 32)
    x[0, :4] = 1 + 2.0**-12
    target = fixture.make_target("chosen", [("x", fixture.spec(16, 32), "arg")], [fixture.spec(int((x > 1).sum()))])
    judge, message = judge_of(lambda tensors: [tensors[0][tensors[0] > 1] * 2], target, [x])
    answer = judge.open(message)
    assert answer["reason"] == (
        "It cannot be verified on inputs other than the captured ones: the original gives another out0 on fresh inputs."
    )


def test_a_result_whose_shape_follows_roundings_is_left_out():
    """Equal values that a rounding tells apart give another number of results; the reason says so."""
    x = torch.linspace(-3, 3, 512).round(decimals=1).view(16, 32)
    target = fixture.make_target("distinct", [("x", fixture.spec(16, 32), "arg")], [fixture.spec(x.unique().numel())])
    judge, message = judge_of(lambda tensors: [tensors[0].unique()], target, [x])
    answer = judge.open(message)
    assert answer["reason"] == (
        "The shape of the original's results changes with a rounding of the captured inputs of call 0."
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_results_without_a_number_are_left_out(value):
    """What is NaN or infinite everywhere could be filled in without computing anything."""
    x = torch.randn(16, 32)
    judge, message = judge_of(lambda t: [t[0].abs() + value], fixture.softmax_target(16, 32), [x], [x + 1])
    answer = judge.open(message)
    assert answer["reason"].startswith("The mean of the result passes for its result")


def test_what_is_met_once_pushes_out_nothing_that_comes_again():
    """Bounds of patched sets, which no other evaluation meets, are not kept; those of the usual ones are."""
    x = torch.randn(16, 32)
    judge, message = judge_of(lambda t: [t[0] * 2], fixture.softmax_target(16, 32), [x], [x + 1])
    opened = judge._targets.open(message)
    often, once = InputSet(kind=Kind.FRESH, seed=3), InputSet(kind=Kind.FRESH, seed=3, patch=-5)
    assert judge._expect(opened, often) is judge._expect(opened, often)
    assert judge._expect(opened, once) is not judge._expect(opened, once)


def test_which_of_equal_values_comes_first_is_not_asked():
    """Places of the largest values are settled where these differ; constant rows would ask for torch's order."""
    x = torch.randn(16, 64)
    results = [fixture.spec(16, 4), fixture.spec(16, 4, dtype="int64")]
    target = fixture.make_target("largest", [("x", fixture.spec(16, 64), "arg")], results)
    judge, message = judge_of(lambda tensors: list(tensors[0].topk(4)), target, [x])
    found = judge.open(message)
    assert found["usable"], found["reason"]
    assert "constant_rows" not in found["kinds"]
    assert {"captured", "fresh", "large", "outlier"} <= set(found["kinds"])
