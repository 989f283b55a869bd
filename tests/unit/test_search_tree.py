"""Statistics of a target's tree, and the options the policy draws from them."""

from __future__ import annotations

import itertools
import math
from functools import partial

import msgspec
import pytest

from forge_tui.contract import tune
from forge_tui.core.records import Edge, Evaluation, Node, Verdict
from forge_tui.search import policy, simulate
from forge_tui.search.allocation import bonus_scale
from forge_tui.search.config import SearchConfig, Step
from forge_tui.search.experience import Experience
from forge_tui.search.tree import TargetTree, value_of

CONFIG = SearchConfig(proposers=("m",))
TUNED = "//@tune A 1 2 3\n//@tune B 10 20\nextern \"C\" int forge_launch(FORGE_PARAMS) { return 0; }\n"


def right(value: float, ci: tuple[float, float] | None = None) -> Evaluation:
    """A right kernel with this value."""
    return Evaluation(verdict=Verdict.FASTER, speedup=math.exp(value), speedup_ci=ci)


def failed(verdict: Verdict = Verdict.COMPILE_ERROR) -> Evaluation:
    """A kernel that is not right."""
    return Evaluation(verdict=verdict, reason="no")


class Grown:
    """A tree built node by node."""

    def __init__(self) -> None:
        self.tree = TargetTree(simulate.target("t"), CONFIG.explore)
        self._ids = itertools.count()

    def node(self, edge: Edge, parent: int | None = None, evaluation: Evaluation | None = None, *, source: str = "",
             repairs: int | None = None, tunables: dict[str, int] | None = None) -> int:  # fmt: skip
        """Add a node, with its verdict if given."""
        node_id = next(self._ids)
        self.tree.add(Node(id=node_id, target_id="t", parent=parent, edge=edge, proposer="m", language="cpp",
                           source=source or f"// {node_id}", repairs=repairs, tunables=tunables or {}))  # fmt: skip
        if evaluation is not None:
            self.tree.settle(node_id, evaluation)
        return node_id

    def first(self) -> policy.Option:
        """What the policy wants most."""
        return next(policy.options(self.tree, CONFIG))


@pytest.fixture
def grown() -> Grown:
    """An empty tree."""
    return Grown()


def test_value_is_the_log_of_the_intervals_lower_end() -> None:
    """A kernel's value is ln of the lower bound, so that noise is not rewarded."""
    assert value_of(right(0.7, (1.5, 3.0))) == pytest.approx(math.log(1.5))
    assert value_of(right(0.7)) == pytest.approx(0.7)
    assert value_of(failed()) is None
    assert value_of(Evaluation(verdict=Verdict.SLOWER, speedup=0.0)) is None
    assert value_of(Evaluation(verdict=Verdict.SLOWER, speedup=math.nan)) is None


def test_attempts_sizes_and_best_below_add_up(grown: Grown) -> None:
    """A counts a kernel's own attempts, N its whole subtree, M the best in it."""
    root = grown.node(Edge.DRAFT, None, right(0.1))
    child = grown.node(Edge.IMPROVE, root, right(0.4))
    grown.node(Edge.IMPROVE, root, failed())
    grown.node(Edge.IMPROVE, child, right(0.2))
    grown.node(Edge.IMPROVE, child)  # in flight
    chain = grown.tree.chains[root]
    assert (chain.attempts, chain.size, chain.below) == (2, 5, pytest.approx(0.4))
    stats = grown.tree.stats()
    assert [stats[i].visits for i in range(5)] == [5, 3, 1, 1, 1]
    assert stats[root].best_below == pytest.approx(0.4)
    assert stats[2].value is None
    assert stats[2].best_below is None


def test_a_repair_hangs_beside_the_failure_and_is_no_attempt(grown: Grown) -> None:
    """A repair never takes a widening slot again, and never deepens the tree."""
    root = grown.node(Edge.DRAFT, None, right(0.1))
    broken = grown.node(Edge.IMPROVE, root, failed())
    before = grown.tree.chains[root].attempts
    mended = grown.node(Edge.REPAIR, root, right(0.3), repairs=broken)
    chain = grown.tree.chains[root]
    assert chain.attempts == before == 1
    assert [c.head for c in chain.children] == [mended]
    assert chain.below == pytest.approx(0.3)


def test_settings_belong_to_their_kernel(grown: Grown) -> None:
    """Tune nodes charge nobody, and the best setting is the kernel's value."""
    root = grown.node(Edge.DRAFT, None, right(0.1), source=TUNED)
    better = grown.node(Edge.TUNE, root, right(0.3), source=TUNED, tunables={"A": 2, "B": 10})
    grown.node(Edge.TUNE, better, right(0.2), source=TUNED, tunables={"A": 3, "B": 10})
    chain = grown.tree.chains[root]
    assert (chain.attempts, chain.size, chain.tunes) == (0, 1, 2)
    assert (chain.value, chain.best) == (pytest.approx(0.3), better)
    assert grown.tree.chains[better] is chain
    assert policy.Option(Edge.IMPROVE, better, chain) in policy.options(grown.tree, CONFIG)


def test_a_duplicate_charges_its_parent_and_has_no_value(grown: Grown) -> None:
    """A duplicate is an attempt, not a child."""
    root = grown.node(Edge.DRAFT, None, right(0.1))
    grown.node(Edge.IMPROVE, root, failed(Verdict.DUPLICATE))
    chain = grown.tree.chains[root]
    assert (chain.attempts, chain.size, chain.children) == (1, 2, [])
    assert chain.duplicates == {"m": 1}
    assert grown.tree.failures == []


def test_a_failure_of_ours_leaves_no_trace(grown: Grown) -> None:
    """INFRA counts for nothing: the tree is as if the node had never been."""
    root = grown.node(Edge.DRAFT, None, right(0.1), source=TUNED)
    before = (grown.tree.nodes(), grown.tree.stats(), grown.tree.chains[root].attempts, list(grown.tree.generation))
    for edge in (Edge.IMPROVE, Edge.TUNE, Edge.REPAIR):
        grown.node(edge, root, failed(Verdict.INFRA), repairs=root if edge is Edge.REPAIR else None)
    assert grown.tree.tunes == 0
    assert grown.tree.chains[root].members == [root]
    after = (grown.tree.nodes(), grown.tree.stats(), grown.tree.chains[root].attempts, list(grown.tree.generation))
    assert after == before


def test_a_second_verdict_changes_nothing(grown: Grown) -> None:
    """A node is counted once however often its verdict arrives."""
    root = grown.node(Edge.DRAFT, None, right(0.1))
    grown.node(Edge.IMPROVE, root, right(0.2))
    before = (grown.tree.stats(), grown.tree.version)
    grown.tree.settle(root, right(3.0))
    assert (grown.tree.stats(), grown.tree.version) == before


def test_running_steps_count_until_they_are_released(grown: Grown) -> None:
    """A step that is in flight weighs like an attempt."""
    root = grown.node(Edge.DRAFT, None, right(0.1))
    step = Step(target_id="t", edge=Edge.IMPROVE, parent=root, proposer="m")
    grown.tree.reserve(step)
    assert (grown.tree.chains[root].attempts, grown.tree.begun, grown.tree.in_flight) == (1, 2, 1)
    grown.tree.release(step)
    assert (grown.tree.chains[root].attempts, grown.tree.begun, grown.tree.in_flight) == (0, 1, 0)


def test_best_prefers_a_whole_interval_above_one(grown: Grown) -> None:
    """A higher speedup whose interval spans 1 does not beat a sure one."""
    unsure = grown.node(Edge.DRAFT, None, Evaluation(
        verdict=Verdict.INCONCLUSIVE, speedup=2.0, speedup_ci=(0.9, 4.0)))  # fmt: skip
    assert grown.tree.best is not None
    assert grown.tree.best.id == unsure
    sure = grown.node(Edge.DRAFT, None, right(math.log(1.2), (1.1, 1.3)))
    assert grown.tree.best.id == sure
    faster = grown.node(Edge.DRAFT, None, right(math.log(1.5), (1.05, 2.2)))
    assert grown.tree.best.id == faster


def test_the_descent_stays_goes_down_and_starts_anew(grown: Grown) -> None:
    """Stay, down and new root are weighed by the formulas of the policy."""
    assert grown.first() == policy.Option(Edge.DRAFT, None)
    root = grown.node(Edge.DRAFT, None, right(0.0))
    # new root: 0 + 0.20 + 0.3/sqrt(2) = 0.412; down: 0 + 0.4/sqrt(2) = 0.283
    assert policy.newroot_score(grown.tree, CONFIG) == pytest.approx(0.2 + 0.3 / math.sqrt(2))
    assert grown.first() == policy.Option(Edge.DRAFT, None)
    grown.node(Edge.DRAFT, None, failed())
    grown.node(Edge.DRAFT, None, failed())
    good = grown.node(Edge.IMPROVE, root, right(0.5))
    # down(good) = 0.5 + 0.4/sqrt(2) = 0.78 > stay(root) = 0 + 0.4/sqrt(2)
    assert grown.first().parent == good
    for _ in range(3):
        grown.node(Edge.IMPROVE, good, right(-1.0))
    bad = grown.node(Edge.IMPROVE, good, right(0.45))
    # stay(good) = 0.5 + 0.4/sqrt(5) = 0.679; down(bad) = 0.45 + 0.4/sqrt(2) = 0.733
    assert grown.first().parent == bad


def test_ties_go_to_staying_and_to_the_older_node(grown: Grown) -> None:
    """Equal scores are decided the same way every time."""
    first = grown.node(Edge.DRAFT, None, right(5.0))
    grown.node(Edge.DRAFT, None, right(5.0))
    for _ in range(40):
        grown.node(Edge.DRAFT, None, failed())
    assert grown.first().parent == first
    # a child of equal worth: stay(first) = 5 + c/sqrt(2), down(child) = 5 + c/sqrt(2)
    grown.node(Edge.IMPROVE, first, right(5.0))
    heads = [option.parent for option in policy.options(grown.tree, CONFIG)]
    assert heads.index(first) < heads.index(42)


def test_every_place_is_offered_once(grown: Grown) -> None:
    """When no proposer can do the first choice, each other place comes exactly once, the new root included."""
    root = grown.node(Edge.DRAFT, None, right(0.1))
    child = grown.node(Edge.IMPROVE, root, right(0.2))
    other = grown.node(Edge.DRAFT, None, right(0.3))
    grown.node(Edge.IMPROVE, child, failed())
    found = [(o.edge, o.parent) for o in policy.options(grown.tree, CONFIG)]
    expected = {(Edge.DRAFT, None), (Edge.IMPROVE, root), (Edge.IMPROVE, child), (Edge.IMPROVE, other)}
    assert len(found) == len(expected)
    assert set(found) == expected


def test_right_children_are_capped(grown: Grown) -> None:
    """A kernel with the full number of right children gets no more."""
    root = grown.node(Edge.DRAFT, None, right(2.0))
    for _ in range(CONFIG.max_children):
        grown.node(Edge.IMPROVE, root, right(-3.0))
    assert root not in [o.parent for o in policy.options(grown.tree, CONFIG)]


def test_a_barren_kernel_comes_last(grown: Grown) -> None:
    """Four attempts without a child near it put a kernel behind all other options, unless it is the champion."""
    champion = grown.node(Edge.DRAFT, None, right(0.30))
    barren = grown.node(Edge.DRAFT, None, right(0.29))
    for parent in (champion, barren):
        for _ in range(CONFIG.freeze_after):
            grown.node(Edge.IMPROVE, parent, failed())
    order = [o.parent for o in policy.options(grown.tree, CONFIG)]
    assert order[-1] == barren
    assert champion in order[:-1]


def test_repairs_are_recent_unmended_and_at_most_three(grown: Grown) -> None:
    """Only failures that a repair could still mend are offered, newest first."""
    root = grown.node(Edge.DRAFT, None, right(0.1))
    old = grown.node(Edge.IMPROVE, root, failed())
    new = grown.node(Edge.IMPROVE, root, failed(Verdict.REJECTED))
    assert [n.id for n in policy.repairs(grown.tree, CONFIG)] == [new, old]
    last = new
    for depth in range(1, CONFIG.max_repairs + 1):
        assert grown.tree.repair_depth(last) == depth
        last = grown.node(Edge.REPAIR, root, failed(), repairs=last)
    assert [n.id for n in policy.repairs(grown.tree, CONFIG)] == [old]
    for _ in range(CONFIG.repair_window):
        grown.node(Edge.IMPROVE, root, right(0.0))
    assert list(policy.repairs(grown.tree, CONFIG)) == []


def test_the_repair_gate_follows_the_odds(grown: Grown) -> None:
    """Compile errors are repaired from the start; wrong results only once repairs proved to work better than drafts."""
    grown.node(Edge.DRAFT, None, failed(Verdict.COMPILE_ERROR))
    grown.node(Edge.DRAFT, None, failed(Verdict.REJECTED))
    wrong, broken = policy.repairs(grown.tree, CONFIG)
    known = Experience()
    strict = msgspec.structs.replace(CONFIG, repair_gate=0.8)
    # 0.60 >= 0.8 * 2/3, but 0.40 is not
    assert policy.repair_pays(grown.tree, broken, "m", known, strict)
    assert not policy.repair_pays(grown.tree, wrong, "m", known, strict)
    for _ in range(10):
        known.end("m", Edge.DRAFT, value=None, before=None)
    assert policy.repair_pays(grown.tree, wrong, "m", known, strict)
    for _ in range(30):
        known.end_repair(Verdict.REJECTED, "m", right=False)
    assert not policy.repair_pays(grown.tree, wrong, "m", known, strict)


def test_settings_are_swept_by_coordinate_descent(grown: Grown) -> None:
    """One tunable after another, each from the best setting so far, nothing twice."""
    root = grown.node(Edge.DRAFT, None, right(0.1), source=TUNED)
    seen = []
    for value in (0.2, 0.15, 0.3, 0.1, 0.1):
        found = policy.tune_step(grown.tree, CONFIG)
        if found is None:
            break
        parent, setting = found
        seen.append((parent, setting["A"], setting["B"]))
        grown.node(Edge.TUNE, parent, right(value), source=TUNED, tunables=setting)
    # A: 2 is better, 3 is not; B: 20 is better; from there A again with what was not tried yet
    assert seen == [(root, 2, 10), (1, 3, 10), (1, 2, 20), (3, 1, 20), (3, 3, 20)]
    assert policy.tune_step(grown.tree, CONFIG) is None


@pytest.mark.parametrize("current", [{"A": 1, "B": 10}, {"A": 3, "B": 20}])
def test_neighbours_are_the_contracts(current: dict[str, int]) -> None:
    """The policy's quick neighbours are those that the contract names, in the same order."""
    assert policy.neighbours(policy._declared(TUNED), current) == tune.neighbours(TUNED, current)


def test_a_source_whose_settings_cannot_be_read_is_not_swept(grown: Grown) -> None:
    """Broken directives, and settings that are not declared, end a sweep quietly."""
    grown.node(Edge.DRAFT, None, right(0.1), source="//@tune A 1 x\n")
    grown.node(Edge.DRAFT, None, right(0.1), source=TUNED, tunables={"NOT_THERE": 1})
    assert policy.tune_step(grown.tree, CONFIG) is None


def test_only_kernels_near_the_champion_are_swept(grown: Grown) -> None:
    """A kernel 0.4 below the best is not worth a sweep, and one setting runs at a time."""
    grown.node(Edge.DRAFT, None, right(1.0))
    grown.node(Edge.DRAFT, None, right(0.59), source=TUNED)
    assert policy.tune_step(grown.tree, CONFIG) is None
    near = grown.node(Edge.DRAFT, None, right(0.61), source=TUNED.replace("1 2 3", "4 5"))
    found = policy.tune_step(grown.tree, CONFIG)
    assert found == (near, {"A": 5, "B": 10})
    grown.node(Edge.TUNE, near, None, source=TUNED.replace("1 2 3", "4 5"), tunables={"A": 5, "B": 10})
    assert policy.tune_step(grown.tree, CONFIG) is None


def test_a_sweep_ends_at_its_cap(grown: Grown) -> None:
    """At most twelve settings of one kernel are tried."""
    source = "//@tune A 0 1 2 3 4 5 6 7\n//@tune B 0 1 2 3 4 5 6 7\n"
    grown.node(Edge.DRAFT, None, right(0.1), source=source)
    for _ in range(CONFIG.max_tunes):
        found = policy.tune_step(grown.tree, CONFIG)
        assert found is not None
        grown.node(Edge.TUNE, found[0], failed(), source=source, tunables=found[1])
    assert policy.tune_step(grown.tree, CONFIG) is None


def test_improvements_are_counted_in_order_of_ids(grown: Grown) -> None:
    """The history does not depend on when verdicts came."""
    ids = [grown.node(Edge.DRAFT) for _ in range(4)]
    for node_id, value in zip((3, 1, 0, 2), (0.5, 0.3, 0.1, 0.305), strict=True):
        grown.tree.settle(ids[node_id], right(value))
    sizes, since = grown.tree.improvements(0.01)
    assert sizes == pytest.approx([0.1, 0.2, 0.2])
    assert since == 0
    grown.node(Edge.IMPROVE, 3, failed())
    assert grown.tree.improvements(0.01)[1] == 1


def test_bonuses_grow_with_what_is_left_to_gain() -> None:
    """Twice the room, twice the bonus; a tree that learns its scale late equals one that knew it from the start."""
    def grow(order: tuple[int, int], floor_us: float) -> TargetTree:
        target = simulate.target("t", time_us=100, floor_us=floor_us)
        tree = TargetTree(target, CONFIG.explore, partial(bonus_scale, target, CONFIG))
        for node_id in (0, 1):
            tree.add(Node(id=node_id, target_id="t", parent=None, edge=Edge.DRAFT, proposer="m", language="cpp",
                          source=f"// {node_id}"))  # fmt: skip
        for node_id in order:
            tree.settle(node_id, right(-0.01 * node_id))
        return tree

    narrow, wide = grow((0, 1), 100 * math.exp(-0.5)), grow((0, 1), 100 * math.exp(-1.0))
    assert (narrow.scale, wide.scale) == (pytest.approx(0.5), pytest.approx(1.0))
    spread = [policy.newroot_score(tree, CONFIG) - (-0.005) for tree in (narrow, wide)]
    assert spread[1] == pytest.approx(2 * spread[0]) == pytest.approx(0.1 + 0.3 / math.sqrt(3))
    late = grow((1, 0), 100 * math.exp(-0.5))
    assert [(c.head, c.down) for c in late.roots] == [(c.head, c.down) for c in narrow.roots]
    assert late.root_sums == narrow.root_sums == (-(10**7), 10**14)
    assert [entry[:2] for entry in late.ranked_roots] == [entry[:2] for entry in narrow.ranked_roots]


def test_drafts_stay_in_order_of_worth(grown: Grown) -> None:
    """The list of drafts follows every change of their worth: children, attempts, settings."""
    for i in range(6):
        grown.node(Edge.DRAFT, None, right(0.1 * i), source=TUNED.replace("1 2 3", f"1 2 {i + 3}"))
    for parent, value in ((0, 2.0), (3, None), (3, None), (5, 0.1)):
        grown.node(Edge.IMPROVE, parent, right(value) if value is not None else failed())
    grown.node(Edge.TUNE, 2, right(1.2), source=TUNED, tunables={"A": 2, "B": 10})
    expected = sorted(grown.tree.roots, key=lambda c: (-c.down, c.head))
    assert [entry[2].head for entry in grown.tree.ranked_roots] == [c.head for c in expected]
    assert [c.head for c in expected][:2] == [0, 2]
    values = [c.value for c in grown.tree.roots]
    assert grown.tree.root_sums[0] == pytest.approx(sum(values) * 1e9)
