"""A restored search equals one that was never interrupted."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.core.records import Evaluation, Node, Verdict
from forge_tui.search import simulate
from forge_tui.search.driver import Drop, Search, SearchConfig, Step

VERDICTS = ("faster", "slower", "inconclusive", "compile_error", "rejected", "crashed", "duplicate", "refused", "infra")
SOURCES = ("// plain {}", "//@tune A 1 2 3\n//@tune B 1 2\n// {}")
CONFIG = SearchConfig(proposers=("a", "templates", "b"), max_evaluations=30, in_flight_per_target=3)
TARGETS = (simulate.target("t", share=0.5), simulate.target("u", share=0.3, floor_us=60))


def search() -> Search:
    """A fresh one."""
    return Search(CONFIG, TARGETS)


def can(step: Step) -> bool:
    """Some proposers cannot do some things, by a rule."""
    return not (step.proposer == "templates" and step.seed % 3 == 0)


actions = st.lists(
    st.tuples(
        st.sampled_from(("step", "step", "finish", "finish", "drop", "lose")), st.integers(0, 5),
        st.sampled_from(VERDICTS), st.floats(0.2, 4.0), st.integers(0, 1),
    ),
    max_size=60,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(actions)
def test_restore_equals_live_at_every_prefix(script: list[tuple[str, int, str, float, int]]) -> None:
    """Whatever came in whatever order, a search restored from nodes and drops is in the same state and goes on."""
    live = search()
    flying: list[Node] = []
    seen: dict[int, Node] = {}
    drops: list[Drop] = []
    for node_id, (action, which, verdict, speedup, source) in enumerate(script):
        if action == "finish" and flying:
            node = flying.pop(which % len(flying))
            right = Verdict(verdict).right
            evaluation = Evaluation(
                verdict=Verdict(verdict), speedup=speedup if right else None,
                speedup_ci=(speedup * 0.9, speedup * 1.1) if right and which % 2 else None,
                baseline_us=100.0 + which if right else None,
            )  # fmt: skip
            live.finish(node.id, evaluation)
            live.finish(node.id, evaluation)
            seen[node.id] = msgspec.structs.replace(node, evaluation=evaluation)
        elif action != "finish":
            step = live.next_step(can)
            if not isinstance(step, Step):
                continue
            if action == "step":
                node = Node(id=node_id, target_id=step.target_id, parent=step.parent, edge=step.edge,
                            proposer=step.proposer, source=SOURCES[source].format(node_id), language="cpp",
                            tunables=step.tunables, repairs=step.failed, cost_usd=0.01 * which)  # fmt: skip
                if step.parent is not None and step.tunables:
                    node = msgspec.structs.replace(node, source=seen[step.parent].source)
                live.begin(step, node)
                flying.append(node)
                seen[node_id] = node
            else:
                drop = live.drop(step, "no code", infra=action == "lose")
                if drop is not None:
                    drops.append(drop)
        restored = search()
        restored.restore(seen.values(), drops)
        assert restored.state() == live.state()
    following = [s.next_step(can) for s in (restored_from(seen, drops), live)]
    assert following[0] == following[1]


def restored_from(seen: dict[int, Node], drops: list[Drop]) -> Search:
    """A search that was told everything at once."""
    fresh = search()
    fresh.restore(seen.values(), drops)
    return fresh


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(VERDICTS), min_size=1, max_size=40), st.integers(0, 3))
def test_counts_add_up_whatever_the_verdicts(verdicts: list[str], seed: int) -> None:
    """Evaluations are the nodes that count; nothing in flight remains; a failed node is never a parent."""
    live = Search(msgspec.structs.replace(CONFIG, seed=seed), TARGETS)
    counted = 0
    for node_id, verdict in enumerate(verdicts):
        step = live.next_step(can)
        if not isinstance(step, Step):
            break
        if step.parent is not None:
            parent = live.tree(step.target_id).node(step.parent).evaluation
            assert parent is not None
            assert parent.verdict.right
        node = Node(id=node_id, target_id=step.target_id, parent=step.parent, edge=step.edge, proposer=step.proposer,
                    source=f"// {node_id}", language="cpp", tunables=step.tunables, repairs=step.failed)  # fmt: skip
        live.begin(step, node)
        live.finish(node_id, Evaluation(verdict=Verdict(verdict), speedup=1.0 + node_id / 50))
        counted += verdict != "infra"
    assert live.evaluations == counted
    for target in TARGETS:
        tree = live.tree(target.id)
        assert tree.in_flight == 0
        assert tree.root_attempts + sum(r.size - 1 for r in tree.roots) == len(tree.generation)
