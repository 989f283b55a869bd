"""Ratios of paired times with a bootstrap interval."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

RESAMPLES = 1000


def speedup(pairs: Sequence[tuple[float, float]], seed: int = 0) -> tuple[float, float, float]:
    """Median of second over first, with the ends of its 95% bootstrap interval.

    Pairs are times measured next to each other, so slow drift of the machine cancels within each.
    """
    if not pairs:
        raise ValueError("there are no samples")
    ratios = [b / a for a, b in pairs]
    mid = statistics.median(ratios)
    if len(ratios) == 1:
        return mid, 0.0, math.inf
    chooser = random.Random(seed)  # noqa: S311 - resampling, not secrets; seeded so that a report can be made again
    medians = sorted(statistics.median(chooser.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return mid, medians[int(0.025 * RESAMPLES)], medians[math.ceil(0.975 * RESAMPLES) - 1]
