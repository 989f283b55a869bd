"""Whether a target can be judged: on its inputs wrong answers must be refused and every input must be seen to matter.

Sets are tried one after the other; where the usual ones do not do, wider ones join them, which candidates then meet too.
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
    found = Screened()
    signature = opened.signature
    if not any(o.spec.numel for o in signature.outputs):
        found.reason = "Its results are empty."
        return found
    canaries, influence = Canaries(signature, opened.call), Influence(opened)

    def meet(which: InputSet) -> str:
        values = opened.values(which)
        bounds, reason = expect(which, values)
        if not reason:
            found.kinds.add(which.kind)
            if which.kind is not Kind.NONFINITE:
                canaries.meet(bounds, values)
                influence.meet(which, bounds, values)
        return reason

    for which in _usual(opened, seed):
        reason = meet(which)
        if not reason:
            continue
        if which.kind is Kind.CAPTURED:
            found.reason = f"{reason[:1].upper()}{reason[1:]}."
            return found
        if which.kind is Kind.FRESH:
            found.reason = f"It cannot be verified on inputs other than the captured ones: {reason}."
            return found
        found.left_out[which.kind] = reason
    for kind in WIDER:
        before = (canaries.passing(), influence.unseen)
        if before == ("", 0) or not applies(kind, opened.captured[0], signature):
            continue
        reason = meet(next(s for s in standard(1, seed) if s.kind is kind))
        if reason:
            found.left_out[kind] = reason
        elif (canaries.passing(), influence.unseen) == before:
            found.kinds.discard(kind)
    passing = canaries.passing()
    if passing and flow.reduces_precision(opened.call, opened.captured[0]):
        passing = canaries.passing(narrow=True)
    if passing:
        found.reason = f"{passing} passes for its result, so a right kernel cannot be told from a wrong one."
        return found
    found.reason, found.remarks = influence.verdict()
    return found


def _usual(opened: OpenTarget, seed: int) -> list[InputSet]:
    """Captured sets first, then fresh ones, then those that a target may do without."""
    calls = len(opened.captured)
    usual = [s for s in standard(calls, seed) if s.kind not in WIDER]
    captured = [s for s in usual if s.kind is Kind.CAPTURED]
    others = [s for s in usual if s.kind is not Kind.CAPTURED]
    sets = [*captured, *fresh(calls, draw(seed, "open")), *others]
    return [s for s in sets if applies(s.kind, opened.captured[0], opened.signature)]
