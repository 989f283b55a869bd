"""Who may be asked now: a proposer whose provider failed rests for a while, one that cannot work waits for a person."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from forge_tui.core.ports import Proposer, Revivable, Waiting
from forge_tui.core.records import Proposal

#: the first rest in seconds; each one after it is twice as long
REST_S, REST_MAX_S = 5.0, 300.0
#: rests in a row, without an answer between them, after which a provider is given up
OUTAGE_LIMIT = 6
#: refused requests in a row after which the provider itself is taken to be at fault
REFUSALS = 12


class Bench:
    """Keeps the proposers of a search."""

    def __init__(self, proposers: dict[str, Proposer], now: Callable[[], float] = time.monotonic) -> None:
        self._proposers = proposers
        self._now = now
        self._until: dict[str, float] = {}
        self._strikes: dict[str, int] = {}
        self._refusals: dict[str, int] = {}
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

    def answered(self, name: str) -> None:
        """It works."""
        for notes in (self._strikes, self._refusals, self._until, self._why):
            notes.pop(name, None)

    def failed(self, name: str, proposal: Proposal) -> str:
        """It failed through its provider; returns a sentence where that has consequences for it."""
        if proposal.fatal:
            return self._drop(name, proposal.failure)
        if proposal.this_request:
            self._refusals[name] = self._refusals.get(name, 0) + 1
            if self._refusals[name] < REFUSALS:
                return ""
            self._refusals[name] = 0
        now = self._now()
        if now < self._until.get(name, 0.0):
            # of the same outage
            return ""
        strikes = self._strikes.get(name, 0) + 1
        if strikes >= OUTAGE_LIMIT:
            return self._drop(name, f"{proposal.failure} ({strikes} times in a row)")
        self._strikes[name] = strikes
        rest_s = max(proposal.retry_after_s or 0.0, min(REST_MAX_S, REST_S * 2.0 ** (strikes - 1)))
        self._until[name] = now + rest_s
        self._why[name] = proposal.failure
        return f"{name} is asked again in {rest_s:.0f} s: {proposal.failure}"

    def reasons(self, *, mended_by_time: bool) -> str:
        """Why somebody is not asked: of those that only rest, or of those that wait for a person."""
        if mended_by_time:
            return "; ".join(f"{name}: {self._why[name]}" for name in self._until if self.resting(name))
        return "; ".join(f"{name}: {why}" for name, why in self._out.items())

    def revive(self) -> None:
        """A person says that it is mended: everybody is asked again."""
        for name in self._out:
            proposer = self._proposers[name]
            if isinstance(proposer, Revivable):
                proposer.revive()
        for notes in (self._out, self._until, self._strikes, self._refusals, self._why):
            notes.clear()

    def _drop(self, name: str, reason: str) -> str:
        if name in self._out:
            return ""
        self._out[name] = reason
        return f"{name}: {reason}"
