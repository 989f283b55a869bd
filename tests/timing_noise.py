"""Made-up machines for the statistics of timing: what disturbs samples, as a sequence of factors on a call's time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from forge_tui.evaluator import stats

Noise = Callable[[random.Random], Iterator[float]]


def quiet(rng: random.Random) -> Iterator[float]:
    """Half a per cent of jitter, upwards."""
    while True:
        yield 1 + abs(rng.gauss(0, 0.005))


def drift(rng: random.Random) -> Iterator[float]:
    """The clock wanders by a per cent a sample, and warms up by a tenth."""
    level, count = 1.0, 0
    while True:
        level *= 1 + rng.gauss(0, 0.01)
        count += 1
        yield level * (1 + 0.1 * min(1.0, count / 100)) * (1 + abs(rng.gauss(0, 0.01)))


def bursts(rng: random.Random) -> Iterator[float]:
    """Now and then somebody else runs for a while: samples take up to four times as long."""
    while True:
        for _ in range(rng.randrange(5, 60)):
            yield 1 + abs(rng.gauss(0, 0.02))
        size = rng.uniform(1.2, 4)
        for _ in range(rng.randrange(1, 12)):
            yield size * (1 + abs(rng.gauss(0, 0.1)))


def bimodal(rng: random.Random) -> Iterator[float]:
    """Two clocks, a third apart, each kept for some forty samples."""
    slow = False
    while True:
        slow ^= rng.random() < 0.025
        yield (1.33 if slow else 1.0) * (1 + abs(rng.gauss(0, 0.01)))


def heavy_tails(rng: random.Random) -> Iterator[float]:
    """Pareto tails: most samples are near, some take many times as long."""
    while True:
        yield 1 + 0.02 * (rng.paretovariate(1.2) - 1)


def contended(rng: random.Random) -> Iterator[float]:
    """Every other sample shares its cores with somebody."""
    while True:
        yield rng.uniform(1.3, 2.5) if rng.random() < 0.4 else 1 + abs(rng.gauss(0, 0.05))


MACHINES: dict[str, Noise] = {f.__name__: f for f in (quiet, drift, bursts, bimodal, heavy_tails, contended)}


def sampled(rng: random.Random, noise: Noise, ratio: float = 1.0, most_blocks: int = 250) -> list[stats.Pair]:
    """Pairs as the timer takes them: blocks of four in turns, behind one that does not count, until it is enough."""
    factors = noise(rng)
    found: list[stats.Pair] = []
    while not stats.enough(found) and len(found) < 2 * most_blocks:
        next(factors)
        times: tuple[list[float], list[float]] = ([], [])
        for which in (0, 1, 1, 0) if len(found) % 4 == 0 else (1, 0, 0, 1):
            times[which].append((100.0 / ratio, 100.0)[which] * next(factors))
        found += zip(*times, strict=True)
    return found
