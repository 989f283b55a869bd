"""A model file run: the module in eval mode on its device, with the arguments of one call.

Everything runs under `torch.no_grad`, not `inference_mode`: tensors made in inference mode have no version counters,
and those are how writes into inputs are found.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from forge_tui.core.records import ModelSpec
from forge_tui.models.devices import resolve_device
from forge_tui.models.factories import build
from forge_tui.models.faults import explain
from forge_tui.models.held import Origins, origins_of
from forge_tui.models.importing import import_model
from forge_tui.models.inputs import input_phases
from forge_tui.models.phases import Phase, weighted


@dataclass(slots=True)
class LoadedModel:
    """A module and the calls that are profiled, timed and compared."""

    spec: ModelSpec
    module: nn.Module
    phases: tuple[Phase, ...]
    device: torch.device
    source: types.ModuleType
    """The imported model file; for Hugging Face models the module that defines its class."""
    own_modules: tuple[str, ...] = field(default=())
    """Names in `sys.modules` of the Python modules that the model is written in."""
    origins: Origins | None = None
    """What the model was built with; None if it is not known, which counts as nothing has changed."""
    warnings: tuple[str, ...] = ()
    """Whole sentences on what was left out when it was built."""

    def run(self) -> Any:
        """Every phase once, whatever its weight; with several phases the results by name.

        Whatever the model raises passes through.
        """
        if len(self.phases) == 1:
            return self.phases[0].run(self.module)
        return {phase.name: phase.run(self.module) for phase in self.phases}

    @property
    def weighted_runs(self) -> list[tuple[Callable[[], Any], float]]:
        """The call of every phase with its weight: a model call's time is the sum of weight times time."""
        return [(functools.partial(phase.run, self.module), phase.weight) for phase in self.phases]

    @property
    def has_workload(self) -> bool:
        """Whether a phase calls the module (or parts of it) by a function of its own."""
        return any(phase.workload is not None for phase in self.phases)


def load_model(spec: ModelSpec, device: str, seed: int = 0) -> LoadedModel:
    """Build the model of a file or configuration; the same seed gives the same weights in every process.

    Floating tensors are moved to the dtype of the spec, if it names one. Input sets of the spec replace the model's
    own inputs.

    Raises:
        ModelError: the file has no model, its code raised, or the input sets do not fit.
        UsageError: the device's name is malformed, or options do not fit the model.
        EnvironmentFault: the device is not there, or a library is missing.
    """
    where = resolve_device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)  # model files write "cuda" and mean the device they are given
    dtype: torch.dtype | None = getattr(torch, spec.dtype) if spec.dtype else None
    with torch.no_grad():
        seed_everything(seed)
        made = _from_configuration(spec, where, seed) if spec.hf is not None else _from_file(spec, where, dtype, seed)
        # a configuration's model is built in its dtype, and what the library keeps in another one stays in that
        cast = dtype if spec.hf is None else None
        phases = made.phases
        if spec.inputs or spec.vary:
            seed_everything(seed)
            phases, given = input_phases(spec, made.module, made.entry, made.source), dtype
        else:
            given = cast
        phases = weighted(phases, spec.phases)
        try:
            _to_eval(made.module)
            _materialise(made.module, phases, spec)
            made.module.requires_grad_(False)
            made.module.to(device=where, dtype=cast) if cast is not None else made.module.to(where)
            phases = tuple(phase.moved(where, given) for phase in phases)
        except BaseException as error:
            raise explain(error, spec, f"The model could not be moved to {where}") from error
    return LoadedModel(spec=spec, module=made.module, phases=phases, device=where, source=made.source,
                       own_modules=made.own, origins=origins_of(made.module, made.own),
                       warnings=made.warnings)  # fmt: skip


def _to_eval(module: nn.Module) -> None:
    """Eval mode; exported programs refuse `eval()`, since their mode is fixed."""
    try:
        module.eval()
    except NotImplementedError:
        for child in module.modules():
            child.training = False


def _materialise(module: nn.Module, phases: tuple[Phase, ...], spec: ModelSpec) -> None:
    """Give lazy layers (`nn.LazyLinear`) their parameters: they take their shapes from a first call."""
    if any(is_lazy(p) for p in (*module.parameters(), *module.buffers())):
        try:
            for phase in phases:
                phase.run(module)
        except BaseException as error:
            raise explain(error, spec, "The first call, which gives lazy layers their shapes, failed") from error


def seed_everything(seed: int) -> None:
    """Seed torch (every device), Python's random, and numpy where it is in use."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


@dataclass(frozen=True, slots=True)
class _Made:
    module: nn.Module
    phases: tuple[Phase, ...]
    source: types.ModuleType
    own: tuple[str, ...]
    entry: str = "forward"
    warnings: tuple[str, ...] = ()


def _from_file(spec: ModelSpec, where: torch.device, dtype: torch.dtype | None, seed: int) -> _Made:
    before = set(sys.modules)
    source = import_model(spec)
    imported = set(sys.modules) - before
    seed_everything(seed)
    module, phases = build(spec, source, where, dtype, with_inputs=not (spec.inputs or spec.vary))
    return _Made(module, phases, source, _own_modules(module, source, imported))


def _from_configuration(spec: ModelSpec, where: torch.device, seed: int) -> _Made:
    from forge_tui.models.hf import build as hf

    made = hf.build(spec, where, seed, with_inputs=not (spec.inputs or spec.vary))
    source = sys.modules[type(made.module).__module__]
    names = {source.__name__, *made.modules, *(type(m).__module__ for m in made.module.modules())}
    return _Made(made.module, made.phases, source, _importable(names), made.entry, made.warnings)


def _own_modules(module: nn.Module, source: types.ModuleType, imported: set[str]) -> tuple[str, ...]:
    """The model file, what it imported from its own folder, and the modules that define the model's classes."""
    from forge_tui.models.importing import is_beside

    names = {source.__name__} | {n for n in imported if is_beside(sys.modules.get(n), source)}
    names |= {type(m).__module__ for m in module.modules()}
    return _importable(names)


def _importable(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(n for n in names if n in sys.modules and n.partition(".")[0] not in ("torch", "builtins")))
