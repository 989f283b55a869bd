"""From paired time samples to a verdict: pure arithmetic, no clock, no randomness.

The unit is a block of four samples in the order candidate, baseline, baseline, candidate or the other way round, so
that drift and position cancel. The interval is the percentile bootstrap of the median in closed form: the number of
draws at or below the k-th smallest of n values is binomial, so no resampling is needed. That interval is shown and
says when to stop; a claim needs one that holds the median far more surely.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache

from forge_tui.core.records import Record, Verdict

CONFIDENCE = 0.95
#: a claim (`faster`, `slower`) needs more certainty than the interval that is shown: a search makes hundreds of
#: comparisons, and looks at each again and again while it samples
CLAIM = 0.9999
#: a gain or loss below this is not called one, however tight the interval
MIN_GAIN = 0.005
#: sampling ends when both ends of the interval are this near to the median ratio; a close call must be tighter, since
#: stopping at the first interval that looks tight favours those that are so by chance
WITHIN = 0.01
CLOSE_WITHIN = 0.005
CLOSE = 0.05
CLOSE_BLOCKS = 24
#: fewer cannot hold a claim: fifteen blocks one way come of equal sides once in 16384 times
MIN_BLOCKS = 15
#: the numbers of blocks at which to ask whether it is enough: every look is a chance to stop at what looks good
LOOKS = (6, 8, 10, 15, 24, 32, 44, 60, 80, 105, 140, 185, 250)
#: with every block this far from 1, fewer are enough
EARLY_BLOCKS = 6
FAR = 1.5
#: one block is enough to see that this much slower is hopeless
HOPELESS = 2.5
#: two samples of one side of a block that differ by more were interrupted: only the shorter one counts
INTERRUPTED = 1.3

Pair = tuple[float, float]


class Summary(Record, frozen=True, kw_only=True):
    """What the samples say. `ratio` is baseline over candidate: above 1 the candidate is faster."""

    candidate_us: float
    baseline_us: float
    ratio: float
    low: float
    high: float
    blocks: int
    least: float
    """Smallest ratio of a block."""
    most: float
    sure_low: float = 0.0
    """Ends of the wider interval that a claim needs; with too few blocks it holds everything."""
    sure_high: float = math.inf

    @property
    def width(self) -> float:
        """Relative width of the interval."""
        return (self.high - self.low) / self.ratio

    @property
    def reach(self) -> float:
        """How far the farther end of the interval is from the median ratio, relative to it."""
        return max(self.high / self.ratio - 1.0, 1.0 - self.low / self.ratio)


def block_ratio(first: Pair, second: Pair) -> float:
    """Baseline over candidate of one block; each pair is (candidate, baseline) in microseconds."""
    return _side(first[1], second[1]) / _side(first[0], second[0])


def _side(one: float, other: float) -> float:
    """The mean of two samples; the shorter one where something else ran during the longer one."""
    low, high = min(one, other), max(one, other)
    return low if high > INTERRUPTED * low else (low + high) / 2


def summarise(pairs: Sequence[Pair]) -> Summary:
    """Medians, ratio and interval of pairs, two to a block.

    Raises:
        ValueError: there is no whole block.
    """
    ratios = [block_ratio(pairs[i], pairs[i + 1]) for i in range(0, len(pairs) - 1, 2)]
    low, middle, high = median_interval(ratios)
    if len(ratios) < MIN_BLOCKS:
        # the bootstrap of a few values is too narrow
        low, high = min(ratios), max(ratios)
    sure_low, sure_high = exact_interval(ratios)
    return Summary(
        candidate_us=statistics.median(p[0] for p in pairs), baseline_us=statistics.median(p[1] for p in pairs),
        ratio=middle, low=low, high=high, blocks=len(ratios), least=min(ratios), most=max(ratios), sure_low=sure_low,
        sure_high=sure_high,
    )  # fmt: skip


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Lower end, median and upper end of the bootstrap interval of the median.

    For an even count the lower end is that of the lower median and the upper end that of the upper one, which errs to
    the wide side.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    n = len(ordered)
    tail = (1 - confidence) / 2
    low = _quantile(n, (n + 1) // 2, tail)
    high = _quantile(n, n // 2 + 1, 1 - tail)
    return ordered[low - 1], statistics.median(ordered), ordered[high - 1]


def exact_interval(values: Sequence[float], confidence: float = CLAIM) -> tuple[float, float]:
    """Order statistics that hold the median so surely whatever the distribution; 0 and infinity for too few values."""
    ordered = sorted(values)
    rank = _outer_rank(len(ordered), (1 - confidence) / 2)
    return (ordered[rank - 1], ordered[-rank]) if rank else (0.0, math.inf)


@cache
def _outer_rank(n: int, tail: float) -> int:
    """Largest k for which fewer than k of n fair coins fall heads with at most this probability; 0 for none."""
    rank = 0
    while rank < n // 2 and 1.0 - _at_least(n, 0.5, rank + 1) <= tail:
        rank += 1
    return rank


@cache
def _quantile(n: int, rank: int, probability: float) -> int:
    """Smallest k for which the rank-th smallest of n draws from n values is at or below the k-th so probably."""
    low, high = 1, n
    while low < high:
        middle = (low + high) // 2
        if _at_least(n, middle / n, rank) >= probability:
            high = middle
        else:
            low = middle + 1
    return low


def _at_least(n: int, p: float, count: int) -> float:
    """P(Binomial(n, p) >= count)."""
    if p >= 1.0:
        return 1.0
    logs = (
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
        for k in range(count, n + 1)
    )
    return min(1.0, math.fsum(math.exp(value) for value in logs))


def enough(pairs: Sequence[Pair]) -> bool:
    """Whether more samples would change nothing that matters."""
    blocks = len(pairs) // 2
    if blocks not in LOOKS:
        return False
    summary = summarise(pairs)
    if summary.most * FAR < 1.0:
        return True
    if blocks < MIN_BLOCKS:
        return False
    if not summary.low <= 1.0 <= summary.high and verdict(summary) is Verdict.INCONCLUSIVE:
        # a difference shows, and is not sure yet
        return abs(summary.ratio - 1.0) < MIN_GAIN and summary.reach <= CLOSE_WITHIN / 2
    if abs(summary.ratio - 1.0) < CLOSE:
        return blocks >= CLOSE_BLOCKS and summary.reach <= CLOSE_WITHIN
    return summary.reach <= WITHIN


def verdict(summary: Summary) -> Verdict:
    """Faster or slower only where the wider interval says so and the difference matters, or every block does."""
    if summary.most * (FAR if summary.blocks >= EARLY_BLOCKS else HOPELESS) < 1.0:
        return Verdict.SLOWER
    if summary.least > FAR and summary.blocks >= EARLY_BLOCKS:
        return Verdict.FASTER
    if summary.sure_low > 1.0 and summary.ratio >= 1.0 + MIN_GAIN:
        return Verdict.FASTER
    if summary.sure_high < 1.0 and summary.ratio * (1.0 + MIN_GAIN) <= 1.0:
        return Verdict.SLOWER
    return Verdict.INCONCLUSIVE
