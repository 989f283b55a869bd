"""The one place where the budget is kept: every call is written down before it is made, at the most it may cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from forge_tui.core.ports import Task
from forge_tui.core.records import LlmCall, Proposal
from forge_tui.search.driver import Search, Step
from forge_tui.store.codec import LedgerEntry
from forge_tui.store.writer import Store

#: sums of dollars differ in their last digits with the order of the terms
_ROUNDING = 1e-9


class Ledger:
    """A session's books. Paid calls, calls on their way and rent together stay within the budget."""

    def __init__(
        self, store: Store, session: str, search: Search, *, max_usd: float | None, spent_usd: float,
        rent_usd: Callable[[], float], log: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        """`spent_usd` is what earlier engines paid, `rent_usd` what the machine has cost so far."""
        self._store = store
        self._session = session
        self._search = search
        self._max_usd = max_usd
        self._spent_usd = spent_usd
        self._rent_usd = rent_usd
        self._log = log
        self._open: dict[int, float] = {}
        self._unpriced: set[str] = set()
        self._came: dict[tuple[str, str, int, str], list[tuple[int, LlmCall]]] = {}
        search.pay(spent_usd)

    def remember(self, entries: Iterable[LedgerEntry]) -> None:
        """Replies in the store of which nothing came: steps that are done again get them for nothing."""
        for entry in entries:
            call = entry.call
            if call.state == "done" and entry.node_id is None and call.reply:
                place = (entry.target_id, entry.edge, call.seed, call.model)
                self._came.setdefault(place, []).append((entry.id, call))

    def came(self, task: Task, model: str) -> list[tuple[int, LlmCall]]:
        """See `core.ports.Books`."""
        return self._came.pop((task.target.id, str(task.edge), task.seed, model), [])

    @property
    def left_usd(self) -> float:
        """What may still be set aside."""
        if self._max_usd is None:
            return math.inf
        return self._max_usd - self._spent_usd - self._rent_usd() - math.fsum(self._open.values())

    def open(self, task: Task, call: LlmCall) -> int | None:
        """See `core.ports.Books`; on the disk when this returns."""
        needed = call.reserved_usd or 0.0
        # the search asks for no step that would be refused here
        if call.reserved_usd is None:
            self._say_unpriced(call.model)
        elif call.attempt == 1:
            # a reply that is asked to be longer is dearer than what the next step will ask for
            self._search.expect(call.model, needed)
        if needed > self.left_usd + _ROUNDING:
            return None
        number = self._store.open_llm_call(self._session, call, target_id=task.target.id, edge=task.edge)
        self._open[number] = needed
        return number

    def settle(self, number: int, call: LlmCall) -> None:
        """See `core.ports.Books`."""
        self._store.settle_llm_call(self._session, number, call)
        self._open.pop(number, None)
        self._paid(call)

    def take(self, step: Step, proposal: Proposal, node_id: int | None) -> None:
        """The call that a proposal came with, and the node that it became."""
        call = proposal.call
        if call is None:
            return
        if proposal.booked:
            if node_id is not None:
                self._store.link_llm_call(self._session, proposal.booked, node_id)
            return
        # of a proposer that keeps no books
        self._store.add_llm_call(self._session, call, target_id=step.target_id, edge=step.edge, node_id=node_id)
        self._paid(call)

    def _paid(self, call: LlmCall) -> None:
        self._spent_usd += call.cost_usd or 0.0
        self._search.pay(call.cost_usd or 0.0)

    def _say_unpriced(self, model: str) -> None:
        if model in self._unpriced:
            return
        self._unpriced.add(model)
        budget = ", and the budget does not hold it" if self._max_usd is not None else ""
        self._log("warning", f"The price of {model} is not known: its tokens are counted, its dollars are not{budget}. "
                             f"Give it with --price {model}=IN,OUT, in dollars per million tokens.")  # fmt: skip
