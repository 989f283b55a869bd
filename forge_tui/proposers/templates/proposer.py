"""The `templates` proposer: one draft per way to write a graph down, the rest is left to the tunables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from forge_tui.core.ports import Task
from forge_tui.core.records import Device, Edge, Proposal, Target
from forge_tui.proposers.templates import cpp, cuda
from forge_tui.proposers.templates.expr import Unfit
from forge_tui.proposers.templates.loops import Plan
from forge_tui.proposers.templates.naming import with_names
from forge_tui.proposers.templates.plan import make_plan


@dataclass(frozen=True)
class Fit:
    """Whether templates fit a target: the family and its variants in the order they are tried, or the reason."""

    family: str = ""
    variants: tuple[tuple[str, str], ...] = ()
    """Name and idea of each."""
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.variants)


def fits(target: Target, device: Device) -> Fit:
    """Look at the graph of a target, never at its name."""
    if target.siblings:
        return Fit(reason="its sizes vary at run time, and templates are for one size")
    try:
        plan = _plan(target)
        return Fit(plan.family, tuple(_variants(plan, device).items()))
    except Unfit as why:
        return Fit(reason=str(why))


def write(target: Target, device: Device, variant: str) -> str:
    """The source of one variant.

    Raises:
        Unfit: no such variant for this target.
    """
    plan = _plan(target)
    if variant not in _variants(plan, device):
        raise Unfit(f"there is no variant {variant}")
    if device.language == "cuda":
        return with_names(cuda.CudaWriter(plan, device).source(variant), target.signature, "cuda")
    return with_names(cpp.CppWriter(plan).source(variant), target.signature, "cpp")


def _variants(plan: Plan, device: Device) -> dict[str, str]:
    if device.language == "cuda":
        return cuda.variants(plan, device)
    return cpp.variants(plan, device.threads or device.cores)


def _plan(target: Target) -> Plan:
    if target.graph is None:
        raise Unfit(target.graph_reason or "there is no graph of it")
    return _cached_plan(target.id, target.graph.to_json(), target)


class _Keyed:
    """A target that hashes by what the plan depends on."""

    def __init__(self, key: tuple[str, str], target: Target) -> None:
        self.key = key
        self.target = target

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)


def _cached_plan(target_id: str, graph: str, target: Target) -> Plan:
    found = _plan_of(_Keyed((target_id, graph + target.signature.to_json()), target))
    if isinstance(found, str):
        raise Unfit(found)
    return found


@lru_cache(maxsize=64)
def _plan_of(keyed: _Keyed) -> Plan | str:
    graph = keyed.target.graph
    assert graph is not None
    try:
        return make_plan(graph, keyed.target.signature)
    except Unfit as why:
        return str(why)


class TemplateProposer:
    """Writes kernels of known families for the targets whose graphs they fit.

    Every structural variant is proposed once per target; its numbers are `//@tune` lines that the search sweeps.
    Deterministic, free of charge.
    """

    name = "templates"

    def can(self, task: Task) -> bool:
        """Whether some variant has not been tried for the target, and the edge is one of new kernels."""
        return task.edge in (Edge.DRAFT, Edge.IMPROVE) and self._next(task) is not None

    async def propose(self, task: Task) -> Proposal:
        """The next variant that has not been tried."""
        if task.edge not in (Edge.DRAFT, Edge.IMPROVE):
            return Proposal(source=None, failure=f"Templates do not {task.edge} kernels.")
        found = self._next(task)
        if found is None:
            reason = fits(task.target, task.device).reason
            why = f"No template fits: {reason}." if reason else "Every template that fits has been tried."
            return Proposal(source=None, failure=why)
        family, variant, idea = found
        try:
            source = write(task.target, task.device, variant)
        except Unfit as why:
            return Proposal(source=None, family=family, failure=f"The template does not fit: {why}.")
        return Proposal(source=source, idea=idea, family=family)

    async def close(self) -> None:
        """Nothing is held open."""

    def _next(self, task: Task) -> tuple[str, str, str] | None:
        fit = fits(task.target, task.device)
        tried = {node.family for node in task.nodes}
        for variant, idea in fit.variants:
            family = f"template:{fit.family}/{variant}"
            if family not in tried:
                return family, variant, idea
        return None
