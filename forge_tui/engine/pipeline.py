"""One candidate from source to verdict: contract, duplicates, compile, evaluate."""

from __future__ import annotations

from forge_tui.contract import keys
from forge_tui.core.errors import ContractError
from forge_tui.core.ports import Compiler, Evaluator
from forge_tui.core.records import Built, CompileFailure, Evaluation, Target, Verdict
from forge_tui.engine.quiet import Quiet


def candidate_key(source: str, tunables: dict[str, int]) -> str:
    """The duplicate key of a source, or of its bare text where it breaks the contract's form."""
    try:
        return keys.source_key(source, tunables)
    except ContractError:
        import hashlib

        return "raw-" + hashlib.sha256(source.encode()).hexdigest()


class Pipeline:
    """Compiles and evaluates candidates of one session, and knows what was seen before."""

    def __init__(self, compiler: Compiler, evaluator: Evaluator, quiet: Quiet) -> None:
        self._compiler = compiler
        self._evaluator = evaluator
        self._quiet = quiet
        self._keys: dict[tuple[str, str], int] = {}
        self._binaries: dict[tuple[str, str], int] = {}

    def remember(self, target_id: str, node_id: int, key: str, sha256: str = "") -> None:
        """Note a node, so that its equals are duplicates; the first one keeps the name."""
        self._keys.setdefault((target_id, key), node_id)
        if sha256:
            self._binaries.setdefault((target_id, sha256), node_id)

    def duplicate_of(self, target_id: str, node_id: int, key: str) -> int | None:
        """The older node with the same normalised source and tunables."""
        other = self._keys.get((target_id, key))
        return None if other is None or other == node_id else other

    async def build(self, target: Target, source: str, tunables: dict[str, int]) -> Built | CompileFailure:
        """Compile, off the cores that a timing needs."""
        async with self._quiet.compiling():
            return await self._compiler.build(target, source, tunables)

    async def run(self, target: Target, node_id: int, source: str, tunables: dict[str, int], seed: int) -> Evaluation:
        """The verdict on one candidate; never raises for a fault of the candidate."""
        key = candidate_key(source, tunables)
        other = self.duplicate_of(target.id, node_id, key)
        if other is not None:
            return Evaluation(verdict=Verdict.DUPLICATE, reason=f"The same source as node {other}.")
        self.remember(target.id, node_id, key)
        built = await self.build(target, source, tunables)
        if isinstance(built, CompileFailure):
            return Evaluation(verdict=built.verdict, reason=built.reason, log=built.log, compile_s=built.compile_s)
        other = self._binaries.get((target.id, built.sha256))
        if other is not None and other != node_id:
            return Evaluation(verdict=Verdict.DUPLICATE, reason=f"Compiles to the same code as node {other}.",
                              compile_s=built.compile_s, sha256=built.sha256)  # fmt: skip
        self.remember(target.id, node_id, key, built.sha256)
        async with self._quiet.timing():
            evaluation = await self._evaluator.evaluate(target, built, seed)
        if evaluation.verdict is Verdict.INFRA:
            # it has no verdict that a later equal could share
            self._forget(node_id)
        return evaluation

    def _forget(self, node_id: int) -> None:
        self._keys = {key: node for key, node in self._keys.items() if node != node_id}
        self._binaries = {key: node for key, node in self._binaries.items() if node != node_id}
