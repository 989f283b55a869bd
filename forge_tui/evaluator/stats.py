"""From paired time samples to a verdict: pure arithmetic, no clock, no randomness.

The unit is a block of four samples in the order candidate, baseline, baseline, candidate or the other way round, so
that drift and position cancel. The interval is the percentile bootstrap of the median in closed form: the number of
draws at or below the k-th smallest of n values is binomial, so no resampling is needed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache

from forge_tui.core.records import Record, Verdict

CONFIDENCE = 0.95
#: a gain or loss below this is not called one, however tight the interval
MIN_GAIN = 0.005
#: relative width of the interval at which sampling stops; a close call must be tighter, since stopping at the first
#: interval that looks tight favours those that are so by chance
WIDTH = 0.02
CLOSE_WIDTH = 0.01
CLOSE = 0.05
MIN_BLOCKS = 6
#: clearly slower is clear enough early
EARLY_BLOCKS = 4
EARLY_RATIO = 0.8
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

    @property
    def width(self) -> float:
        """Relative width of the interval."""
        return (self.high - self.low) / self.ratio


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
    return Summary(
        candidate_us=statistics.median(p[0] for p in pairs), baseline_us=statistics.median(p[1] for p in pairs),
        ratio=middle, low=low, high=high, blocks=len(ratios),
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
    # later on one more block changes little, and looking costs time that samples could have
    if blocks < EARLY_BLOCKS or (blocks > 20 and blocks % 5):
        return False
    summary = summarise(pairs)
    if summary.high < EARLY_RATIO:
        return True
    if abs(summary.ratio - 1.0) < CLOSE:
        return blocks >= 2 * MIN_BLOCKS and summary.width <= CLOSE_WIDTH
    return blocks >= MIN_BLOCKS and summary.width <= WIDTH


def verdict(summary: Summary) -> Verdict:
    """Faster or slower only where the whole interval says so, and that is made of enough blocks."""
    if summary.blocks < EARLY_BLOCKS and summary.high >= EARLY_RATIO:
        return Verdict.INCONCLUSIVE
    if summary.low > 1.0 and summary.ratio >= 1.0 + MIN_GAIN:
        return Verdict.FASTER
    if summary.high < 1.0 and summary.ratio * (1.0 + MIN_GAIN) <= 1.0:
        return Verdict.SLOWER
    return Verdict.INCONCLUSIVE
