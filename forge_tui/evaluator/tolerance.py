"""How far an output may be from the reference: from its dtype, from eager's own error, from the problem's condition.

Never a constant. With `e` the larger of eager's error beyond its last rounding and of what a disturbance of a few
float32 roundings of the inputs does, an output passes if at every element |out - ref| <= rtol |ref| + atol, where rtol
is a few roundings of the output's dtype and atol follows e (by row), and if its root mean square error is no more than
twice the same of eager.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
#: of a long sum of equal terms, relative; the other inputs tell reduced precision
_MOST_DRIFT = 2.0**-11
_NARROW_ROUNDINGS = (1.0, 0.3)
#: outside of this, squares in float64 lose what they measure
_SQUARES = (1e-120, 1e120)
#: elements compared at a time: what is made on the way stays in the cache
_PIECE = {"cpu": 1 << 16, "cuda": 1 << 24}


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
    unit: float = 1.0
    """Errors are divided by it before they are squared."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        parts = (self.expected, self.atol, self.settled, self.special)
        return sum(t.numel() * t.element_size() for t in parts if t is not None)


def bound(expected: Tensor, eager: Tensor, disturbed: Tensor, equal_terms: int = 0) -> Bound:
    """The bound of one output from its float64 reference, eager's result and the disturbed reference.

    `equal_terms` is how many equal terms a right kernel may add up one after the other: all round the same way, so
    that the error grows with their number, by about an eighth of it in the mean over a sum's binades.
    """
    dtype = eager.dtype
    if not dtype.is_floating_point:
        return Bound(dtype=dtype, expected=eager.contiguous(), exact=True)
    eps = torch.finfo(dtype).eps
    narrow = dtype in (torch.bfloat16, torch.float16)
    expected, eager = expected.contiguous(), eager.contiguous()
    settled = special = None
    if not _all_finite(expected) or not _all_finite(eager):
        own = eager.double()
        settled = expected.isfinite() & own.isfinite()
        agreed = ~settled & ((expected == own) | (expected.isnan() & own.isnan()))
        special = torch.where(agreed, expected, 0.0)
    seen = _measure(expected, eager, disturbed.contiguous(), settled, 0.5 * eps if narrow else 0.0)
    compute_eps = _EPS64 if dtype is torch.float64 else _EPS32
    rows, worst = seen.rows, _largest(seen.errors)
    relative = torch.where(rows > 0, seen.errors / rows, 0.0)
    per_row = rows * _largest(relative)
    # rows that are zero in the reference get what the others' worst case is
    per_row = torch.where(rows > 0, per_row, worst)
    atol = WORST_FACTOR * per_row.clamp_max(worst) + 2 * compute_eps * rows
    drift = min(_MOST_DRIFT, equal_terms / 8 * compute_eps)
    atol += drift * rows
    at_element, in_mean = _ROUNDINGS.get(dtype, _NARROW_ROUNDINGS)
    # the mean of a few errors is no steadier than the errors
    factor = MEAN_FACTOR if expected.numel() > _FEW else WORST_FACTOR
    return Bound(
        dtype=dtype, expected=expected, rtol=at_element * eps + drift,
        atol=atol.view(*expected.shape[:-1], min(1, expected.shape[-1])) if expected.ndim else atol.view(()),
        rms_limit=factor * max(seen.eager_rms, seen.moved_rms) + (in_mean * eps + drift) * seen.rms,
        eager_max=seen.eager_max, eager_rms=seen.eager_rms, error_unit=0.5 * eps * seen.rms,
        settled=settled, special=special, unit=seen.unit,
    )  # fmt: skip


@dataclass(slots=True)
class _Measured:
    """Sizes and errors of one output, by row (of shape (rows, 1)) and in all."""

    rows: Tensor
    errors: Tensor
    eager_max: float
    rms: float
    eager_rms: float
    moved_rms: float
    unit: float


def _measure(expected: Tensor, eager: Tensor, disturbed: Tensor, settled: Tensor | None, rounding: float) -> _Measured:
    """What the reference measures, and what eager and the disturbance are off by, some rows at a time.

    `rounding`, relative, is taken off eager's errors by row, for it is in the relative tolerance already.
    """
    width = expected.shape[-1] if expected.ndim else 1
    count = expected.numel() // width if width else 0
    squares, errors = (expected.new_zeros(count, 1) for _ in range(2))
    eager_square = moved_square = eager_max = 0.0
    wholes = (expected, eager, disturbed) if settled is None else (expected, eager, disturbed, settled)
    unit = _unit(expected, settled)
    for at, parts in _pieces(wholes):
        reference = parts[0] if settled is None else torch.where(parts[3], parts[0], 0.0)
        own = (parts[1].double() - reference).abs_()
        moved = (parts[2] - reference).abs_()
        if settled is not None:
            own = torch.where(parts[3], own, 0.0)
            moved = torch.where(parts[3] & moved.isfinite(), moved, 0.0)
        elif not _all_finite(moved):
            moved = torch.where(moved.isfinite(), moved, 0.0)
        eager_max = max(eager_max, _largest(own))
        eager_square += _square(own, unit)
        moved_square += _square(moved, unit)
        excess = own.sub_(reference.abs(), alpha=rounding).clamp_min_(0.0) if rounding else own
        errors[at[0]] = torch.maximum(errors[at[0]], torch.maximum(excess, moved).amax(-1, keepdim=True))
        scaled = reference if unit == 1.0 else reference / unit
        squares[at[0]] += torch.linalg.vector_norm(scaled, dim=-1, keepdim=True).square_()
    mean = 1 / max(expected.numel(), 1)
    return _Measured(
        (squares / max(width, 1)).sqrt_().mul_(unit), errors, eager_max, unit * math.sqrt(float(squares.sum()) * mean),
        unit * math.sqrt(eager_square * mean), unit * math.sqrt(moved_square * mean),
        unit,
    )  # fmt: skip


def _square(values: Tensor, unit: float) -> float:
    norm = float(torch.linalg.vector_norm(values if unit == 1.0 else values / unit))
    # a power would raise beyond the range, a product is infinite
    return norm * norm


def _all_finite(values: Tensor) -> bool:
    """Whether no element is NaN or infinite: the extremes tell, without a mask of all elements."""
    if not values.numel():
        return True
    low, high = torch.aminmax(values)
    return math.isfinite(float(low)) and math.isfinite(float(high))


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _unit(values: Tensor, settled: Tensor | None = None) -> float:
    """A power of two by which values are divided before they are squared, where squares would leave float64's range."""
    if not values.numel():
        return 1.0
    low, high = torch.aminmax(values if settled is None else torch.where(settled, values, 0.0))
    largest = max(abs(float(low)), abs(float(high)))
    if not _SQUARES[0] < largest < _SQUARES[1] and 0 < largest < math.inf:
        return math.ldexp(1.0, max(-1000, math.frexp(largest)[1]))
    return 1.0


def _pieces(wholes: Sequence[Tensor]) -> Iterator[tuple[tuple[slice, slice], list[Tensor]]]:
    """Parts of contiguous tensors of one shape as matrices, some rows (or of a long row some columns) at a time."""
    first = wholes[0]
    width = first.shape[-1] if first.ndim else 1
    if not first.numel():
        return
    matrices = [t.reshape(-1, width) for t in wholes]
    piece = _PIECE.get(first.device.type, _PIECE["cpu"])
    rows, columns = max(1, piece // width), min(width, piece)
    for top in range(0, matrices[0].shape[0], rows):
        for left in range(0, width, columns):
            at = (slice(top, top + rows), slice(left, left + columns))
            yield at, [m[at] for m in matrices]


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
    """Compare one output with its bound; of another dtype or shape all of it is wrong."""
    if not _alike(output, limit):
        return Difference(math.inf, math.inf, torch.ones_like(limit.expected, dtype=torch.bool))
    quick = _in_pieces(output, limit)
    return _whole(output, limit) if quick is None else quick


def passes(output: Tensor, limit: Bound) -> bool:
    """Whether an output is right; what is wrong early is found early."""
    quick = _in_pieces(output, limit) if _alike(output, limit) else None
    return quick is not None and quick.right


def _alike(output: Tensor, limit: Bound) -> bool:
    return output.dtype is limit.dtype and output.shape == limit.expected.shape


def _in_pieces(output: Tensor, limit: Bound) -> Difference | None:
    """The comparison of an output without a wrong element; None as soon as one is found."""
    if limit.exact:
        return Difference(0.0, 0.0, None) if not bool(_inexact(output, limit).any()) else None
    assert limit.atol is not None
    worst, square, atol = 0.0, 0.0, limit.atol.reshape(-1, 1)
    unit = limit.unit
    wholes = [output.contiguous(), limit.expected]
    if limit.settled is not None and limit.special is not None:
        wholes += [limit.settled, limit.special]
    for at, (values, expected, *odd) in _pieces(wholes):
        settled, special = odd or (None, None)
        error, wrong, _ = _differences(values, expected, atol[at[0]], limit.rtol, settled, special)
        if bool(wrong.any()):
            return None
        worst = max(worst, _largest(error))
        square += _square(error, unit)
    rms = unit * math.sqrt(square / output.numel()) if output.numel() else 0.0
    return Difference(worst, rms, None, rms > limit.rms_limit)


def _differences(
    output: Tensor, expected: Tensor, atol: Tensor, rtol: float, settled: Tensor | None, special: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Errors, which elements are wrong, and where a NaN or an infinity is not what it should be."""
    values = output.double()
    error = (values - expected).abs_()
    # a NaN compares as not within
    wrong = ~(error <= expected.abs().mul_(rtol).add_(atol))
    if settled is None:
        return error, wrong, None
    assert special is not None
    same = torch.where(special.isnan(), values.isnan(), values == special)
    off = ~settled & (special != 0) & ~same
    return torch.where(settled, error, 0.0), (settled & wrong) | off, off


def _whole(output: Tensor, limit: Bound) -> Difference:
    """The comparison with the wrong elements marked."""
    if limit.exact:
        wrong = _inexact(output, limit)
        worst = float((output.double() - limit.expected.double()).abs().max()) if output.numel() else 0.0
        return Difference(worst, 0.0, wrong if bool(wrong.any()) else None)
    assert limit.atol is not None
    error, wrong, off = _differences(output, limit.expected, limit.atol, limit.rtol, limit.settled, limit.special)
    finite = torch.where(error.isfinite(), error, 0.0)
    unit = limit.unit
    rms = unit * math.sqrt(_square(finite, unit) / error.numel()) if error.numel() else 0.0
    worst = float(error.nan_to_num(nan=float("inf")).max()) if error.numel() else 0.0
    return Difference(worst, rms, wrong, special_differs=off is not None and bool(off.any()))


def _inexact(output: Tensor, limit: Bound) -> Tensor:
    wrong = output != limit.expected
    # a byte that is neither 0 nor 1 is no bool, whatever it compares to
    return wrong | (output.contiguous().view(torch.uint8) > 1) if output.dtype is torch.bool else wrong


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
