"""The dollars of a search: what is spent, what steps on their way may still cost, who costs nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable

from forge_tui.core.money import dollars
from forge_tui.core.records import Edge
from forge_tui.search.config import SearchConfig, Step
from forge_tui.search.experience import TEMPLATES, Experience

#: the proposer's name on a person's own kernels
PERSON = "person"
#: these ask nobody, and cost nothing but their evaluation
FREE = (Edge.TUNE, Edge.TRANSFER)


class Purse:
    """Holds a session's budget together; the books of an engine are kept elsewhere."""

    def __init__(self, config: SearchConfig, experience: Experience) -> None:
        """`experience` knows what calls of a proposer cost so far."""
        self._config = config
        self._experience = experience
        self.paid_usd = self.rent_usd = 0.0
        self._expected_usd: dict[str, float] = {}

    def expect(self, proposer: str, usd: float) -> None:
        """A call may cost so much at most: what the next one is held at, if none was dearer."""
        self._expected_usd[proposer] = max(usd, self._expected_usd.get(proposer, 0.0))

    @property
    def broke(self) -> bool:
        """Whether the dollars are spent; of a budget of nothing, nothing can be."""
        spent = self.paid_usd + self.rent_usd
        return self._config.max_usd is not None and spent > 0 and self._config.max_usd - spent <= 0

    def left_usd(self, running: Iterable[Step]) -> float:
        """Dollars that may still be promised to somebody, beside those of running steps."""
        if self._config.max_usd is None:
            return math.inf
        held = math.fsum(map(self.hold, running))
        return self._config.max_usd - self.paid_usd - self.rent_usd - held

    def costs(self, step: Step) -> bool:
        """Whether somebody may ask dollars for a step, also where nobody knows how many."""
        if step.edge in FREE or step.proposer in (TEMPLATES, PERSON):
            return False
        return step.proposer in self._config.holds_usd or self.hold(step) > 0

    def hold(self, step: Step) -> float:
        """What a step may cost at most, as far as is known."""
        if step.edge in FREE or step.proposer in (TEMPLATES, PERSON):
            return 0.0
        if step.proposer in self._expected_usd:
            return self._expected_usd[step.proposer]
        return self._experience.hold(step.proposer, self._config.holds_usd.get(step.proposer, 0.0))

    def why_broke(self, short_usd: float | None) -> str:
        """One sentence; one more call may cost `short_usd`: None where none is wished, 0 where nobody knows."""
        rent = f", {dollars(self.rent_usd)} of it for the machine" if self.rent_usd else ""
        spent, most = dollars(self.paid_usd + self.rent_usd), dollars(self._config.max_usd or 0.0)
        said = f"{spent} of the budget of {most} are spent"
        if short_usd is None:
            return f"{said}{rent}."
        if not short_usd:
            return f"{said}{rent}, and nobody knows what one more model call may cost."
        return f"{said}{rent}, and one more model call may cost {dollars(short_usd)}."
