"""Integers of made-up inputs: within the range of the captured ones, and in order where those are in order."""

from __future__ import annotations

import torch
from torch import Tensor

from forge_tui.evaluator.sets import Kind

_EXTREME_PART = 0.5
_LARGEST = torch.iinfo(torch.int64).max


def kept(flat: Tensor) -> bool:
    """Whether fresh sets leave it as it is: single ones, flags, constants, sorted ones (positions, offsets)."""
    if flat.numel() < 2 or flat.dtype is torch.bool:
        return True
    return bool((flat == flat[0]).all()) or _sorted(flat) or bool(_period(flat))


def drawn(flat: Tensor, kind: Kind, generator: torch.Generator) -> Tensor:
    """The values of a set of this kind, from the captured ones in the order of memory."""
    if kind is Kind.INTEGERS:
        return _anyway(flat, generator)
    if kept(flat):
        return flat
    low, high = int(flat.min()), int(flat.max())
    made = _uniform(flat, low, high, generator)
    if kind is Kind.EXTREMES:
        part = torch.rand(flat.shape, generator=generator, device=flat.device)
        made = torch.where(part < _EXTREME_PART / 2, flat.min(), made)
        made = torch.where(part > 1 - _EXTREME_PART / 2, flat.max(), made)
        made[0], made[-1] = low, high
    return made


def _anyway(flat: Tensor, generator: torch.Generator) -> Tensor:
    """Fresh values for what other sets keep, such that an index, an offset or a length stays one.

    Constants become values from 1 (flags: 0) up to them; zeros become zeros and ones; sorted ones stay sorted between
    the same ends; negative constants stay, for they mean something.
    """
    if flat.dtype is torch.bool:
        return ~flat if flat.numel() == 1 else torch.rand(flat.shape, generator=generator, device=flat.device) < 0.5
    low, high = int(flat.min()), int(flat.max())
    if low == high:
        if high < 0:
            return flat
        first, last = (0, 1) if high < 2 else (1, high)
        if flat.numel() == 1:
            # another value than the captured one
            first, last = (1 - high, 1 - high) if high < 2 else (1, high - 1)
        return _uniform(flat, first, last, generator)
    if _sorted(flat):
        made = _uniform(flat, low, high, generator).sort().values
        made[0], made[-1] = low, high
        return made
    period = _period(flat)
    if period:
        return _uniform(flat, low, high, generator).view(-1, period).sort(-1).values.reshape(-1)
    return _uniform(flat, low, high, generator)


def _uniform(like: Tensor, low: int, high: int, generator: torch.Generator) -> Tensor:
    # one past the largest int64 is no int64
    end = min(high + 1, _LARGEST)
    made = torch.randint(low, end, like.shape, generator=generator, device=like.device, dtype=torch.int64)
    return made.to(like.dtype)


def _sorted(flat: Tensor) -> bool:
    return bool((flat[1:] >= flat[:-1]).all())


def _period(flat: Tensor) -> int:
    """The length of the ascending run that comes over and over (positions of a batch); 0 for none."""
    down = (flat[1:] < flat[:-1]).nonzero()
    period = int(down[0]) + 1 if down.numel() else 0
    if not period or flat.numel() % period:
        return 0
    return period if bool((flat.view(-1, period) == flat[:period]).all()) else 0
