"""The interval of the median and the verdict on speed hold what they promise."""

from __future__ import annotations

import random
import statistics

import pytest
import timing_noise
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


@pytest.mark.parametrize("machine", timing_noise.MACHINES)
def test_a_kernel_against_itself(machine):
    """However a machine drifts, bursts, switches clocks or is shared, the interval holds 1 and nothing is claimed."""
    rng = random.Random(f"A/A on {machine}")
    tries = 700
    found = [stats.summarise(timing_noise.sampled(rng, timing_noise.MACHINES[machine])) for _ in range(tries)]
    assert sum(one.low <= 1.0 <= one.high for one in found) >= 0.92 * tries
    assert [one for one in found if stats.verdict(one) is not Verdict.INCONCLUSIVE] == []


@pytest.mark.parametrize("most_blocks", [1, 3, 6, 9, 15])
def test_nothing_is_claimed_where_the_time_was_short(most_blocks):
    """A limit that ends sampling early makes intervals wide, not verdicts wrong."""
    rng = random.Random(f"short {most_blocks}")
    for machine in timing_noise.MACHINES.values():
        found = [stats.summarise(timing_noise.sampled(rng, machine, most_blocks=most_blocks)) for _ in range(300)]
        assert sum(stats.verdict(one) is not Verdict.INCONCLUSIVE for one in found) <= (3 if most_blocks < 6 else 0)
        if most_blocks >= 6:
            assert sum(one.low <= 1.0 <= one.high for one in found) >= 270


@pytest.mark.parametrize("machine", timing_noise.MACHINES)
def test_a_small_difference_is_found_where_the_machine_allows(machine):
    """Three per cent either way are told through everything; the interval holds the truth."""
    rng = random.Random(f"3% on {machine}")
    for ratio, expected in ((1.03, Verdict.FASTER), (1 / 1.03, Verdict.SLOWER)):
        found = [stats.summarise(timing_noise.sampled(rng, timing_noise.MACHINES[machine], ratio)) for _ in range(100)]
        verdicts = [stats.verdict(one) for one in found]
        assert sum(v is expected for v in verdicts) >= (90 if machine == "contended" else 97)
        assert set(verdicts) <= {expected, Verdict.INCONCLUSIVE}
        assert sum(one.low <= ratio <= one.high for one in found) >= 88


@pytest.mark.parametrize(("ratio", "expected"), [(1.15, Verdict.FASTER), (0.87, Verdict.SLOWER), (3.0, Verdict.FASTER)])
def test_a_true_difference_is_found(ratio, expected):
    """Fifteen per cent are seen through interruptions, nearly always."""
    rng = random.Random(7)
    machine = timing_noise.bursts
    verdicts = [stats.verdict(stats.summarise(timing_noise.sampled(rng, machine, ratio))) for _ in range(100)]
    assert sum(v is expected for v in verdicts) >= 97


def test_clearly_slower_ends_early():
    """Six blocks are enough for a candidate at half the speed, and not for one that is close."""
    assert stats.enough([(200.0, 100.0)] * 12)
    assert not stats.enough([(200.0, 100.0)] * 10)
    assert not stats.enough([(110.0, 100.0)] * 12)
    assert stats.enough([(110.0, 100.0)] * 30)
    assert not stats.enough([(101.0, 100.0)] * 30)
    assert stats.enough([(101.0, 100.0)] * 48)


def test_a_wide_interval_is_not_enough():
    """Sampling ends where both ends are within 1% of the ratio, 0.5% where the call is close."""
    for ratio, reach, wanted in ((1.2, 0.008, True), (1.2, 0.012, False), (1.0, 0.004, True), (1.0, 0.006, False)):
        pairs = [(100.0, 100.0 * ratio * (1 + sign * reach)) for sign in (-1, 1) * 12 for _ in range(2)]
        assert stats.summarise(pairs).reach == pytest.approx(reach, rel=1e-3)
        assert stats.enough(pairs) is wanted


def test_a_claim_needs_fifteen_blocks_one_way_or_a_great_difference():
    """Fourteen blocks at 1.2 say nothing yet; six above 1.5 do."""
    assert stats.exact_interval([1.0] * 14) == (0.0, float("inf"))
    assert stats.exact_interval([float(i) for i in range(15)]) == (0.0, 14.0)
    assert stats.verdict(stats.summarise([(100.0, 120.0)] * 28)) is Verdict.INCONCLUSIVE
    assert stats.verdict(stats.summarise([(100.0, 120.0)] * 30)) is Verdict.FASTER
    assert stats.verdict(stats.summarise([(100.0, 151.0)] * 12)) is Verdict.FASTER
    assert stats.verdict(stats.summarise([(151.0, 100.0)] * 12)) is Verdict.SLOWER


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
