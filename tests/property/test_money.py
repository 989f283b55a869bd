"""The books and the search together, under calls, faults, kills and other budgets in any order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.core.records import Edge, Evaluation, LlmCall, Node, Proposal, Verdict
from forge_tui.engine.ledger import Ledger
from forge_tui.search import simulate
from forge_tui.search.driver import Drop, Search, SearchConfig, Step, Stop

NAMES = ("m", "n")
CONFIG = SearchConfig(proposers=("m", "templates", "n"), max_evaluations=16, in_flight_per_target=3,
                      holds_usd={"m": 0.2, "n": 0.1}, patience=1000, stop_after=1000)  # fmt: skip
TARGETS = tuple(simulate.target(name, share=share) for name, share in (("t", 0.5), ("u", 0.3)))


class Rows:
    """What a store keeps of calls."""

    def __init__(self) -> None:
        self.calls: list[LlmCall] = []

    def open_llm_call(self, session: str, call: LlmCall, *, target_id: str, edge: str) -> int:
        """A row before the call."""
        self.calls.append(msgspec.structs.replace(call, state="open", cost_usd=None))
        return len(self.calls)

    def settle_llm_call(self, session: str, number: int, call: LlmCall) -> None:
        """What became of it, once."""
        assert self.calls[number - 1].state == "open"
        self.calls[number - 1] = call

    def link_llm_call(self, session: str, number: int, node_id: int) -> None:
        """Its node: of a call that came back."""
        assert self.calls[number - 1].state == "done"

    @property
    def paid(self) -> float:
        """Dollars."""
        return math.fsum(call.cost_usd or 0.0 for call in self.calls)

    @property
    def promised(self) -> float:
        """Dollars that were spent, or may be by calls on their way."""
        return self.paid + math.fsum(c.reserved_usd or 0.0 for c in self.calls if c.state == "open")


@dataclass
class World:
    """An engine's money: search and ledger, the store's rows, and steps with a call of theirs on its way, or none."""

    max_usd: float
    rows: Rows = field(default_factory=Rows)
    steps: list[Step] = field(default_factory=list)
    calls: dict[tuple[str, int], tuple[int, LlmCall]] = field(default_factory=dict)
    flying: list[int] = field(default_factory=list)
    seen: dict[int, Node] = field(default_factory=dict)
    drops: list[Drop] = field(default_factory=list)
    refused: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.boot()

    def boot(self) -> None:
        """What an engine does when it opens the session."""
        for number, call in enumerate(self.rows.calls, 1):
            if call.state == "open":
                self.rows.settle_llm_call("s", number, call.unanswered("lost", "killed"))
        self.search = Search(msgspec.structs.replace(CONFIG, max_usd=self.max_usd), TARGETS)
        dearest: dict[str, float] = {}
        for call in self.rows.calls:
            dearest[call.model] = max(call.reserved_usd or 0.0, dearest.get(call.model, 0.0))
        store: Any = self.rows
        self.ledger = Ledger(store, "s", self.search, max_usd=self.max_usd, spent_usd=self.rows.paid,
                             dearest_usd=dearest, rent_usd=lambda: 0.0, log=lambda *_: None)  # fmt: skip
        for name, usd in self.refused.items():
            self.search.expect(name, usd)
        self.calls.clear()
        self.search.restore(self.seen.values(), self.drops, self.steps)

    def pick(self, which: int) -> Step | None:
        """One of the steps on their way."""
        return self.steps[which % len(self.steps)] if self.steps else None

    def decide(self) -> None:
        """The next step."""
        step = self.search.next_step(lambda _: True)
        if isinstance(step, Step):
            self.steps.append(step)

    def call(self, which: int, usd: float) -> None:
        """A step makes a call, if it has none: free ones never do."""
        step = self.pick(which)
        if step is None or step.proposer not in NAMES or step.edge is Edge.TUNE or key(step) in self.calls:
            return
        before = self.ledger.left_usd
        asked = LlmCall(model=step.proposer, prompt="", reply="", reserved_usd=usd)
        number = self.ledger.open(self.search.task(step, simulate.DEVICE), asked)
        assert (number is None) == (usd > before + 1e-9)
        if number is None:
            assert self.ledger.refused(step) == usd
            self.refused[step.proposer] = max(usd, self.refused.get(step.proposer, 0.0))
            self.end(step, Proposal(source=None, infra=True, this_request=True))
        else:
            self.calls[key(step)] = number, asked

    def come(self, which: int, what: str, part: float) -> None:
        """A call comes back, or a step without one gets its source."""
        step = self.pick(which)
        if step is None or (step.proposer in NAMES and key(step) not in self.calls):
            return
        number, asked = self.calls.get(key(step), (0, None))
        if asked is None:
            self.end(step, Proposal(source="// free"))
            return
        came = msgspec.structs.replace(asked, cost_usd=part * (asked.reserved_usd or 0.0), priced=True)
        if what == "broken":
            # and is made again
            self.ledger.settle(number, asked.unanswered("broken", "it broke off"))
            del self.calls[key(step)]
            return
        self.ledger.settle(number, came)
        proposal = Proposal(source="// paid" if what == "kernel" else None, call=came, booked=number,
                            infra=what == "infra")  # fmt: skip
        self.end(step, proposal)

    def end(self, step: Step, proposal: Proposal) -> None:
        """A step is folded in, as an engine does it."""
        self.steps.remove(step)
        self.calls.pop(key(step), None)
        usd = self.ledger.cost(step, proposal)
        if proposal.source is None:
            self.ledger.take(step, proposal, None)
            drop = self.search.drop(step, "", infra=proposal.infra, cost_usd=usd)
            self.drops += [drop] if drop is not None else []
            return
        node_id = len(self.seen)
        source = f"//@tune A 1 2 3\n{node_id}"
        if step.edge is Edge.TUNE:
            assert step.parent is not None
            source = self.seen[step.parent].source
        node = Node(id=node_id, target_id=step.target_id, parent=step.parent, edge=step.edge, proposer=step.proposer,
                    source=source, language="cpp", tunables=step.tunables, repairs=step.failed,
                    cost_usd=usd)  # fmt: skip
        self.ledger.take(step, proposal, node_id)
        self.seen[node_id] = node
        self.search.begin(step, node)
        self.flying.append(node_id)

    def finish(self, which: int, verdict: str, speedup: float) -> None:
        """A verdict."""
        if not self.flying:
            return
        node_id = self.flying.pop(which % len(self.flying))
        right = Verdict(verdict).right
        found = Evaluation(verdict=Verdict(verdict), speedup=speedup if right else None)
        self.search.finish(node_id, found)
        self.seen[node_id] = msgspec.structs.replace(self.seen[node_id], evaluation=found)

    def kill(self) -> None:
        """The engine is gone; what was on its way is lost, and the next one decides as this one would have."""
        before = self.search
        lost = [call for _, call in self.calls.values()]
        before.pay(math.fsum(call.reserved_usd or 0.0 for call in lost))
        self.boot()
        assert self.search.state() == before.state()
        told, wanted = (search.next_step(lambda _: True) for search in (self.search, before))
        assert told == wanted or _money_alone(told, wanted)
        if isinstance(told, Step):
            self.steps.append(told)

    def rebudget(self, usd: float) -> None:
        """A resume with another budget."""
        self.max_usd = usd
        self.boot()


def key(step: Step) -> tuple[str, int]:
    """What tells steps on their way apart."""
    return step.target_id, step.seed


def _money_alone(told: Step | Stop | None, wanted: Step | Stop | None) -> bool:
    """Two sentences whose sums were made in another order."""
    return isinstance(told, Stop) and isinstance(wanted, Stop) and "budget" in told.reason and "budget" in wanted.reason


calls = st.tuples(st.just("call"), st.integers(0, 5), st.floats(0.0, 0.6))
replies = st.tuples(st.just("come"), st.integers(0, 5),
                    st.sampled_from(("kernel", "kernel", "nothing", "broken", "infra")), st.floats(0, 1))  # fmt: skip
verdicts = st.tuples(st.just("finish"), st.integers(0, 5), st.sampled_from(("faster", "slower", "rejected", "infra")),
                     st.floats(0.3, 4.0))  # fmt: skip
actions = st.one_of(
    st.tuples(st.just("decide")), calls, replies, st.tuples(st.just("decide")), calls, replies, replies, verdicts,
    st.tuples(st.just("kill")), st.tuples(st.just("rebudget"), st.sampled_from((0.0, 0.05, 0.5, 1.0, 3.0))),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.sampled_from((0.0, 0.05, 0.3, 1.0, 2.0)),
       st.lists(st.lists(actions, min_size=6, max_size=14), min_size=1, max_size=10))  # fmt: skip
def test_money_and_tree_survive_whatever_comes(budget: float, script: list[list[tuple[object, ...]]]) -> None:
    """What is paid and promised never passes the largest budget so far, and never grows beyond the present one.

    Whoever was killed is followed by an equal; every dollar is in the price of an attempt, but for lost calls.
    """
    world, most = World(budget), budget
    for action in [a for part in script for a in part]:
        before = world.rows.promised
        match action:
            case ("call", int(which), float(usd)):
                world.call(which, usd)
            case ("come", int(which), str(what), float(part)):
                world.come(which, what, part)
            case ("finish", int(which), str(verdict), float(speedup)):
                world.finish(which, verdict, speedup)
            case ("kill",):
                world.kill()
            case ("rebudget", float(usd)):
                world.rebudget(usd)
                most = max(most, usd)
            case _:
                world.decide()
        after = world.rows.promised
        assert after <= max(before, world.max_usd) + 1e-9
        assert after <= most + 1e-9
        check(world)


def check(world: World) -> None:
    """Sums of books, search and prices agree."""
    search, rows = world.search, world.rows
    assert search.purse.paid_usd == near(rows.paid)
    assert world.ledger.left_usd == near(world.max_usd - rows.promised)
    begun = sum(search.tree(t.id).begun for t in TARGETS)
    assert begun <= CONFIG.max_evaluations
    visits = [s.visits for t in TARGETS for s in search.stats(t.id).values()]
    assert all(v >= 1 for v in visits)
    for t in TARGETS:
        tree = search.tree(t.id)
        assert tree.root_attempts + sum(root.size - 1 for root in tree.roots) == (
            len(tree.generation) + sum(d.step.edge is not Edge.REPAIR for d in tree.drops)
            + sum(s.edge not in (Edge.REPAIR, Edge.TUNE, Edge.TRANSFER) for s in tree.reserved)
        )  # fmt: skip
    # of steps that are over, every dollar but those of lost calls, and of the tries that a kill made forget
    told = sum(t.cost for t in search._experience._tallies.values()) / 1e6
    assert told <= rows.paid + 1e-5


def near(value: float) -> Any:
    """Sums of dollars."""
    return pytest.approx(value, abs=1e-9)
