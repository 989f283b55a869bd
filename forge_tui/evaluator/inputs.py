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
from forge_tui.evaluator import integers
from forge_tui.evaluator.sets import InputSet, Kind
from forge_tui.models.strided import clone_strided, from_flat, overlaps_itself, to_flat

#: additive masks use -inf, the dtype's lowest value or a large negative number
_MASK_BELOW = -9.0e3
_JITTER = 0.1
#: how often the tensor to be patched is drawn by size, else each is as likely
_BY_SIZE = 0.6
_SPARSE_PART = 0.95
#: powers of two that the values of wide inputs are multiplied by
_WIDE_EXPONENTS = (-10, 3)
#: how far shifted inputs are moved, in root mean squares
_SHIFT = 256
#: tensors of so few elements get no infinities beside their NaN
_FEW = 16
#: factors that renew a tensor come over and over after so many, a prime: rows of no usual length meet the same twice
_FACTORS = 4099


def generate(captured: Sequence[Tensor], signature: Signature, which: InputSet) -> list[Tensor]:
    """The tensors of a set, every one on storage of its own."""
    if which.kind is Kind.CAPTURED:
        made = [clone_strided(t) for t in captured]
        patch(made, which.patch)
        return made
    made = [make_one(captured[n], signature.inputs[n], which, n) for n in range(len(captured))]
    patch(made, which.patch)
    return made


def make_one(captured: Tensor, item: KernelInput, which: InputSet, position: int) -> Tensor:
    """One tensor of a set, before it is patched; `position` is that of the input."""
    if which.kind is Kind.CAPTURED:
        return clone_strided(captured)
    generator = torch.Generator(device=captured.device)
    generator.manual_seed((which.seed + 0x9E3779B97F4A7C15 * (position + 1)) % 2**62)
    return _tensor(captured, item, which.kind, generator)


def applies(kind: Kind, captured: Sequence[Tensor], signature: Signature) -> bool:
    """Whether a kind of set differs from fresh inputs for these tensors."""
    pairs = list(zip(signature.inputs, captured, strict=True))
    if kind in (Kind.CAPTURED, Kind.FRESH, Kind.NORMAL, Kind.SPREAD):
        return True
    if kind is Kind.MASKS:
        return any(is_mask(t) for t in captured)
    if kind is Kind.EXTREMES:
        return any(_drawn_anew(t) for t in captured)
    if kind is Kind.INTEGERS:
        return any(not t.is_floating_point() and t.numel() for t in captured)
    return any(i.source == "arg" and t.is_floating_point() and t.numel() and not is_mask(t) for i, t in pairs)


def _drawn_anew(tensor: Tensor) -> bool:
    flat = to_flat(tensor)
    return not tensor.is_floating_point() and bool(flat.numel()) and not integers.kept(flat)


def patch(tensors: Sequence[Tensor], seed: int) -> None:
    """Change one element of one floating tensor in place, exactly the same in every process; seed 0 changes none.

    Below 0 it renews all of them first.

    A kernel that keeps results by address, or by the few values it looks at, is wrong afterwards. The other tensors
    stay as they are, so that one that looks at all of the weights but at half of the rest finds what it knows.
    """
    if seed < 0:
        renew(tensors, -seed)
    floating = [t for t in tensors if t.is_floating_point() and t.numel() > 1]
    if not seed or not floating:
        return
    rng = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    by_size = rng.random() < _BY_SIZE
    tensor = rng.choices(floating, [t.numel() if by_size else 1 for t in floating])[0]
    to, source = (_index(rng.randrange(tensor.numel()), tensor.shape) for _ in range(2))
    tensor[to] = tensor[source] * 0.75


def renew(tensors: Sequence[Tensor], seed: int) -> None:
    """Change about every element in place, exactly the same in every process; the sign, zeros and masks stay.

    A kernel that keeps what it computed for parts of an earlier input finds none of them again. Integers are turned
    round, unless their places mean something.
    """
    generator = torch.Generator()
    generator.manual_seed(seed)
    # at most 1, so that nothing overflows
    factors = 1 - 2 * _JITTER * torch.rand(_FACTORS, generator=generator)
    turn = int(torch.randint(1 << 30, (1,), generator=generator))
    for tensor in tensors:
        run = run_of(tensor)
        if is_mask(tensor) or not run.numel():
            continue
        if not tensor.is_floating_point():
            if run.numel() <= tensor.numel() and not integers.kept(run):  # no gaps, which hold anything
                run.copy_(run.roll(turn % run.numel()))
            continue
        here = factors.to(device=run.device, dtype=run.dtype)
        whole = run.numel() // _FACTORS * _FACTORS
        run[:whole].view(-1, _FACTORS).mul_(here)
        run[whole:].mul_(here[: run.numel() - whole])


def run_of(tensor: Tensor) -> Tensor:
    """All of a tensor's memory from its first to its last element, as one run."""
    span = 0
    if tensor.numel():
        span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,))


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
        return _other_mask(tensor, generator) if kind is Kind.MASKS else clone_strided(tensor)
    if not tensor.is_floating_point():
        return from_flat(integers.drawn(flat, kind, generator), tensor.shape, tensor.stride())
    if kind is Kind.SPREAD:
        values = _spread(flat, generator)
    else:
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
    if _constant(flat):
        constant = float(flat[0])
        if not math.isfinite(constant):
            return flat
        return (constant + noise * (0.5 * abs(constant) or 0.1)).to(flat.dtype)
    index_dtype = torch.int32 if flat.numel() < 2**31 else torch.int64
    index = torch.randint(flat.numel(), flat.shape, generator=generator, device=flat.device, dtype=index_dtype)
    drawn = flat.index_select(0, index).to(noise.dtype)
    return drawn.mul_(noise.mul_(_JITTER).add_(1)).to(flat.dtype)


def _constant(flat: Tensor) -> bool:
    """Whether all are one value; a look at the first tells most."""
    return bool((flat[:1024] == flat[0]).all()) and bool((flat == flat[0]).all())


def _normal(flat: Tensor, generator: torch.Generator) -> Tensor:
    """Normal values with the captured mean and deviation, of the captured sign, within a widened captured range."""
    finite = flat[flat.isfinite()].double()
    if finite.numel() < 2 or _constant(flat):
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


def _spread(flat: Tensor, generator: torch.Generator) -> Tensor:
    """Normal values twice as large as the captured ones in the mean square, of the captured sign; of zeros, about 1."""
    finite = flat[flat.isfinite()].double()
    dtype = torch.float64 if flat.dtype is torch.float64 else torch.float32
    values = torch.randn(flat.shape, generator=generator, device=flat.device, dtype=dtype)
    size = _coarse(float(finite.square().mean().sqrt())) if finite.numel() else 0.0
    largest = torch.finfo(flat.dtype).max / 16
    values *= min(2 * size, largest) if 0 < size < math.inf else 1.0
    if not finite.numel() or (bool((finite == 0).all())):
        return values.to(flat.dtype)
    if bool((finite >= 0).all()):
        values = values.abs()
    elif bool((finite <= 0).all()):
        values = -values.abs()
    return values.to(flat.dtype)


def _other_mask(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """A mask with about as many masked places elsewhere; the first place of every row stays open."""
    made = clone_strided(tensor)
    held = _held(made)
    if overlaps_itself(held):
        return made
    logical = held.contiguous()
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
    if logical.shape[-1] > 1 and torch.equal(chosen, logical):
        # small ones may come out as they were
        row = chosen.view(-1, logical.shape[-1])[0]
        place = 1 + int(torch.randint(row.numel() - 1, (1,), generator=generator, device=tensor.device))
        row[place] = ~row[place] if tensor.dtype is torch.bool else (logical.min() if row[place] > logical.min() else 0)
    held.copy_(chosen)
    return made


def _held(tensor: Tensor) -> Tensor:
    """The view with one element for each in memory: expanded dimensions cut to one."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


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


def _shifted(tensor: Tensor, _: torch.Generator) -> None:
    """All values moved away from zero by many times their size: a variance is small beside the mean of the squares."""
    finite = tensor[tensor.isfinite()].double()
    size = _coarse(float(finite.square().mean().sqrt())) if finite.numel() else 0.0
    by = min(_SHIFT * size, torch.finfo(tensor.dtype).max / 16)
    tensor.add_(-by if bool((finite <= 0).all()) else by)


def _negative_zero(tensor: Tensor, generator: torch.Generator) -> None:
    chosen = torch.rand(tensor.shape, generator=generator, device=tensor.device) < 0.25
    tensor.masked_fill_(chosen, -0.0)


def _sparse(tensor: Tensor, generator: torch.Generator) -> None:
    chosen = torch.rand(tensor.shape, generator=generator, device=tensor.device) < _SPARSE_PART
    tensor.masked_fill_(chosen, 0.0)


def _wide(tensor: Tensor, generator: torch.Generator) -> None:
    """Every value times a power of two, exactly: sums of a few large and many small ones, often of both signs."""
    low, high = _WIDE_EXPONENTS
    exponents = torch.randint(low, high + 1, tensor.shape, generator=generator, device=tensor.device)
    factors = torch.pow(2.0, exponents.double())
    largest = torch.finfo(tensor.dtype).max / 2
    tensor.copy_((tensor.double() * factors).clamp_(-largest, largest))


def _nonfinite(tensor: Tensor, generator: torch.Generator) -> None:
    """A NaN, two of more than a few values, and beside them infinities of both signs."""
    count = tensor.numel()
    places = torch.randint(count, (4,), generator=generator, device=tensor.device).tolist()
    for place, value in zip(places, (math.inf, -math.inf, math.nan, math.nan), strict=True):
        if count > _FEW or math.isnan(value):
            tensor[_index(place, tensor.shape)] = value


_CHANGES: dict[Kind, Callable[[Tensor, torch.Generator], None]] = {
    Kind.CONSTANT_ROWS: _constant_rows,
    Kind.OUTLIER: _outlier,
    Kind.LARGE: _scaled(64.0),
    Kind.SHIFTED: _shifted,
    Kind.TINY: _scaled(1.0 / 1024),
    Kind.NEGATIVE_ZERO: _negative_zero,
    Kind.SPARSE: _sparse,
    Kind.WIDE: _wide,
    Kind.NONFINITE: _nonfinite,
}
