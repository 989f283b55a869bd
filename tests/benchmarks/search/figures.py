"""Figures of curves: values of the chosen kernel after 1, 2, ... calls, natural logarithms of speedups."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """The mean; nan of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def ratio(part: float, whole: float) -> float:
    """How many times as much; 1 where both are nothing."""
    return part / whole if whole else math.inf if part else 1.0


def regret(curve: Sequence[float], best: float) -> list[float]:
    """What is missing to the best known value after each call."""
    return [best - value for value in curve]


def share_of_best(value: float, start: float, best: float) -> float:
    """Part of the way from the start to the best known value; 0 below the start."""
    return max(0.0, (value - start) / (best - start)) if best > start else 1.0


def calls_to(curve: Sequence[float], start: float, best: float, share: float) -> int | None:
    """The first call after which that part of the way is covered; None where none does."""
    return next((i for i, value in enumerate(curve, 1) if share_of_best(value, start, best) >= share), None)


def median_censored(calls: Sequence[int | None]) -> int | None:
    """The lower median, where None lies beyond everything; None if the median does."""
    ordered = sorted(math.inf if c is None else c for c in calls)
    middle = ordered[(len(ordered) - 1) // 2]
    return None if middle == math.inf else int(middle)


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    """The mean over curves, call by call."""
    return [mean(column) for column in zip(*curves, strict=True)]


def catch_up(regrets: Sequence[float], level: float) -> int | None:
    """The first call at which a falling curve of mean regrets is at or below a level; None where none is."""
    return next((i for i, value in enumerate(regrets, 1) if value <= level), None)


def interval(values: Sequence[float], *, resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
    """Bootstrap 95% interval of the mean; for paired comparisons pass the differences."""
    rng = random.Random(seed)
    means = sorted(mean(rng.choices(values, k=len(values))) for _ in range(resamples))
    return means[round(0.025 * (resamples - 1))], means[round(0.975 * (resamples - 1))]
