"""A model file run: the module in eval mode on its device, with the arguments of one call.

Everything runs under `torch.no_grad`, not `inference_mode`: tensors made in inference mode have no version counters,
and those are how writes into inputs are found.
"""

from __future__ import annotations

import functools
import inspect
import random
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from forge_tui.core.errors import ModelError
from forge_tui.core.records import ModelSpec
from forge_tui.models.devices import resolve_device
from forge_tui.models.faults import explain
from forge_tui.models.importing import import_model
from forge_tui.models.phases import Phase, Workload, phases_of, weighted


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
    """Import the model file and build the model; the same seed gives the same weights in every process.

    Floating tensors are moved to the dtype of the spec, if it names one.

    Raises:
        ModelError: the file has no model, or its code raised.
        UsageError: the device's name is malformed.
        EnvironmentFault: the device is not there.
    """
    where = resolve_device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)  # model files write "cuda" and mean the device they are given
    dtype: torch.dtype | None = getattr(torch, spec.dtype) if spec.dtype else None
    seed_everything(seed)
    before = set(sys.modules)
    source = import_model(spec)
    imported = set(sys.modules) - before
    seed_everything(seed)
    with torch.no_grad():
        module, phases = _build(spec, source, where, dtype)
        phases = weighted(phases, spec.phases)
        try:
            module.eval().requires_grad_(False)
            module.to(device=where, dtype=dtype) if dtype is not None else module.to(where)
            phases = tuple(phase.moved(where, dtype) for phase in phases)
        except Exception as error:
            raise explain(error, spec, f"The model could not be moved to {where}") from error
    own = _own_modules(module, source, imported)
    return LoadedModel(spec=spec, module=module, phases=phases, device=where, source=source, own_modules=own)


def seed_everything(seed: int) -> None:
    """Seed torch (every device), Python's random, and numpy where it is in use."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def _build(
    spec: ModelSpec, source: types.ModuleType, device: torch.device, dtype: torch.dtype | None
) -> tuple[nn.Module, tuple[Phase, ...]]:
    name = spec.factory or "build"
    factory = getattr(source, name, None)
    if factory is None and spec.factory:
        raise ModelError(f"{spec.path} has no {spec.factory}.", f"It has {_callables(source)}.")
    if factory is None:
        factory = getattr(source, "Model", None)
        if not (inspect.isclass(factory) and issubclass(factory, nn.Module)):
            raise ModelError(
                f"{spec.path} has no model: neither a build() function nor a class Model with get_inputs().",
                "Write def build() returning (module, args, kwargs), or name another function with file.py:NAME.",
            )
        name = "Model"
    if not callable(factory):
        raise ModelError(f"{name} in {spec.path} is not a function.", "Name a function that returns the model.")
    if inspect.isclass(factory) and issubclass(factory, nn.Module):
        return _kernelbench(spec, source, factory, name, device, dtype)
    returned = _run(spec, f"{name}()", lambda: factory(**_placement(factory, device, dtype)))
    if isinstance(returned, dict) and isinstance(returned.get("module"), nn.Module) and "phases" in returned:
        if set(returned) != {"module", "phases"} or not isinstance(returned["phases"], dict):
            raise ModelError(f"{name}() in {spec.path} returned {_kind(returned)}.", "Its keys are module and phases.")
        return returned["module"], phases_of(returned["phases"], f"{name}() in {spec.path}")
    if isinstance(returned, nn.Module):
        returned = (returned,)
        if hasattr(source, "get_inputs"):
            returned = (*returned, _inputs(spec, source, device, dtype))
    return _take_apart(spec, name, returned)


def _kernelbench(
    spec: ModelSpec, source: types.ModuleType, cls: type[nn.Module], name: str, device: torch.device,
    dtype: torch.dtype | None,
) -> tuple[nn.Module, tuple[Phase, ...]]:  # fmt: skip
    if not hasattr(source, "get_inputs"):
        raise ModelError(f"{spec.path} has a class {name} but no get_inputs() beside it.", "Add get_inputs().")
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    if hasattr(source, "get_init_inputs"):
        init = _run(spec, "get_init_inputs()", source.get_init_inputs)
        if not isinstance(init, (list, tuple)):
            raise ModelError(f"get_init_inputs() in {spec.path} returned {_kind(init)}, not a list.")
        if len(init) == 2 and isinstance(init[0], (list, tuple)) and isinstance(init[1], dict):
            args, kwargs = list(init[0]), dict(init[1])
        else:
            args = list(init)
    module = _run(spec, f"{name}()", lambda: cls(*args, **kwargs))
    return module, (Phase(args=_inputs(spec, source, device, dtype)),)


def _inputs(
    spec: ModelSpec, source: types.ModuleType, device: torch.device, dtype: torch.dtype | None
) -> tuple[Any, ...]:
    function = source.get_inputs
    inputs = _run(spec, "get_inputs()", lambda: function(**_placement(function, device, dtype)))
    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    if not isinstance(inputs, (list, tuple)):
        raise ModelError(f"get_inputs() in {spec.path} returned {_kind(inputs)}, not a list of inputs.")
    return tuple(inputs)


def _placement(function: Callable[..., Any], device: torch.device, dtype: torch.dtype | None) -> dict[str, Any]:
    """The `device` and `dtype` keyword arguments, for a function that has parameters of these names."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    offered = {"device": str(device), "dtype": dtype}
    usable = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: value
        for name, value in offered.items()
        if name in parameters
        and parameters[name].kind in usable
        # a factory's own default dtype stands where the user named none, unless it has no default
        and (value is not None or parameters[name].default is inspect.Parameter.empty)
    }


def _take_apart(
    spec: ModelSpec, name: str, returned: Any
) -> tuple[nn.Module, tuple[Phase, ...]]:
    """Module and call of what a factory returned: args, kwargs and workload may each be missing."""
    wanted = "(module, args, kwargs), (module, args), (module, workload) or (module, args, kwargs, workload)"
    if not isinstance(returned, tuple) or not returned or not isinstance(returned[0], nn.Module):
        raise ModelError(f"{name}() in {spec.path} returned {_kind(returned)}.", f"It must return {wanted}.")
    args: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] | None = None
    workload: Workload | None = None
    for part in returned[1:]:
        if args is None and kwargs is None and workload is None and isinstance(part, (tuple, list, torch.Tensor)):
            args = (part,) if isinstance(part, torch.Tensor) else tuple(part)
        elif kwargs is None and workload is None and isinstance(part, dict) and all(isinstance(k, str) for k in part):
            kwargs = dict(part)
        elif workload is None and callable(part) and not isinstance(part, nn.Module):
            workload = part
        else:
            raise ModelError(f"{name}() in {spec.path} returned {_kind(returned)}.", f"It must return {wanted}.")
    if args is None and kwargs is None and workload is None:
        raise ModelError(
            f"{name}() in {spec.path} returned a module without inputs.",
            f"Return {wanted}, or add get_inputs() to the file.",
        )
    return returned[0], (Phase("", args or (), kwargs or {}, workload),)


def _run(spec: ModelSpec, what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        raise explain(error, spec, f"{what} failed") from error


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ for part in value)})"
    return "None" if value is None else f"{type(value).__name__}"


def _callables(source: types.ModuleType) -> str:
    names = [n for n, v in vars(source).items()
             if not n.startswith("_") and callable(v) and getattr(v, "__module__", "") == source.__name__]  # fmt: skip
    return ", ".join(sorted(names)) or "no function"


def _own_modules(module: nn.Module, source: types.ModuleType, imported: set[str]) -> tuple[str, ...]:
    """The model file, what it imported from its own folder, and the modules that define the model's classes."""
    from forge_tui.models.importing import is_beside

    names = {source.__name__} | {n for n in imported if is_beside(sys.modules.get(n), source)}
    names |= {type(m).__module__ for m in module.modules()}
    return tuple(sorted(n for n in names if n in sys.modules and n.partition(".")[0] not in ("torch", "builtins")))
