"""One candidate from source to verdict: contract, duplicates, compile, evaluate."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping

import msgspec

from forge_tui.contract import keys, plan, tune
from forge_tui.core.errors import ContractError, EnvironmentFault
from forge_tui.core.ports import Compiler, Disassembler, Evaluator
from forge_tui.core.records import Built, CompileFailure, Device, Evaluation, LaunchPlan, Node, Target, Verdict
from forge_tui.processes.quiet import Quiet

#: on a GPU the next candidate is run while the judge compares what this one gave
EVALUATING = {"cpu": 1, "cuda": 2}


def candidate_key(source: str, tunables: dict[str, int]) -> str:
    """The duplicate key of a source, or of its bare text where it breaks the contract's form."""
    try:
        return keys.source_key(source, tunables)
    except ContractError:
        return "raw-" + hashlib.sha256(source.encode()).hexdigest()


def binary_key(sha256: str, own: LaunchPlan, plans: Mapping[str, LaunchPlan]) -> str:
    """Equal for equal machine code that is launched in the same way at every size.

    A size of block that a source asks `blockDim` for is in the launch alone.
    """
    return hashlib.sha256(msgspec.json.encode([sha256, own, sorted(plans.items())])).hexdigest()


def compiles_ahead(device: Device) -> int:
    """How many candidates may be compiled, or wait compiled, for their evaluation: every core but one."""
    return max(1, device.cores - 1)


def steps_at_once(device: Device) -> int:
    """Candidates that keep the device at work while the next ones compile; more would be written on old news."""
    return EVALUATING[device.kind] + min(2, compiles_ahead(device))


class Pipeline:
    """Compiles and evaluates candidates of one session, and knows what was seen before.

    Candidates compile ahead of the device, and are evaluated in the order in which they are built.
    """

    def __init__(
        self, compiler: Compiler, evaluator: Evaluator, quiet: Quiet, device: Device, *, in_order: bool = False
    ) -> None:
        """`in_order` compares machine code in the order in which candidates came, however long their builds take."""
        self._ahead = asyncio.Semaphore(compiles_ahead(device))
        self._evaluating = asyncio.Semaphore(EVALUATING[device.kind])
        self._compiler = compiler
        self._evaluator = evaluator
        self._quiet = quiet
        self._device = device
        self._in_order = in_order
        self._compared: asyncio.Event | None = None
        """Set once the youngest candidate has been compared with the others."""
        self._keys: dict[tuple[str, str], int] = {}
        self._binaries: dict[tuple[str, str], int] = {}

    def restore(self, target: Target, node: Node) -> None:
        """Note a node of an earlier engine, unless it has no verdict that an equal could share."""
        found = node.evaluation
        if found is not None and found.verdict is Verdict.INFRA:
            return
        binary = ""
        if found is not None and found.sha256:
            tunables = dict(node.tunables)
            try:
                binary = binary_key(
                    found.sha256, plan.make(node.source, target, self._device, tunables),
                    plan.make_all(node.source, target, self._device, tunables),
                )  # fmt: skip
            except ContractError:
                # the contract has changed since
                binary = ""
        self._remember(target.id, node.id, node.key, binary)

    def _remember(self, target_id: str, node_id: int, key: str, binary: str = "") -> None:
        """Note a node, so that its equals are duplicates; the first one keeps the name."""
        self._keys.setdefault((target_id, key), node_id)
        if binary:
            self._binaries.setdefault((target_id, binary), node_id)

    def duplicate_of(self, target_id: str, node_id: int, key: str) -> int | None:
        """The older node with the same normalised source and tunables."""
        other = self._keys.get((target_id, key))
        return None if other is None or other == node_id else other

    async def build(self, target: Target, source: str, tunables: dict[str, int]) -> Built | CompileFailure:
        """Compile, off the cores that a timing needs."""
        async with self._quiet.compiling():
            return await self._compiler.build(target, source, tunables)

    async def attempt(self, target: Target, source: str, seed: int) -> Evaluation:
        """The verdict on a source that is no node, whatever was seen before; takes its turn like every candidate."""
        try:
            tunables = tune.defaults(source)
        except ContractError as error:
            return Evaluation(verdict=Verdict.REFUSED, reason=error.what)
        async with self._ahead:
            built = await self.build(target, source, tunables)
            if isinstance(built, CompileFailure):
                return Evaluation(verdict=built.verdict, reason=built.reason, log=built.log, compile_s=built.compile_s)
            async with self._evaluating:
                return await self._evaluator.evaluate(target, built, seed)

    async def machine_code(self, built: Built) -> str:
        """A built file's instructions in few words.

        Raises:
            EnvironmentFault: no disassembler is at hand.
        """
        if not isinstance(self._compiler, Disassembler):
            raise EnvironmentFault("There is no disassembler.")
        async with self._quiet.compiling():
            return await self._compiler.machine_code(built)

    async def run(self, target: Target, node_id: int, source: str, tunables: dict[str, int], seed: int) -> Evaluation:
        """The verdict on one candidate; never raises for a fault of the candidate."""
        key = candidate_key(source, tunables)
        other = self.duplicate_of(target.id, node_id, key)
        if other is not None:
            return Evaluation(verdict=Verdict.DUPLICATE, reason=f"The same source as node {other}.")
        self._remember(target.id, node_id, key)
        async with self._ahead:
            built = await self._new(target, node_id, key, source, tunables)
            if isinstance(built, Evaluation):
                return built
            await self._evaluating.acquire()
        try:
            evaluation = await self._evaluator.evaluate(target, built, seed)
        finally:
            self._evaluating.release()
        if evaluation.verdict is Verdict.INFRA:
            # it has no verdict that a later equal could share
            self._forget(node_id)
        return evaluation

    async def _new(
        self, target: Target, node_id: int, key: str, source: str, tunables: dict[str, int]
    ) -> Built | Evaluation:
        """The built file, or the verdict on a candidate that has none or another's machine code."""
        before, self._compared = self._compared, asyncio.Event()
        compared = self._compared
        try:
            built = await self.build(target, source, tunables)
            if isinstance(built, CompileFailure):
                return Evaluation(verdict=built.verdict, reason=built.reason, log=built.log, compile_s=built.compile_s)
            if self._in_order and before is not None:
                await before.wait()
            binary = binary_key(built.sha256, built.plan, built.plans)
            other = self._binaries.get((target.id, binary))
            if other is not None and other != node_id:
                return Evaluation(verdict=Verdict.DUPLICATE, reason=f"Compiles to the same code as node {other}.",
                                  compile_s=built.compile_s, sha256=built.sha256)  # fmt: skip
            self._remember(target.id, node_id, key, binary)
            return built
        finally:
            compared.set()

    def _forget(self, node_id: int) -> None:
        self._keys = {key: node for key, node in self._keys.items() if node != node_id}
        self._binaries = {key: node for key, node in self._binaries.items() if node != node_id}
