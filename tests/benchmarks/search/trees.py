"""Two published tree searches: AB-MCTS-A (TreeQuest) and the UCT of a published kernel optimiser."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from itertools import pairwise

from .session import Kernel, Session


@dataclass(slots=True)
class _Scores:
    """Scores with a normal-inverse-gamma prior: mean 0 and variance `tau2`, each worth one observation."""

    tau2: float
    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, score: float) -> None:
        self.count += 1
        self.total += score
        self.squares += score * score

    def draw(self, rng: random.Random) -> float:
        """One draw of the next score."""
        n = self.count
        mean = self.total / n if n else 0.0
        kappa = nu = 1.0 + n
        scatter = max(0.0, self.squares - n * mean * mean)
        spread = self.tau2 + scatter + n / kappa * mean * mean
        variance = spread / rng.gammavariate(nu / 2, 2.0)
        return rng.gauss(n * mean / kappa, math.sqrt(variance * (1 + 1 / kappa)))


@dataclass(eq=False, slots=True)
class _Arm:
    """A kernel (None: the empty prompt) with what is known of widening, of deepening, and of itself."""

    kernel: Kernel | None
    widen: _Scores
    deepen: _Scores
    own: _Scores
    children: list[_Arm] = field(default_factory=list)


def ab_mcts_a(
    session: Session, *, low: float = -1.0, high: float = 1.5, tau2: float = 0.1, repairs: int = 2
) -> None:
    """Thompson sampling between a new child here and going deeper; values are mapped from [low, high] to [0, 1].

    Means are backed up; failures score 0 and are never gone down to.
    """
    rng = random.Random(f"ab-mcts {session.space.name} {session.seed}")

    def arm(kernel: Kernel | None) -> _Arm:
        return _Arm(kernel, _Scores(tau2), _Scores(tau2), _Scores(tau2))

    root = arm(None)
    while True:
        path = [root]
        while path[-1].children and path[-1].deepen.draw(rng) > path[-1].widen.draw(rng):
            path.append(max(path[-1].children, key=lambda child: child.own.draw(rng)))
        made = session.attempt(path[-1].kernel, repairs)
        score = 0.0 if made.value is None else min(1.0, max(0.0, (made.value - low) / (high - low)))
        path[-1].widen.add(score)
        for above, below in pairwise(path):
            above.deepen.add(score)
            below.own.add(score)
        if made.value is not None:
            child = arm(made)
            child.own.add(score)
            path[-1].children.append(child)


@dataclass(eq=False, slots=True)
class _Visited:
    """A node of the published search; `cost` and `best` are to be made small."""

    kernel: Kernel
    parent: _Visited | None
    cost: float
    best: float
    visits: int = 1
    right: list[_Visited] = field(default_factory=list)
    born: int = 0
    """Children, failed ones included: they use up widening slots, too."""


def published_uct(
    session: Session, *, time_ms: float = 0.05, log: bool = False, c: float = 1.0, wide: float = 0.5,
    narrow: float = 0.3, anneal: int = 1000, stagnation: int = 10, repairs: int = 3, updates: int = 2,
) -> None:  # fmt: skip
    """The score is the best time below in milliseconds minus c sqrt(ln N / n), to be made small.

    A node may get another child while it has at most visits**e of them, e falling from `wide` to `narrow` over
    `anneal` visits of the root. A child of at least `stagnation` visits that nothing below it beat is skipped. The
    visits are updated twice a step. `time_ms` is the reference's time; with `log` the cost is the logarithm of time.
    """

    def cost(kernel: Kernel) -> float:
        assert kernel.value is not None
        return -kernel.value if log else time_ms * math.exp(-kernel.value)

    first = session.attempt(None, repairs)
    while first.value is None:
        first = session.attempt(None, repairs)
    root = _Visited(first, None, cost(first), cost(first))
    while True:
        exponent = wide + (narrow - wide) * min(1.0, root.visits / anneal)
        here = root
        while here.born > math.floor(here.visits**exponent):
            open_children = [k for k in here.right if k.visits < stagnation or k.best < k.cost]
            if not open_children:
                break
            bonus = math.log(here.visits)
            here = min(open_children, key=lambda k: k.best - c * math.sqrt(bonus / k.visits))
        made = session.attempt(here.kernel, repairs)
        here.born += 1
        if made.value is not None:
            here.right.append(_Visited(made, here, cost(made), cost(made)))
        above: _Visited | None = here
        while above is not None:
            above.visits += updates
            if made.value is not None:
                above.best = min(above.best, cost(made))
            above = above.parent
