"""What a target is expected to gain, by hand; what the simulated writer makes of rewrites and merges."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, Evaluation, Node, Target, Verdict
from forge_tui.search import simulate
from forge_tui.search.allocation import Outlook
from forge_tui.search.config import SearchConfig
from forge_tui.search.landscape import FAMILIES, TECHNIQUES, Design, Landscape
from forge_tui.search.tree import TargetTree

CONFIG = SearchConfig()


def grown(verdicts: list[float | None], target: Target | None = None) -> TargetTree:
    """A tree of drafts with these speedups; None for a wrong one."""
    tree = TargetTree(target or simulate.target("t"), 0.4)
    for number, speedup in enumerate(verdicts):
        tree.add(Node(id=number, target_id="t", parent=None, edge=Edge.DRAFT, proposer="m", source=f"// {number}",
                      language="cpp"))  # fmt: skip
        right = Verdict.SLOWER if speedup and speedup < 1 else Verdict.FASTER
        tree.settle(number, Evaluation(verdict=right, speedup=speedup) if speedup else
                    Evaluation(verdict=Verdict.REJECTED, reason="no"))  # fmt: skip
    return tree


@pytest.mark.parametrize(
    ("verdicts", "rate"),
    [
        # 0.3 of the model, 1 / 4 of it at the floor, thought to begin at exp(-0.2): 0.3 0.11 0.75^1.75 exp(-2.8 0.2)
        ([], 0.011394),
        # after eight that brought nothing: 2^-0.6 2^-0.92 of it
        ([None] * 8, 0.0039729),
        # 2x leaves 1 / 2 - 1 / 4: 0.3 0.11 0.25^1.75, and 2^-0.6 (17 / 8)^-0.92
        ([2.0] + [None] * 8, 0.00096207),
        # twice as slow has ln 2 to catch up: 0.3 0.11 0.75^1.75 exp(-2.8 0.6931) (9 / 8)^-0.92
        ([0.5], 0.0025697),
    ],
)
def test_the_expected_saving_is_what_it_is_by_hand(verdicts: list[float | None], rate: float) -> None:
    """Room, luck, age and what has to be caught up, each with its constant."""
    outlook = Outlook(grown(verdicts), CONFIG)
    assert outlook.rate == pytest.approx(rate, rel=1e-3)
    assert outlook.rank == outlook.rate
    dear = Outlook(grown(verdicts), CONFIG, 0.5)
    assert dear.rank == pytest.approx(2 * outlook.rate)
    library = msgspec.structs.replace(simulate.target("t"), bound="compute")
    doubtful = Outlook(grown(verdicts, library), CONFIG)
    near = verdicts[:1] == [2.0]
    assert doubtful.rate == pytest.approx(outlook.rate * (1 if near else CONFIG.compute_win_chance))


def test_a_target_is_given_up_when_the_next_attempts_are_expected_to_gain_too_little() -> None:
    """The rule's edge, from both sides, and its words; for what a library does they say so."""
    tree = grown([2.0] + [None] * 8)
    at_edge = CONFIG.stop_horizon * Outlook(tree, CONFIG).rate
    for factor, closed in ((0.999, False), (1.001, True)):
        config = msgspec.structs.replace(CONFIG, min_gain=at_edge * factor)
        reason = Outlook(tree, config).closed()
        assert (reason == f"{CONFIG.stop_horizon} more attempts are expected to gain less than {at_edge:.1%} of the "
                          "model's time") is closed  # fmt: skip
        assert bool(reason) is closed
    library = msgspec.structs.replace(simulate.target("t"), bound="compute")
    slow = Outlook(grown([0.3, None, None, None], library), CONFIG).closed()
    assert slow.endswith("of the model's time, as vendors' libraries are hardly beaten")
    assert Outlook(grown([0.3, None][: CONFIG.stop_after - 1], library), CONFIG).closed() == ""


def node_of(number: int, design: Design) -> Node:
    """A node with this design."""
    return Node(id=number, target_id="t", parent=None, edge=Edge.DRAFT, proposer="simulated",
                source=simulate.write(design), language="cpp", family=str(design.family))  # fmt: skip


def asked(edge: Edge, nodes: list[Node], seed: int, other: Node | None = None) -> Task:
    """A task at the first of these nodes."""
    return Task(target=simulate.target("t"), device=simulate.DEVICE, edge=edge, parent=nodes[0], failed=None,
                other=other, best=None, lineage=(), nodes=tuple(nodes), seed=seed)  # fmt: skip


def test_a_rewrite_is_of_a_family_that_was_not_tried() -> None:
    """Of the untried ones while there are any, then of any other; it brings nothing that its parent did not have."""
    writer = simulate.SimulatedProposer({"t": Landscape(3, "fused")})
    used = frozenset({1, 4, 7})
    some = [node_of(i, Design(i, used)) for i in range(2)]
    every = [node_of(i, Design(i, used)) for i in range(FAMILIES)]
    for nodes, families in ((some, {2, 3}), (every, {1, 2, 3})):
        found, kept, broken = Counter[int](), Counter[int](), 0
        for seed in range(400):
            proposal = writer.write(asked(Edge.REWRITE, nodes, seed))
            assert proposal.source is not None
            if proposal.source == nodes[0].source:
                continue
            design, fault, _ = simulate.read(proposal.source, {})
            found[design.family] += 1
            kept.update(design.techniques)
            broken += bool(fault)
        assert set(found) == families
        assert set(kept) <= used
        assert 0 < sum(kept.values()) < 3 * found.total()
        # a draft's: 0.42 + 0.18 of the replies; 6% of them repeat the parent
        assert broken / found.total() == pytest.approx(0.60, abs=0.08)
        assert found.total() / 400 == pytest.approx(0.94, abs=0.04)


def test_a_merge_mixes_two_kernels() -> None:
    """What both have stays, what neither has does not come in, what one has may; settings are one's or the other's."""
    writer = simulate.SimulatedProposer({"t": Landscape(3, "fused")})
    one, two = Design(0, frozenset({1, 2, 3}), (0, 1, 2)), Design(2, frozenset({3, 4, 5}), (4, 3, 2))
    nodes = [node_of(0, one), node_of(1, two)]
    seen: set[int] = set()
    for seed in range(200):
        proposal = writer.write(asked(Edge.MERGE, nodes, seed, nodes[1]))
        assert proposal.source is not None
        design, _, _ = simulate.read(proposal.source, {})
        assert design.family == 0
        assert 3 in design.techniques
        assert design.techniques <= {1, 2, 3, 4, 5} < set(range(TECHNIQUES))
        assert all(level in pair for level, *pair in zip(design.knobs, one.knobs, two.knobs, strict=True))
        seen |= design.techniques
    assert seen & {4, 5}
    assert writer.can(asked(Edge.MERGE, nodes, 0, nodes[1]))
    assert writer.can(asked(Edge.REWRITE, nodes, 0))
