"""Time and memory of one search step at 10,000 nodes; processor time, for a step waits for nothing."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from dataclasses import dataclass

from forge_tui.core.records import Edge, Evaluation, Node, Verdict
from forge_tui.search import simulate
from forge_tui.search.driver import Search, SearchConfig, Step
from forge_tui.search.landscape import Design

NODES, STEPS = 10_000, 200
PROMISED_MS, PROMISED_MB = 1.0, 50.0
#: children per kernel; 0: every node is a draft
SHAPES = {"all drafts": 0, "wide": 8, "narrow": 2}


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one shape of tree; milliseconds of a step with its task, its node and its verdict."""

    shape: str
    sweep: bool
    restore_s: float
    median_ms: float
    worst_ms: float
    memory_mb: float
    """Beside the sources."""


def _node(step: Step, node_id: int, evaluation: Evaluation | None = None) -> Node:
    return Node(id=node_id, target_id="t", parent=step.parent, edge=step.edge, proposer=step.proposer, language="cpp",
                source=simulate.write(Design(0, quality=float(node_id))), tunables=step.tunables, repairs=step.failed,
                evaluation=evaluation)  # fmt: skip


def _verdict(node_id: int) -> Evaluation:
    """A right kernel with a speed that follows no order."""
    speedup = 1.5 + (node_id * 7919 % 1000) / 3000
    return Evaluation(verdict=Verdict.FASTER, speedup=speedup, speedup_ci=(speedup * 0.98, speedup * 1.02))


def _grown(fan: int, nodes: int, *, sweep: bool) -> tuple[Search, float, int]:
    """A search restored from so many nodes, the seconds that took, the bytes of their sources."""
    config = SearchConfig(proposers=("m",), max_evaluations=10**9, min_gain=0.0, patience=10**9,
                          max_tunes=12 if sweep else 0)  # fmt: skip
    search = Search(config, [simulate.target("t", floor_us=0.01)])
    made = []
    for i in range(nodes):
        parent = None if not fan or i == 0 else (i - 1) // fan
        step = Step(target_id="t", edge=Edge.DRAFT if parent is None else Edge.IMPROVE, parent=parent, proposer="m")
        made.append(_node(step, i, _verdict(i)))
    began = time.thread_time()
    search.restore(made)
    return search, time.thread_time() - began, sum(len(node.source) + 49 for node in made)


def measure(shape: str, *, sweep: bool, nodes: int = NODES, steps: int = STEPS) -> Cost:
    """One shape; with `sweep` most steps try settings, without it they descend the tree."""
    fan = SHAPES[shape]
    gc.collect()
    tracemalloc.start()
    held = _grown(fan, nodes, sweep=sweep)
    memory = tracemalloc.get_traced_memory()[0] - held[2]
    tracemalloc.stop()
    del held
    search, restore_s, _ = _grown(fan, nodes, sweep=sweep)
    times_ms = []
    for i in range(nodes, nodes + steps):
        began = time.thread_time()
        step = search.next_step(lambda _: True)
        assert isinstance(step, Step)
        search.task(step, simulate.DEVICE)
        search.begin(step, _node(step, i))
        search.finish(i, _verdict(i))
        times_ms.append(1000 * (time.thread_time() - began))
    return Cost(shape, sweep, restore_s, statistics.median(times_ms), max(times_ms), memory / 1e6)
