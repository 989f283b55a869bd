"""What captured inputs look like, for the author of a kernel: ranges, spread, zeros."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forge_tui.core.records import InputStats, Signature

#: most elements that are looked at, spread over the tensor
MOST = 1 << 20


def of_inputs(signature: Signature, tensors: Sequence[Tensor]) -> dict[str, InputStats]:
    """By name of the input; empty tensors have none."""
    found = {item.name: of(tensor) for item, tensor in zip(signature.inputs, tensors, strict=True)}
    return {name: stats for name, stats in found.items() if stats is not None}


@torch.no_grad()
def of(tensor: Tensor) -> InputStats | None:
    """Statistics of up to `MOST` elements; None where there is nothing, or no real numbers."""
    if tensor.numel() == 0 or tensor.is_complex():
        return None
    values = _thinned(tensor.detach()).to(torch.float64).flatten()
    finite = values[torch.isfinite(values)]
    share = finite.numel() / values.numel()
    zeros = float((values == 0).double().mean())
    if finite.numel() == 0:
        return InputStats(low=0.0, high=0.0, mean=0.0, std=0.0, zeros=zeros, finite=0.0)
    std = float(finite.std(correction=0))
    return InputStats(low=float(finite.min()), high=float(finite.max()), mean=float(finite.mean()), std=std,
                      zeros=zeros, finite=share)  # fmt: skip


def _thinned(tensor: Tensor) -> Tensor:
    """Every n-th slice along its longest dimensions: a view, so that no big tensor is copied."""
    while tensor.numel() > MOST:
        dim = max(range(tensor.dim()), key=lambda d: tensor.shape[d])
        step = min(tensor.shape[dim], -(-tensor.numel() // MOST))
        tensor = tensor[(slice(None),) * dim + (slice(None, None, step),)]
    return tensor
