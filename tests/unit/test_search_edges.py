"""Merges, rewrites and kernels from elsewhere: when they come, and what they ask for."""

from __future__ import annotations

import msgspec
import pytest

from forge_tui.core.records import Edge, Evaluation, Node, Verdict
from forge_tui.proposers import prompt
from forge_tui.proposers.llm import LlmProposer
from forge_tui.search import simulate
from forge_tui.search.driver import Found, Search, SearchConfig, Step
from forge_tui.search.tree import TargetTree

CONFIG = SearchConfig(proposers=("m",), max_evaluations=200, patience=1000, stop_after=1000)


def yes(_step: Step) -> bool:
    """Everybody can do everything."""
    return True


def right(speedup: float) -> Evaluation:
    """A right kernel of a sure speed."""
    verdict = Verdict.FASTER if speedup > 1 else Verdict.SLOWER
    return Evaluation(verdict=verdict, speedup=speedup, speedup_ci=(speedup * 0.999, speedup * 1.001))


def begin(search: Search, step: Step, node_id: int, family: str = "", source: str = "") -> Node:
    """The step's node, begun."""
    node = Node(id=node_id, target_id=step.target_id, parent=step.parent, edge=step.edge, proposer=step.proposer,
                source=source or (step.found.source if step.found else f"// {node_id}"), language="cpp", family=family,
                tunables=step.tunables, repairs=step.failed)  # fmt: skip
    search.begin(step, node)
    return node


def grown(count: int, families: tuple[str, ...], speedups: tuple[float, ...], **changes: object) -> list[Step]:
    """The steps of a search whose kernels have these families and speeds in turn."""
    search = Search(msgspec.structs.replace(CONFIG, **changes), [simulate.target("t")])
    steps = []
    for number in range(count):
        step = search.next_step(yes)
        assert isinstance(step, Step), step
        begin(search, step, number, families[number % len(families)])
        search.finish(number, right(speedups[number % len(speedups)]))
        steps.append(step)
    return steps


def test_two_families_near_each_other_are_merged_now_and_then() -> None:
    """After twelve fruitless attempts the best of two families meet, then not for another twelve."""
    steps = grown(40, ("rows", "tiles"), (1.5, 1.45))
    merges = [number for number, step in enumerate(steps) if step.edge is Edge.MERGE]
    assert merges[:3] == [13, 26, 39]
    assert steps[13].parent is not None
    assert steps[13].other is not None
    assert (steps[13].parent % 2, steps[13].other % 2) == (0, 1)
    assert all(step.other is None for step in steps if step.edge is not Edge.MERGE)


def test_nothing_is_merged_while_attempts_still_bring_something() -> None:
    """Each kernel 3% better than the one before: two families stand near each other, and none is merged."""
    rising = tuple(1.5 * 1.03**number for number in range(30))
    assert not [step for step in grown(30, ("rows", "tiles"), rising) if step.edge is Edge.MERGE]


@pytest.mark.parametrize(("families", "speedups"), [(("rows",), (1.5, 1.4)), (("rows", "tiles"), (3.0, 1.5)),
                                                    (("", "tiles"), (1.5, 1.45))])  # fmt: skip
def test_one_family_or_a_far_second_is_not_merged(families: tuple[str, ...], speedups: tuple[float, ...]) -> None:
    """There is nothing to combine."""
    assert not [step for step in grown(30, families, speedups, rewrite_every=10**9) if step.edge is Edge.MERGE]


def test_a_rut_ends_in_a_rewrite_of_the_best() -> None:
    """Six attempts of one family without an improvement: the best kernel is to be written anew, once."""
    steps = grown(32, ("rows",), (1.5,), rewrite_every=10**9)
    rewrites = [number for number, step in enumerate(steps) if step.edge is Edge.REWRITE]
    assert rewrites[:2] == [7, 14]
    assert steps[7].parent == 0
    mixed = grown(32, ("rows", "tiles"), (1.5,), rewrite_every=10**9, merge_every=10**9)
    assert not [step for step in mixed if step.edge is Edge.REWRITE]


def test_one_in_ten_attempts_at_a_kernel_that_was_worked_on_is_a_rewrite() -> None:
    """Never before four attempts at it, and by the seed after."""
    config = msgspec.structs.replace(CONFIG, stagnant_after=10**9, max_repairs=0, explore=9.0)
    search = Search(config, [simulate.target("t")])
    steps = []
    for number in range(120):
        step = search.next_step(yes)
        assert isinstance(step, Step)
        begin(search, step, number)
        search.finish(number, right(2.0) if number == 0 else Evaluation(verdict=Verdict.REJECTED, reason="no"))
        steps.append(step)
    old = [step for step in steps if step.parent == 0][CONFIG.rewrite_after :]
    assert not [step for step in steps if step.edge is Edge.REWRITE and step not in old]
    assert [step.edge is Edge.REWRITE for step in old] == [step.seed % CONFIG.rewrite_every == 0 for step in old]
    assert 3 <= sum(step.edge is Edge.REWRITE for step in old) <= 20


def test_kernels_of_earlier_sessions_come_first_and_cost_nothing() -> None:
    """Each once, as roots of their own; who has no money left for models still tries them."""
    found = {"t": [Found(source="// a", tunables={"B": 2}, family="rows", origin="session s-1"),
                   Found(source="// b", origin="session s-2")]}  # fmt: skip
    config = msgspec.structs.replace(CONFIG, max_usd=0.1, holds_usd={"m": 1.0})
    search = Search(config, [simulate.target("t")], found)
    steps = [search.next_step(yes), search.next_step(yes)]
    assert all(isinstance(step, Step) and step.edge is Edge.TRANSFER and step.parent is None for step in steps)
    for number, step in enumerate(steps):
        assert isinstance(step, Step)
        begin(search, step, number)
        search.finish(number, right(1.5 + number))
    assert search.tree("t").node(0).tunables == {"B": 2}
    assert search.tree("t").root_attempts == 0
    assert not isinstance(search.next_step(yes), Step)
    assert search.best("t") == search.tree("t").node(1)


def test_the_best_kernel_of_another_size_is_tried_and_mended() -> None:
    """The same callable at another size takes it over; where it fails there, it is repaired like any other."""
    big, small = simulate.target("big", share=0.5), simulate.target("small", share=0.4)
    same = [msgspec.structs.replace(t, qualname="f") for t in (big, small)]
    search = Search(CONFIG, same)
    step = search.next_step(yes)
    assert isinstance(step, Step)
    first, other = step.target_id, {"big": "small", "small": "big"}[step.target_id]
    begin(search, step, 0, "rows", source="//@tune A 1 2\n// fast")
    search.finish(0, right(2.0))
    steps = [s for s in (search.next_step(yes) for _ in range(4)) if isinstance(s, Step)]
    moved = [s for s in steps if s.edge is Edge.TRANSFER]
    assert [(s.target_id, s.found.source if s.found else "") for s in moved] == [(other, "//@tune A 1 2\n// fast")]
    assert moved[0].found is not None
    assert moved[0].found.origin == f"{first} at another size, where it was 2.00x"
    begin(search, moved[0], 1)
    search.finish(1, Evaluation(verdict=Verdict.REFUSED, reason="no"))
    for s in steps:
        if s.edge is not Edge.TRANSFER:
            search.drop(s, "no code", infra=True)
    after = [s for s in (search.next_step(yes) for _ in range(4)) if isinstance(s, Step)]
    assert any(s.edge is Edge.REPAIR and s.failed == 1 for s in after)
    assert not [s for s in after if s.edge is Edge.TRANSFER]


def test_different_callables_share_nothing() -> None:
    """Another function, or other dtypes, and nothing is taken over."""
    search = Search(CONFIG, [simulate.target("a"), simulate.target("b")])
    step = search.next_step(yes)
    assert isinstance(step, Step)
    begin(search, step, 0)
    search.finish(0, right(2.0))
    following = [s for s in (search.next_step(yes) for _ in range(4)) if isinstance(s, Step)]
    assert {s.edge for s in following} <= {Edge.DRAFT, Edge.IMPROVE}


def test_a_search_with_every_edge_is_restored_as_it_was() -> None:
    """Nodes alone tell where a search stood, and the next step is the same."""
    found = {"t": [Found(source="// a", origin="session s-1")]}
    live = Search(CONFIG, [simulate.target("t")], found)
    nodes = []
    for number in range(45):
        step = live.next_step(yes)
        assert isinstance(step, Step)
        node = begin(live, step, number, ("rows", "tiles", "rows")[number % 3])
        evaluation = right((1.5, 1.45, 0.9)[number % 3])
        live.finish(number, evaluation)
        nodes.append(msgspec.structs.replace(node, evaluation=evaluation))
        again = Search(CONFIG, [simulate.target("t")], found)
        again.restore(nodes)
        assert again.state() == live.state()
    assert {node.edge for node in nodes} >= {Edge.MERGE, Edge.TRANSFER, Edge.IMPROVE, Edge.DRAFT}
    assert again.next_step(yes) == live.next_step(yes)


def test_what_a_model_is_asked_for_by_a_merge_and_a_rewrite() -> None:
    """A merge shows both kernels; a rewrite names the approaches that are taken; models can do both."""
    search = Search(CONFIG, [simulate.target("t")])
    for number, family in enumerate(("rows", "tiles")):
        step = search.next_step(yes)
        assert isinstance(step, Step)
        begin(search, step, number, family, source=f"// kernel of {family}")
        search.finish(number, right(1.5 + number))
    step = Step(target_id="t", edge=Edge.MERGE, parent=1, proposer="m", other=0, seed=7)
    task = search.task(step, simulate.DEVICE)
    merged = prompt.render(task).request
    assert "// kernel of rows" in merged
    assert "// kernel of tiles" in merged
    assert merged.index("# The kernel to improve") < merged.index("# The kernel to combine it with (1.500x")
    rewrite = search.task(msgspec.structs.replace(step, edge=Edge.REWRITE, other=None), simulate.DEVICE)
    assert "an approach of another kind, none of these: tiles; rows." in prompt.render(rewrite).request
    model = LlmProposer("some/model")
    assert model.can(task)
    assert model.can(rewrite)


def test_a_target_that_had_nothing_to_do_takes_what_another_found_later() -> None:
    """Nobody writes for the small size; as soon as the big one has a kernel, the small one tries it."""
    big, small = (msgspec.structs.replace(simulate.target(name, share=share), qualname="f")
                  for name, share in (("big", 0.4), ("small", 0.5)))  # fmt: skip
    search = Search(CONFIG, [big, small])
    step = search.next_step(lambda step: step.target_id == "big")
    assert isinstance(step, Step)
    assert step.target_id == "big", "the small one deserves more and was looked at first"
    begin(search, step, 0, "rows")
    search.finish(0, right(2.0))
    moved = search.next_step(lambda step: step.target_id == "big")
    assert isinstance(moved, Step)
    assert (moved.target_id, moved.edge) == ("small", Edge.TRANSFER)


def test_what_was_tried_is_looked_up_and_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step goes through all nodes, and yet nothing found is tried twice; one that failed by our fault is."""
    found = {"t": [Found(source="// a", origin="session s-1"), Found(source="// 1", origin="session s-2")]}
    search = Search(CONFIG, [simulate.target("t")], found)
    monkeypatch.setattr(TargetTree, "nodes", lambda _self: pytest.fail("all nodes were read"))
    ours_to_blame = Evaluation(verdict=Verdict.INFRA, reason="no device")
    edges = []
    for number, evaluation in enumerate((ours_to_blame, right(1.5), right(1.4), right(1.3))):
        step = search.next_step(yes)
        assert isinstance(step, Step)
        edges.append((step.edge, step.found.source if step.found else ""))
        begin(search, step, number)
        search.finish(number, evaluation)
    assert edges[:3] == [(Edge.TRANSFER, "// a"), (Edge.TRANSFER, "// a"), (Edge.TRANSFER, "// 1")]
    assert edges[3][0] is not Edge.TRANSFER
