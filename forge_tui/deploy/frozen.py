"""What a kernel has baked in of its callable: attributes, children, hooks, globals; checked again at every call.

Covered: the classes and attributes of a module and its children (identity; short plain containers by value), which
parameters there are and which are tied, hooks and replaced forwards of children, training mode, and what the callable's
own code reads from its globals and enclosing functions. Not covered: the inside of other objects (a config), class
attributes, and globals of the functions that it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from forge_tui.core.records import Signature
from forge_tui.models.attributes import attributes, read_scalar

_MISSING = object()
_PLAIN = (bool, int, float, str, type(None), torch.dtype)
_LONGEST = 16

#: where a tensor is read at call time: a dictionary and its key
Slot = tuple[dict[str, Any], str]
#: the same with the number of the kernel's input
InputSlot = tuple[int, dict[str, Any], str]


class Replaced:
    """Base of what deployment puts in place of a `forward`."""


def unwrapped(value: Any) -> Any:
    """The original behind a deployed function; any other value as it is."""
    if isinstance(value, FunctionType) and hasattr(value, "forge_deployed"):
        return vars(value)["__wrapped__"]
    return value


class FrozenModule:
    """The state of a module (children included) at the time of deployment.

    `slots` are where the signature's parameters, buffers and stray tensors are read, in the order of the signature.
    """

    def __init__(self, module: nn.Module, signature: Signature) -> None:
        self._modules = [_Module(child, own=child is module) for child in module.modules()]
        self._has_children = len(self._modules) > 1
        self.slots, self._ties, self.misfit = _slots(module, signature)
        self.misfit = self.misfit or _scalar_misfit(module, signature)
        self._globals = Globals([type(child).forward for child in module.modules()])
        self._attributes: list[tuple[dict[str, Any], str, Any]] = []
        self._values: list[tuple[dict[str, Any], str, Any, Any]] = []
        for prefix, path, value in attributes(module):
            if isinstance(value, Tensor):
                continue  # an input of the kernel, read at every call
            holder = vars(module.get_submodule(prefix))
            name = path.removeprefix(f"{prefix}.") if prefix else path
            if name == "__getstate__":
                continue
            if type(value) in (list, dict) and len(value) <= _LONGEST:
                self._values.append((holder, name, value, value.copy()))
            else:
                self._attributes.append((holder, name, unwrapped(value)))

    def changed(self) -> str:
        """What differs from the time of deployment, or nothing."""
        for child in self._modules:
            reason = child.changed()
            if reason:
                return reason
        for holder, name, value in self._attributes:
            now = holder.get(name, _MISSING)
            if now is not value and unwrapped(now) is not value and not _same(now, value):
                return "attributes"
        for holder, name, value, content in self._values:
            now = holder.get(name, _MISSING)
            if (now is not value and type(now) is not type(value)) or now != content:
                return "attributes"
        for (one, name), (other, alias) in self._ties:
            if one.get(name) is not other.get(alias):
                return "weight tying"
        if self._has_children and (torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks):  # noqa: SLF001
            return "hooks"
        return self._globals.changed()


class _Module:
    """One module's own dictionaries, hooks and class."""

    __slots__ = ("_buffer_count", "_buffers", "_class", "_dict", "_forward", "_module", "_modules", "_names", "_nones",
                 "_own", "_parameter_count", "_parameters")  # fmt: skip

    def __init__(self, module: nn.Module, *, own: bool) -> None:
        self._module = module
        self._own = own
        self._class = type(module)
        self._forward = type(module).forward
        self._dict = vars(module)
        self._parameters = module._parameters  # noqa: SLF001
        self._buffers = module._buffers  # noqa: SLF001
        self._modules = module._modules  # noqa: SLF001
        self._names = tuple(module._modules.items())  # noqa: SLF001
        self._parameter_count, self._buffer_count = len(self._parameters), len(self._buffers)
        self._nones = tuple(
            (holder, name) for holder in (self._parameters, self._buffers) for name in holder if holder[name] is None
        )

    def changed(self) -> str:
        state = self._dict
        if state["training"]:
            return "training mode"
        parameters, buffers, modules = state["_parameters"], state["_buffers"], state["_modules"]
        if (
            type(self._module) is not self._class
            or self._class.forward is not self._forward
            or parameters is not self._parameters
            or buffers is not self._buffers
            or modules is not self._modules
            or len(parameters) != self._parameter_count
            or len(buffers) != self._buffer_count
            or len(modules) != len(self._names)
        ):
            return "module structure"
        for holder, name in self._nones:
            if holder.get(name, _MISSING) is not None:
                return "module structure"
        for name, child in self._names:
            if modules.get(name) is not child:
                return "module structure"
        if not self._own:
            if state["_forward_hooks"] or state["_forward_pre_hooks"]:
                return "hooks"
            if "forward" in state and not isinstance(state["forward"], Replaced):
                return "module structure"
        return ""


class Globals:
    """What functions read from their module and from enclosing functions, tensors aside."""

    def __init__(self, functions: Sequence[Any]) -> None:
        self._names: list[tuple[Mapping[str, Any], str, Any]] = []
        self._cells: list[tuple[Any, Any]] = []
        for function in dict.fromkeys(functions):
            code = getattr(function, "__code__", None)
            if not isinstance(function, FunctionType) or code is None:
                continue
            own_module = function.__module__ or ""
            if own_module == "torch" or own_module.startswith("torch."):
                continue
            for name in code.co_names:
                value = function.__globals__.get(name, _MISSING)
                if value is not _MISSING and not isinstance(value, Tensor):
                    self._names.append((function.__globals__, name, unwrapped(value)))
            self._cells += [(cell, value) for cell, value in _cells(function) if not isinstance(value, Tensor)]

    def changed(self) -> str:
        """`globals` if one of them is another object now."""
        for names, name, value in self._names:
            now = names.get(name, _MISSING)
            if now is not value and unwrapped(now) is not value and not _same(now, value):
                return "globals"
        for cell, value in self._cells:
            if cell.cell_contents is not value and unwrapped(cell.cell_contents) is not value:
                return "globals"
        return ""


class FrozenFunction:
    """The state around a function at the time of deployment."""

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        self.misfit = ""
        self._globals = Globals([function])
        found: list[InputSlot] = []
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)) if isinstance(
            function, FunctionType) else {}  # fmt: skip
        for index, item in enumerate(signature.inputs):
            if item.source == "arg":
                continue
            if item.path in cells:
                found.append((index, _CellView(cells[item.path]), item.path))
            elif isinstance(function, FunctionType) and item.path in function.__globals__:
                found.append((index, function.__globals__, item.path))
            else:
                self.misfit = "closure"
        self.slots = tuple(found)

    def changed(self) -> str:
        """What differs from the time of deployment, or nothing."""
        return self._globals.changed()


class _CellView(dict[str, Any]):
    """A cell of an enclosing function read as a dictionary of one entry."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self._cell = cell

    def get(self, _: str, default: Any = None) -> Any:
        try:
            return self._cell.cell_contents
        except ValueError:
            return default


def _cells(function: FunctionType) -> Iterator[tuple[Any, Any]]:
    for cell in function.__closure__ or ():
        try:
            yield cell, unwrapped(cell.cell_contents)
        except ValueError:  # not filled yet
            continue


def _same(now: Any, then: Any) -> bool:
    """Equality of plain values (or tuples of them), by type; signed zeros and NaNs by their text."""
    if type(now) is not type(then):
        return False
    if type(then) is float:
        return repr(now) == repr(then)
    if type(then) is tuple:
        return len(now) == len(then) and all(a is b or _same(a, b) for a, b in zip(now, then, strict=True))
    return isinstance(then, _PLAIN) and bool(now == then)


def _slots(
    module: nn.Module, signature: Signature
) -> tuple[tuple[InputSlot, ...], list[tuple[Slot, Slot]], str]:
    """Where each tensor of the signature sits, which places hold the same one, and what is missing."""
    slots: list[InputSlot] = []
    ties: list[tuple[Slot, Slot]] = []
    for index, item in enumerate(signature.inputs):
        if item.source == "arg":
            continue
        prefix, _, name = item.path.rpartition(".")
        try:
            owner = module.get_submodule(prefix)
        except AttributeError:
            return (), [], "module structure"
        holder: dict[str, Any] = vars(owner)
        if item.source in ("param", "buffer"):
            holder = holder["_parameters" if item.source == "param" else "_buffers"]
        tensor = holder.get(name)
        if not isinstance(tensor, Tensor):
            return (), [], "module structure"
        slots.append((index, holder, name))
        ties += [((holder, name), place) for place in _places(module, tensor)
                 if place[0] is not holder or place[1] != name]  # fmt: skip
    return tuple(slots), ties, ""


def _places(module: nn.Module, tensor: Tensor) -> Iterator[Slot]:
    for child in module.modules():
        for holder in (child._parameters, child._buffers):  # noqa: SLF001
            for name, value in holder.items():
                if value is tensor:
                    yield holder, name


def _scalar_misfit(module: nn.Module, signature: Signature) -> str:
    for scalar in signature.scalars:
        if scalar.source == "attribute":
            try:
                if not _same(read_scalar(module, scalar.path), scalar.value):
                    return "attributes"
            except (AttributeError, IndexError, KeyError, TypeError, ValueError):
                return "attributes"
    return ""
