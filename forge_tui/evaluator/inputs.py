"""Inputs of a target made from a captured call: the same tensors in every process, on the device they are used on.

Only operations that are exact, or rounded to a coarse grid, depend on the captured values, so that thread counts do not
change a bit. Shapes, strides, overlaps and dtypes stay as captured.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from forge_tui.core.records import KernelInput, Signature
from forge_tui.evaluator.sets import InputSet, Kind
from forge_tui.models.strided import clone_strided, from_flat, overlaps_itself, to_flat

#: additive masks use -inf, the dtype's lowest value or a large negative number
_MASK_BELOW = -9.0e3
_JITTER = 0.1
#: how often the tensor to be patched is drawn by size, else each is as likely
_BY_SIZE = 0.6


def generate(captured: Sequence[Tensor], signature: Signature, which: InputSet) -> list[Tensor]:
    """The tensors of a set, every one on storage of its own."""
    if which.kind is Kind.CAPTURED:
        made = [clone_strided(t) for t in captured]
        patch(made, which.patch)
        return made
    made = []
    for position, (item, tensor) in enumerate(zip(signature.inputs, captured, strict=True)):
        generator = torch.Generator(device=tensor.device)
        generator.manual_seed((which.seed + 0x9E3779B97F4A7C15 * (position + 1)) % 2**62)
        made.append(_tensor(tensor, item, which.kind, generator))
    patch(made, which.patch)
    return made


def patch(tensors: Sequence[Tensor], seed: int) -> None:
    """Change one element of one floating tensor in place, exactly the same in every process; seed 0 changes none.

    A kernel that keeps results by address, or by the few values it looks at, is wrong afterwards. The other tensors
    stay as they are, so that one that looks at all of the weights but at half of the rest finds what it knows.
    """
    floating = [t for t in tensors if t.is_floating_point() and t.numel() > 1]
    if not seed or not floating:
        return
    rng = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    by_size = rng.random() < _BY_SIZE
    tensor = rng.choices(floating, [t.numel() if by_size else 1 for t in floating])[0]
    to, source = (_index(rng.randrange(tensor.numel()), tensor.shape) for _ in range(2))
    tensor[to] = tensor[source] * 0.75


def _index(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        position, at = divmod(position, size)
        index.append(at)
    return tuple(reversed(index))


def is_mask(tensor: Tensor) -> bool:
    """Whether a tensor is an additive or boolean mask, as far as its values tell."""
    if tensor.dtype is torch.bool:
        return tensor.numel() > 1
    if not tensor.is_floating_point() or tensor.numel() < 2:
        return False
    lowest = tensor.min()
    if not bool(lowest <= _MASK_BELOW):
        return False
    return int((tensor == lowest).sum()) * 64 >= tensor.numel()


def _tensor(tensor: Tensor, item: KernelInput, kind: Kind, generator: torch.Generator) -> Tensor:
    if not tensor.numel():
        return clone_strided(tensor)
    flat = to_flat(tensor)
    if is_mask(tensor):
        if kind is not Kind.MASKS or overlaps_itself(tensor):
            return clone_strided(tensor)
        return _other_mask(tensor, generator)
    if not tensor.is_floating_point():
        return from_flat(_integers(flat, generator), tensor.shape, tensor.stride())
    normal = kind is Kind.NORMAL and item.source == "arg"
    values = (_normal if normal else _resampled)(flat, generator)
    fresh = from_flat(values, tensor.shape, tensor.stride())
    change = _CHANGES.get(kind)
    if change is not None and item.source == "arg" and not overlaps_itself(fresh):
        change(fresh, generator)
    return fresh


def _random(like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform in [-1, 1), float32 (float64 for float64)."""
    dtype = torch.float64 if like.dtype is torch.float64 else torch.float32
    return torch.rand(like.shape, generator=generator, device=like.device, dtype=dtype) * 2 - 1


def _resampled(flat: Tensor, generator: torch.Generator) -> Tensor:
    """Values drawn from the captured ones and disturbed; a constant tensor gets values around its constant."""
    noise = _random(flat, generator)
    if bool((flat == flat[0]).all()):
        constant = float(flat[0])
        if not math.isfinite(constant):
            return flat
        return (constant + noise * (0.5 * abs(constant) or 0.1)).to(flat.dtype)
    index = torch.randint(flat.numel(), flat.shape, generator=generator, device=flat.device)
    return (flat[index].to(noise.dtype) * (1 + _JITTER * noise)).to(flat.dtype)


def _normal(flat: Tensor, generator: torch.Generator) -> Tensor:
    """Normal values with the captured mean and deviation, of the captured sign, within a widened captured range."""
    finite = flat[flat.isfinite()].double()
    if finite.numel() < 2 or bool((flat == flat[0]).all()):
        return _resampled(flat, generator)
    low, high = float(finite.min()), float(finite.max())
    mean, deviation = _coarse(float(finite.mean())), _coarse(float(finite.std()))
    dtype = torch.float64 if flat.dtype is torch.float64 else torch.float32
    values = torch.randn(flat.shape, generator=generator, device=flat.device, dtype=dtype) * deviation + mean
    if low >= 0:
        values = values.abs()
    elif high <= 0:
        values = -values.abs()
    margin = 0.25 * (high - low)
    return values.clamp(low - margin if low < 0 else low, high + margin if high > 0 else high).to(flat.dtype)


def _coarse(value: float) -> float:
    """Two digits: a sum's last bits depend on the number of threads, these do not."""
    return float(f"{value:.1e}")


def _integers(flat: Tensor, generator: torch.Generator) -> Tensor:
    """Integers within the captured range; sorted ones (positions, offsets) and single ones stay as they are."""
    if flat.numel() < 2 or flat.dtype is torch.bool:
        return flat
    low, high = int(flat.min()), int(flat.max())
    if low == high or bool((flat[1:] >= flat[:-1]).all()) or _periodic_ramp(flat):
        return flat
    made = torch.randint(low, high + 1, flat.shape, generator=generator, device=flat.device, dtype=torch.int64)
    return made.to(flat.dtype)


def _periodic_ramp(flat: Tensor) -> bool:
    """Whether it is the same ascending run over and over (positions of a batch)."""
    down = (flat[1:] < flat[:-1]).nonzero()
    period = int(down[0]) + 1 if down.numel() else 0
    return bool(period and flat.numel() % period == 0 and (flat.view(-1, period) == flat[:period]).all())


def _other_mask(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """A mask with about as many masked places elsewhere; the first place of every row stays open."""
    logical = tensor.contiguous()
    if tensor.dtype is torch.bool:
        rate = min(0.9, max(0.1, _coarse(float(logical.double().mean()))))
        chosen = torch.rand(logical.shape, generator=generator, device=tensor.device) < rate
        chosen[..., 0] = True
    else:
        lowest = logical.min()
        rate = _coarse(float((logical == lowest).double().mean()))
        masked = torch.rand(logical.shape, generator=generator, device=tensor.device) < min(0.9, rate)
        masked[..., 0] = False
        opened = torch.where(logical == lowest, torch.zeros_like(logical), logical)
        chosen = torch.where(masked, lowest, opened)
    made = clone_strided(tensor)
    made.copy_(chosen)
    return made


def _constant_rows(tensor: Tensor, _: torch.Generator) -> None:
    if tensor.ndim:
        tensor.copy_(tensor[..., :1].clone().expand_as(tensor))


def _outlier(tensor: Tensor, generator: torch.Generator) -> None:
    place = int(torch.randint(tensor.numel(), (1,), generator=generator, device=tensor.device))
    index = _index(place, tensor.shape)
    largest = float(tensor[tensor.isfinite()].abs().max()) if bool(tensor.isfinite().any()) else 1.0
    tensor[index] = min(64 * largest, torch.finfo(tensor.dtype).max / 4)


def _scaled(factor: float) -> Callable[[Tensor, torch.Generator], None]:
    def change(tensor: Tensor, _: torch.Generator) -> None:
        tensor.mul_(factor)

    return change


def _negative_zero(tensor: Tensor, generator: torch.Generator) -> None:
    chosen = torch.rand(tensor.shape, generator=generator, device=tensor.device) < 0.25
    tensor.masked_fill_(chosen, -0.0)


_CHANGES: dict[Kind, Callable[[Tensor, torch.Generator], None]] = {
    Kind.CONSTANT_ROWS: _constant_rows,
    Kind.OUTLIER: _outlier,
    Kind.LARGE: _scaled(64.0),
    Kind.TINY: _scaled(1.0 / 1024),
    Kind.NEGATIVE_ZERO: _negative_zero,
}
