"""What holds of a search whatever comes in whatever order, restarts included."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.core.records import Edge, Evaluation, Node, Verdict
from forge_tui.search import simulate
from forge_tui.search.driver import Drop, Search, SearchConfig, Step
from forge_tui.search.tree import GENERATION, Chain, TargetTree

VERDICTS = ("faster", "faster", "faster", "slower", "inconclusive", "compile_error", "rejected", "crashed", "duplicate",
            "infra")  # fmt: skip
SOURCES = ("// plain {}", "//@tune A 1 2 3\n//@tune B 1 2\n// {}")
CONFIG = SearchConfig(proposers=("a", "templates", "inbox", "b"), people=("inbox",), max_evaluations=18,
                      in_flight_per_target=3, max_usd=2.0, holds_usd={"a": 0.4, "b": 0.25}, tune_after=1,
                      patience=1000, stop_after=1000)  # fmt: skip
#: two sizes of one callable, so that kernels move between them
TARGETS = tuple(
    msgspec.structs.replace(simulate.target(name, share=share), qualname="f")
    for name, share in (("t", 0.5), ("u", 0.3))
)


@dataclass
class World:
    """A search, what is on its way, and what a store would know of it."""

    search: Search = field(default_factory=lambda: Search(CONFIG, TARGETS))
    steps: list[tuple[Step, float]] = field(default_factory=list)
    """Without a source yet, with the most that each may cost."""
    flying: list[int] = field(default_factory=list)
    seen: dict[int, Node] = field(default_factory=dict)
    drops: list[Drop] = field(default_factory=list)
    paid: float = 0.0
    next_id: int = 0

    def can(self, step: Step) -> bool:
        """Some proposers cannot do some things, by what there is."""
        there = sum(node.target_id == step.target_id and node.id in self.search.tree(step.target_id)
                    for node in self.seen.values())  # fmt: skip
        return not (step.proposer == "templates" and (there + (step.parent or 0)) % 3 == 0)

    def decide(self) -> None:
        """Ask for a step."""
        step = self.search.next_step(self.can)
        if isinstance(step, Step):
            self.steps.append((step, self.search.purse.hold(step)))

    def pay(self, step: Step, most: float, part: float) -> float:
        """A call costs a part of what was held back for it."""
        free = step.edge in (Edge.TUNE, Edge.TRANSFER) or step.proposer in ("templates", "inbox")
        usd = 0.0 if free else part * most
        self.paid += usd
        self.search.pay(usd)
        return usd

    def begin(self, which: int, source: int, part: float) -> None:
        """A step gets its source; a person's reply waits where no evaluation is left for it."""
        step, most = self.steps[which % len(self.steps)]
        if step.proposer == "inbox" and self.search.full:
            return
        self.steps.remove((step, most))
        text = SOURCES[source].format(self.next_id)
        if step.found is not None:
            text = step.found.source
        elif step.edge is Edge.TUNE:
            assert step.parent is not None
            text = self.seen[step.parent].source
        node = Node(id=self.next_id, target_id=step.target_id, parent=step.parent, edge=step.edge,
                    proposer=step.proposer, source=text, language="cpp", family=f"f{self.next_id % 2}",
                    tunables=step.tunables, repairs=step.failed, cost_usd=self.pay(step, most, part))  # fmt: skip
        self.search.begin(step, node)
        self.flying.append(node.id)
        self.seen[node.id] = node
        self.next_id += 1

    def drop(self, which: int, part: float, *, infra: bool) -> None:
        """A step brings no source; what has one at hand always does."""
        at = which % len(self.steps)
        step, most = self.steps[at]
        if step.edge in (Edge.TUNE, Edge.TRANSFER):
            return
        del self.steps[at]
        found = self.search.drop(step, "no code", infra=infra, cost_usd=self.pay(step, most, part))
        if found is not None:
            self.drops.append(found)

    def finish(self, which: int, verdict: str, speedup: float, *, sure: bool) -> None:
        """A verdict comes, twice."""
        node_id = self.flying.pop(which % len(self.flying))
        right = Verdict(verdict).right
        evaluation = Evaluation(
            verdict=Verdict(verdict), speedup=speedup if right else None,
            speedup_ci=(speedup * 0.9, speedup * 1.1) if right and sure else None, compile_s=0.5,
        )  # fmt: skip
        self.search.finish(node_id, evaluation)
        self.search.finish(node_id, evaluation)
        self.seen[node_id] = msgspec.structs.replace(self.seen[node_id], evaluation=evaluation)

    def restart(self) -> None:
        """Go on with a search that knows what a store knows; it decides as the other would have."""
        before, self.search = self.search, Search(CONFIG, TARGETS)
        self.search.pay(self.paid)
        self.search.restore(self.seen.values(), self.drops, [step for step, _ in self.steps])
        assert self.search.state() == before.state()
        told, wanted = self.search.next_step(self.can), before.next_step(self.can)
        assert told == wanted
        if isinstance(told, Step):
            self.steps.append((told, self.search.purse.hold(told)))


def check(world: World) -> None:
    """Every invariant."""
    search = world.search
    begun = sum(search.tree(t.id).begun for t in TARGETS)
    assert begun - sum(step.proposer == "inbox" for step, _ in world.steps) <= CONFIG.max_evaluations
    assert CONFIG.max_usd is not None
    held = math.fsum(search.purse.hold(step) for step, _ in world.steps)
    assert world.paid <= CONFIG.max_usd + 1e-9
    assert search._left_usd() == pytest.approx(CONFIG.max_usd - world.paid - held)
    tallies = search._experience._tallies.values()
    assert sum(t.cost for t in tallies) == pytest.approx(world.paid * 1e6, abs=len(world.seen) + len(world.drops) + 1)
    assert sum(t.asking for t in tallies) == sum(s.edge not in (Edge.TUNE, Edge.TRANSFER) for s, _ in world.steps)
    came = sum(drop.step.edge not in (Edge.TUNE, Edge.TRANSFER) and not drop.infra for drop in world.drops)
    came += sum(node.edge not in (Edge.TUNE, Edge.TRANSFER) and node.id in search.tree(node.target_id)
                for node in world.seen.values())  # fmt: skip
    assert search._experience.usual_price(CONFIG.proposers) == pytest.approx(
        sum(t.cost for t in tallies) / max(1, came) / 1e6
    )
    for target in TARGETS:
        check_tree(search.tree(target.id), [s for s, _ in world.steps if s.target_id == target.id])


def check_tree(tree: TargetTree, steps: list[Step]) -> None:
    """Parents, visits and values of one target's tree, counted anew."""
    nodes = {node.id: node for node in tree.nodes()}
    values = {i: value for i in nodes if (value := tree.value(i)) is not None}
    for node in nodes.values():
        if node.parent is not None:
            assert node.parent in values, "a parent is a right kernel"
        if node.repairs is not None:
            failed = nodes[node.repairs].evaluation
            assert failed is not None
            assert failed.verdict.repairable
    visits, best = dict.fromkeys(nodes, 1), dict(values)
    for node in nodes.values():
        above = node.parent
        while above is not None:
            visits[above] += node.edge in GENERATION
            best[above] = max(best[above], values.get(node.id, -math.inf))
            above = nodes[above].parent
    assert {i: (s.visits, s.value, s.best_below) for i, s in tree.stats().items()} == {
        i: (visits[i], values.get(i), best.get(i)) for i in nodes
    }
    attempts = sum(node.edge in GENERATION for node in nodes.values()) + sum(s.edge in GENERATION for s in steps)
    attempts += sum(drop.step.edge in GENERATION for drop in tree.drops)
    assert tree.root_attempts + sum(root.size - 1 for root in tree.roots) == attempts
    for chain in {id(c): c for c in tree.chains.values()}.values():
        check_chain(chain, values)
    champion = max(values, key=lambda i: (values[i], -i), default=None)
    assert (tree.champion.best if tree.champion else None) == champion
    assert tree.in_flight == len(steps) + sum(node.evaluation is None for node in nodes.values())


def check_chain(chain: Chain, values: dict[int, float]) -> None:
    """Its size is its own attempts and what is below; its value that of its best setting; nothing below is better."""
    assert chain.size == 1 + chain.attempts + sum(child.size - 1 for child in chain.children)
    right = [values[i] for i in chain.members if i in values]
    assert chain.value == max(right) == values[chain.best]
    assert chain.below == max([chain.value, *(child.below for child in chain.children)])


actions = st.one_of(
    st.tuples(st.just("decide")),
    st.tuples(st.just("begin"), st.integers(0, 5), st.integers(0, 1), st.floats(0, 1)),
    st.tuples(st.just("finish"), st.integers(0, 5), st.sampled_from(VERDICTS), st.floats(0.3, 4.0), st.booleans()),
    st.tuples(st.just("drop"), st.integers(0, 5), st.floats(0, 1), st.booleans()),
    st.tuples(st.just("restart")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(actions, min_size=8, max_size=16), min_size=1, max_size=8))
def test_invariants_hold_whatever_comes(script: list[list[tuple[object, ...]]]) -> None:
    """Parents, visits, values, evaluations and dollars under random completions, failures and restarts."""
    world = World()
    for action in [a for part in script for a in part]:
        match action:
            case ("begin", int(which), int(source), float(part)) if world.steps:
                world.begin(which, source, part)
            case ("finish", int(which), str(verdict), float(speedup), bool(sure)) if world.flying:
                world.finish(which, verdict, speedup, sure=sure)
            case ("drop", int(which), float(part), bool(infra)) if world.steps:
                world.drop(which, part, infra=infra)
            case ("restart",):
                world.restart()
            case _:
                world.decide()
        check(world)
    world.restart()
