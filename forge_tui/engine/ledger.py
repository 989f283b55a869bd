"""The one place where the budget is kept: every call is written down before it is made, at the most it may cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, LlmCall, Proposal
from forge_tui.search.driver import Search, Step
from forge_tui.store.codec import LedgerEntry
from forge_tui.store.writer import Store

#: sums of dollars differ in their last digits with the order of the terms
_ROUNDING = 1e-9
#: target, edge and seed: what tells the steps on their way apart
_Key = tuple[str, Edge, int]


class Ledger:
    """A session's books. Paid calls, calls on their way and rent together stay within the budget."""

    def __init__(
        self, store: Store, session: str, search: Search, *, max_usd: float | None, spent_usd: float,
        rent_usd: Callable[[], float], log: Callable[[str, str], None], dearest_usd: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        """`spent_usd` is what earlier engines paid, `rent_usd` what the machine has cost so far.

        `dearest_usd` has by model the most that was set aside for one call.
        """
        self._store = store
        self._session = session
        self._search = search
        self._max_usd = max_usd
        self._spent_usd = spent_usd
        self._rent_usd = rent_usd
        self._log = log
        self._open: dict[int, tuple[float, _Key]] = {}
        #: dollars of the calls of a step so far
        self._tries: dict[_Key, float] = {}
        self._refused: dict[_Key, float] = {}
        self._unpriced: set[str] = set()
        self._came: dict[tuple[str, str, int, str], list[tuple[int, LlmCall]]] = {}
        search.pay(spent_usd)
        for model, usd in (dearest_usd or {}).items():
            search.expect(model, usd)

    def remember(self, entries: Iterable[LedgerEntry]) -> None:
        """Replies in the store of which nothing came: steps that are done again get them for nothing."""
        for entry in entries:
            call = entry.call
            if call.state == "done" and entry.node_id is None and call.reply:
                place = (entry.target_id, entry.edge, call.seed, call.model)
                self._came.setdefault(place, []).append((entry.id, call))

    def came(self, task: Task, model: str) -> list[tuple[int, LlmCall]]:
        """See `core.ports.Books`."""
        found = self._came.pop((task.target.id, str(task.edge), task.seed, model), [])
        key = task.target.id, task.edge, task.seed
        self._tries[key] = self._tries.get(key, 0.0) + math.fsum(call.cost_usd or 0.0 for _, call in found)
        return found

    @property
    def left_usd(self) -> float:
        """What may still be set aside."""
        if self._max_usd is None:
            return math.inf
        set_aside = math.fsum(usd for usd, _ in self._open.values())
        return self._max_usd - self._spent_usd - self._rent_usd() - set_aside

    def open(self, task: Task, call: LlmCall) -> int | None:
        """See `core.ports.Books`; on the disk when this returns."""
        needed, key = call.reserved_usd or 0.0, (task.target.id, task.edge, task.seed)
        # the search asks for no step that would be refused here
        if call.reserved_usd is None:
            self._say_unpriced(call.model)
        elif call.attempt == 1:
            # a reply that is asked to be longer is dearer than what the next step will ask for
            self._search.expect(call.model, needed)
        left = self.left_usd
        if needed > left + _ROUNDING or (call.reserved_usd is None and left <= 0):
            self._refused[key] = needed
            return None
        number = self._store.open_llm_call(self._session, call, target_id=task.target.id, edge=task.edge)
        self._open[number] = needed, key
        return number

    def settle(self, number: int, call: LlmCall) -> None:
        """See `core.ports.Books`."""
        self._store.settle_llm_call(self._session, number, call)
        _, key = self._open.pop(number)
        self._tries[key] = self._tries.get(key, 0.0) + (call.cost_usd or 0.0)
        self._paid(call)

    def refused(self, step: Step) -> float | None:
        """What a call of this step needed and the budget did not have; None where it was made."""
        return self._refused.get(_key(step))

    def cost(self, step: Step, proposal: Proposal) -> float:
        """Dollars of every call of a step, those that brought nothing included; before `take`."""
        unbooked = proposal.call.cost_usd or 0.0 if proposal.call is not None and not proposal.booked else 0.0
        return self._tries.get(_key(step), 0.0) + unbooked

    def take(self, step: Step, proposal: Proposal, node_id: int | None) -> None:
        """The call that a proposal came with, and the node that it became: the step has no more calls."""
        call = proposal.call
        if call is not None and proposal.booked:
            if node_id is not None:
                self._store.link_llm_call(self._session, proposal.booked, node_id)
        elif call is not None:
            # of a proposer that keeps no books
            self._store.add_llm_call(self._session, call, target_id=step.target_id, edge=step.edge, node_id=node_id)
            self._paid(call)
        for notes in (self._tries, self._refused):
            notes.pop(_key(step), None)

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


def _key(step: Step) -> _Key:
    return step.target_id, step.edge, step.seed
