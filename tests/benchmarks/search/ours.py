"""The real search, asked for one step at a time as an engine would, on one space or on several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from forge_tui.core.records import Edge, Evaluation, Node, Proposal
from forge_tui.search import simulate
from forge_tui.search.driver import Search, SearchConfig, Stop

from .session import Recorder, step_node
from .spaces import Space

#: switches off whatever ends a target early: policies are compared over the whole budget
ENDLESS: Mapping[str, float] = {
    "min_gain": 0.0, "patience": 10**9, "floor_fraction": 1e9, "max_evaluations": 10**9,
    "park_after": 10**9,
}  # fmt: skip
#: no settings between the calls
UNSWEPT: Mapping[str, float] = {"max_tunes": 0}

See = Callable[[Node, Evaluation], None]


class Running:
    """A search with one candidate in flight."""

    def __init__(self, spaces: Sequence[Space], seed: int, changes: Mapping[str, float]) -> None:
        self._spaces = {space.target.id: space for space in spaces}
        self._authors = {name: space.author() for name, space in self._spaces.items()}
        self._judges = {name: space.judge() for name, space in self._spaces.items()}
        author = next(iter(self._authors.values())).name
        config = msgspec.structs.replace(SearchConfig(seed=seed, proposers=(author,)), **changes)
        self.search = Search(config, [space.target for space in spaces])
        self._next = 0

    def advance(self, calls: int, see: See) -> bool:
        """Tries settings, then makes one call if `calls` are left; whether it made one."""
        while True:
            step = self.search.next_step(lambda _: True)
            if not isinstance(step, Stop) and step is not None and step.edge is Edge.TUNE:
                assert step.parent is not None
                parent = self.search.tree(step.target_id).node(step.parent)
                proposal = Proposal(source=parent.source, tunables=step.tunables, family=parent.family)
            elif step is None or isinstance(step, Stop):
                return False
            elif not calls:
                # as if it had not been asked for
                self.search.drop(step, "no calls left", infra=True)
                return False
            else:
                proposal = self._authors[step.target_id].write(self.search.task(step, simulate.DEVICE))
            node = step_node(step, proposal, self._next)
            self._next += 1
            self.search.begin(step, node)
            space = self._spaces[step.target_id]
            evaluation = self._judges[step.target_id].judge(node, space.target.time_us)
            self.search.finish(node.id, evaluation)
            see(node, evaluation)
            if step.edge is not Edge.TUNE:
                return True


def search(space: Space, seed: int, calls: int, *, sweep: bool = False, **changes: float) -> Recorder:
    """A run of so many calls; `sweep` tries settings between them."""
    running = Running([space], seed, {**ENDLESS, **({} if sweep else UNSWEPT), **changes})
    recorder = Recorder(space)

    def see(node: Node, evaluation: Evaluation) -> None:
        recorder.see(node, evaluation, call=node.edge is not Edge.TUNE)

    for done in range(calls):
        if not running.advance(calls - done, see):
            raise AssertionError("an endless search does not stop")
    running.advance(0, see)
    return recorder
