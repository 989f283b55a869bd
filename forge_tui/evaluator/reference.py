"""What the original callable should give: run in float64, in eager as it is, and on slightly disturbed inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from forge_tui.core.records import Signature
from forge_tui.evaluator import widened
from forge_tui.models.strided import from_flat, to_flat

Call = Callable[[Sequence[Tensor]], list[Tensor]]

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_EPS32 = torch.finfo(torch.float32).eps
_EPS64 = torch.finfo(torch.float64).eps
#: outputs of so few elements are disturbed so many times
_FEW = 64
_DISTURBANCES = 4
#: times the disturbance of inputs whose rows are constant
_CONSTANT_ROWS = 16.0
#: signs drawn for the disturbance of one tensor; a prime
_SIGNS = 1_048_573


class Unsteady(Exception):
    """The shapes of the results follow the last bits of the inputs: there is no tolerance for them."""


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
    ties: bool = False
    """Whether roundings of the inputs change integers or booleans of the result: the place of one of equal values."""


def reference(call: Call, signature: Signature, inputs: Sequence[Tensor], seed: int) -> Reference:
    """Run the original three times, a few times more where its outputs are few numbers.

    Raises:
        Unsteady: a rounding of the inputs changes the shape of a result.
        Exception: whatever the original raises on these inputs.
    """
    eager = _own(call, [t.clone() for t in inputs])
    # what one disturbance does to a single number may be nothing by chance
    few = all(t.numel() <= _FEW for t in eager)
    changed = [_disturb(inputs, seed + 104729 * i) for i in range(_DISTURBANCES if few else 1)]
    try:
        expected, narrowed = in_float64(call, inputs)
        disturbed = [in_float64(call, values)[0] for values in changed]
        note = _why_narrow(expected, eager)
    except Exception as error:  # noqa: BLE001 - a callable that cannot run in float64 has a weaker reference, said so
        note = f"the original does not run in float64 ({type(error).__name__})"
        narrowed = {}
    if note:
        expected = _in_float32(call, inputs, inputs, eager)
        disturbed = [_in_float32(call, values, inputs, eager) for values in changed]
        if any(o.spec.dtype == "float32" for o in signature.outputs):
            note += "; float32 is the reference"
    else:
        note = widened.words(narrowed)
    if any(m.shape != own.shape for values in (expected, *disturbed) for m, own in zip(values, eager, strict=True)):
        raise Unsteady
    wanted = _as_expected(expected, eager)
    farthest = _farthest(wanted, [_as_expected(values, eager) for values in disturbed])
    ties = any(
        not own.is_floating_point() and not torch.equal(mine, own)
        for values in disturbed for mine, own in zip(values, eager, strict=True)
    )  # fmt: skip
    return Reference(wanted, eager, farthest, note, ties)


def _farthest(expected: Sequence[Tensor], runs: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Of several runs, at every element the value that is farthest from the expected one."""
    found = list(runs[0])
    for run in runs[1:]:
        for number, (want, one, other) in enumerate(zip(expected, found, run, strict=True)):
            if want.is_floating_point():
                found[number] = torch.where((other - want).abs() > (one - want).abs(), other, one)
    return found


def in_float64(call: Call, inputs: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, widened.Narrowed]]:
    """The outputs of the original in float64, and the operations that ran in less with the reason for each."""
    wide = [t.to(torch.float64 if t.is_floating_point() else t.dtype, copy=True) for t in inputs]
    with widened.widened() as narrowed:
        outputs = _own(call, wide)
    return outputs, narrowed


def _own(call: Call, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a call, each on storage of its own."""
    outputs = [t.detach() for t in call(inputs)]
    taken = {t.untyped_storage().data_ptr() for t in inputs}
    own = []
    for tensor in outputs:
        where = tensor.untyped_storage().data_ptr()
        own.append(tensor.clone() if where in taken else tensor)
        taken.add(where)
    return own


def _in_float32(
    call: Call, values: Sequence[Tensor], like: Sequence[Tensor], eager: Sequence[Tensor]
) -> list[Tensor]:
    """In float32 where the callable takes that and gives eager's shapes, else in the types it has; float64 stays."""
    narrow = [v.float() if o.dtype in _NARROW else v.to(o.dtype) for v, o in zip(values, like, strict=True)]
    # mixed types may not meet, and bits are read under types of the same size
    with suppress(Exception):
        outputs = _own(call, narrow)
        if all(mine.shape == own.shape for mine, own in zip(outputs, eager, strict=True)):
            return outputs
    return _own(call, [v.to(o.dtype) for v, o in zip(values, like, strict=True)])


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
        # longer tensors have the same signs over and over, at no multiple of any row
        count = min(tensor.numel(), _SIGNS)
        sign = torch.randint(0, 2, (count,), generator=generator, device=tensor.device, dtype=torch.int8)
        factors = 1 + size * (2.0 * sign.double() - 1)
        flat = to_flat(tensor).double()
        for start in range(0, flat.numel(), count):
            part = flat[start : start + count]
            part.mul_(factors[: part.numel()])
        made.append(from_flat(flat, tensor.shape, tensor.stride()))
    return made

