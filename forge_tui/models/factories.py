"""The module and the calls that a model file's factory gives."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from forge_tui.core.errors import ModelError
from forge_tui.core.records import ModelSpec
from forge_tui.models.faults import explain
from forge_tui.models.phases import Phase, Workload, phases_of


def build(
    spec: ModelSpec, source: types.ModuleType, device: torch.device, dtype: torch.dtype | None, *,
    with_inputs: bool = True,
) -> tuple[nn.Module, tuple[Phase, ...]]:  # fmt: skip
    """The model of an imported file; without `with_inputs` its own inputs are neither made nor asked for.

    Raises:
        ModelError: there is no factory, it raised, or it returned something else.
    """
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
        return _kernelbench(spec, source, factory, name, device, dtype, with_inputs=with_inputs)
    returned = run(spec, f"{name}()", lambda: factory(**placement(factory, device, dtype)))
    if not with_inputs:
        module = returned[0] if isinstance(returned, tuple) and returned else returned
        module = module.get("module") if isinstance(module, dict) else module
        if isinstance(module, nn.Module):
            return module, ()
    if isinstance(returned, dict) and isinstance(returned.get("module"), nn.Module) and "phases" in returned:
        if set(returned) != {"module", "phases"} or not isinstance(returned["phases"], dict):
            what = f"{name}() in {spec.path} returned {kind_of(returned)}."
            raise ModelError(what, "Its keys are module and phases.")
        return returned["module"], phases_of(returned["phases"], f"{name}() in {spec.path}")
    if isinstance(returned, nn.Module):
        returned = (returned,)
        if hasattr(source, "get_inputs"):
            returned = (*returned, _inputs(spec, source, device, dtype))
    return _take_apart(spec, name, returned)


#: a model of at most so many modules without children is one operator, to be replaced as a whole; others are networks
_OPERATOR_LEAVES = 8


class Held(nn.Module):
    """Calls the one module in it, so that a model that is a single operator is a callable like any other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own result."""
        return self.model(*args, **kwargs)


def _kernelbench(
    spec: ModelSpec, source: types.ModuleType, cls: type[nn.Module], name: str, device: torch.device,
    dtype: torch.dtype | None, *, with_inputs: bool,
) -> tuple[nn.Module, tuple[Phase, ...]]:  # fmt: skip
    if with_inputs and not hasattr(source, "get_inputs"):
        raise ModelError(f"{spec.path} has a class {name} but no get_inputs() beside it.", "Add get_inputs().")
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    if hasattr(source, "get_init_inputs"):
        init = run(spec, "get_init_inputs()", source.get_init_inputs)
        if not isinstance(init, (list, tuple)):
            raise ModelError(f"get_init_inputs() in {spec.path} returned {kind_of(init)}, not a list.")
        if len(init) == 2 and isinstance(init[0], (list, tuple)) and isinstance(init[1], dict):
            args, kwargs = list(init[0]), dict(init[1])
        else:
            args = list(init)
    made = run(spec, f"{name}()", lambda: cls(*args, **kwargs))
    if sum(not any(part.children()) for part in made.modules()) <= _OPERATOR_LEAVES:
        # the tree's root bears the model's name
        made = type(name, (Held,), {"__module__": cls.__module__})(made)
    return made, (Phase(args=_inputs(spec, source, device, dtype)),) if with_inputs else ()


def _inputs(
    spec: ModelSpec, source: types.ModuleType, device: torch.device, dtype: torch.dtype | None
) -> tuple[Any, ...]:
    function = source.get_inputs
    inputs = run(spec, "get_inputs()", lambda: function(**placement(function, device, dtype)))
    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    if not isinstance(inputs, (list, tuple)):
        raise ModelError(f"get_inputs() in {spec.path} returned {kind_of(inputs)}, not a list of inputs.")
    return tuple(inputs)


def placement(function: Callable[..., Any], device: torch.device, dtype: torch.dtype | None) -> dict[str, Any]:
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
        raise ModelError(f"{name}() in {spec.path} returned {kind_of(returned)}.", f"It must return {wanted}.")
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
            raise ModelError(f"{name}() in {spec.path} returned {kind_of(returned)}.", f"It must return {wanted}.")
    if args is None and kwargs is None and workload is None:
        raise ModelError(
            f"{name}() in {spec.path} returned a module without inputs.",
            f"Return {wanted}, or add get_inputs() to the file.",
        )
    return returned[0], (Phase("", args or (), kwargs or {}, workload),)


def run(spec: ModelSpec, what: str, call: Callable[[], Any]) -> Any:
    """The result of a user's function.

    Raises:
        ModelError: it raised.
    """
    try:
        return call()
    except ModelError:
        raise
    except BaseException as error:
        raise explain(error, spec, f"{what} failed") from error


def kind_of(value: Any) -> str:
    """What a value is, for a sentence."""
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ for part in value)})"
    return "None" if value is None else f"{type(value).__name__}"


def _callables(source: types.ModuleType) -> str:
    names = [n for n, v in vars(source).items()
             if not n.startswith("_") and callable(v) and getattr(v, "__module__", "") == source.__name__]  # fmt: skip
    return ", ".join(sorted(names)) or "no function"
