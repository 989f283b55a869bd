"""What the original callable should give: run in float64, in eager as it is, and on slightly disturbed inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from forge_tui.core.records import Signature

Call = Callable[[Sequence[Tensor]], list[Tensor]]

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_CASTS = (Tensor.float, Tensor.half, Tensor.bfloat16)
#: reads bits under another type, which a wider type would break
_REINTERPRETS = (Tensor.view,)
_EPS32 = torch.finfo(torch.float32).eps
_EPS64 = torch.finfo(torch.float64).eps
#: outputs of so few elements are disturbed so many times
_FEW = 64
_DISTURBANCES = 4
#: times the disturbance of inputs whose rows are constant
_CONSTANT_ROWS = 16.0


@dataclass(slots=True)
class Reference:
    """Expected outputs of one input set, with eager's own and those of disturbed inputs beside them.

    Floating `expected` and `disturbed` are float64; integers and booleans are eager's. `note` says why the expected
    values are less exact than float64, if they are.
    """

    expected: list[Tensor]
    eager: list[Tensor]
    disturbed: list[Tensor]
    note: str = ""


class _Widen(TorchFunctionMode):
    """Turns casts to narrower floating types into casts to float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _CASTS:
            return args[0].double()
        if func not in _REINTERPRETS:
            args = pytree.tree_map(_wide, args)
            kwargs = pytree.tree_map(_wide, kwargs or {})
        return func(*args, **(kwargs or {}))


def _wide(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value


@contextmanager
def _default_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def reference(call: Call, signature: Signature, inputs: Sequence[Tensor], seed: int) -> Reference:
    """Run the original three times, a few times more where its outputs are few numbers.

    Raises:
        Exception: whatever the original raises on these inputs.
    """
    eager = [t.detach().clone() for t in call([t.clone() for t in inputs])]
    # what one disturbance does to a single number may be nothing by chance
    few = all(t.numel() <= _FEW for t in eager)
    changed = [_disturb(inputs, seed + 104729 * i) for i in range(_DISTURBANCES if few else 1)]
    try:
        expected, disturbed = _in_float64(call, inputs), [_in_float64(call, values) for values in changed]
        note = _why_narrow(expected, eager)
    except Exception as error:  # noqa: BLE001 - a callable that cannot run in float64 has a weaker reference, said so
        note = f"the original does not run in float64 ({type(error).__name__})"
    if note:
        expected = _in_float32(call, inputs, inputs)
        disturbed = [_in_float32(call, values, inputs) for values in changed]
        if any(o.spec.dtype == "float32" for o in signature.outputs):
            note += "; float32 is the reference"
    wanted = _as_expected(expected, eager)
    farthest = _farthest(wanted, [_as_expected(values, eager) for values in disturbed])
    return Reference(wanted, eager, farthest, note)


def _farthest(expected: Sequence[Tensor], runs: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Of several runs, at every element the value that is farthest from the expected one."""
    found = list(runs[0])
    for run in runs[1:]:
        for number, (want, one, other) in enumerate(zip(expected, found, run, strict=True)):
            if want.is_floating_point():
                found[number] = torch.where((other - want).abs() > (one - want).abs(), other, one)
    return found


def _in_float64(call: Call, inputs: Sequence[Tensor]) -> list[Tensor]:
    wide = [t.to(torch.float64 if t.is_floating_point() else t.dtype, copy=True) for t in inputs]
    with _default_float64(), _Widen():
        return [t.detach().clone() for t in call(wide)]


def _in_float32(call: Call, values: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """In float32 where the callable takes that, else in the types it has; float64 stays."""
    narrow = [v.float() if o.dtype in _NARROW else v.to(o.dtype) for v, o in zip(values, like, strict=True)]
    try:
        return [t.detach().clone() for t in call(narrow)]
    except Exception:  # noqa: BLE001 - mixed types may not meet
        return [t.detach().clone() for t in call([v.to(o.dtype) for v, o in zip(values, like, strict=True)])]


def _why_narrow(expected: Sequence[Tensor], eager: Sequence[Tensor]) -> str:
    for mine, own in zip(expected, eager, strict=True):
        if own.is_floating_point() and mine.dtype is not torch.float64:
            return "the original casts its results to a narrower type by itself"
        if mine.shape != own.shape:
            return "the original gives other shapes in float64"
    return ""


def _as_expected(values: Sequence[Tensor], eager: Sequence[Tensor]) -> list[Tensor]:
    """Floating results in float64; of the others eager's own, since rounding may decide them."""
    return [v.double() if own.is_floating_point() else own for v, own in zip(values, eager, strict=True)]


def disturbance(inputs: Sequence[Tensor]) -> float:
    """The relative size of the disturbance: some roundings of the arithmetic, more where long sums are likely.

    A plain loop of float32 additions is right; reduced precision is off by a thousand roundings and more. The terms of
    a sum over a constant row round the same way every time, so errors grow with its length and not with the root.
    """
    floating = [t for t in inputs if t.is_floating_point()]
    eps = _EPS64 if floating and all(t.dtype is torch.float64 for t in floating) else _EPS32
    largest = max((t.numel() for t in floating), default=1)
    constant = any(t.ndim > 1 and t.shape[-1] > 1 and bool((t == t[..., :1]).all()) for t in floating)
    return eps * min(32.0, max(8.0, math.sqrt(largest) / 8)) * (_CONSTANT_ROWS if constant else 1.0)


def _disturb(inputs: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Every floating value changed by a rounding or a few, up or down at random, as float64."""
    size = disturbance(inputs)
    made = []
    for position, tensor in enumerate(inputs):
        if not tensor.is_floating_point() or not tensor.numel():
            made.append(tensor)
            continue
        generator = torch.Generator(device=tensor.device)
        generator.manual_seed((seed + 7919 * position) % 2**62)
        sign = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device, dtype=torch.int8)
        wide = torch.empty_strided(tensor.shape, tensor.stride(), dtype=torch.float64, device=tensor.device)
        changed = tensor.double() * (1 + size * (2.0 * sign.double() - 1))
        # an expanded tensor takes one of the values meant for each place, which is as good
        wide = wide.copy_(changed) if not _overlapping(tensor) else changed
        made.append(wide)
    return made


def _overlapping(tensor: Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
