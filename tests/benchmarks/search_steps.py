"""Milliseconds of one search step at 10,000 nodes: `python tests/benchmarks/search_steps.py`."""

from __future__ import annotations

import statistics
import time

from forge_tui.core.records import Edge, Evaluation, Node, Verdict
from forge_tui.search import simulate
from forge_tui.search.driver import Search, SearchConfig, Step
from forge_tui.search.landscape import Design

NODES, STEPS = 10_000, 200
PROMISED_MS = 5.0


def node(step: Step, node_id: int, evaluation: Evaluation | None = None) -> Node:
    """A tunable kernel for a step."""
    return Node(id=node_id, target_id="t", parent=step.parent, edge=step.edge, proposer=step.proposer, language="cpp",
                source=simulate.write(Design(0, quality=float(node_id))), tunables=step.tunables, repairs=step.failed,
                evaluation=evaluation)  # fmt: skip


def verdict(node_id: int) -> Evaluation:
    """A right kernel with a speed that follows no order."""
    speedup = 1.5 + (node_id * 7919 % 1000) / 3000
    return Evaluation(verdict=Verdict.FASTER, speedup=speedup, speedup_ci=(speedup * 0.98, speedup * 1.02))


def main() -> None:
    """Measure three shapes of tree."""
    for shape, fan in (("all drafts", 0), ("wide", 8), ("narrow", 2)):
        config = SearchConfig(proposers=("m",), max_evaluations=10**9, min_gain=0.0, patience=10**9)
        search = Search(config, [simulate.target("t", floor_us=0.01)])
        nodes = []
        for i in range(NODES):
            parent = None if not fan or i == 0 else (i - 1) // fan
            step = Step(target_id="t", edge=Edge.DRAFT if parent is None else Edge.IMPROVE, parent=parent, proposer="m")
            nodes.append(node(step, i, verdict(i)))
        began = time.perf_counter()
        search.restore(nodes)
        restored_s = time.perf_counter() - began
        times_ms = []
        for i in range(NODES, NODES + STEPS):
            began = time.perf_counter()
            step = search.next_step(lambda _: True)
            assert isinstance(step, Step)
            search.task(step, simulate.DEVICE)
            search.begin(step, node(step, i))
            search.finish(i, verdict(i))
            times_ms.append(1000 * (time.perf_counter() - began))
        median = statistics.median(times_ms)
        print(f"{shape}: restore {restored_s:.2f} s, a step with its task and verdict {median:.2f} ms "
              f"(worst {max(times_ms):.2f}), promised {PROMISED_MS:g}: {'kept' if median < PROMISED_MS else 'BROKEN'}")


if __name__ == "__main__":
    main()
