"""Wrong answers that must be refused before a target is offered: where one passes, a wrong kernel would as well.

A canary is refused for good as soon as one set refuses it, since every candidate meets that kind of set. What it puts
in place of the right result may happen to be right on a set (zeros where the result is zero, bits that rounding does
not change): such a set says nothing about it, except of whole answers, for which nothing would be left to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from forge_tui.core.records import Signature
from forge_tui.evaluator import tolerance
from forge_tui.evaluator.reference import Call
from forge_tui.evaluator.tolerance import Bound

#: side of the blocks that a kernel may have forgotten
_BLOCK = 16
#: elements of an output looked at together, whole rows of blocks
_PIECE = 1 << 18
#: the narrower type of each; float16 for float32 is no canary: where a rounding of the inputs moves the result by as
#: much (cosines of large angles), right kernels are no better
_ROUNDINGS = {torch.float32: torch.bfloat16, torch.float64: torch.float32}


@dataclass(slots=True)
class Meeting:
    """What canaries are made of on one set: the right results, the inputs, and the right results of another set."""

    bounds: Sequence[Bound]
    inputs: Sequence[Tensor]
    other: Sequence[Bound] | None


#: for each output a wrong one, or None for the right one; None for no such answer on this set
Answer = Sequence[Tensor | None] | None


@dataclass(slots=True)
class Canary:
    """One wrong answer and what became of it."""

    name: str
    make: Callable[[Meeting], Answer]
    whole: bool = False
    """Whether it counts as passing where it is right on every set."""
    constant: bool = False
    """The same, but only if the result never changes: else nobody would know it without computing it."""
    rounding: torch.dtype | None = None
    refused: bool = False
    passed: bool = False
    met: bool = False

    def meet(self, meeting: Meeting) -> None:
        """Try it on a set."""
        answer = self.make(meeting)
        if answer is None:
            return
        wrong = [(o, b) for o, b in zip(answer, meeting.bounds, strict=True) if o is not None]
        self.met = True
        if not all(tolerance.passes(output, limit) for output, limit in wrong):
            self.refused = True
        elif self.whole or any(_differs(output, limit) for output, limit in wrong):
            self.passed = True


@dataclass(slots=True)
class _Tiles:
    """The right result with one tile left as something else, for every tile of one output at once.

    Tiles are blocks of 16 rows and columns, single rows, and blocks of 16 columns.
    """

    output: int
    filled: str
    refused: dict[str, Tensor] = field(default_factory=dict)
    differing: dict[str, Tensor] = field(default_factory=dict)

    def meet(self, meeting: Meeting) -> None:
        """Try every tile on a set."""
        limit = meeting.bounds[self.output]
        stale = None
        if self.filled != "zero":
            if meeting.other is None:
                return
            stale = meeting.other[self.output].expected
        for name, refused, differing in _tiles(limit, stale):
            self.refused[name] = self.refused[name] | refused if name in self.refused else refused
            self.differing[name] = self.differing[name] | differing if name in self.differing else differing

    @property
    def open(self) -> str:
        """The first tile that passes, in words, or nothing."""
        for name, refused in self.refused.items():
            passing = (self.differing[name] & ~refused).nonzero()
            if passing.numel():
                place = [int(i) * (1 if name == "row" else _BLOCK) for i in passing[0]]
                where = {"block": f"the 16 x 16 block at {place}", "row": f"row {place[0]}",
                         "columns": f"the 16 columns from {place[-1]}"}[name]  # fmt: skip
                return f"The right result with {where} of out{self.output} left {self.filled}"
        return ""


class Canaries:
    """All canaries of a target, and the sets they have met."""

    def __init__(self, signature: Signature, call: Call) -> None:
        self._stale = Canary("The right result of other inputs", _stale)
        self._canaries = [*_canaries(signature, call), self._stale]
        shapes = [(n, o.spec) for n, o in enumerate(signature.outputs)]
        self._tiles = [
            _Tiles(n, filled) for filled in ("zero", "as other inputs have it")
            for n, spec in shapes if spec.numel > 1 and spec.dtype.startswith(("float", "bfloat"))
        ]  # fmt: skip
        self._other: Sequence[Bound] | None = None

    def meet(self, bounds: Sequence[Bound], inputs: Sequence[Tensor]) -> None:
        """Try what is not refused yet on the next set."""
        meeting = Meeting(bounds, inputs, self._other)
        for canary in self._canaries:
            if not canary.refused:
                canary.meet(meeting)
        for tiles in self._tiles:
            if tiles.open or not tiles.refused:
                tiles.meet(meeting)
        self._other = bounds

    def passing(self, *, narrow: bool = False) -> str:
        """The first that every set so far let pass, in words, or nothing; with `narrow` roundings are forgiven."""
        changes = self._stale.refused or self._stale.passed
        for canary in self._canaries:
            if canary.refused or (narrow and canary.rounding is torch.bfloat16):
                continue
            if canary.passed or (canary.constant and canary.met and not changes):
                return canary.name
        return next((t.open for t in self._tiles if t.open), "")


def _canaries(signature: Signature, call: Call) -> Iterator[Canary]:
    outputs = signature.outputs
    yield Canary("A result of zeros", lambda m: [torch.zeros_like(b.expected, dtype=b.dtype) for b in m.bounds], True)
    if any(o.spec.numel > 1 for o in outputs):
        yield Canary("The mean of the result", lambda m: [_mean(b) for b in m.bounds], constant=True)
    for number, given in enumerate(signature.inputs):
        if all(given.spec.shape == o.spec.shape and given.spec.dtype == o.spec.dtype for o in outputs):
            yield Canary(f"A copy of {given.name}", _copy(number), True)
    for number, item in enumerate(outputs):
        if len(outputs) > 1:
            name = f"The right result with {item.name}"
            yield Canary(f"{name} of other inputs", _only(number, lambda _, other: other and _stored(other)))
            yield Canary(f"{name} zero", _only(number, lambda right, _: torch.zeros_like(_stored(right))))
        narrow = _ROUNDINGS.get(getattr(torch, item.spec.dtype))
        if narrow is not None:
            name = f"The right {item.name if len(outputs) > 1 else 'result'} rounded to {str(narrow)[6:]}"
            yield Canary(name, _only(number, _rounded_to(narrow)), rounding=narrow)
    if any(i.spec.dtype == "float32" for i in signature.inputs):
        name = "The result of inputs rounded to bfloat16"
        yield Canary(name, lambda m: _of_rounded(call, m), rounding=torch.bfloat16)


def _copy(number: int) -> Callable[[Meeting], Answer]:
    return lambda meeting: [meeting.inputs[number]] * len(meeting.bounds)


def _stale(meeting: Meeting) -> Answer:
    return None if meeting.other is None else [_stored(b) for b in meeting.other]


def _rounded_to(dtype: torch.dtype) -> Callable[[Bound, Bound | None], Tensor]:
    return lambda right, _: _stored(right).to(dtype).to(right.dtype)


def _of_rounded(call: Call, meeting: Meeting) -> Answer:
    """Float32 results of inputs rounded to bfloat16, as a kernel makes that reads them so; the others right."""
    rounded = [t.to(torch.bfloat16).to(t.dtype) if t.dtype is torch.float32 else t for t in meeting.inputs]
    if not any(b.dtype is torch.float32 for b in meeting.bounds) or all(map(torch.equal, rounded, meeting.inputs)):
        return None
    try:
        outputs = call(rounded)
    except Exception:  # noqa: BLE001 - an infinity where a mask had its lowest value
        return None
    return [o if o.dtype is torch.float32 else None for o in outputs]


def _only(number: int, make: Callable[[Bound, Bound | None], Any]) -> Callable[[Meeting], Answer]:
    """The answer with one output of its own, the others right; it is made from the right one and the other set's."""

    def answer(meeting: Meeting) -> Answer:
        wrong: Tensor | None = make(meeting.bounds[number], None if meeting.other is None else meeting.other[number])
        return None if wrong is None else [wrong if n == number else None for n in range(len(meeting.bounds))]

    return answer


def _stored(limit: Bound) -> Tensor:
    """The right result as the output's dtype holds it."""
    return limit.expected.to(limit.dtype)


def _mean(limit: Bound) -> Tensor:
    """Of what is finite, or where nothing is, of all: then it may be NaN everywhere."""
    numbers = limit.expected.double()
    if bool(numbers.isfinite().any()):
        numbers = numbers.nan_to_num(0.0, 0.0, 0.0)
    mean = float(numbers.mean()) if numbers.numel() else 0.0
    return torch.full_like(numbers, mean).to(limit.dtype)


def _differs(output: Tensor, limit: Bound) -> bool:
    right = _stored(limit)
    return not torch.equal(output, right) and not bool(((output == right) | (output.isnan() & right.isnan())).all())


def _tiles(limit: Bound, stale: Tensor | None) -> Iterator[tuple[str, Tensor, Tensor]]:
    """For each form of tile: which tiles are refused, and which differ from what is right at all."""
    shape = limit.expected.shape
    width = shape[-1] if len(shape) else 1
    right = limit.expected.view(-1, width)
    wrong = None if stale is None else stale.view(-1, width)
    settled = None if limit.settled is None else limit.settled.view(-1, width)
    assert limit.atol is not None
    atol = limit.atol.reshape(-1, 1)
    step = max(1, _PIECE // (width * _BLOCK)) * _BLOCK
    found: list[tuple[Tensor, Tensor]] = []
    for top in range(0, right.shape[0], step):
        rows = right[top : top + step]
        put = torch.zeros((), dtype=torch.float64, device=rows.device) if wrong is None else wrong[top : top + step]
        refused = (put - rows).abs_() > rows.abs().mul_(limit.rtol).add_(atol[top : top + step])
        differing = put.to(limit.dtype) != rows.to(limit.dtype)
        if settled is not None:
            refused &= settled[top : top + step]
            differing &= settled[top : top + step]
        found.append((_by_columns(refused), _by_columns(differing)))
    # by row and block of columns, from which all three forms follow
    refused, differing = (torch.cat([f[k] for f in found]) for k in (0, 1))
    yield "block", _by_rows(refused), _by_rows(differing)
    yield "row", refused.any(1, keepdim=True), differing.any(1, keepdim=True)
    yield "columns", refused.any(0, keepdim=True), differing.any(0, keepdim=True)


def _by_columns(marked: Tensor) -> Tensor:
    """Whether any is marked of every 16 columns: (rows, columns) to (rows, blocks)."""
    rows, columns = marked.shape
    even = columns - columns % _BLOCK
    parts = [marked[:, :even].reshape(rows, -1, _BLOCK).any(-1)] if even else []
    if even < columns:
        parts.append(marked[:, even:].any(-1, keepdim=True))
    return torch.cat(parts, 1) if columns else marked.new_zeros(rows, 0)


def _by_rows(marked: Tensor) -> Tensor:
    return _by_columns(marked.t()).t()
