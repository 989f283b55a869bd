"""What the engine needs of the rooms, as protocols, so that tests and later issues can bring their own."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

from forge_tui.core.records import (
    Built,
    CompileFailure,
    Confirmation,
    Device,
    Edge,
    Evaluation,
    LlmCall,
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
    other: Node | None = None
    """The second kernel, for edge `merge`."""
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


@runtime_checkable
class Priced(Protocol):
    """A proposer whose calls are paid for."""

    async def most_usd(self) -> float:
        """The most that one call may cost; 0 where its price is not known."""


@runtime_checkable
class Estimated(Protocol):
    """A proposer that can say beforehand what a call is likely to cost."""

    async def about_usd(self, task: Task) -> float | None:
        """Dollars of a usual reply to this task; None where the price is not known."""


@runtime_checkable
class Waiting(Protocol):
    """A proposer that waits for a person, who may take days."""

    @property
    def waiting(self) -> int:
        """How many proposals wait now. Nothing is lost where they are cancelled."""


class Books(Protocol):
    """Where a proposer writes its calls down before they cost anything."""

    def open(self, task: Task, call: LlmCall) -> int | None:
        """A call is about to be made that may cost `call.reserved_usd`; its number.

        None where that is more than what is left: then it must not be made.
        """

    def settle(self, number: int, call: LlmCall) -> None:
        """What became of it; at once, so that a reply which is paid for is never lost."""

    def came(self, task: Task, model: str) -> list[tuple[int, LlmCall]]:
        """Replies to this step that came to an engine which ended before it could use them, oldest first.

        Each is given once. They are paid for: who uses one opens no call for it.
        """


@runtime_checkable
class Booked(Protocol):
    """A proposer that keeps books."""

    def keep_books(self, books: Books) -> None:
        """Use these from now on."""


class Workbench(Protocol):
    """Where a proposer may try a kernel before it answers."""

    async def use(self, task: Task, call: int, tool: str, source: str) -> str:
        """What one tool says of a kernel, in words; `call` is the ledger's number of the reply that asked for it.

        A fault of the kernel is an answer. Never raises for one of ours.
        """


@runtime_checkable
class Equipped(Protocol):
    """A proposer that may be given a workbench."""

    def equip(self, workbench: Workbench) -> None:
        """Use this one from now on."""


@runtime_checkable
class Revivable(Protocol):
    """A proposer that gives up on faults which a person can mend."""

    def revive(self) -> None:
        """Try again: a person says that it is mended."""


@runtime_checkable
class Keyed(Protocol):
    """A proposer that cannot be asked without a key."""

    async def lacks(self) -> str:
        """What is missing before it can be asked, as a sentence that says where to put it; empty where nothing is."""


class Compiler(Protocol):
    """Source to one built file."""

    async def build(self, target: Target, source: str, tunables: dict[str, int]) -> Built | CompileFailure:
        """Compile under limits; cached by content. Raises EnvironmentFault where no compiler is at hand."""


@runtime_checkable
class Disassembler(Protocol):
    """A compiler that can show what it made."""

    async def machine_code(self, built: Built) -> str:
        """The instructions in few words. Raises EnvironmentFault where no disassembler is at hand."""


@runtime_checkable
class Isolated(Protocol):
    """A compiler that says what keeps it apart from the machine."""

    async def isolation(self) -> Isolation:
        """What is in force. Raises EnvironmentFault where no compiler is at hand."""


class Isolation(Record, frozen=True, kw_only=True):
    """What keeps compilers and kernels apart from the machine. `means` is empty where nothing does, with `why`."""

    means: Literal["landlock", "bubblewrap", ""]
    abi: int = 0
    """Landlock's version."""
    why: str = ""

    @property
    def short(self) -> str:
        """For a status line: `isolated: landlock+seccomp`."""
        return f"isolated: {self.means}+seccomp" if self.means else f"not isolated: {self.why}"

    @property
    def sentence(self) -> str:
        """For a log: what is confined and what is not."""
        if self.means == "landlock":
            return (f"Compilers and kernels are isolated by Landlock (version {self.abi}) and seccomp: no network, "
                    "nothing written outside of their own folders, nothing read by a compiler but its toolkit.")
        if self.means == "bubblewrap":
            return ("Compilers are isolated by bubblewrap, CPU kernels by seccomp: no network, nothing written "
                    "outside of their own folders.")  # fmt: skip
        return f"Compilers are not isolated: {self.why}. CPU kernels still run behind seccomp."


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


class Confirmer(Protocol):
    """The last word on a winner."""

    async def confirm(self, target: Target, built: Built, node: Node, seed: int) -> Confirmation:
        """Verify and time a file once more in fresh processes, and run it under a sanitizer where there is one.

        A fault of ours is `Verdict.INFRA`.
        """

    async def counters(self, target: Target, built: Built) -> str:
        """Hardware counters of a file on captured inputs, in at most 15 lines.

        Raises:
            EnvironmentFault: they cannot be read here.
        """

    async def close(self) -> None:
        """End the worker processes."""
