"""What the engine needs of the rooms, as protocols, so that tests and later issues can bring their own."""

from __future__ import annotations

from typing import Protocol

from forge_tui.core.records import (
    Built,
    CompileFailure,
    Device,
    Edge,
    Evaluation,
    Node,
    Proposal,
    Record,
    Target,
)


class Task(Record, frozen=True, kw_only=True):
    """One concrete request to a proposer."""

    target: Target
    device: Device
    edge: Edge
    parent: Node | None
    """The node to improve; None for a draft."""
    failed: Node | None
    """The node to repair, for edge `repair`."""
    best: Node | None
    lineage: tuple[Node, ...]
    """The parent, its parent, and so on to the root."""
    nodes: tuple[Node, ...]
    """Every node of the target, in flight ones included, oldest first."""
    seed: int
    """Seed of this step: the same state and seed give the same proposal where the proposer is deterministic."""


class Proposer(Protocol):
    """Who writes kernels."""

    name: str

    def can(self, task: Task) -> bool:
        """Whether a proposal for this task is possible at all; cheap, asked before `propose`."""

    async def propose(self, task: Task) -> Proposal:
        """Write a kernel. Never raises for a provider's fault: that is `Proposal(infra=True)`."""

    async def close(self) -> None:
        """Let go of connections."""


class Compiler(Protocol):
    """Source to one built file."""

    async def build(self, target: Target, source: str, tunables: dict[str, int]) -> Built | CompileFailure:
        """Compile under limits; cached by content. Raises EnvironmentFault where no compiler is at hand."""


class TargetCheck(Record, frozen=True, kw_only=True):
    """What opening a target for evaluation found."""

    usable: bool
    reason: str = ""
    eager_us: float | None = None
    tolerance: str = ""
    """The tolerance in words, for reports and prompts."""
    remarks: tuple[str, ...] = ()
    """What a reader of the results should know: inputs that a kernel may ignore."""


class Evaluator(Protocol):
    """Built file to verdict."""

    async def open(self, target: Target) -> TargetCheck:
        """Prepare references for a target; idempotent."""

    async def evaluate(self, target: Target, built: Built, seed: int) -> Evaluation:
        """Verify, then time. A fault of the candidate is a verdict; a fault of ours is `Verdict.INFRA`."""

    async def close(self) -> None:
        """End the worker processes."""
