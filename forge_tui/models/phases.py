"""Phases: the calls that make up one use of a model, each with its weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.utils import _pytree as pytree

from forge_tui.core.errors import ModelError, UsageError

Workload = Callable[[nn.Module], Any]


@runtime_checkable
class Movable(Protocol):
    """A workload that holds tensors of its own."""

    def __call__(self, module: nn.Module) -> Any:
        """Make the call."""

    def moved(self, device: torch.device, dtype: torch.dtype | None) -> Workload:
        """The same with its tensors on the device; floating ones in the dtype."""


_FIELDS = {"args", "kwargs", "workload", "weight"}


@dataclass(frozen=True, slots=True)
class Phase:
    """One call of a model: arguments, or a workload that makes the call by itself."""

    name: str = ""
    """Empty where the model has one phase."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    workload: Workload | None = None
    weight: float = 1.0
    """Calls of this phase that count as one model call."""

    def run(self, module: nn.Module) -> Any:
        """The call, without gradients; whatever the model raises passes through."""
        with torch.no_grad():
            if self.workload is not None:
                return self.workload(module)
            return module(*self.args, **self.kwargs)

    def moved(self, device: torch.device, dtype: torch.dtype | None) -> Phase:
        """The phase with its tensors on the device; floating ones in the dtype."""
        workload = self.workload
        if isinstance(workload, Movable):
            workload = workload.moved(device, dtype)
        return replace(self, args=move(self.args, device, dtype), kwargs=move(self.kwargs, device, dtype),
                       workload=workload)  # fmt: skip


def move(tree: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Every tensor of a pytree on the device; floating ones in the dtype; all detached."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        leaf = leaf.detach()
        return leaf.to(device, dtype) if dtype is not None and leaf.is_floating_point() else leaf.to(device)

    try:
        return pytree.tree_map(one, tree)
    except RecursionError:
        raise ModelError("The inputs are nested too deeply, or a list among them holds itself.",
                         "Give the model flatter inputs.") from None  # fmt: skip


def phases_of(described: Mapping[str, Any], what: str) -> tuple[Phase, ...]:
    """Phases from `{"prefill": {"args": ..., "kwargs": ..., "weight": 1}, "decode": {"workload": f, "weight": 128}}`.

    Raises:
        ModelError: it is not of that form.
    """
    wanted = 'Write {"NAME": {"args": (...), "kwargs": {...}, "weight": 1}} or {"NAME": {"workload": f, "weight": 1}}.'
    found = []
    for name, part in described.items():
        if not isinstance(name, str) or not name or not isinstance(part, Mapping) or set(part) - _FIELDS:
            raise ModelError(f"{what} describes the phase {name!r} in a way that is not known.", wanted)
        args, kwargs, workload = part.get("args", ()), part.get("kwargs", {}), part.get("workload")
        args = (args,) if isinstance(args, torch.Tensor) else args
        weight = part.get("weight", 1)
        if not isinstance(args, (tuple, list)) or not isinstance(kwargs, Mapping) or not (
            workload is None or callable(workload)
        ):  # fmt: skip
            raise ModelError(f"{what} gives the phase {name!r} arguments that cannot be passed.", wanted)
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not (
            weight == 0 or 1 <= weight < float("inf")
        ):  # fmt: skip
            hint = "A weight is 0, or a number from 1: 1 and 9 stand for 0.1 and 0.9."
            raise ModelError(f"{what} gives the phase {name!r} the weight {weight!r}.", hint)
        found.append(Phase(name, tuple(args), dict(kwargs), workload, float(weight)))
    if not found:
        raise ModelError(f"{what} describes no phase.", wanted)
    return tuple(found)


def weighted(phases: tuple[Phase, ...], weights: Mapping[str, float]) -> tuple[Phase, ...]:
    """The phases with the weights that were asked for; those of weight 0 are left out.

    Raises:
        UsageError: a name is no phase, or nothing is left.
    """
    for name, weight in weights.items():
        if 0 < weight < 1:
            hint = "A weight is 0, or a number from 1: 1 and 9 stand for 0.1 and 0.9."
            raise UsageError(f"The phase {name} has the weight {weight:g}.", hint)
    names = [p.name for p in phases]
    for name in weights:
        if name not in names:
            known = ", ".join(filter(None, names))
            hint = f"Its phases are {known}." if known else "It has one phase, without a name."
            raise UsageError(f"The model has no phase {name!r}.", hint)
    found = tuple(replace(p, weight=float(weights.get(p.name, p.weight))) for p in phases)
    kept = tuple(p for p in found if p.weight > 0)
    if not kept:
        raise UsageError("Every phase of the model has the weight 0.", "Give one of them a weight above 0.")
    return kept
