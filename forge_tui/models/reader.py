"""Signatures compiled to Python: a reader that checks a call and gives its tensors, and a builder of the call.

The deployed guard runs on every call of the model, so the checks are written out as one Python function with the
callable's own parameters (the interpreter binds the arguments), instead of walking a tree each time.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from forge_tui.core.records import KernelInput, Signature, Target
from forge_tui.models.attributes import module_tensors
from forge_tui.models.binding import signature_of
from forge_tui.models.callables import find_function, function_slot
from forge_tui.models.trees import Tree, rebuild

Reader = Callable[[Sequence[Any], Mapping[str, Any]], list[Tensor] | None]
_MISS = (TypeError, KeyError, IndexError, AttributeError, RuntimeError, ValueError)


def make_reader(target: Target, module: nn.Module | None, device: str | torch.device | None = None) -> Reader:
    """A function from the arguments of a call to its input tensors, or None if the call is another one.

    It checks what `read_inputs` checks, in a few microseconds. Make it before the callable is patched. `device` is
    where the tensors must be; by default where they were captured.
    """
    fn = module.forward if module is not None else find_function(target.qualname)
    where = torch.device(device or target.signature.device or _device_of(module))
    code = _ReaderCode(target.signature, fn, module, where)
    read = code.compile()

    def reader(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor] | None:
        try:
            return read(*args, **kwargs)
        except _MISS:  # too few arguments, a tensor replaced by something else, a sparse one without strides
            return None

    return reader


def make_builder(signature: Signature) -> Callable[[Sequence[Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]:
    """A fast `rebuild_call` for one signature."""
    names = _Names()
    text = _expression(signature.call, names)
    device = f"(t[0].device if len(t) else {names.put(torch.device(signature.device or 'cpu'))})"
    source = f"def build(t):\n    device = {device}\n    return {text}\n"
    return _define(source, names, "build")


def _device_of(module: nn.Module | None) -> str:
    tensors = module_tensors(module)
    return str(tensors[0][2].device) if tensors else "cpu"


class _Names:
    """Values that the generated code refers to."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def put(self, value: Any) -> str:
        name = f"_forge_{len(self.values)}"
        self.values[name] = value
        return name


def _define(source: str, names: _Names, function: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = dict(names.values)
    # the source is generated from a validated signature: identifiers of the callable's parameters and constants
    exec(compile(source, "<forge guard>", "exec"), namespace)  # noqa: S102
    result: Callable[..., Any] = namespace[function]
    return result


def _expression(tree: Tree, names: _Names) -> str:
    (kind, value), = tree.items()  # fmt: skip
    match kind:
        case "in":
            return f"t[{int(value)}]"
        case "tuple":
            return "(" + "".join(f"{_expression(item, names)}, " for item in value) + ")"
        case "list":
            return "[" + ", ".join(_expression(item, names) for item in value) + "]"
        case "dict":
            return "{" + ", ".join(f"{key!r}: {_expression(item, names)}" for key, item in value.items()) + "}"
        case "device":
            return "device"
    return names.put(rebuild(tree, (), (), torch.device("cpu")))


class _ReaderCode:
    """The text of one reader."""

    def __init__(
        self, signature: Signature, fn: Callable[..., Any], module: nn.Module | None, device: torch.device
    ) -> None:
        self.signature = signature
        self.fn = fn
        self.module = module
        self.device = device
        self.names = _Names()
        self.checks: list[str] = []
        self.types = self.names.put((Tensor, nn.Parameter, *((nn.Buffer,) if hasattr(nn, "Buffer") else ())))

    def compile(self) -> Callable[..., list[Tensor] | None]:
        parameters = self._parameters()
        for i, item in enumerate(self.signature.inputs):
            if item.source != "arg":
                self._held_tensor(i, item)
        if self.module is not None:
            self._module_state(self.module)
        tensors = [f"_forge_t{i}" for i in range(len(self.signature.inputs))]
        grad = self.names.put(torch.is_grad_enabled)
        if tensors:
            self._fail(f"{grad}() and ({' or '.join(f'{t}.requires_grad' for t in tensors)})")
        self._fail(f"{self.names.put(torch.is_autocast_enabled)}({self.device.type!r})")
        body = "\n".join(f"    {line}" for line in self.checks)
        source = f"def read({parameters}):\n{body}\n    return [{', '.join(tensors)}]\n"
        return _define(source, self.names, "read")

    def _fail(self, condition: str) -> None:
        self.checks.append(f"if {condition}: return None")

    def _parameters(self) -> str:
        """The parameter list of the reader; the checks of the arguments are added."""
        positional, named = (next(iter(part.values())) for part in self.signature.call["tuple"])
        signature = signature_of(self.fn)
        if signature is None:
            self._fail(f"len(_forge_args) != {len(positional)}")
            self._fail(f"_forge_kwargs.keys() != {self.names.put(set(named))}")
            for i, item in enumerate(positional):
                self._check(item, f"_forge_args[{i}]")
            for key, item in named.items():
                self._check(item, f"_forge_kwargs[{key!r}]")
            return "*_forge_args, **_forge_kwargs"
        return self._bound_parameters(signature, positional, named)

    def _bound_parameters(self, signature: inspect.Signature, positional: list[Tree], named: dict[str, Tree]) -> str:
        text: list[str] = []
        position, last_kind = 0, None
        named = dict(named)
        starred = False
        for name, parameter in signature.parameters.items():
            if last_kind is parameter.POSITIONAL_ONLY and parameter.kind is not parameter.POSITIONAL_ONLY:
                text.append("/")
            last_kind = parameter.kind
            if parameter.kind is parameter.VAR_POSITIONAL:
                text.append(f"*{name}")
                starred = True
                rest = positional[position:]
                position = len(positional)
                self._fail(f"len({name}) != {len(rest)}")
                for i, item in enumerate(rest):
                    self._check(item, f"{name}[{i}]")
                continue
            if parameter.kind is parameter.VAR_KEYWORD:
                text.append(f"**{name}")
                self._fail(f"{name}.keys() != {self.names.put(set(named))}")
                for key, item in named.items():
                    self._check(item, f"{name}[{key!r}]")
                named = {}
                continue
            if parameter.kind is parameter.KEYWORD_ONLY and not starred:
                text.append("*")
                starred = True
            has_default = parameter.default is not parameter.empty
            default = self.names.put(parameter.default) if has_default else ""
            text.append(f"{name}={default}" if has_default else name)
            if name in named:
                self._check(named.pop(name), name)
            elif parameter.kind is not parameter.KEYWORD_ONLY and position < len(positional):
                self._check(positional[position], name)
                position += 1
            else:  # not passed when captured: a default that is no constant
                self._fail(f"{name} is not {default}")
        if last_kind is inspect.Parameter.POSITIONAL_ONLY:
            text.append("/")
        return ", ".join(text)

    def _check(self, tree: Tree, at: str) -> None:
        (kind, value), = tree.items()  # fmt: skip
        if kind == "in":
            self.checks.append(f"_forge_t{value} = {at}")
            self._tensor(value, self.signature.inputs[value])
        elif kind in ("tuple", "list"):
            self._fail(f"type({at}) is not {kind} or len({at}) != {len(value)}")
            for i, item in enumerate(value):
                self._check(item, f"{at}[{i}]")
        elif kind == "dict":
            self._fail(f"type({at}) is not dict or {at}.keys() != {self.names.put(set(value))}")
            for key, item in value.items():
                self._check(item, f"{at}[{key!r}]")
        elif kind == "device":
            self._fail(f"{at} != {self.names.put(self.device)}")
        elif kind == "float" and math.isnan(float(value)):
            self._fail(f"{at} == {at}")
        elif kind == "value" and (value is None or isinstance(value, bool)):
            self._fail(f"{at} is not {value}")
        elif kind == "dtype":
            self._fail(f"{at} is not {self.names.put(getattr(torch, value))}")
        else:
            constant = rebuild(tree, (), (), self.device)
            kept = self.names.put(constant)
            self._fail(f"type({at}) is not {self.names.put(type(constant))} or {at} != {kept}")

    def _tensor(self, index: int, item: KernelInput) -> None:
        t, names = f"_forge_t{index}", self.names
        dtype = names.put(getattr(torch, item.spec.dtype))
        self._fail(f"type({t}) not in {self.types} or {t}.dtype is not {dtype}")
        self._fail(f"{t}.shape != {names.put(torch.Size(item.spec.shape))}")
        self._fail(f"{t}.stride() != {names.put(tuple(item.spec.strides))}")
        if self.device.type == "cpu":
            self._fail(f"not {t}.is_cpu")
        else:
            self._fail(f"{t}.get_device() != {self.device.index or 0} or not {t}.is_cuda")
        self._fail(f"{t}.data_ptr() % {item.align}")
        if item.spec.dtype in ("float64", "float32"):
            self._fail(f"{t}.is_neg()")

    def _held_tensor(self, index: int, item: KernelInput) -> None:
        """A parameter, buffer or closure tensor, looked up anew at every call."""
        t = f"_forge_t{index}"
        if self.module is None:
            read, _ = function_slot(self.fn, item.path)
            self.checks.append(f"{t} = {self.names.put(read)}()")
        else:
            held = {path: tensor for _, path, tensor in module_tensors(self.module)}[item.path]
            places = _places(self.module, held)
            first, *others = [f"{self._child(prefix)}.{holder}[{name!r}]" for prefix, holder, name in places]
            self.checks.append(f"{t} = {first}")
            for other in others:
                self._fail(f"{other} is not {t}")
        self._tensor(index, item)

    def _child(self, prefix: str) -> str:
        root = self.names.put(self.module)
        return root + "".join(f"._modules[{part!r}]" for part in prefix.split(".") if part)

    def _module_state(self, module: nn.Module) -> None:
        modules = dict(module.named_modules())
        for scalar in self.signature.scalars:
            if scalar.source == "attribute":
                at = self._attribute(scalar.path, modules)
                kept = self.names.put(scalar.value)
                self._fail(f"type({at}) is not {type(scalar.value).__name__} or {at} != {kept}")
        self.checks.append(f"for _forge_m in {self.names.put(tuple(modules.values()))}:")
        self.checks.append("    if _forge_m.training: return None")

    def _attribute(self, path: str, modules: dict[str, nn.Module]) -> str:
        parts = path.split(".")
        for length in range(len(parts) - 1, -1, -1):
            prefix = ".".join(parts[:length])
            if prefix in modules and parts[length] in vars(modules[prefix]):
                index = "".join(f"[{part}]" for part in parts[length + 1 :])
                return f"{self._child(prefix)}.__dict__[{parts[length]!r}]{index}"
        raise KeyError(path)


def _places(module: nn.Module, tensor: Tensor) -> list[tuple[str, str, str]]:
    """(module path, dictionary, name) of every place that holds a tensor; the first is where it is read."""
    found: list[tuple[str, str, str]] = []
    for prefix, child in module.named_modules():
        for holder in ("_parameters", "_buffers", "__dict__"):
            found += [(prefix, holder, name) for name, value in getattr(child, holder).items() if value is tensor]
    return found
