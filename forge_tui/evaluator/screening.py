"""Whether a target can be judged: on its inputs wrong answers must be refused and every input must be seen to matter.

Sets are tried one after the other; where the usual ones do not do, wider ones join them, and candidates meet those too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from forge_tui.evaluator import flow
from forge_tui.evaluator.canaries import Canaries
from forge_tui.evaluator.influence import Influence
from forge_tui.evaluator.inputs import applies
from forge_tui.evaluator.opened import OpenTarget
from forge_tui.evaluator.sets import WIDER, InputSet, Kind, draw, fresh, standard
from forge_tui.evaluator.tolerance import Bound

#: the bounds of a set's outputs, or why there are none
Expect = Callable[[InputSet, Sequence[Tensor]], "tuple[Sequence[Bound], str]"]


@dataclass(slots=True)
class Screened:
    """What was found: `reason` says why the target cannot be judged, if it cannot."""

    reason: str = ""
    kinds: set[Kind] = field(default_factory=set)
    left_out: dict[Kind, str] = field(default_factory=dict)
    """Kinds of sets that do not serve this target, with the reason."""
    remarks: list[str] = field(default_factory=list)


def screen(opened: OpenTarget, expect: Expect, seed: int) -> Screened:
    """Try canaries and the influence of every input on the sets of a target."""
    if not any(o.spec.numel for o in opened.signature.outputs):
        return Screened(reason="Its results are empty.")
    screening = _Screening(opened, expect)
    found = screening.found
    for which in _usual(opened, seed):
        reason = screening.meet(which)
        if reason and which.kind is Kind.CAPTURED:
            found.reason = f"{reason[:1].upper()}{reason[1:]}."
        elif reason and which.kind is Kind.FRESH:
            found.reason = f"It cannot be verified on inputs other than the captured ones: {reason}."
        elif reason:
            found.left_out[which.kind] = reason
        if found.reason:
            return found
    for which in standard(1, seed):
        if which.kind in WIDER and applies(which.kind, opened.captured[0], opened.signature):
            screening.widen(which)
    found.reason, found.remarks = screening.conclude()
    return found


class _Screening:
    """What the sets that were met so far have shown."""

    def __init__(self, opened: OpenTarget, expect: Expect) -> None:
        self._opened = opened
        self._expect = expect
        self._canaries = Canaries(opened.signature, opened.call)
        self._influence = Influence(opened)
        self.found = Screened()

    def meet(self, which: InputSet) -> str:
        """Try everything on a set; why it is none, or nothing."""
        values = self._opened.values(which)
        bounds, reason = self._expect(which, values)
        if not reason:
            self.found.kinds.add(which.kind)
            if which.kind is not Kind.NONFINITE:
                self._canaries.meet(bounds, values)
                self._influence.meet(which, bounds, values)
        return reason

    def widen(self, which: InputSet) -> None:
        """Take a wider set in if it shows what the others did not."""
        before = (self._canaries.passing(), self._influence.unseen)
        if before == ("", 0):
            return
        reason = self.meet(which)
        if reason:
            self.found.left_out[which.kind] = reason
        elif (self._canaries.passing(), self._influence.unseen) == before:
            self.found.kinds.discard(which.kind)

    def conclude(self) -> tuple[str, list[str]]:
        """Why the target cannot be judged, or nothing; remarks."""
        passing = self._canaries.passing()
        if passing and flow.reduces_precision(self._opened.call, self._opened.captured[0]):
            passing = self._canaries.passing(narrow=True)
        if passing:
            return f"{passing} passes for its result, so a right kernel cannot be told from a wrong one.", []
        return self._influence.verdict()


def _usual(opened: OpenTarget, seed: int) -> list[InputSet]:
    """Captured sets first, then fresh ones, then those that a target may do without."""
    calls = len(opened.captured)
    usual = [s for s in standard(calls, seed) if s.kind not in WIDER]
    captured = [s for s in usual if s.kind is Kind.CAPTURED]
    others = [s for s in usual if s.kind is not Kind.CAPTURED]
    sets = [*captured, *fresh(calls, draw(seed, "open")), *others]
    return [s for s in sets if applies(s.kind, opened.captured[0], opened.signature)]
