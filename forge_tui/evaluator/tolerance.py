"""How far an output may be from the reference: from its dtype, from eager's own error, from the problem's condition.

Never a constant. With `e` the larger of eager's error beyond its last rounding and of what a disturbance of a few
float32 roundings of the inputs does, an output passes if at every element |out - ref| <= rtol |ref| + atol, where rtol
is a few roundings of the output's dtype and atol follows e (by row), and if its root mean square error is no more than
twice the same of eager.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: how many times eager's own error is allowed, at the worst element and in the mean
WORST_FACTOR = 4.0
MEAN_FACTOR = 2.0
_EPS32 = torch.finfo(torch.float32).eps
_EPS64 = torch.finfo(torch.float64).eps
#: roundings of the output's dtype that are allowed at an element, and in the mean; reduced precision is a thousand
#: away. A sum of equal terms, as in the softmax of small values, rounds the same way at every step, however it is
#: ordered; of float64 the reference is no more exact than a kernel
_ROUNDINGS = {torch.float32: (16.0, 8.0), torch.float64: (64.0, 64.0)}
_FEW = 64
_NARROW_ROUNDINGS = (1.0, 0.3)


@dataclass(slots=True)
class Bound:
    """Reference and tolerance of one output on one input set.

    `expected` is float64, or the exact integers. `atol` is by row of the last dimension. `settled` marks the elements
    where eager and reference are both finite; elsewhere `special` says which values must come (NaN and infinities),
    where the two agree on it.
    """

    dtype: torch.dtype
    expected: Tensor
    exact: bool = False
    rtol: float = 0.0
    atol: Tensor | None = None
    rms_limit: float = 0.0
    eager_max: float = 0.0
    eager_rms: float = 0.0
    error_unit: float = 0.0
    """The error that one rounding of the output makes at its scale; below it, errors do not count as worse."""
    settled: Tensor | None = None
    special: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Memory held."""
        parts = (self.expected, self.atol, self.settled, self.special)
        return sum(t.numel() * t.element_size() for t in parts if t is not None)


def bound(expected: Tensor, eager: Tensor, disturbed: Tensor) -> Bound:
    """The bound of one output from its float64 reference, eager's result and the disturbed reference."""
    dtype = eager.dtype
    if not dtype.is_floating_point:
        return Bound(dtype=dtype, expected=eager, exact=True)
    eps = torch.finfo(dtype).eps
    narrow = dtype in (torch.bfloat16, torch.float16)
    own = eager.double()
    settled = expected.isfinite() & own.isfinite()
    agreed = ~settled & ((expected == own) | (expected.isnan() & own.isnan()))
    special = torch.where(agreed, expected, 0.0)
    reference = torch.where(settled, expected, 0.0)
    size = reference.abs()
    eager_error = torch.where(settled, (own - expected).abs(), 0.0)
    # eager's last rounding is in rtol already
    excess = (eager_error - 0.5 * eps * size).clamp_min(0.0) if narrow else eager_error
    moved = (disturbed - expected).abs()
    moved = torch.where(settled & moved.isfinite(), moved, 0.0)
    error = torch.maximum(excess, moved)
    rows = _row_rms(reference)
    compute_eps = _EPS64 if dtype is torch.float64 else _EPS32
    worst = float(error.max()) if error.numel() else 0.0
    relative = (error.amax(-1, keepdim=True) if error.ndim else error) / rows
    relative = torch.where(rows > 0, relative, 0.0)
    per_row = rows * (float(relative.max()) if relative.numel() else 0.0)
    # rows that are zero in the reference get what the others' worst case is
    per_row = torch.where(rows > 0, per_row, worst)
    atol = WORST_FACTOR * per_row.clamp_max(worst) + 2 * compute_eps * rows
    rms = _rms(reference)
    eager_rms = _rms(eager_error)
    at_element, in_mean = _ROUNDINGS.get(dtype, _NARROW_ROUNDINGS)
    # the mean of a few errors is no steadier than the errors
    factor = MEAN_FACTOR if expected.numel() > _FEW else WORST_FACTOR
    return Bound(
        dtype=dtype, expected=expected, rtol=at_element * eps, atol=atol,
        rms_limit=factor * max(eager_rms, _rms(moved)) + in_mean * eps * rms,
        eager_max=float(eager_error.max()) if eager_error.numel() else 0.0, eager_rms=eager_rms,
        error_unit=0.5 * eps * rms, settled=None if bool(settled.all()) else settled,
        special=None if bool(settled.all()) else special,
    )  # fmt: skip


def _row_rms(values: Tensor) -> Tensor:
    if not values.ndim:
        return values.abs()
    return values.square().mean(-1, keepdim=True).sqrt()


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt()) if values.numel() else 0.0


@dataclass(slots=True)
class Difference:
    """How an output compares; `wrong` marks elements beyond the tolerance."""

    max_error: float
    rms_error: float
    wrong: Tensor | None
    rms_exceeded: bool = False
    special_differs: bool = False

    @property
    def right(self) -> bool:
        """Within the tolerance everywhere and in the mean."""
        return self.wrong is None and not self.rms_exceeded


def compare(output: Tensor, limit: Bound) -> Difference:
    """Compare one output, of the right dtype and shape, with its bound."""
    if limit.exact:
        wrong = output != limit.expected
        if output.dtype is torch.bool:
            # a byte that is neither 0 nor 1 is no bool, whatever it compares to
            raw = output.view(torch.uint8)
            wrong = wrong | (raw > 1)
        any_wrong = bool(wrong.any())
        worst = float((output.double() - limit.expected.double()).abs().max()) if output.numel() else 0.0
        return Difference(worst, 0.0, wrong if any_wrong else None)
    assert limit.atol is not None
    values = output.double()
    error = (values - limit.expected).abs()
    allowed = limit.expected.abs() * limit.rtol + limit.atol
    special_differs = False
    if limit.settled is None:
        # a NaN compares as not within
        wrong = ~(error <= allowed)
    else:
        assert limit.special is not None
        wrong = limit.settled & ~(error <= allowed)
        must = ~limit.settled & (limit.special != 0)
        same = torch.where(limit.special.isnan(), values.isnan(), values == limit.special)
        off = must & ~same
        special_differs = bool(off.any())
        wrong = wrong | off
        error = torch.where(limit.settled, error, 0.0)
    any_wrong = bool(wrong.any())
    finite = torch.where(error.isfinite(), error, 0.0)
    rms = _rms(finite)
    worst = float(error.nan_to_num(nan=float("inf")).max()) if error.numel() else 0.0
    exceeded = not any_wrong and rms > limit.rms_limit
    return Difference(worst, rms, wrong if any_wrong else None, exceeded, special_differs)


def words(limits: list[Bound]) -> str:
    """The tolerance of a target's outputs, for reports and prompts."""
    parts = []
    for number, limit in enumerate(limits):
        if limit.exact:
            parts.append(f"out{number} exactly")
            continue
        typical = float(limit.atol.mean()) if limit.atol is not None and limit.atol.numel() else 0.0
        parts.append(f"|out{number} - ref| <= {limit.rtol:.2g} |ref| + {typical:.2g}, rms <= {limit.rms_limit:.2g}")
    return "; ".join(parts)
