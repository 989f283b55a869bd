"""What the proposers of a session achieved so far: odds of repairs, gain per dollar.

Sums are integers (millionths), so that they do not depend on the order in which verdicts came.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from forge_tui.core.records import Edge, Node, Verdict

#: prior odds that a repair mends a failure, worth `REPAIR_WEIGHT` attempts
REPAIR_PRIOR = {
    Verdict.COMPILE_ERROR: 0.60,
    Verdict.REFUSED: 0.70,
    Verdict.REJECTED: 0.40,
    Verdict.CRASHED: 0.35,
    Verdict.TIMED_OUT: 0.25,
}
REPAIR_WEIGHT = 8.0
#: prior of a fresh attempt: two right ones, one wrong one
FRESH_PRIOR = (2.0, 1.0)
#: prior gain of a proposer, its weight, the most that one attempt can count for
GAIN_PRIOR, GAIN_WEIGHT, GAIN_CAP = 0.05, 2.0, 0.5
#: bonus of a proposer with few attempts, and how much its price matters
BONUS, PRICE_EXPONENT = 0.12, 0.7
MICRO = 1_000_000

TEMPLATES = "templates"

_ROLES = {
    Edge.DRAFT: "draft", Edge.IMPROVE: "improve", Edge.REWRITE: "improve", Edge.MERGE: "improve",
    Edge.REPAIR: "repair",
}  # fmt: skip


@dataclass(slots=True)
class _Tally:
    """Attempts of one proposer in one role."""

    started: int = 0
    asking: int = 0
    """Of those, without a reply yet."""
    ended: int = 0
    right: int = 0
    gain: int = 0
    priced: int = 0
    cost: int = 0
    dearest: int = 0


def role_of(edge: Edge) -> str:
    """Drafts, improvements and repairs are different trades."""
    return _ROLES.get(edge, "")


class Experience:
    """Tallies over every target of a session."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str], _Tally] = {}
        self._repairs: dict[tuple[Verdict, str], list[int]] = {}

    def start(self, proposer: str, edge: Edge, sign: int) -> None:
        """An attempt runs (1), or is taken back (-1)."""
        if role_of(edge):
            self._of(proposer, edge).started += sign

    def ask(self, proposer: str, edge: Edge, sign: int) -> None:
        """An attempt runs and has no reply yet (1), or that is over (-1)."""
        if role_of(edge):
            self.start(proposer, edge, sign)
            self._of(proposer, edge).asking += sign

    def undo(self, node: Node) -> None:
        """A node turned out to be no attempt; what it cost is not undone."""
        if role_of(node.edge):
            tally = self._of(node.proposer, node.edge)
            tally.started -= 1
            tally.priced -= node.cost_usd > 0

    def pay(self, proposer: str, edge: Edge, usd: float, *, counts: bool = True) -> None:
        """Note what an attempt cost, whatever came of it; an unknown price is 0 there and counts as unknown.

        Without `counts` it is no attempt, and its dollars make the others dearer.
        """
        if role_of(edge) and usd > 0:
            tally = self._of(proposer, edge)
            cost = round(usd * MICRO)
            tally.priced += counts
            tally.cost += cost
            tally.dearest = max(tally.dearest, cost)

    def end(self, proposer: str, edge: Edge, *, value: float | None, before: float | None) -> None:
        """An attempt ended with a kernel of this value, or None; `before` is its parent's."""
        if not role_of(edge):
            return
        tally = self._of(proposer, edge)
        tally.ended += 1
        tally.right += value is not None
        if value is not None:
            tally.gain += round(min(GAIN_CAP, max(0.0, value - (before or 0.0))) * MICRO)

    def end_repair(self, verdict: Verdict, proposer: str, *, right: bool) -> None:
        """A repair of a failure with this verdict ended."""
        tally = self._repairs.setdefault((verdict, proposer), [0, 0])
        tally[0] += right
        tally[1] += 1

    def repair_odds(self, verdict: Verdict, proposer: str) -> float:
        """Posterior mean that a first repair works."""
        right, ended = self._repairs.get((verdict, proposer), (0, 0))
        return (REPAIR_PRIOR.get(verdict, 0.0) * REPAIR_WEIGHT + right) / (REPAIR_WEIGHT + ended)

    def fresh_odds(self, proposer: str) -> float:
        """Posterior mean that a fresh attempt is right."""
        tallies = [self._tallies.get((proposer, role), _Tally()) for role in ("draft", "improve")]
        right, wrong = FRESH_PRIOR
        return (right + sum(t.right for t in tallies)) / (right + wrong + sum(t.ended for t in tallies))

    def repair_price(self, proposer: str) -> float:
        """Mean price of a repair over a fresh attempt's; 1 where either is unknown."""
        repair = self._price([(proposer, "repair")])
        fresh = self._price([(proposer, "draft"), (proposer, "improve")])
        return repair / fresh if repair and fresh else 1.0

    def usual_price(self, proposers: tuple[str, ...]) -> float:
        """Mean dollars of an attempt over everybody and every role; what has no price, templates say, costs nothing.

        All that was paid, over the attempts that it was paid for: those whose reply came, with a kernel or without.
        """
        tallies = [t for (name, _), t in self._tallies.items() if name in proposers]
        came = sum(t.started - t.asking for t in tallies)
        return sum(t.cost for t in tallies) / max(1, came) / MICRO

    def hold(self, proposer: str, unknown_usd: float) -> float:
        """Dollars to hold back for a call of this proposer: half again its dearest one, `unknown_usd` before any."""
        dearest = max((t.dearest for (name, _), t in self._tallies.items() if name == proposer), default=0)
        return 1.5 * dearest / MICRO if dearest else unknown_usd

    def order(self, proposers: tuple[str, ...], edge: Edge) -> list[str]:
        """Whom to ask, best first: templates for drafts, then everybody once, then by gain per dollar."""
        role = role_of(edge)
        prices = {name: self._price([(name, "draft"), (name, "improve"), (name, "repair")]) for name in proposers}
        known = [price for price in prices.values() if price]
        # who has no price costs an evaluation like everybody else
        usual = math.fsum(known) / len(known) if known else 1.0
        total = sum(self._tallies.get((name, role), _Tally()).started for name in proposers)

        def rank(place: int) -> tuple[bool, bool, float, int]:
            name = proposers[place]
            tally = self._tallies.get((name, role), _Tally())
            mean = (GAIN_PRIOR * GAIN_WEIGHT + tally.gain / MICRO) / (GAIN_WEIGHT + tally.ended)
            bonus = BONUS * math.sqrt(math.log(1 + total) / (1 + tally.started))
            score = (mean + bonus) / ((prices[name] or usual) / usual) ** PRICE_EXPONENT
            drafts_first = not (edge is Edge.DRAFT and name == TEMPLATES)
            return drafts_first, tally.started > 0, -score, place

        return [proposers[i] for i in sorted(range(len(proposers)), key=rank)]

    def state(self) -> dict[str, object]:
        """Everything in it, to compare."""
        used = {key: t for key, t in self._tallies.items() if t != _Tally()}
        return {"tallies": used, "repairs": dict(self._repairs)}

    def _of(self, proposer: str, edge: Edge) -> _Tally:
        return self._tallies.setdefault((proposer, role_of(edge)), _Tally())

    def _price(self, keys: list[tuple[str, str]]) -> float | None:
        tallies = [self._tallies.get(key, _Tally()) for key in keys]
        priced = sum(t.priced for t in tallies)
        paid = sum(t.cost for t in tallies)
        return paid / max(1, priced) / MICRO if paid else None
