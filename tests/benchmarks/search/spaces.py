"""What the benchmark searches: any space with the protocol `Space`; here the generated ones.

A recorded landscape takes part by offering the same six names; nothing else in the benchmark knows what is behind.
"""

from __future__ import annotations

import math
import random
from functools import cached_property
from typing import Protocol

import msgspec

from forge_tui.core.ports import Task
from forge_tui.core.records import Evaluation, Node, Proposal, Target
from forge_tui.search import simulate
from forge_tui.search.landscape import Design, Kind, Landscape

KINDS: tuple[Kind, ...] = ("elementwise", "reduction", "pooling", "vendor", "fused")


class Author(Protocol):
    """Who writes kernels: a function of the task and its seed."""

    name: str

    def write(self, task: Task) -> Proposal:
        """One reply."""


class Judge(Protocol):
    """Verdicts and noisy times of one run; it remembers what it saw, to find duplicates."""

    def judge(self, node: Node, baseline_us: float) -> Evaluation:
        """The verdict on a node."""


class Space(Protocol):
    """One operator. Values are natural logarithms of speedups over the reference."""

    name: str
    target: Target
    start: float
    """Value of a plain first kernel; what counts while there is none."""
    best_known: float

    def author(self) -> Author:
        """A fresh proposer."""

    def judge(self) -> Judge:
        """A fresh evaluator."""

    def truth(self, node: Node) -> float:
        """Value of a right node without noise."""


class _Remembered(Landscape):
    """A landscape that computes each value once; policies of one pair ask for the same ones."""

    def __init__(self, seed: int, kind: Kind) -> None:
        super().__init__(seed, kind)
        self._known: dict[object, float] = {}

    def weaken_library(self, start: float, ceiling: float) -> None:
        """Let plain kernels start nearer to the library, and the best ones reach so far."""
        self._start, self._room = start, ceiling - start

    def value(self, design: Design) -> float:
        """See `Landscape.value`."""
        found = self._known.get(design)
        if found is None:
            found = self._known[design] = super().value(design)
        return found


class Generated:
    """A made-up operator: `kind` and `seed` say which."""

    def __init__(
        self, kind: Kind, seed: int, *, noise: float = 0.015, share: float = 0.3, slack: float = 0.0,
        beatable: float = 0.0,
    ) -> None:  # fmt: skip
        """A made-up operator.

        `slack` lowers the floor that the search is told; `beatable` is the part of vendors' operators whose library
        is weak: a plain kernel starts at 0.6 of its speed, and good ones beat it.
        """
        self.kind, self.noise = kind, noise
        self.name = f"{kind}-{seed}"
        self.land = _Remembered(seed, kind)
        rng = random.Random(f"floor {self.name}")
        # the floor that a roofline names lies some way below what kernels reach; a vendor's library is near its own
        above = rng.uniform(0.0, 0.3)
        if kind == "vendor" and rng.random() < beatable:
            self.land.weaken_library(-0.5, 0.2 + above)
        self.start = self.land.start
        floor_us = 100 * math.exp(-max(self.land.ceiling, 0.0) - above - slack)
        target = simulate.target(self.name, floor_us=floor_us, share=share)
        self.target = msgspec.structs.replace(target, bound="compute" if kind == "vendor" else "memory")

    @cached_property
    def best_known(self) -> float:
        """From hill climbs over the true values."""
        return self.land.best_known()

    def author(self) -> Author:
        """See `Space`."""
        return simulate.SimulatedProposer({self.name: self.land})

    def judge(self) -> Judge:
        """See `Space`."""
        return simulate.SimulatedEvaluator({self.name: self.land}, noise=self.noise)

    def truth(self, node: Node) -> float:
        """See `Space`."""
        return self.land.value(simulate.read(node.source, node.tunables)[0])


#: reports begin above it: the odd seeds below were looked at while the search was built
FRESH = 1_000_000


def generated(pairs: int, *, odd: bool) -> list[tuple[Kind, int]]:
    """So many landscape-seed pairs, kinds in turn; even seeds are for tuning, odd ones from 1,000,001 for reports."""
    first = FRESH + 1 if odd else 0
    return [(KINDS[i % len(KINDS)], first + 2 * (i // len(KINDS))) for i in range(pairs)]
