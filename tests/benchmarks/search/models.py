"""Whole models of eight operators each: who gets the calls, and when to stop.

The shares of three profiles follow published shares of operators (ResNet-50, Stable Diffusion 3.5, Gemma); the fourth
is a model with much to fuse. Vendors' operators are never beatable unless a run says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from forge_tui.core.records import Evaluation, Node

from .ours import ENDLESS, UNSWEPT, Running
from .session import Recorder
from .spaces import Generated, Kind

PROFILES: dict[str, tuple[tuple[Kind, float], ...]] = {
    "convolutional": (("vendor", 0.40), ("elementwise", 0.137), ("vendor", 0.13), ("elementwise", 0.119),
                      ("reduction", 0.10), ("vendor", 0.04), ("pooling", 0.016), ("pooling", 0.01)),
    "diffusion": (("vendor", 0.40), ("vendor", 0.27), ("vendor", 0.13), ("reduction", 0.057), ("reduction", 0.048),
                  ("fused", 0.02), ("elementwise", 0.03), ("elementwise", 0.02)),
    "language": (("vendor", 0.70), ("vendor", 0.15), ("reduction", 0.06), ("reduction", 0.02), ("fused", 0.015),
                 ("fused", 0.01), ("elementwise", 0.01), ("pooling", 0.005)),
    "much to fuse": (("fused", 0.22), ("fused", 0.16), ("vendor", 0.15), ("reduction", 0.14), ("pooling", 0.10),
                     ("reduction", 0.08), ("elementwise", 0.08), ("elementwise", 0.04)),
}  # fmt: skip
BUDGETS = (20, 40, 80, 150)
#: what the stop rule is compared with
FULL = 240
FULL_RUN, STOPPED = "this search to the end, no stop rule", "this search with its stop rule"
#: part of the vendors' operators whose library is weak, in the stress rows
BEATABLE = 0.25

#: calls so far per operator, share of each, history of the deployed and of the own time per operator -> which is next
Rule = Callable[["Progress"], int]


@dataclass(slots=True)
class Progress:
    """What an allocation rule may look at: nothing but shares and results."""

    shares: list[float]
    calls: list[int]
    own: list[list[float | None]]
    """Per operator, per call: time of the best own kernel over the reference's; None while there is none."""
    budget: int = 0


def equal(now: Progress) -> int:
    """The operator with the fewest calls, in order of share."""
    return min(range(len(now.shares)), key=lambda i: (now.calls[i], -now.shares[i]))


def by_time(now: Progress) -> int:
    """Calls in proportion to the share of time."""
    return min(range(len(now.shares)), key=lambda i: ((now.calls[i] + 1) / now.shares[i], i))


def fifty_each(now: Progress) -> int:
    """Fifty calls each, the largest share first."""
    order = sorted(range(len(now.shares)), key=lambda i: -now.shares[i])
    return next((i for i in order if now.calls[i] < 50), order[0])


def gradient(alpha: float = 0.2, window: int = 3, *, deployed: bool = False) -> Rule:
    """Ansor's rule: share of time times a mix of the latest gain per call and of time over calls.

    Its published form looks at the own kernel's time; `deployed` at the time that the model would have.
    """

    def time_of(value: float | None) -> float:
        return 1.0 if value is None else min(1.0, value) if deployed else value

    def rule(now: Progress) -> int:
        fresh = [i for i, calls in enumerate(now.calls) if not calls]
        if fresh:
            return max(fresh, key=lambda i: now.shares[i])

        def worth(i: int) -> float:
            line = now.own[i]
            last, before = time_of(line[-1]), time_of(line[max(0, len(line) - 1 - window)])
            backward = max(0.0, before - last) / window
            return now.shares[i] * (alpha * backward + (1 - alpha) * last / now.calls[i])

        return max(range(len(now.shares)), key=lambda i: (worth(i), -i))

    return rule


def _model(profile: str, seed: int, *, beatable: bool, slack: float) -> tuple[list[Generated], list[float]]:
    parts = PROFILES[profile]
    spaces = [
        Generated(kind, 100_000 + 16 * seed + 2 * j + seed % 2, share=share, slack=slack,
                  beatable=BEATABLE if beatable else 0.0)
        for j, (kind, share) in enumerate(parts)
    ]  # fmt: skip
    return spaces, [share for _, share in parts]


@dataclass(slots=True)
class Gains:
    """Share of the model's time that is saved, after each call."""

    after: list[float] = field(default_factory=list)

    def at(self, calls: int) -> float:
        """After so many calls, or at the end of a run that stopped before."""
        return self.after[min(calls, len(self.after)) - 1] if self.after else 0.0


def _saved(shares: Sequence[float], recorders: Sequence[Recorder]) -> float:
    return math.fsum(share * (1 - math.exp(-max(0.0, r.now))) for share, r in zip(shares, recorders, strict=True))


def ours(
    profile: str, seed: int, calls: int, changes: Mapping[str, float], *, beatable: bool = False, slack: float = 0.0
) -> Gains:
    """The real search over all operators of a model; shorter where it stops by itself."""
    spaces, shares = _model(profile, seed, beatable=beatable, slack=slack)
    recorders = [Recorder(space) for space in spaces]
    place = {space.target.id: i for i, space in enumerate(spaces)}
    running, gains = Running(spaces, seed, {"max_evaluations": 10**9, **changes}), Gains()

    def see(node: Node, evaluation: Evaluation) -> None:
        recorders[place[node.target_id]].see(node, evaluation, call=True)

    while len(gains.after) < calls and running.advance(1, see):
        gains.after.append(_saved(shares, recorders))
    running.advance(0, see)
    if gains.after:
        gains.after[-1] = _saved(shares, recorders)
    return gains


def allocated(rule: Rule, profile: str, seed: int, calls: int, *, sweep: bool, beatable: bool = False) -> Gains:
    """The same search inside each operator, the calls dealt out by a rule."""
    spaces, shares = _model(profile, seed, beatable=beatable, slack=0.0)
    recorders = [Recorder(space) for space in spaces]
    changes = {**ENDLESS, **({} if sweep else UNSWEPT)}
    lanes = [Running([space], seed, changes) for space in spaces]
    now = Progress(shares, [0] * len(spaces), [[None] for _ in spaces], calls)
    gains = Gains()
    for _ in range(calls):
        i = rule(now)

        def see(node: Node, evaluation: Evaluation, i: int = i) -> None:
            recorders[i].see(node, evaluation, call=True)

        lanes[i].advance(1, see)
        # settings of this call, so that the rule sees what the model would have
        lanes[i].advance(0, see)
        now.calls[i] += 1
        now.own[i].append(math.exp(-recorders[i].measured) if recorders[i].measured > -math.inf else None)
        gains.after.append(_saved(shares, recorders))
    return gains


RULES: dict[str, Rule] = {
    "equal shares": equal,
    "shares in proportion to time": by_time,
    "50 each, largest share first": fifty_each,
    "Ansor's gradient, published": gradient(),
    "Ansor's gradient, tuned": gradient(0.99, 8, deployed=True),
}
GRADIENTS = [(a, w, d) for a in (0.2, 0.5, 0.8, 0.95, 0.99) for w in (3, 5, 8, 12, 20) for d in (False, True)]
