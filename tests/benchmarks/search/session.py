"""One run of a policy on one space: every call goes through here, so that all policies are counted alike.

A call is one reply of the proposer: a draft, an improvement or a repair, whatever became of it. Settings that are
tried without a reply cost an evaluation but no call.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import msgspec

from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, Evaluation, Node, Proposal
from forge_tui.search import policy, simulate
from forge_tui.search.config import SearchConfig, Step
from forge_tui.search.tree import TargetTree

from .spaces import Space


class OutOfCalls(Exception):
    """The budget is used up."""


@dataclass(eq=False, slots=True)
class Kernel:
    """A node as policies see it; `value` is what was measured, None for a failure or a duplicate."""

    node: Node
    parent: Kernel | None
    value: float | None


@dataclass(slots=True)
class Curve:
    """Value of the chosen kernel, by truth, after each call and after each evaluation."""

    by_call: list[float] = field(default_factory=list)
    by_evaluation: list[float] = field(default_factory=list)


class Recorder:
    """Keeps the curve of the kernel that a run would choose: the fastest by its own measurements."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self.measured = -math.inf
        """Value of the chosen kernel as measured; minus infinity while there is none."""
        self.now = space.start
        self.curve = Curve()

    def see(self, node: Node, evaluation: Evaluation, *, call: bool) -> None:
        """A verdict; settings tried after a call still belong to it."""
        measured = measured_value(evaluation)
        if measured is not None and measured > self.measured:
            self.measured, self.now = measured, self._space.truth(node)
        self.curve.by_evaluation.append(self.now)
        if call:
            self.curve.by_call.append(self.now)
        elif self.curve.by_call:
            self.curve.by_call[-1] = self.now


def measured_value(evaluation: Evaluation) -> float | None:
    """ln(speedup) as measured; None where there is no right kernel."""
    return math.log(evaluation.speedup) if evaluation.verdict.right and evaluation.speedup else None


class Session:
    """What a baseline may do. Every method that calls the proposer raises `OutOfCalls` when the budget is used up."""

    def __init__(self, space: Space, seed: int, calls: int, *, sweep: SearchConfig | None = None) -> None:
        self.space, self.seed, self.calls = space, seed, calls
        self.used = 0
        self.recorder = Recorder(space)
        self._author, self._judge = space.author(), space.judge()
        self._nodes: list[Node] = []
        self._sweep = sweep
        self._tree = TargetTree(space.target, 0.0) if sweep else None
        self._kernels: dict[int, Kernel] = {}

    @property
    def left(self) -> int:
        """Calls that remain."""
        return self.calls - self.used

    def attempt(self, parent: Kernel | None, repairs: int) -> Kernel:
        """A new kernel, repaired up to so many times; the last try, right or not."""
        made = self.write(Edge.DRAFT if parent is None else Edge.IMPROVE, parent)
        for _ in range(repairs):
            evaluation = made.node.evaluation
            if evaluation is None or not evaluation.verdict.repairable:
                break
            made = self.write(Edge.REPAIR, parent, made)
        return made

    def write(self, edge: Edge, parent: Kernel | None, failed: Kernel | None = None) -> Kernel:
        """One call."""
        if self.used >= self.calls:
            raise OutOfCalls
        self.used += 1
        task = Task(
            target=self.space.target, device=simulate.DEVICE, edge=edge, parent=parent.node if parent else None,
            failed=failed.node if failed else None, best=None, lineage=(), nodes=tuple(self._nodes),
            seed=self._draw(),
        )  # fmt: skip
        made = self._evaluate(self._author.write(task), edge, parent, failed, call=True)
        if self._sweep is not None:
            self._try_settings()
        return made

    def _draw(self) -> int:
        text = f"{self.seed}|{self.space.target.id}|{self.used}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest()) >> 1

    def _evaluate(
        self, proposal: Proposal, edge: Edge, parent: Kernel | None, failed: Kernel | None, *, call: bool
    ) -> Kernel:
        assert proposal.source is not None
        node = Node(
            id=len(self._nodes), target_id=self.space.target.id, parent=parent.node.id if parent else None, edge=edge,
            proposer=self._author.name, source=proposal.source, language="cpp", family=proposal.family,
            tunables=proposal.tunables, repairs=failed.node.id if failed else None,
        )  # fmt: skip
        evaluation = self._judge.judge(node, self.space.target.time_us)
        if self._tree is not None:
            self._tree.add(node)
            self._tree.settle(node.id, evaluation)
        node = msgspec.structs.replace(node, evaluation=evaluation)
        self._nodes.append(node)
        self.recorder.see(node, evaluation, call=call)
        made = Kernel(node, parent, measured_value(evaluation))
        self._kernels[node.id] = made
        return made

    def _try_settings(self) -> None:
        """The knob sweep of the real search, at its pace; a better setting becomes the kernel's."""
        config, tree = self._sweep, self._tree
        assert config is not None
        assert tree is not None
        while tree.tunes < config.tune_share * (len(tree.generation) - config.tune_after):
            found = policy.tune_step(tree, config)
            if found is None:
                return
            base, setting = found
            proposal = Proposal(source=tree.node(base).source, tunables=setting)
            chain = tree.chains[base]
            kernel = self._kernels[chain.head]
            tried = self._evaluate(proposal, Edge.TUNE, self._kernels[base], None, call=False)
            if tried.value is not None and kernel.value is not None and tried.value > kernel.value:
                kernel.node, kernel.value = tried.node, tried.value


def step_node(step: Step, proposal: Proposal, node_id: int) -> Node:
    """The node that a step of the real search begins."""
    assert proposal.source is not None
    return Node(
        id=node_id, target_id=step.target_id, parent=step.parent, edge=step.edge, proposer=step.proposer,
        source=proposal.source, language="cpp", family=proposal.family, tunables=proposal.tunables,
        repairs=step.failed,
    )  # fmt: skip
