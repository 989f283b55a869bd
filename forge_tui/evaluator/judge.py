"""The judge: `python -m forge_tui.evaluator.judge --in N --out N ...`.

It holds the original callable and its results in float64, and compares raw outputs with them. No candidate is ever
loaded here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from forge_tui.evaluator import flow, nonfinite, raw, tolerance
from forge_tui.evaluator.exchange import read
from forge_tui.evaluator.explain import explain
from forge_tui.evaluator.opened import Cache, OpenTarget, Targets
from forge_tui.evaluator.reference import Unsteady, reference
from forge_tui.evaluator.screening import screen
from forge_tui.evaluator.sets import ADVERSARIAL, REPEATING, InputSet, Kind, draw
from forge_tui.evaluator.verify import Run
from forge_tui.processes.wire import fds_from_argv, serve

HIDES = (
    "On inputs with NaN and infinities the results show no NaN at all where the original's must be NaN: a fault in the "
    "model would turn into plausible numbers. Let NaN through, where a bound or a clamp takes it away."
)


@dataclass(slots=True)
class Expected:
    """Bounds of every output on one set, or why the set is no use."""

    bounds: list[tolerance.Bound]
    reason: str = ""
    note: str = ""
    marked: list[Tensor] = field(default_factory=list)
    """On inputs with NaN and infinities: the elements of each output that must not be finite."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum(b.nbytes for b in self.bounds) + sum(m.numel() for m in self.marked) or 1


class Judge:
    """Answers `open` and `compare`."""

    def __init__(self, targets: Targets, seed: int) -> None:
        self._targets = targets
        self._seed = seed
        self._expected: Cache[Expected] = Cache(targets.cache_bytes, lambda found: found.nbytes)
        self._checked: dict[str, dict[str, Any]] = {}

    def open(self, message: dict[str, Any]) -> dict[str, Any]:
        """Whether a target can be judged at all, with which kinds of inputs, and how strictly."""
        opened = self._targets.open(message)
        if opened.target.id not in self._checked:
            self._checked[opened.target.id] = self._check(opened)
        return self._checked[opened.target.id]

    def compare(self, message: dict[str, Any]) -> dict[str, Any]:
        """The first wrong run in words, or none; the largest errors over captured and fresh inputs."""
        opened = self._targets.open(message)
        runs = msgspec.convert(message["runs"], list[Run])
        worst, ratio, judged = 0.0, 0.0, 0
        for run in runs:
            expected = self._expect(opened, run.which)
            if expected.reason:
                continue
            # what every candidate meets could be known to it
            judged += run.which.kind in (Kind.FRESH, Kind.NORMAL)
            outputs = read(Path(message["path"]), run.slot, opened.signature, self._targets.device)
            if expected.marked and nonfinite.hidden(outputs, expected.marked):
                return {"wrong": HIDES, "max_abs_error": _finite(worst), "error_vs_eager": _finite(ratio),
                        "judged": judged}  # fmt: skip
            # of such inputs nothing else is asked: there are no bounds
            for number, (output, limit) in enumerate(zip(outputs, expected.bounds, strict=not expected.marked)):
                found = tolerance.compare(output, limit)
                if run.which.kind in (Kind.CAPTURED, Kind.FRESH, Kind.NORMAL):
                    worst = max(worst, found.max_error)
                    if not limit.exact:
                        ratio = max(ratio, found.max_error / max(limit.eager_max, limit.error_unit, 1e-300))
                if not found.right:
                    named = self._named_inputs(opened, run.which)
                    said = explain(opened.signature.outputs[number].name, output, limit, found, run.poison, named)
                    condition = f" {run.condition}" if run.condition else ""
                    return {"wrong": f"On {run.which.words()}{condition}: {said}", "max_abs_error": _finite(worst),
                            "error_vs_eager": _finite(ratio), "judged": judged}  # fmt: skip
        return {"wrong": "", "max_abs_error": worst, "error_vs_eager": ratio, "judged": judged}

    def inputs(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write the inputs of some sets into a file, for programs without torch."""
        opened = self._targets.open(message)
        sets = msgspec.convert(message["sets"], list[InputSet])
        return {"sizes": raw.write(Path(message["path"]), [opened.values(which) for which in sets])}

    # ---- references

    def _expect(self, opened: OpenTarget, which: InputSet, values: Sequence[Tensor] | None = None) -> Expected:
        key = (opened.target.id, *which.key)
        found = self._expected.get(key)
        if found is None:
            found = self._make(opened, which, opened.values(which) if values is None else values)
            if not which.patch:
                # what is patched is met once, and would push out what every candidate meets
                self._expected.put(key, found)
        return found

    def _make(self, opened: OpenTarget, which: InputSet, inputs: Sequence[Tensor]) -> Expected:
        try:
            if which.kind is Kind.INTEGERS and self._targets.device.type == "cuda":
                with flow.CheckedIndices():  # type: ignore[no-untyped-call]
                    opened.call(inputs)
            if which.kind is Kind.NONFINITE:
                marked, reason = nonfinite.must_show(opened.call, inputs)
                return Expected([], reason, marked=marked)
            values = reference(opened.call, opened.signature, inputs, draw(self._seed, "disturb"))
        except torch.cuda.OutOfMemoryError:
            raise
        except Unsteady:
            return Expected([], f"the shape of the original's results changes with a rounding of {which.words()}")
        except Exception as error:  # noqa: BLE001 - made-up inputs may be none that the original takes
            return Expected([], f"the original raises {type(error).__name__} on {which.words()}: {error}")
        for item, own in zip(opened.signature.outputs, values.eager, strict=True):
            if tuple(own.shape) != item.spec.shape or str(own.dtype) != f"torch.{item.spec.dtype}":
                return Expected([], f"the original gives another {item.name} on {which.words()}")
        if values.ties and which.kind in ADVERSARIAL:
            return Expected([], f"which of equal values the original takes decides its integers on {which.words()}")
        bounds = [
            tolerance.bound(*parts, _equal_terms(which.kind, inputs, parts[1]))
            for parts in zip(values.expected, values.eager, values.disturbed, strict=True)
        ]
        if which.kind is not Kind.CAPTURED and not _finite_enough(bounds):
            usual = self._expect(opened, InputSet(kind=Kind.CAPTURED, call=which.call))
            if not usual.reason and _finite_enough(usual.bounds):
                return Expected([], f"the original is not finite on {which.words()}")
        return Expected(bounds, note=values.note)

    def _named_inputs(self, opened: OpenTarget, which: InputSet) -> list[tuple[str, Tensor]]:
        names = [i.name for i in opened.signature.inputs]
        return list(zip(names, opened.values(which), strict=True))

    # ---- is the target fit to be judged

    def _check(self, opened: OpenTarget) -> dict[str, Any]:
        def expect(which: InputSet, values: Sequence[Tensor]) -> tuple[Sequence[tolerance.Bound], str]:
            found = self._expect(opened, which, values)
            return found.bounds, found.reason

        found = screen(opened, expect, self._seed)
        left_out = {kind.value: reason for kind, reason in found.left_out.items()}
        if found.reason:
            return {"usable": False, "reason": found.reason, "tolerance": "", "kinds": [], "remarks": found.remarks,
                    "left_out": left_out}  # fmt: skip
        first = self._expect(opened, InputSet(kind=Kind.CAPTURED))
        text = tolerance.words(first.bounds)
        return {"usable": True, "reason": "", "tolerance": f"{text} ({first.note})" if first.note else text,
                "kinds": sorted(kind.value for kind in found.kinds), "remarks": found.remarks,
                "left_out": left_out}  # fmt: skip


def _equal_terms(kind: Kind, inputs: Sequence[Tensor], output: Tensor) -> int:
    """How many equal terms one element of an output may be the sum of; 0 for inputs that do not repeat themselves."""
    if kind not in REPEATING:
        return 0
    floating = [t for t in inputs if t.is_floating_point() and t.ndim and t.numel()]
    last = max((t.shape[-1] for t in floating), default=0)
    return max(last, max((t.numel() for t in floating), default=0) // max(1, output.numel()))


def _finite_enough(bounds: Sequence[tolerance.Bound]) -> bool:
    return all(b.exact or b.settled is None for b in bounds)


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def main(argv: list[str]) -> None:
    """Serve until the engine goes."""
    settings = msgspec.json.decode(argv[argv.index("--settings") + 1])
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    targets = Targets(settings["device"], Path(settings["artifacts"]), settings["seed"])
    judge = Judge(targets, settings["judge_seed"])
    serve({"open": judge.open, "compare": judge.compare, "inputs": judge.inputs}, *fds_from_argv(argv))


if __name__ == "__main__":
    main(sys.argv)
