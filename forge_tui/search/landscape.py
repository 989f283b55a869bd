"""A made-up space of kernels with the shape of real ones: families, techniques that need one another, settings.

It ranks policies; it predicts no speedup.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal

from forge_tui.core.records import Verdict

Kind = Literal["elementwise", "reduction", "pooling", "vendor", "fused"]

FAMILIES, FAMILY_ODDS = 4, (0.50, 0.27, 0.16, 0.07)
TECHNIQUES, KNOBS, LEVELS = 12, 3, 5
BREAKS = (Verdict.COMPILE_ERROR, Verdict.REJECTED, Verdict.CRASHED, Verdict.TIMED_OUT)
BREAK_ODDS = (45, 33, 14, 8)
REPAIR_ODDS = {Verdict.COMPILE_ERROR: 0.72, Verdict.REJECTED: 0.50, Verdict.CRASHED: 0.45, Verdict.TIMED_OUT: 0.30}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a class of operators has in common."""

    ceiling: tuple[float, float]
    start: float
    spread: float
    failure: float


SHAPES: dict[Kind, Shape] = {
    "elementwise": Shape((0.15, 0.30), -0.10, 0.10, 0.30),
    "reduction": Shape((0.7, 1.1), -0.35, 0.28, 0.38),
    "pooling": Shape((0.4, 0.9), -0.25, 0.22, 0.36),
    "vendor": Shape((0.9, 1.6), -2.0, 0.35, 0.45),
    "fused": Shape((1.0, 1.8), 0.0, 0.30, 0.42),
}


@dataclass(frozen=True, slots=True)
class Design:
    """A kernel: its family, the techniques it uses, its settings, and how well it was written."""

    family: int
    techniques: frozenset[int] = frozenset()
    knobs: tuple[int, ...] = (2,) * KNOBS
    quality: float = 0.0


class Landscape:
    """The true value of every design for one operator."""

    def __init__(self, seed: int, kind: Kind = "reduction") -> None:
        rng = random.Random(f"landscape {kind} {seed}")  # noqa: S311 - a simulation
        shape = SHAPES[kind]
        self.failure = shape.failure
        self.spread = shape.spread
        self._room = rng.uniform(*shape.ceiling)
        self._start = shape.start + rng.uniform(-0.12, 0.12)
        self._offset = [rng.gauss(0, 0.22) for _ in range(FAMILIES)]
        self._gain = [[self._draw_gain(rng) for _ in range(TECHNIQUES)] for _ in range(FAMILIES)]
        self._gate = [
            [rng.randrange(TECHNIQUES) if rng.random() < 0.2 else None for _ in range(TECHNIQUES)]
            for _ in range(FAMILIES)
        ]
        self._pair = {
            (family, i, j): rng.gauss(0, 0.5 * self.spread)
            for family in range(FAMILIES) for i in range(TECHNIQUES) for j in range(i)
            if rng.random() < 0.13
        }  # fmt: skip
        self._optimum = [
            [[rng.randrange(LEVELS) for _ in range(KNOBS)] for _ in range(3)] for _ in range(FAMILIES)
        ]
        self._difficulty = [
            [min(0.75, max(0.0, rng.gauss(0.05, 0.10) + 1.1 * max(0.0, gain))) for gain in gains]
            for gains in self._gain
        ]

    def _draw_gain(self, rng: random.Random) -> float:
        which = rng.random()
        if which < 0.4:
            return abs(rng.gauss(0, self.spread))
        if which < 0.7:
            return rng.gauss(0, 0.012)
        return -abs(rng.gauss(0, 0.7 * self.spread))

    @property
    def start(self) -> float:
        """Value of a plain kernel of a family without offset, settings at their best."""
        return self._start

    @property
    def ceiling(self) -> float:
        """No design is worth more."""
        return self._start + self._room

    def value(self, design: Design) -> float:
        """ln(speedup) without noise."""
        family, used = design.family, design.techniques
        total = self._offset[family] + design.quality
        for i in sorted(used):
            gain, gate = self._gain[family][i], self._gate[family][i]
            total += gain if gate is None or gate == i or gate in used else -0.4 * abs(gain)
            total += math.fsum(self._pair.get((family, i, j), 0.0) for j in used if j < i)
        optimum = self._optimum[family][len(used) % 3]
        total -= 0.02 * sum((a - b) ** 2 for a, b in zip(design.knobs, optimum, strict=True))
        if total <= 0:
            return self._start + total
        return self._start + self._room * (1 - math.exp(-total / self._room))

    def risk(self, design: Design, changed: frozenset[int], *, draft: bool) -> float:
        """Chance that writing this change goes wrong."""
        if draft:
            return self.failure + 0.18
        return self.failure - 0.08 + sum(self._difficulty[design.family][i] + 0.03 for i in changed)

    def promise(self, design: Design, technique: int) -> float:
        """True one-step gain of switching a technique."""
        switched = Design(design.family, design.techniques ^ {technique}, design.knobs, design.quality)
        return self.value(switched) - self.value(design)

    def best_known(self, starts: int = 8) -> float:
        """The best of several hill climbs over the true values."""
        rng = random.Random("climbs")  # noqa: S311 - a simulation
        best = -math.inf
        for start in range(starts):
            family = start % FAMILIES
            used = frozenset(i for i in range(TECHNIQUES) if rng.random() < 0.4)
            here = Design(family, used, tuple(rng.randrange(LEVELS) for _ in range(KNOBS)))
            while True:
                near = [Design(family, here.techniques ^ {i}, here.knobs) for i in range(TECHNIQUES)]
                near += [
                    Design(family, here.techniques, (*here.knobs[:k], level, *here.knobs[k + 1 :]))
                    for k in range(KNOBS) for level in range(LEVELS)
                ]  # fmt: skip
                step = max(near, key=self.value)
                if self.value(step) <= self.value(here) + 1e-12:
                    break
                here = step
            best = max(best, self.value(here))
        return best
