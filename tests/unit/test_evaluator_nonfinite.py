"""NaN and infinities: a kernel may not hide them, and where the captured inputs have them they must agree."""

from __future__ import annotations

import math

import pytest
import torch
from evaluator_support import judge_of
from targets_fixture import softmax_target
from torch import Tensor
from torch.nn import functional as F

from forge_tui.evaluator import nonfinite, tolerance
from forge_tui.evaluator.inputs import generate
from forge_tui.evaluator.reference import reference
from forge_tui.evaluator.sets import InputSet, Kind

NAN, INF = math.nan, math.inf
X = torch.randn(16, 32, generator=torch.Generator().manual_seed(4))


def holed(*places: tuple[int, int, float]) -> Tensor:
    """Ordinary values but for these."""
    x = X.clone()
    for row, column, value in places:
        x[row, column] = value
    return x


def asked(function, x: Tensor) -> tuple[list[Tensor], str]:
    """What must show of a function's one result."""
    return nonfinite.must_show(lambda tensors: [function(*tensors)], [x])


FUNCTIONS = {
    "softmax": lambda x: torch.softmax(x, -1),
    "layer norm": lambda x: F.layer_norm(x, (32,)),
    "rms norm": lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6),
    "product": lambda x: x @ x.T,
    "gelu": F.gelu,
    "narrow": lambda x: (x.bfloat16() * 3).float(),
    "sums": lambda x: x.cumsum(-1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_where_a_nan_must_show(name):
    """Some elements must, all of them NaN in eager, none of the rows without a NaN; eager itself hides nothing."""
    x = holed((3, 7, NAN))
    marked, reason = asked(FUNCTIONS[name], x)
    assert reason == ""
    right = FUNCTIONS[name](x)
    assert bool(marked[0].any())
    assert bool(right[marked[0]].isnan().all())
    assert not bool(marked[0][:3, :3].any())
    assert not nonfinite.hidden([right], marked)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_plausible_numbers_are_hidden_faults(name):
    """Results without a NaN or an infinity where one must be are found; one such element is enough."""
    x = holed((3, 7, NAN))
    marked, _ = asked(FUNCTIONS[name], x)
    clamped = FUNCTIONS[name](x).nan_to_num(0.0)
    assert nonfinite.hidden([clamped], marked)
    place = tuple(marked[0].nonzero()[-1].tolist())
    for value in (NAN, INF, -INF):
        shown = clamped.clone()
        shown[place] = value
        assert not nonfinite.hidden([shown], marked)


@pytest.mark.parametrize(
    "function",
    [F.relu, lambda x: x.clamp(-1, 1), lambda x: x.amax(-1), lambda x: torch.maximum(x, torch.zeros(())),
     lambda x: x.max(-1).values, lambda x: torch.where(x > 0, torch.zeros(()), x),
     lambda x: F.max_pool1d(x, 2), lambda x: x.sort(-1).values.nan_to_num(1.0)],
)  # fmt: skip
def test_a_kernel_may_ignore_a_nan_where_cuda_does(function):
    """Maxima, bounds and choices have forms that take a NaN away: then nothing is asked for."""
    marked, reason = asked(function, holed((3, 7, NAN)))
    assert marked == []
    assert reason in ("a right kernel may ignore them", "the original gives finite results for them")


def test_nothing_is_asked_of_finite_results():
    """An original that takes infinities to numbers leaves nothing to compare."""
    assert asked(torch.tanh, holed((3, 7, INF))) == ([], "the original gives finite results for them")


def test_an_overflow_of_the_type_is_no_fault():
    """NaN that comes of float16's range and is not in float64 is not asked for."""
    x = torch.full((2, 8), 60000.0, dtype=torch.float16)
    marked, reason = asked(lambda x: (x + x) - (x + x), x)
    assert (marked, reason) == ([], "a right kernel may ignore them")


def test_integers_show_nothing():
    """Of an output of integers or flags nothing is asked."""

    def two(tensors):
        return [tensors[0] * 2, tensors[0] > 0, tensors[0].argmax(-1)]

    x = holed((3, 7, NAN))
    marked, _ = nonfinite.must_show(two, [x])
    assert [bool(m.any()) for m in marked] == [True, False, False]
    assert not nonfinite.hidden(two([x]), marked)


def test_inputs_stay_as_they_are():
    """An original that writes into its arguments is run on copies."""
    x = holed((3, 7, NAN))
    before = x.clone()
    nonfinite.must_show(lambda tensors: [tensors[0].mul_(2)], [x])
    assert torch.equal(x.nan_to_num(7), before.nan_to_num(7))


def test_what_the_original_does_not_take_is_not_asked():
    """Where it raises, on such inputs or in float64, there is no such set, and the reason is the right one."""

    def strict(tensors):
        if not bool(tensors[0].isfinite().all()):
            raise ValueError("not finite")
        return [tensors[0] * 2]

    def narrow(tensors):
        if tensors[0].dtype is torch.float64:
            raise TypeError("no doubles")
        return [tensors[0] * 2]

    which = InputSet(kind=Kind.NONFINITE, seed=2)
    for call, reason in (
        (strict, "the original raises ValueError on inputs with NaN and infinities: not finite"),
        (narrow, "the original does not run in float64 (TypeError)"),
        (lambda tensors: [tensors[0].tanh().clamp(-0.5, 0.5)], "a right kernel may ignore them"),
    ):
        judge, message = judge_of(call, softmax_target(16, 32), [X])
        found = judge._expect(judge._targets.open(message), which)
        assert (found.bounds, found.marked, found.reason) == ([], [], reason)
    judge, message = judge_of(lambda tensors: [tensors[0] * 2], softmax_target(16, 32), [X])
    found = judge._expect(judge._targets.open(message), which)
    assert (found.bounds, found.reason, len(found.marked)) == ([], "", 1)


@pytest.mark.parametrize("count", [2, 16, 17, 500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_set_has_a_nan_in_what_is_passed_in(count, dtype):
    """Every time, however few values there are; infinities only beside enough others; parameters have none."""
    signature = softmax_target(1, count).signature
    for seed in range(10):
        (x,) = generate([X.flatten()[:count].to(dtype)], signature, InputSet(kind=Kind.NONFINITE, seed=seed))
        assert 1 <= int(x.isnan().sum()) <= 2
        assert bool(x.isinf().any()) <= (count > 16)


# ---- captured inputs that have such values


def judged(function, x: Tensor, seed: int = 1) -> tolerance.Bound:
    """The bound of a function's one result on these inputs."""
    found = reference(lambda tensors: [function(tensors[0])], softmax_target(*x.shape).signature, [x], seed)
    return tolerance.bound(found.expected[0], found.eager[0], found.disturbed[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_nan_and_infinity_must_be_where_the_original_has_it(dtype):
    """A NaN for an infinity, one of the other sign, a number for either, or either for a number is wrong."""
    x = holed((0, 1, NAN), (5, 3, INF), (5, 4, -INF), (9, 9, NAN)).to(dtype)
    bound = judged(lambda x: x * 3, x)
    right = x * 3
    assert tolerance.passes(right, bound)
    for place in ((0, 1), (5, 3), (5, 4), (9, 9), (2, 2), (5, 5)):
        for value in (NAN, INF, -INF, 0.0):
            wrong = right.clone()
            wrong[place] = value
            same = torch.equal(wrong.nan_to_num(7, 8, 9), right.nan_to_num(7, 8, 9))
            assert tolerance.passes(wrong, bound) == same, (place, value)
            assert tolerance.compare(wrong, bound).special_differs == (
                not same and not math.isfinite(float(right[place]))
            )


def test_a_nan_does_not_hide_its_row():
    """Beside a NaN and an infinity the numbers are compared as strictly as without."""
    x = holed((5, 3, NAN), (6, 3, INF))
    holes, whole = judged(lambda x: x * 3, x), judged(lambda x: x * 3, X)
    assert bool((holes.atol <= 2 * whole.atol).all())
    for row in (5, 6, 7):
        wrong = x * 3
        wrong[row, 20] *= 1 + 1e-4
        assert not tolerance.passes(wrong, holes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_outlier_stays_finite_and_in_its_row(dtype):
    """The set with an outlier has no infinity, and the tolerance of the other rows does not grow with it."""
    signature = softmax_target(16, 32, str(dtype)[6:]).signature
    (x,) = generate([X.to(dtype) * 900], signature, InputSet(kind=Kind.OUTLIER, seed=6))
    assert bool(x.isfinite().all())
    row = int(x.abs().amax(-1).argmax())
    others = [n for n in range(16) if n != row]
    plain = x.clone()
    plain[row] = X[row].to(dtype)
    found, usual = judged(lambda x: x / 7, x), judged(lambda x: x / 7, plain)
    assert bool((found.atol[others] <= 3 * usual.atol[others]).all())
    wrong = x / 7
    wrong[others[0]] = 0
    marked = tolerance.compare(wrong, found).wrong
    assert marked.any(-1).nonzero().flatten().tolist() == [others[0]]
