"""Whether another way to run a model gives the same results: a check that finds wrong ones, not rounding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forge_tui.models.trees import dtype_name

#: largest difference allowed, as root mean square over that of eager's output: whole models in another order of sums,
#: with other intermediate rounding. Far above what a right way shows, far below what a wrong one does.
RELATIVE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
#: float32 where matrix products round their inputs to 10 bits (TF32)
RELATIVE_TF32 = 3e-2
#: share of the elements of an integer or bool output that may differ (an argmax of two equal logits)
MISMATCHES = 0.01
_CHUNK = 1 << 24
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far outputs are from eager's."""

    max_abs_error: float | None
    """None where there is no floating tensor to compare."""
    why: str = ""
    """Why they are too far off; empty where they agree."""


def leaf_tensors(value: Any, path: str = "the output", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """(path, copy) of every dense tensor in sequences, mappings and dataclasses; caches and the like do not count."""
    if isinstance(value, Tensor):
        if value.layout is torch.strided:
            yield path, value.detach().clone()
    elif depth > _DEEPEST:
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaf_tensors(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from leaf_tensors(item, f"{path}.{i}", depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for part in dataclasses.fields(value):
            yield from leaf_tensors(getattr(value, part.name, None), f"{path}.{part.name}", depth + 1)


def agreement(
    outputs: Sequence[tuple[str, Tensor]], base: Sequence[tuple[str, Tensor]], *, tf32: bool = False
) -> Agreement:
    """Outputs against eager's, both as `leaf_tensors` gives them."""
    if [path for path, _ in outputs] != [path for path, _ in base]:
        return Agreement(None, "it gives outputs of another structure")
    largest: float | None = None
    why = ""
    for (path, value), (_, wanted) in zip(outputs, base, strict=True):
        if value.shape != wanted.shape or value.dtype != wanted.dtype:
            return Agreement(largest, f"{path} is {_form(value)} instead of {_form(wanted)}")
        if not wanted.numel():
            continue
        floating = wanted.is_floating_point() or wanted.is_complex()
        gap = _gap(value, wanted)
        if floating:
            largest = max(largest or 0.0, gap.top)
        why = why or (_too_far(path, gap, wanted.dtype, tf32) if floating else _too_many(path, gap))
    return Agreement(largest, why)


@dataclass(frozen=True, slots=True)
class _Gap:
    top: float
    relative: float
    mismatches: float
    holes: bool


def _gap(value: Tensor, wanted: Tensor) -> _Gap:
    if wanted.is_complex():
        value, wanted = torch.view_as_real(value.resolve_conj()), torch.view_as_real(wanted.resolve_conj())
    top = squares = size = 0.0
    wrong, holes = 0, False
    for a, b in zip(torch.split(value.reshape(-1), _CHUNK), torch.split(wanted.reshape(-1), _CHUNK), strict=True):
        a, b = a.double(), b.double()
        holes = holes or not torch.equal(a.isfinite(), b.isfinite())
        wrong += int(((a != b) & ~(a.isnan() & b.isnan())).sum())
        both = a.isfinite() & b.isfinite()
        apart = torch.where(both, (a - b).abs(), 0.0)
        top = max(top, float(apart.max()))
        squares += float((apart * apart).sum())
        size += float((torch.where(both, b, 0.0) ** 2).sum())
    relative = math.sqrt(squares / size) if size > 0 else (0.0 if squares == 0 else math.inf)
    return _Gap(top, relative, wrong / wanted.numel(), holes)


def _too_far(path: str, gap: _Gap, dtype: torch.dtype, tf32: bool) -> str:
    if gap.holes:
        return f"{path} is NaN or infinite in other places"
    limit = RELATIVE.get(dtype, RELATIVE[torch.float32])
    if tf32 and dtype not in (torch.float16, torch.bfloat16):
        limit = max(limit, RELATIVE_TF32)
    if gap.relative > limit:
        return f"{path} differs by {gap.relative:.2g} of its size (limit {limit:.2g})"
    return ""


def _too_many(path: str, gap: _Gap) -> str:
    if gap.mismatches > MISMATCHES:
        return f"{gap.mismatches:.1%} of the elements of {path} differ (limit {MISMATCHES:.1%})"
    return ""


def _form(tensor: Tensor) -> str:
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
