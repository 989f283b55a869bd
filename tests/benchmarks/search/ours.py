"""The real search on one space, asked for one step at a time as an engine would."""

from __future__ import annotations

import msgspec

from forge_tui.core.records import Edge, Proposal
from forge_tui.search import simulate
from forge_tui.search.driver import Search, SearchConfig, Stop

from .session import Recorder, step_node
from .spaces import Space

#: switches off whatever ends a target early: policies are compared over the whole budget
ENDLESS = {"min_gain": 0.0, "patience": 10**9, "floor_fraction": 1e9, "max_evaluations": 10**9}


def search(space: Space, seed: int, calls: int, *, sweep: bool = False, **changes: float) -> Recorder:
    """A run of so many calls with one in flight; `sweep` tries settings between them."""
    author, judge = space.author(), space.judge()
    config = SearchConfig(seed=seed, proposers=(author.name,))
    if not sweep:
        changes = {"max_tunes": 0, **changes}
    running = Search(msgspec.structs.replace(config, **(ENDLESS | changes)), [space.target])
    recorder = Recorder(space)
    node_id = 0
    while True:
        step = running.next_step(lambda _: True)
        assert step is not None
        if isinstance(step, Stop):
            raise AssertionError(step.reason)
        if step.edge is Edge.TUNE:
            assert step.parent is not None
            parent = running.tree(step.target_id).node(step.parent)
            proposal = Proposal(source=parent.source, tunables=step.tunables, family=parent.family)
        elif len(recorder.curve.by_call) == calls:
            return recorder
        else:
            proposal = author.write(running.task(step, simulate.DEVICE))
        node = step_node(step, proposal, node_id)
        running.begin(step, node)
        evaluation = judge.judge(node, space.target.time_us)
        running.finish(node_id, evaluation)
        recorder.see(node, evaluation, call=step.edge is not Edge.TUNE)
        node_id += 1
