"""The interval of the median and the verdict on speed hold what they promise."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tui.core.records import Verdict
from forge_tui.evaluator import stats

positive = st.floats(min_value=1e-3, max_value=1e6, allow_nan=False)
values = st.lists(positive, min_size=1, max_size=60)
pairs = st.lists(st.tuples(positive, positive), min_size=2, max_size=60).map(lambda p: p[: len(p) // 2 * 2])


@given(values)
def test_the_interval_holds_the_median(numbers):
    """Its ends are values that were measured, with the median between them."""
    low, middle, high = stats.median_interval(numbers)
    assert low in numbers
    assert high in numbers
    assert low <= middle <= high
    assert middle == statistics.median(numbers)


@given(values)
def test_order_of_the_values_does_not_matter(numbers):
    """The interval is a function of the set of values."""
    assert stats.median_interval(numbers) == stats.median_interval(sorted(numbers, reverse=True))


@given(values, st.floats(min_value=0.5, max_value=0.98), st.floats(min_value=0.001, max_value=0.019))
def test_more_confidence_is_never_narrower(numbers, confidence, more):
    """A higher confidence gives an interval that holds the other."""
    low, _, high = stats.median_interval(numbers, confidence)
    wider_low, _, wider_high = stats.median_interval(numbers, confidence + more)
    assert wider_low <= low
    assert high <= wider_high


@given(pairs)
def test_swapping_the_sides_turns_the_ratio_round(samples):
    """What is faster the one way is slower the other."""
    one = stats.summarise(samples)
    other = stats.summarise([(b, a) for a, b in samples])
    assert other.candidate_us == one.baseline_us
    if one.blocks % 2:
        assert other.ratio == pytest.approx(1 / one.ratio)
        assert other.low == pytest.approx(1 / one.high)
        assert other.high == pytest.approx(1 / one.low)
    if stats.verdict(one) is Verdict.FASTER:
        assert stats.verdict(other) is not Verdict.FASTER


@given(pairs, st.floats(min_value=0.01, max_value=100))
def test_the_unit_of_time_does_not_matter(samples, factor):
    """Scaling every time leaves ratio and interval."""
    one = stats.summarise(samples)
    other = stats.summarise([(a * factor, b * factor) for a, b in samples])
    assert (other.ratio, other.low, other.high) == pytest.approx((one.ratio, one.low, one.high))


def test_closed_form_agrees_with_resampling():
    """The interval is that of a bootstrap with very many resamples."""
    rng = random.Random(4)
    numbers = [rng.lognormvariate(0, 0.2) for _ in range(21)]
    medians = sorted(statistics.median(rng.choices(numbers, k=21)) for _ in range(20000))
    low, _, high = stats.median_interval(numbers)
    ordered = sorted(numbers)
    # resampling has an error of its own, of one rank at most with so many resamples
    assert abs(ordered.index(low) - ordered.index(medians[500])) <= 1
    assert abs(ordered.index(high) - ordered.index(medians[19500])) <= 1


def test_coverage_is_near_the_confidence():
    """Of many experiments about 95% have the true median in their interval."""
    rng = random.Random(5)
    hits = 0
    for _ in range(2000):
        low, _, high = stats.median_interval([rng.gauss(1.0, 0.05) for _ in range(25)])
        hits += low <= 1.0 <= high
    assert 0.93 <= hits / 2000 <= 0.985


def sampled(rng: random.Random, ratio: float, noise: float, outliers: float = 0.0) -> list[stats.Pair]:
    """Pairs as a noisy machine gives them, until it is enough: drift, jitter, interruptions."""
    found: list[stats.Pair] = []
    drift = 1.0
    while not stats.enough(found) and len(found) < 300:
        for _ in range(2):
            drift *= 1 + rng.gauss(0, 0.01)
            times = [100.0 * drift / speed * (1 + abs(rng.gauss(0, noise))) for speed in (ratio, 1.0)]
            found.append(tuple(t * (rng.uniform(2, 20) if rng.random() < outliers else 1) for t in times))
    return found


@pytest.mark.parametrize(("noise", "outliers"), [(0.01, 0.0), (0.05, 0.02), (0.15, 0.05)])
def test_equal_sides_are_rarely_told_apart(noise, outliers):
    """A candidate as fast as the original is called faster or slower in few of many tries."""
    rng = random.Random(6)
    verdicts = [stats.verdict(stats.summarise(sampled(rng, 1.0, noise, outliers))) for _ in range(300)]
    assert sum(v is Verdict.FASTER for v in verdicts) / 300 <= 0.05
    assert sum(v is Verdict.SLOWER for v in verdicts) / 300 <= 0.05


@pytest.mark.parametrize(("ratio", "expected"), [(1.15, Verdict.FASTER), (0.87, Verdict.SLOWER), (3.0, Verdict.FASTER)])
def test_a_true_difference_is_found(ratio, expected):
    """Fifteen per cent are seen through 5% of noise and interruptions, nearly always."""
    rng = random.Random(7)
    verdicts = [stats.verdict(stats.summarise(sampled(rng, ratio, 0.05, 0.02))) for _ in range(100)]
    assert sum(v is expected for v in verdicts) >= 97


def test_clearly_slower_ends_early():
    """Four blocks are enough for a candidate at half the speed, and not for one that is close."""
    assert stats.enough([(200.0, 100.0)] * 8)
    assert not stats.enough([(200.0, 100.0)] * 6)
    assert not stats.enough([(101.0, 100.0)] * 8)
    assert stats.enough([(110.0, 100.0)] * 12)
    assert not stats.enough([(101.0, 100.0)] * 22)
    assert stats.enough([(101.0, 100.0)] * 24)


def test_a_gain_too_small_to_matter_is_none():
    """0.3% is no gain, however tight the interval; 1% is one."""
    assert stats.verdict(stats.summarise([(100.0, 100.3)] * 40)) is Verdict.INCONCLUSIVE
    assert stats.verdict(stats.summarise([(100.0, 99.7)] * 40)) is Verdict.INCONCLUSIVE
    assert stats.verdict(stats.summarise([(100.0, 101.0)] * 40)) is Verdict.FASTER
    assert stats.verdict(stats.summarise([(100.0, 99.0)] * 40)) is Verdict.SLOWER


def test_too_few_blocks_say_nothing_good():
    """One block cannot make a winner, but a hopeless one is seen."""
    assert stats.verdict(stats.summarise([(100.0, 300.0)] * 2)) is Verdict.INCONCLUSIVE
    assert stats.verdict(stats.summarise([(300.0, 100.0)] * 2)) is Verdict.SLOWER


def test_an_interrupted_sample_does_not_count():
    """One sample of a side that took ten times as long is left out; a small difference is averaged."""
    assert stats.block_ratio((100.0, 200.0), (1000.0, 200.0)) == 2.0
    assert stats.block_ratio((100.0, 5000.0), (100.0, 200.0)) == 2.0
    assert stats.block_ratio((100.0, 190.0), (100.0, 210.0)) == 2.0


def test_nothing_measured_is_an_error():
    """There is no median of nothing."""
    with pytest.raises(ValueError, match="no values"):
        stats.summarise([(1.0, 1.0)])
