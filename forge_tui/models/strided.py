"""Tensors copied with their strides: permuted, expanded, overlapping and gapped ones stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to one past the last; 0 for an empty tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def real_elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements that memory really holds: expanded dimensions count once, overlapping windows by their span."""
    count = 1
    for n, s in zip(shape, strides, strict=True):
        count *= n if s or n == 0 else 1
    return min(count, span(shape, strides))


def to_flat(tensor: Tensor) -> Tensor:
    """A contiguous copy (1-D) of what the tensor holds, from which `from_flat` makes it again."""
    tensor = tensor.detach()
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if without_gaps(shape, strides):
        return tensor.as_strided((span(shape, strides),), (1,)).clone()
    return _narrow(tensor).reshape(-1).clone()


def from_flat(flat: Tensor, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """The tensor with this shape and these strides on storage of its own; gaps are zero."""
    if without_gaps(shape, strides):
        return flat.as_strided(tuple(shape), tuple(strides))
    room = torch.zeros(span(shape, strides), dtype=flat.dtype, device=flat.device)
    tensor = room.as_strided(tuple(shape), tuple(strides))
    fill(tensor, flat)
    return tensor


def fill(tensor: Tensor, flat: Tensor) -> None:
    """Write what `to_flat` gave into a tensor of the same shape and strides, each place once; gaps stay."""
    if without_gaps(tensor.shape, tensor.stride()):
        tensor.as_strided((span(tensor.shape, tensor.stride()),), (1,)).copy_(flat)
        return
    kept = _narrow(tensor)
    kept.copy_(flat.view(kept.shape))


def clone_strided(tensor: Tensor) -> Tensor:
    """A copy with the same values and strides that shares nothing."""
    return from_flat(to_flat(tensor), tensor.shape, tensor.stride())


def without_gaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the span holds no more than the elements: then it is copied as one run."""
    return span(shape, strides) <= real_elements(shape, strides)


def _narrow(tensor: Tensor) -> Tensor:
    """Expanded dimensions cut to one."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two indices may name the same element (expanded, windows)."""
    if tensor.numel() <= 1:
        return False
    reach = 0
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def views_meet(one: Tensor, other: Tensor) -> bool:
    """Whether two views of one storage may share an element; columns of one buffer (chunks) do not."""
    if one.dtype != other.dtype or one.stride() != other.stride() or one.shape != other.shape:
        start, end = one.storage_offset(), one.storage_offset() + span(one.shape, one.stride())
        begin, finish = other.storage_offset(), other.storage_offset() + span(other.shape, other.stride())
        return one.dtype != other.dtype or (start < finish and begin < end)
    distance = abs(int(one.storage_offset()) - int(other.storage_offset()))
    for stride, size in sorted(
        ((s, n) for n, s in zip(one.shape, one.stride(), strict=True) if n > 1), reverse=True
    ):  # the difference of two indices, greedily from the largest stride, is unique for non-overlapping strides
        distance -= stride * min(size - 1, distance // stride)
    return distance == 0
