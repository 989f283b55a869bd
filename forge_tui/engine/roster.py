"""Who may be asked now: a proposer whose provider failed rests for a while, one that cannot work waits for a person."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from forge_tui.core.ports import Proposer, Revivable, Waiting
from forge_tui.core.records import Proposal
from forge_tui.search.driver import Step

#: the first rest in seconds; each one after it is twice as long
REST_S, REST_MAX_S = 5.0, 300.0
#: rests in a row, without an answer between them, after which a provider is given up
OUTAGE_LIMIT = 6

#: proposer, target, edge and the node that the request is about
Place = tuple[str, str, str, int | None]


def place_of(step: Step) -> Place:
    """What tells a request from others; a refused one is the same request when it is made again."""
    return step.proposer, step.target_id, str(step.edge), step.failed if step.failed is not None else step.parent


class Roster:
    """Keeps the proposers of a search."""

    def __init__(self, proposers: dict[str, Proposer], now: Callable[[], float] = time.monotonic) -> None:
        self._proposers = proposers
        self._now = now
        self._until: dict[str, float] = {}
        #: the part of a rest for which the provider asked
        self._asked_until: dict[str, float] = {}
        self._strikes: dict[str, int] = {}
        self._refused: set[Place] = set()
        #: name to reason
        self._why: dict[str, str] = {}
        self._out: dict[str, str] = {}

    def available(self, name: str) -> Proposer | None:
        """The proposer, if it may be asked now."""
        if name in self._out or self._now() < self._until.get(name, 0.0):
            return None
        return self._proposers.get(name)

    @property
    def nobody(self) -> bool:
        """Whether nobody will ever answer, unless a person acts."""
        return all(name in self._out for name in self._proposers)

    @property
    def people(self) -> tuple[str, ...]:
        """Names of those behind whom a person sits, who may take days."""
        return tuple(name for name, p in self._proposers.items() if isinstance(p, Waiting))

    @property
    def waiting(self) -> int:
        """Steps that wait for a person's reply: they keep nothing of this machine busy, and no end waits for them."""
        return sum(p.waiting for p in self._proposers.values() if isinstance(p, Waiting))

    def is_out(self, name: str) -> bool:
        """Whether it waits for a person."""
        return name in self._out

    @property
    def soonest_s(self) -> float:
        """Seconds until somebody is back from a rest; infinite where nobody rests."""
        now = self._now()
        return min((until - now for until in self._until.values() if until > now), default=math.inf)

    def resting(self, name: str) -> bool:
        """Whether it will be asked again without a person's doing."""
        return name not in self._out and self._now() < self._until.get(name, 0.0)

    def refuses(self, step: Step) -> bool:
        """Whether the provider has turned down this very request."""
        return place_of(step) in self._refused

    def refused(self, place: Place) -> None:
        """The provider turned down this request, which says nothing of the next one."""
        self._refused.add(place)

    def answered(self, name: str) -> None:
        """It works; what its provider asked for still holds, as the answer may be to an older call."""
        self._strikes.pop(name, None)
        asked = self._asked_until.get(name, 0.0)
        if self._now() < asked:
            self._until[name] = asked
            return
        for notes in (self._until, self._asked_until, self._why):
            notes.pop(name, None)

    def failed(self, name: str, proposal: Proposal) -> str:
        """It failed through its provider; returns a sentence where that has consequences for it.

        Not for a request that was not made, or was refused for what it held: see `refused`.
        """
        if proposal.fatal:
            return self._drop(name, proposal.failure)
        now = self._now()
        asked_s = proposal.retry_after_s or 0.0
        until = self._until.get(name, 0.0)
        self._asked_until[name] = max(self._asked_until.get(name, 0.0), now + asked_s)
        if now < until:
            # of the same outage; calls that were on their way together are told of it one after the other
            if now + asked_s <= until + 1.0:
                self._until[name] = max(until, self._asked_until[name])
                return ""
        else:
            strikes = self._strikes.get(name, 0) + 1
            if strikes >= OUTAGE_LIMIT:
                return self._drop(name, f"{proposal.failure} ({strikes} times in a row)")
            self._strikes[name] = strikes
            asked_s = max(asked_s, min(REST_MAX_S, REST_S * 2.0 ** (strikes - 1)))
        self._until[name] = now + asked_s
        self._why[name] = proposal.failure
        return f"{name} is asked again in {asked_s:.0f} s: {proposal.failure}"

    def reasons(self, *, mended_by_time: bool) -> str:
        """Why somebody is not asked: of those that only rest, or of those that wait for a person."""
        if mended_by_time:
            return "; ".join(f"{name}: {self._why[name]}" for name in self._until if self.resting(name))
        return "; ".join(f"{name}: {why}" for name, why in self._out.items())

    def revive(self) -> None:
        """A person says that it is mended: everybody is asked again, and everything."""
        for name in self._out:
            proposer = self._proposers[name]
            if isinstance(proposer, Revivable):
                proposer.revive()
        for notes in (self._out, self._until, self._asked_until, self._strikes, self._refused, self._why):
            notes.clear()

    def _drop(self, name: str, reason: str) -> str:
        if name in self._out:
            return ""
        self._out[name] = reason
        return f"{name}: {reason}"
