"""How a signature is read off a call, and a call made from it again.

Arguments are bound to the callable's Python signature, with its plain defaults filled in, so that the same call written
differently gives the same signature (`binding`); structure and constants are JSON trees (`trees`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from forge_tui.core.records import ITEMSIZE, KernelInput, KernelOutput, Scalar, Signature, Target, TensorSpec
from forge_tui.models.attributes import module_scalars, module_tensors
from forge_tui.models.binding import canonical
from forge_tui.models.callables import closure_tensors, find_function
from forge_tui.models.naming import unique_identifier
from forge_tui.models.reader import make_reader
from forge_tui.models.strided import overlaps_itself, views_meet
from forge_tui.models.trees import (
    CallMismatch,
    NotEligible,
    Tree,
    check_keys,
    collect_outputs,
    dtype_name,
    is_constant,
    leaves,
    plain_leaf,
    rebuild,
)

__all__ = [
    "CallDescription", "CallMismatch", "NotEligible", "ResultDescription", "alignment", "describe_call",
    "describe_result", "make_reader", "read_inputs", "rebuild_call", "rebuild_result", "spec_of", "take_outputs",
]  # fmt: skip

MAX_ALIGN = 16


@dataclass(frozen=True, slots=True)
class CallDescription:
    """A call taken apart: what the kernel gets, in order, and how the call is put together again."""

    inputs: tuple[KernelInput, ...]
    scalars: tuple[Scalar, ...]
    call: Tree
    tensors: list[Tensor]


@dataclass(frozen=True, slots=True)
class ResultDescription:
    """A result taken apart."""

    outputs: tuple[KernelOutput, ...]
    result: Tree
    tensors: list[Tensor]


def describe_call(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    module: nn.Module | None = None,
    closure: Mapping[str, Tensor] | None = None,
) -> CallDescription:
    """Inputs, scalars and call tree of `fn(*args, **kwargs)`; `fn` is the bound forward for a module.

    Inputs are the tensors of the call in pytree order, then parameters, buffers and other tensors of the module (or
    `closure`, for a function) by qualified name. The same tensor passed twice is two inputs.

    Raises:
        NotEligible: an argument cannot be described.
    """
    walk = _Walk(_device_of(args, kwargs, module))
    args, kwargs, names = canonical(fn, args, kwargs)
    positional = [walk.visit(value, name) for value, name in zip(args, names, strict=True)]
    named = {key: walk.visit(value, key) for key, value in kwargs.items()}
    for source, path, tensor in module_tensors(module, closure):
        walk.add(tensor, path, source)
    taken: set[str] = set()
    inputs = tuple(
        KernelInput(name=unique_identifier(path, taken), spec=spec_of(tensor), source=source, path=path,  # type: ignore[arg-type]
                    align=alignment(tensor))
        for tensor, path, source in walk.found
    )  # fmt: skip
    scalars = [
        Scalar(name=unique_identifier(path, taken), value=value, source="arg", path=path)
        for path, value in walk.scalars
    ]
    scalars += [
        Scalar(name=unique_identifier(path, taken), value=value, source="attribute", path=path)
        for path, value in module_scalars(module)
    ]
    call: Tree = {"tuple": [{"tuple": positional}, {"dict": named}]}
    return CallDescription(inputs, tuple(scalars), call, [tensor for tensor, _, _ in walk.found])


def describe_result(result: Any, inputs: Sequence[Tensor]) -> ResultDescription:
    """Outputs and result tree of what the callable returned; `inputs` are the call's tensors in order.

    Raises:
        NotEligible: the result is no tensor, a view of an input, or of a type that cannot be described.
    """
    leaves(result, "the result")
    outputs: list[Tensor] = []
    by_storage = {_storage(t): i for i, t in enumerate(inputs) if t.numel()}
    walk = _ResultWalk(list(inputs), by_storage, outputs)
    tree = walk.visit(result)
    if not outputs:
        raise NotEligible("it returns no new tensor")
    specs = tuple(KernelOutput(name=f"out{i}", spec=spec_of(t)) for i, t in enumerate(outputs))
    return ResultDescription(specs, tree, outputs)


def rebuild_call(signature: Signature, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the original call, with these tensors as its inputs (parameters are left to the caller)."""
    device = tensors[0].device if tensors else torch.device(signature.device or "cpu")
    args, kwargs = rebuild(signature.call, tensors, (), device)
    return args, kwargs


def rebuild_result(signature: Signature, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Any:
    """What the original callable would have returned, with these tensors as its outputs."""
    device = outputs[0].device if outputs else torch.device(signature.device or "cpu")
    return rebuild(signature.result, inputs, outputs, device)


def take_outputs(signature: Signature, result: Any) -> list[Tensor]:
    """The output tensors of an original's result, in order out0, out1, ...

    Raises:
        CallMismatch: the result has another structure.
    """
    found: list[Tensor | None] = [None] * len(signature.outputs)
    collect_outputs(signature.result, result, found)
    if any(t is None for t in found):
        raise CallMismatch("an output is missing in the result")
    return [t for t in found if t is not None]


def spec_of(tensor: Tensor) -> TensorSpec:
    """Shape, dtype and strides."""
    return TensorSpec(shape=tuple(tensor.shape), dtype=dtype_name(tensor.dtype), strides=tuple(tensor.stride()))


def alignment(tensor: Tensor) -> int:
    """Largest power of two up to 16 that divides the address; 16 for an empty tensor."""
    address = tensor.data_ptr()
    return math.gcd(address, MAX_ALIGN) if address and tensor.numel() else MAX_ALIGN


def read_inputs(
    target: Target, args: Sequence[Any], kwargs: Mapping[str, Any], module: nn.Module | None
) -> list[Tensor]:
    """The input tensors of a call in signature order, after a check that the call is the one of the signature.

    This is the slow form that says what differs; `make_reader` gives the fast one with the same answers.

    Raises:
        CallMismatch: structure, a constant, dtype, shape, strides, device, alignment, an attribute of the module or
            the grad mode differ.
    """
    fn = module.forward if module is not None else find_function(target.qualname)
    signature = target.signature
    wanted = {item.path for item in signature.inputs if item.source == "closure"}
    closure = {name: t for name, t in closure_tensors(fn).items() if name in wanted} if module is None else None
    try:
        found = describe_call(fn, args, kwargs, module, closure)
    except NotEligible as error:
        raise CallMismatch(str(error)) from None
    if found.call != signature.call:
        raise CallMismatch("the arguments or their constants differ")
    if len(found.inputs) != len(signature.inputs):
        raise CallMismatch(f"{len(found.inputs)} tensors instead of {len(signature.inputs)}")
    for have, want, tensor in zip(found.inputs, signature.inputs, found.tensors, strict=True):
        if (have.path, have.source) != (want.path, want.source):
            raise CallMismatch(f"{have.path} stands where {want.path} was")
        if have.spec != want.spec:
            raise CallMismatch(f"{want.path} is {have.spec}, not {want.spec}")
        if tensor.data_ptr() % want.align:
            raise CallMismatch(f"{want.path} is not aligned to {want.align} bytes")
        if signature.device and str(tensor.device) != signature.device:
            raise CallMismatch(f"{want.path} is on {tensor.device}, not on {signature.device}")
    _check_state(signature, found, module)
    return found.tensors


def _check_state(signature: Signature, found: CallDescription, module: nn.Module | None) -> None:
    for have, want in zip(found.scalars, signature.scalars, strict=False):
        if have != want or type(have.value) is not type(want.value):
            raise CallMismatch(f"{want.path} is {have.value!r}, not {want.value!r}")
    if len(found.scalars) != len(signature.scalars):
        raise CallMismatch("the module has other attributes")
    if module is not None and any(m.training for m in module.modules()):
        raise CallMismatch("the module is in training mode")
    if torch.is_grad_enabled() and any(t.requires_grad for t in found.tensors):
        raise CallMismatch("a gradient is wanted")
    if found.tensors and torch.is_autocast_enabled(found.tensors[0].device.type):
        raise CallMismatch("autocast is on")


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - the storage's identity; data_ptr is 0 for empty ones


def _device_of(args: Sequence[Any], kwargs: Mapping[str, Any], module: nn.Module | None) -> torch.device:
    """The accelerator if any tensor is on one, so that a stray CPU scalar does not decide."""
    given = leaves((tuple(args), dict(kwargs)), "the call")
    tensors = [value for value in given if isinstance(value, Tensor)]
    if module is not None:
        tensors += [tensor for _, _, tensor in module_tensors(module)]
    for tensor in tensors:
        if tensor.device.type != "cpu":
            return tensor.device
    return torch.device("cpu")


def check_tensor(tensor: Tensor, path: str, device: torch.device) -> None:
    """Refuse a tensor that no kernel parameter can be.

    Raises:
        NotEligible: with the reason.
    """
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer if hasattr(nn, "Buffer") else Tensor):
        raise NotEligible(f"{path} is a {type(tensor).__name__}, not a plain tensor")
    if tensor.is_nested:
        raise NotEligible(f"{path} is a nested tensor")
    if tensor.layout is not torch.strided:
        raise NotEligible(f"{path} has the layout {tensor.layout}")
    if dtype_name(tensor.dtype) not in ITEMSIZE:
        raise NotEligible(f"{path} has the dtype {dtype_name(tensor.dtype)}, which the kernel contract lacks")
    if tensor.device != device:
        what = "a 0-dim tensor" if tensor.ndim == 0 else "a tensor"
        raise NotEligible(f"{path} is {what} on {tensor.device}, not on {device}")
    if tensor.is_neg() or tensor.is_conj():
        raise NotEligible(f"{path} is a lazily negated view")


class _Walk:
    """One pass over the arguments, in pytree order."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.found: list[tuple[Tensor, str, str]] = []
        self.scalars: list[tuple[str, bool | int | float]] = []

    def add(self, tensor: Tensor, path: str, source: str) -> Tree:
        check_tensor(tensor, path, self.device)
        self.found.append((tensor, path, source))
        return {"in": len(self.found) - 1}

    def visit(self, value: Any, path: str) -> Tree:
        if isinstance(value, Tensor):
            return self.add(value, path, "arg")
        if isinstance(value, (bool, int, float)) and type(value) in (bool, int, float):
            if is_constant(value):
                self.scalars.append((path, value))
            return plain_leaf(value, path)
        if isinstance(value, torch.device):
            if value.type != self.device.type or value.index not in (None, self.device.index):
                raise NotEligible(f"{path} is the device {value}, but the call runs on {self.device}")
            return {"device": True}
        if type(value) is tuple or type(value) is list:
            kind = "tuple" if type(value) is tuple else "list"
            return {kind: [self.visit(item, f"{path}.{i}") for i, item in enumerate(value)]}
        if type(value) is dict:
            check_keys(value, path)
            return {"dict": {key: self.visit(item, f"{path}.{key}") for key, item in value.items()}}
        return plain_leaf(value, path)


class _ResultWalk:
    """One pass over the result."""

    def __init__(self, inputs: list[Tensor], by_storage: dict[int, int], outputs: list[Tensor]) -> None:
        self.inputs = inputs
        self.by_storage = by_storage
        self.outputs = outputs

    def visit(self, value: Any, path: str = "the result") -> Tree:
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if type(value) is tuple or type(value) is list:
            kind = "tuple" if type(value) is tuple else "list"
            return {kind: [self.visit(item, f"{path}.{i}") for i, item in enumerate(value)]}
        if type(value) is dict:
            check_keys(value, path)
            return {"dict": {key: self.visit(item, f"{path}.{key}") for key, item in value.items()}}
        return plain_leaf(value, path)

    def _tensor(self, tensor: Tensor, path: str) -> Tree:
        for i, known in enumerate(self.inputs):
            if tensor is known:
                return {"in": i}
        for i, known in enumerate(self.outputs):
            if tensor is known:
                return {"out": i}
        check_tensor(tensor, path, tensor.device)
        if tensor.numel() and _storage(tensor) in self.by_storage:
            raise NotEligible(f"{path} is a view of an input")
        if tensor.requires_grad:
            raise NotEligible(f"{path} needs a gradient")
        if overlaps_itself(tensor):
            raise NotEligible(f"{path} is expanded or overlaps itself")
        for known in self.outputs:
            if tensor.numel() and _storage(tensor) == _storage(known) and views_meet(tensor, known):
                raise NotEligible(f"{path} shares elements with another output")
        self.outputs.append(tensor)
        return {"out": len(self.outputs) - 1}
