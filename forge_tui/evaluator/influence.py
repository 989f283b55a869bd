"""Whether each input of a target is seen to matter: another draw of it alone must change some output.

An input whose influence no set shows is one that a kernel may leave out unnoticed. Three things may be behind it: it
leads to no output at all (a counter, a tensor of which the shape is read), or the formula cancels it for every value (a
constant added before a mean is taken off, rows that are thrown away); then a kernel without it is right, and the target
is offered with a remark. Or it matters, but less than the tolerance or only for values that were not met; then the
target is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from forge_tui.evaluator import flow, tolerance
from forge_tui.evaluator.inputs import is_mask, make_one
from forge_tui.evaluator.opened import OpenTarget
from forge_tui.evaluator.reference import in_float64
from forge_tui.evaluator.sets import InputSet, Kind, draw
from forge_tui.evaluator.tolerance import Bound

#: a change in float64 that is smaller, relative to the output, is rounding
_ROUNDING = 1e-11
_ATTEMPTS = 4


class Influence:
    """The inputs of a target that no set has shown to matter yet."""

    def __init__(self, opened: OpenTarget) -> None:
        self._opened = opened
        self._unseen = [n for n, i in enumerate(opened.signature.inputs) if i.spec.numel]
        self._on_cuda = any(t.is_cuda for t in opened.captured[0])
        self._changed: dict[int, InputSet] = {}
        """The last set on which an unseen input was drawn anew at all."""

    @property
    def unseen(self) -> int:
        """How many inputs are left."""
        return len(self._unseen)

    def meet(self, which: InputSet, bounds: Sequence[Bound], values: Sequence[Tensor]) -> None:
        """Look for the influence of what is unseen on one set, with its tensors."""
        if self._unseen:
            self._unseen = [n for n in self._unseen if not self._shows(which, values, bounds, n)]

    def _shows(self, which: InputSet, values: Sequence[Tensor], bounds: Sequence[Bound], number: int) -> bool:
        others = self._redrawn(which, values, number)
        return any(self._changes(which, values, bounds, number, other) for other in others)

    def _changes(
        self, which: InputSet, values: Sequence[Tensor], bounds: Sequence[Bound], number: int, other: Tensor
    ) -> bool:
        outputs = self._called(_with(values, number, other))
        if not outputs:
            return False
        self._changed[number] = which
        return not all(
            o.shape == b.expected.shape and tolerance.passes(o, b) for o, b in zip(outputs, bounds, strict=True)
        )

    def _called(self, values: Sequence[Tensor]) -> list[Tensor]:
        """The original's outputs; none for values that it does not take."""
        try:
            if self._on_cuda and any(not v.is_floating_point() for v in values):
                with flow.CheckedIndices():  # type: ignore[no-untyped-call]
                    return self._opened.call(values)
            return self._opened.call(values)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception:  # noqa: BLE001 - whatever an original says of values made up
            return []

    def _redrawn(self, which: InputSet, values: Sequence[Tensor], number: int) -> Iterator[Tensor]:
        """Other values of one input: captured ones, which every target meets, and such as sets of this kind have."""
        opened = self._opened
        current = values[number]
        for call in (which.call, *range(len(opened.captured))):
            if not _same(opened.captured[call][number], current):
                yield opened.captured[call][number].clone()
                break
        kind = Kind.FRESH if which.kind is Kind.CAPTURED else which.kind
        changed = InputSet(kind=kind, call=which.call, seed=draw(which.seed, which.call, "influence"))
        made = make_one(opened.captured[which.call][number], opened.signature.inputs[number], changed, number)
        if not _same(made, current):
            yield made

    def verdict(self) -> tuple[str, list[str]]:
        """Why the target cannot be judged, or nothing; remarks about inputs that do not matter."""
        if not self._unseen:
            return "", []
        opened = self._opened
        names = [i.name for i in opened.signature.inputs]
        reaching, chosen = flow.reaching(opened.call, opened.captured[0])
        idle, cancelled, fixed = [], [], []
        for number in self._unseen:
            name = names[number]
            if number not in reaching:
                idle.append(name)
                continue
            if number not in self._changed:
                if not self._takes_others(number):
                    fixed.append(name)
                    continue
                return (f"No other values of {name} could be tried, so a kernel that ignores it would pass; profile "
                        f"with inputs in which {name} differs."), []  # fmt: skip
            change = self._change(number)
            if change > _ROUNDING:
                return (f"What {name} does to the results is smaller than the tolerance on all inputs that were tried, "
                        "so a kernel that ignores it would pass; profile with inputs on which it matters."), []
            if change == 0.0 and number in chosen and not self._carries_nan(number):
                # an expert that no token was sent to, say: other data would tell
                return (f"The results are the same whatever {name} holds, on all inputs that were tried, so a kernel "
                        "that ignores it would pass; profile with inputs on which it matters."), []  # fmt: skip
            cancelled.append(name)
        remarks = (
            _remark(idle, "lead", "to no result"), _remark(cancelled, "cancel", "out of the result"),
            _remark(fixed, "allow", "no other values"),
        )  # fmt: skip
        return "", [text for text in remarks if text]

    def _takes_others(self, number: int) -> bool:
        """Whether the original gives finite results for other integers or flags in this input alone."""
        captured, item = self._opened.captured[0], self._opened.signature.inputs[number]
        kind = Kind.MASKS if is_mask(captured[number]) else Kind.INTEGERS
        for attempt in range(_ATTEMPTS):
            other = make_one(captured[number], item, InputSet(kind=kind, seed=draw(attempt, "influence")), number)
            outputs = [] if _same(other, captured[number]) else self._called(_with(captured, number, other))
            if outputs and all(bool(o.isfinite().all()) for o in outputs):
                return True
        return False

    def _change(self, number: int) -> float:
        """The largest change of an output in float64, relative to its mean square."""
        which = self._changed[number]
        values = self._opened.values(which)
        before, _ = in_float64(self._opened.call, values)
        largest = 0.0
        for other in self._redrawn(which, values, number):
            after, _ = in_float64(self._opened.call, _with(values, number, other))
            largest = max([largest, *(_moved(one, two) for one, two in zip(before, after, strict=True) if one.numel())])
        return largest

    def _carries_nan(self, number: int) -> bool:
        """Whether a NaN in it comes through: then arithmetic uses it, and not a choice that was never made."""
        values = [v.clone() for v in self._opened.captured[0]]
        if not values[number].is_floating_point() or is_mask(values[number]):
            return False
        values[number] = torch.full_like(values[number], float("nan"))
        with suppress(Exception):
            return any(o.is_floating_point() and bool(o.isnan().any()) for o in self._opened.call(values))
        return False


def _with(values: Sequence[Tensor], number: int, other: Tensor) -> list[Tensor]:
    return [other if n == number else v for n, v in enumerate(values)]


def _moved(before: Tensor, after: Tensor) -> float:
    moved = float((after.double() - before.double()).nan_to_num(0.0).abs().max())
    scale = float(before.double().nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt())
    return moved / scale if scale > 0 else float(moved > 0)


def _remark(names: Sequence[str], verb: str, what: str) -> str:
    """`a and b cancel out of the result; a kernel may ignore them`."""
    if len(names) < 2:
        return f"{names[0]} {verb}s {what}; a kernel may ignore it" if names else ""
    return f"{', '.join(names[:-1])} and {names[-1]} {verb} {what}; a kernel may ignore them"


def _same(one: Tensor, other: Tensor) -> bool:
    same = one == other
    if one.is_floating_point():
        same = same | (one.isnan() & other.isnan())
    return bool(same.all())
