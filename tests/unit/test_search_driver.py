"""Steps of a whole search: order, limits, allocation, resume, reasons."""

from __future__ import annotations

import math

import msgspec
import pytest

from forge_tui.core.records import Edge, Evaluation, Node, Target, Verdict
from forge_tui.search import simulate
from forge_tui.search.driver import Search, SearchConfig, Step, Stop
from forge_tui.search.landscape import Landscape
from forge_tui.search.tree import GENERATION


def yes(_step: Step) -> bool:
    """A proposer that can do everything."""
    return True


def make(*targets: Target, **changes: object) -> Search:
    """A search with one model."""
    config = msgspec.structs.replace(SearchConfig(proposers=("m",)), **changes)
    return Search(config, targets or (simulate.target("t"),))


def node_for(step: Step, node_id: int, source: str = "") -> Node:
    """The node that a step begins."""
    return Node(id=node_id, target_id=step.target_id, parent=step.parent, edge=step.edge, proposer=step.proposer,
                source=source or f"// {node_id}", language="cpp", tunables=step.tunables,
                repairs=step.failed)  # fmt: skip


def right(speedup: float) -> Evaluation:
    """A right kernel of a sure speed."""
    verdict = Verdict.FASTER if speedup > 1 else Verdict.SLOWER
    return Evaluation(verdict=verdict, speedup=speedup, speedup_ci=(speedup * 0.999, speedup * 1.001))


def take(search: Search, node_id: int, evaluation: Evaluation | None, source: str = "") -> Step:
    """Do the next step."""
    step = search.next_step(yes)
    assert isinstance(step, Step)
    search.begin(step, node_for(step, node_id, source))
    if evaluation is not None:
        search.finish(node_id, evaluation)
    return step


def simulated(seed: int = 0, width: int = 1, scale: float = 1.0, kind: str = "reduction", evaluations: int = 60,
              **changes: object) -> tuple[Search, list[tuple[Step, Node]]]:  # fmt: skip
    """A whole run on a landscape, with its steps."""
    land = {"t": Landscape(seed, kind)}
    config = SearchConfig(seed=seed, proposers=("simulated",), max_evaluations=evaluations)
    target = simulate.target("t", time_us=100 * scale, floor_us=20 * scale)
    search = Search(msgspec.structs.replace(config, **changes), [target])
    trace: list[tuple[Step, Node]] = []
    simulate.run(search, {"simulated": simulate.SimulatedProposer(land)}, simulate.SimulatedEvaluator(land),
                 width=width, on_node=lambda step, node: trace.append((step, node)))  # fmt: skip
    return search, trace


def test_no_targets_ends_at_once() -> None:
    """Without a target there is nothing to search."""
    stop = Search(SearchConfig(), []).next_step(yes)
    assert stop == Stop(reason="No target has enough headroom to search.")


def test_evaluations_are_a_hard_limit() -> None:
    """The limit counts what is in flight, and the stop waits for it."""
    search = make(max_evaluations=2)
    take(search, 0, None)
    take(search, 1, None)
    assert search.next_step(yes) is None
    search.finish(0, right(1.1))
    search.finish(1, right(1.2))
    assert search.next_step(yes) == Stop(reason="All 2 evaluations are used up.")
    assert search.evaluations == 2


def test_failures_of_ours_do_not_use_up_evaluations() -> None:
    """An evaluation that failed through us may be done again, with the same seed."""
    search = make(max_evaluations=1)
    first = take(search, 0, Evaluation(verdict=Verdict.INFRA))
    second = take(search, 1, right(1.5))
    assert (first.edge, first.seed) == (second.edge, second.seed)
    assert isinstance(search.next_step(yes), Stop)


def test_an_infra_drop_leaves_no_trace_and_a_real_one_counts() -> None:
    """A provider's failure is forgotten; a reply without code is an attempt."""
    search = make()
    fresh = search.state()
    step = search.next_step(yes)
    assert isinstance(step, Step)
    assert search.drop(step, "rate limit", infra=True) is None
    assert search.state() == fresh
    again = search.next_step(yes)
    assert again == step
    drop = search.drop(step, "no code in the reply")
    assert drop is not None
    assert drop.after == -1
    assert search.tree("t").root_attempts == 1
    other = search.next_step(yes)
    assert isinstance(other, Step)
    assert other.seed != step.seed
    restored = make()
    restored.restore([], [drop])
    assert restored.next_step(yes) == other


def test_a_proposer_that_only_drops_is_given_up() -> None:
    """Replies without code do not go on for ever."""
    search = make()
    for _ in range(200):
        step = search.next_step(yes)
        if isinstance(step, Stop):
            break
        assert isinstance(step, Step)
        search.drop(step, "no code")
    assert isinstance(step, Stop)
    assert "(t)" in step.reason


def test_start_kernels_come_first() -> None:
    """While a person's kernel is being evaluated its target waits for it, and then builds on it."""
    search = make(in_flight_per_target=4)
    step = search.start_step("t")
    assert (step.edge, step.proposer) == (Edge.START, "person")
    search.begin(step, node_for(step, 0))
    assert search.next_step(yes) is None
    search.finish(0, right(2.5))
    search.tree("t").root_attempts += 30  # many drafts: the new root is not worth it
    following = search.next_step(yes)
    assert isinstance(following, Step)
    assert following.parent == 0


def test_exhausted_options_fall_back_and_are_asked_once() -> None:
    """Where the proposer cannot draft, the next best place is taken, and a no is remembered until the tree changes."""
    search = make()
    take(search, 0, right(1.1))
    asked: list[Edge] = []

    def improves_only(step: Step) -> bool:
        asked.append(step.edge)
        return step.edge is Edge.IMPROVE

    step = search.next_step(improves_only)
    assert isinstance(step, Step)
    assert (step.edge, step.parent) == (Edge.IMPROVE, 0)
    assert asked == [Edge.DRAFT, Edge.IMPROVE]
    search.next_step(improves_only)
    assert asked.count(Edge.DRAFT) == 1
    search.begin(step, node_for(step, 1))
    search.next_step(improves_only)
    assert asked.count(Edge.DRAFT) == 2


def test_all_exhausted_says_so() -> None:
    """When no proposer can do anything the search ends with that reason."""
    search = make()
    take(search, 0, right(1.1))
    assert search.next_step(lambda _: False) == Stop(
        reason="Nothing more is worth trying: no proposer has another idea (t)."
    )


def test_a_target_at_its_floor_gets_nothing() -> None:
    """A kernel at 90% of the floor's speed ends its target."""
    search = make(simulate.target("t", time_us=100, floor_us=50))
    take(search, 0, right(1.9))
    stop = search.next_step(yes)
    assert stop == Stop(reason="Nothing more is worth trying: near the floor of this device (t).")


def test_a_beaten_floor_is_no_floor() -> None:
    """Where a kernel is faster than the floor, the search goes on by luck alone."""
    search = make(simulate.target("t", time_us=100, floor_us=50))
    take(search, 0, right(2.5))
    assert isinstance(search.next_step(yes), Step)


def test_a_tiny_target_gets_nothing() -> None:
    """What cannot save 0.1% of the model's time is not searched at all."""
    stop = make(simulate.target("small", share=0.001)).next_step(yes)
    assert stop == Stop(
        reason="Nothing more is worth trying: less than 0.1% of the model's time left to gain (small)."
    )


def test_a_library_far_ahead_is_left_to_itself() -> None:
    """A compute-bound target whose kernels stay twice as slow gets six attempts; one that comes near gets more."""
    target = msgspec.structs.replace(simulate.target("gemm", share=0.9), bound="compute")
    for speedup, parked in ((0.3, True), (0.9, False)):
        search = make(target, max_evaluations=8)
        for i in range(8):
            step = search.next_step(yes)
            if isinstance(step, Stop):
                break
            assert step is not None
            search.begin(step, node_for(step, i))
            search.finish(i, right(speedup))
        assert search.evaluations == (6 if parked else 8)
        reason = "Nothing more is worth trying: 6 attempts and still 2 times slower than the library's (gemm)."
        assert (search.next_step(yes) == Stop(reason=reason)) is parked


def test_a_fruitless_target_is_parked_with_the_reason() -> None:
    """Attempts that bring nothing lower what is expected, until the next ones are not worth it."""
    search = make(simulate.target("t", share=0.02), max_evaluations=500)
    take(search, 0, right(1.2))
    for i in range(1, 500):
        step = search.next_step(yes)
        if isinstance(step, Stop):
            break
        assert step is not None
        search.begin(step, node_for(step, i))
        search.finish(i, right(0.9))
    reason = "15 more attempts are expected to gain less than 0.1% of the model's time (t)."
    assert step == Stop(reason=f"Nothing more is worth trying: {reason}")
    assert search.config.stop_after <= search.evaluations < search.config.patience


def test_every_target_gets_a_draft_early() -> None:
    """Before targets compete, each has its first attempts, the one with the most headroom first."""
    targets = [simulate.target(name, share=share) for name, share in (("a", 0.1), ("b", 0.4), ("c", 0.2))]
    search = make(*targets)
    order = [take(search, i, right(0.8)).target_id for i in range(3)]
    assert order == ["b", "c", "a"]


def test_most_attempts_go_to_the_most_open_headroom() -> None:
    """Of three targets with equal luck the one with the most time left to save gets the most; none is forgotten."""
    shares = {"a": 0.05, "b": 0.5, "c": 0.15}
    search = make(*(simulate.target(name, share=share) for name, share in shares.items()), max_evaluations=60)
    counts = dict.fromkeys(shares, 0)
    for i in range(60):
        step = search.next_step(yes)
        if isinstance(step, Stop):
            break
        assert step is not None
        counts[step.target_id] += 1
        search.begin(step, node_for(step, i))
        search.finish(i, right(0.9 + 0.01 * counts[step.target_id]))
    assert sum(counts.values()) == 60
    assert counts["b"] >= 36
    assert 4 <= min(counts.values()) <= 12


def test_the_order_of_targets_does_not_matter() -> None:
    """Permuting the targets permutes nothing else."""
    targets = [simulate.target(name, share=share) for name, share in (("a", 0.2), ("b", 0.2), ("c", 0.3))]
    runs = []
    for order in (targets, targets[::-1]):
        search = make(*order)
        runs.append([take(search, i, right(1 + 0.01 * i)) for i in range(20)])
    assert runs[0] == runs[1]


def test_in_flight_per_target_is_limited() -> None:
    """Two steps per target while there are others, four where it is alone."""
    alone = make()
    assert [isinstance(alone.next_step(yes), Step) for _ in range(5)] == [True] * 4 + [False]
    both = make(simulate.target("a"), simulate.target("b"))
    steps = [both.next_step(yes) for _ in range(5)]
    assert steps[4] is None
    assert sorted(s.target_id for s in steps if isinstance(s, Step)) == ["a", "a", "b", "b"]


def test_seeds_differ_between_steps_and_follow_the_configuration() -> None:
    """Steps in flight never share a seed; the same seed gives the same steps."""
    def seeds(seed: int) -> list[int]:
        search = make(seed=seed)
        found = [search.next_step(yes) for _ in range(4)]
        return [step.seed for step in found if isinstance(step, Step)]

    assert len(set(seeds(1))) == 4
    assert seeds(1) == seeds(1)
    assert seeds(1) != seeds(2)


def test_templates_draft_first_and_one_at_a_time() -> None:
    """Templates are asked for drafts before models, never twice on the same tree."""
    search = make(proposers=("m", "templates"))
    first, second = search.next_step(yes), search.next_step(yes)
    assert isinstance(first, Step)
    assert isinstance(second, Step)
    assert (first.proposer, second.proposer) == ("templates", "m")


def test_models_take_turns_then_follow_gain_per_dollar() -> None:
    """Each model is asked once; after that the cheap one that gains as much gets more."""
    search = make(simulate.target("t", floor_us=0.2), proposers=("dear", "cheap"), max_evaluations=40)
    counts = {"dear": 0, "cheap": 0}
    first = []
    for i in range(30):
        step = search.next_step(yes)
        assert isinstance(step, Step)
        counts[step.proposer] += step.edge is not Edge.TUNE
        if step.edge is Edge.DRAFT:
            first.append(step.proposer)
        price = {"dear": 0.5, "cheap": 0.02}[step.proposer]
        search.begin(step, msgspec.structs.replace(node_for(step, i), cost_usd=price))
        search.finish(i, right(1.2 + 0.02 * i))
    assert first[:2] == ["dear", "cheap"]
    assert counts["cheap"] > 2 * counts["dear"]


def test_the_same_seed_and_replies_give_the_same_run() -> None:
    """Two runs of one configuration are step by step equal."""
    assert simulated(3, width=3)[1] == simulated(3, width=3)[1]
    assert [s for s, _ in simulated(3)[1]] != [s for s, _ in simulated(4)[1]]


def test_the_unit_of_time_does_not_matter() -> None:
    """All times multiplied by 1000 give the same decisions."""
    one = [step for step, _ in simulated(5)[1]]
    assert [step for step, _ in simulated(5, scale=1000.0)[1]] == one
    assert len(one) > 20


def test_every_visit_is_counted_once() -> None:
    """Attempts of roots plus those below them are all the attempts there were."""
    search, trace = simulated(7, width=2)
    tree = search.tree("t")
    written = [node for _, node in trace if node.edge in GENERATION]
    assert len(written) == len(tree.generation)
    assert tree.root_attempts + sum(root.size - 1 for root in tree.roots) == len(written)
    for chain in tree.chains.values():
        below = sum(1 for n in tree.nodes() if n.edge in GENERATION and n.parent in chain.members)
        assert chain.attempts == below


def test_no_failed_node_is_ever_built_upon() -> None:
    """Improvements and settings start from right kernels, repairs from failed ones; caps hold."""
    edges = set()
    for seed in range(6):
        search, trace = simulated(seed, width=3, evaluations=80)
        by_id = {node.id: node for _, node in trace}
        for _, node in trace:
            edges.add(node.edge)
            if node.parent is not None:
                parent = by_id[node.parent].evaluation
                assert parent is not None
                assert parent.verdict.right
            if node.edge is Edge.REPAIR:
                assert node.repairs is not None
                mended = by_id[node.repairs]
                assert mended.evaluation is not None
                assert mended.evaluation.verdict.repairable
                assert node.parent == mended.parent
        chains = search.tree("t").chains.values()
        assert max(len(c.children) for c in chains) <= search.config.max_children
        assert max(c.tunes for c in chains) <= search.config.max_tunes
    assert edges == {Edge.DRAFT, Edge.IMPROVE, Edge.REPAIR, Edge.REWRITE, Edge.TUNE}


def test_search_beats_random_drafts() -> None:
    """Over fifty landscapes the search finds clearly more than as many independent drafts."""
    searched, drafted = [], []
    for seed in range(50):
        kind = ("reduction", "fused", "pooling", "elementwise", "reduction")[seed % 5]
        endless = {"min_gain": 0.0, "patience": 10**6, "floor_fraction": 9.0}
        for found, changes in ((searched, {}), (drafted, {"explore_roots": 1e6, "max_repairs": 0, "max_tunes": 0})):
            search, _ = simulated(seed, kind=kind, evaluations=40, **endless, **changes)
            best = search.best("t")
            true = 0.0
            if best is not None:
                true = Landscape(seed, kind).value(simulate.read(best.source, best.tunables)[0])
            found.append(max(0.0, true))
    assert math.fsum(searched) / 50 > math.fsum(drafted) / 50 + 0.1


def test_the_task_shows_the_tree() -> None:
    """A request holds parent, lineage, best and every node, those in flight included."""
    search = make(max_evaluations=99)
    take(search, 0, right(1.4))
    search.tree("t").root_attempts += 50
    step = take(search, 1, right(1.6))
    assert step.parent == 0
    following = take(search, 2, None)
    task = search.task(following, simulate.DEVICE)
    assert task.parent is not None
    assert task.best is not None
    assert (task.parent.id, task.best.id) == (following.parent, 1)
    assert [n.id for n in task.lineage][-1] == 0
    assert [n.id for n in task.nodes] == [0, 1, 2]
    assert task.nodes[2].evaluation is None
    assert task.seed == following.seed


@pytest.mark.parametrize("shape", ["roots", "tree"])
def test_ten_thousand_nodes_are_held_and_counted(shape: str) -> None:
    """A tree of 10,000 nodes restores, decides, and asks each place at most once."""
    search = make(max_evaluations=10**6, min_gain=0.0, patience=10**6)
    nodes = []
    for i in range(10_000):
        parent = None if shape == "roots" or i == 0 else (i - 1) // 4
        edge = Edge.DRAFT if parent is None else Edge.IMPROVE
        step = Step(target_id="t", edge=edge, parent=parent, proposer="m")
        evaluation = right(1.2 + (i * 7919 % 1000) / 1000)
        nodes.append(msgspec.structs.replace(node_for(step, i), evaluation=evaluation))
    search.restore(nodes)
    tree = search.tree("t")
    assert tree.root_attempts + sum(r.size - 1 for r in tree.roots) == 10_000
    step = take(search, 10_000, right(1.0))
    assert step.edge in (Edge.DRAFT, Edge.IMPROVE)
    assert search.evaluations == 10_001
    asked: list[tuple[Edge, int | None]] = []
    search.next_step(lambda s: bool(asked.append((s.edge, s.parent))))
    assert len(asked) == len(set(asked)) == 10_002
