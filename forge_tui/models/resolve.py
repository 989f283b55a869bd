"""From a target back to the Python callable it stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from forge_tui.core.errors import ModelError
from forge_tui.core.records import Target
from forge_tui.models.attributes import module_tensors
from forge_tui.models.callables import Slot, find_function, function_slot, item_slot
from forge_tui.models.calls import take_outputs
from forge_tui.models.load import LoadedModel
from forge_tui.models.reader import make_builder


def find_module(target: Target, loaded: LoadedModel, instance: str | None = None) -> nn.Module:
    """The module of a target of kind `module`: the named instance, else the first.

    Raises:
        ModelError: the model has no such module (it changed since it was profiled).
    """
    path = target.instances[0] if instance is None else instance
    try:
        return loaded.module.get_submodule(path)
    except AttributeError as error:
        raise ModelError(f"The model has no module {path!r}.", "Profile it again.") from error


def original(target: Target, loaded: LoadedModel, instance: str | None = None) -> Callable[..., Any]:
    """The callable itself: a module, or a function."""
    return find_module(target, loaded, instance) if target.kind == "module" else find_function(target.qualname)


def caller(
    target: Target, loaded: LoadedModel, instance: str | None = None,
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
) -> Callable[[Sequence[Tensor]], list[Tensor]]:  # fmt: skip
    """A function from the target's input tensors, in signature order, to the output tensors out0, out1, ...

    It calls the original. The given parameters, buffers and closure tensors stand in the module (or function) during
    the call only, as with `torch.func.functional_call`, tied ones in all their places; it costs about a microsecond.
    Not for several threads at once. `wrap` makes what is called of the original (`torch.compile`).

    Raises:
        ModelError: the model no longer has the callable.
    """
    fn = original(target, loaded, instance)
    signature = target.signature
    build = make_builder(signature)
    single = signature.result == {"out": 0}
    module = fn if isinstance(fn, nn.Module) else None
    # the call was seen behind the module's own hooks, which a kernel in its place keeps
    run = fn if module is None else module.forward
    run = run if wrap is None else wrap(run)
    swaps: list[tuple[int, list[Slot]]] = []
    for position, item in enumerate(signature.inputs):
        if item.source != "arg":
            slots = module_slots(module, item.path) if module is not None else [function_slot(fn, item.path)]
            swaps.append((position, slots))

    def call(tensors: Sequence[Tensor]) -> list[Tensor]:
        args, kwargs = build(tensors)
        undo: list[tuple[Callable[[Any], None], Any]] = []
        try:
            for position, slots in swaps:
                for read, write in slots:
                    undo.append((write, read()))
                    write(tensors[position])
            with torch.no_grad():
                result = run(*args, **kwargs)
        finally:
            for write, value in reversed(undo):
                write(value)
        return [result] if single and isinstance(result, Tensor) else take_outputs(signature, result)

    return call


def module_slots(module: nn.Module, path: str) -> list[Slot]:
    """Every place in the module that holds the tensor of this qualified name (several if tied).

    A tensor that a module makes at its first call is not there in a model that was not run yet: its place is.

    Raises:
        ModelError: the module has no such place.
    """
    named = {name: tensor for _, name, tensor in module_tensors(module)}
    tensor = named.get(path)
    if tensor is None:
        return [_empty_slot(module, path)]
    slots: list[Slot] = []
    for child in module.modules():
        # the module's own dictionaries: a parameter may be swapped for a plain tensor only there
        for holder in (child._parameters, child._buffers, vars(child)):  # noqa: SLF001
            slots += [item_slot(holder, name) for name, value in holder.items() if value is tensor]
    return slots


def _empty_slot(module: nn.Module, path: str) -> Slot:
    """The place of a tensor that is not made yet; empty again behind the call."""
    prefix, _, name = path.rpartition(".")
    child = dict(module.named_modules()).get(prefix)
    if child is None or isinstance(child._modules.get(name), nn.Module):  # noqa: SLF001
        raise ModelError(f"{type(module).__name__} has no tensor {path}.", "Profile the model again.")
    registered = (child._parameters, child._buffers)  # noqa: SLF001
    holder: Any = next((held for held in registered if name in held), vars(child))
    absent = object()

    def write(value: Any) -> None:
        if value is absent:
            holder.pop(name, None)
        else:
            holder[name] = value

    return (lambda: holder.get(name, absent)), write
