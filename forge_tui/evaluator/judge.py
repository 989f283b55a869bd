"""The judge: `python -m forge_tui.evaluator.judge --in N --out N ...`.

It holds the original callable and its results in float64, and compares raw outputs with them. No candidate is ever
loaded here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from forge_tui.evaluator import raw, tolerance
from forge_tui.evaluator.exchange import read
from forge_tui.evaluator.explain import explain
from forge_tui.evaluator.inputs import is_mask
from forge_tui.evaluator.opened import Cache, OpenTarget, Targets
from forge_tui.evaluator.reference import reference
from forge_tui.evaluator.sets import InputSet, Kind, draw, fresh, standard
from forge_tui.evaluator.verify import Run
from forge_tui.processes.wire import fds_from_argv, serve


@dataclass(slots=True)
class Expected:
    """Bounds of every output on one set, or why the set is no use."""

    bounds: list[tolerance.Bound]
    reason: str = ""
    note: str = ""


class Judge:
    """Answers `open` and `compare`."""

    def __init__(self, targets: Targets, seed: int) -> None:
        self._targets = targets
        self._seed = seed
        self._expected: Cache[Expected] = Cache(
            targets.cache_bytes, lambda found: sum(b.nbytes for b in found.bounds) or 1
        )
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
            judged += 1
            outputs = read(Path(message["path"]), run.slot, opened.signature, self._targets.device)
            for number, (output, limit) in enumerate(zip(outputs, expected.bounds, strict=True)):
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

    def _expect(self, opened: OpenTarget, which: InputSet) -> Expected:
        key = (opened.target.id, *which.key)
        found = self._expected.get(key)
        if found is None:
            found = self._make(opened, which)
            self._expected.put(key, found)
        return found

    def _make(self, opened: OpenTarget, which: InputSet) -> Expected:
        try:
            values = reference(opened.call, opened.signature, opened.values(which), draw(self._seed, "disturb"))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - made-up inputs may be none that the original takes
            return Expected([], f"the original raises {type(error).__name__} on {which.words()}: {error}")
        for item, own in zip(opened.signature.outputs, values.eager, strict=True):
            if tuple(own.shape) != item.spec.shape or str(own.dtype) != f"torch.{item.spec.dtype}":
                return Expected([], f"the original gives another {item.name} on {which.words()}")
        bounds = [
            tolerance.bound(*parts) for parts in zip(values.expected, values.eager, values.disturbed, strict=True)
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
        calls = len(opened.captured)
        captured = [which for which in standard(calls, self._seed) if which.kind is Kind.CAPTURED]
        for which in captured:
            found = self._expect(opened, which)
            if found.reason:
                return _unusable(f"{found.reason[:1].upper()}{found.reason[1:]}.")
        usable: list[InputSet] = list(captured)
        kinds: set[Kind] = {Kind.CAPTURED}
        masked = any(is_mask(t) for t in opened.captured[0])
        for which in [*fresh(calls, draw(self._seed, "open")), *standard(calls, self._seed)]:
            if which.kind is Kind.CAPTURED or (which.kind is Kind.MASKS and not masked):
                continue
            if not self._expect(opened, which).reason:
                kinds.add(which.kind)
                if which.kind in (Kind.FRESH, Kind.NORMAL):
                    usable.append(which)
            elif which.kind is Kind.FRESH:
                return _unusable(f"It cannot be verified on inputs other than the captured ones: "
                                 f"{self._expect(opened, which).reason}.")  # fmt: skip
        passed = self._passing_canary(opened, usable)
        if passed:
            return _unusable(f"{passed} passes for its result, so a right kernel cannot be told from a wrong one.")
        first = self._expect(opened, captured[0])
        text = tolerance.words(first.bounds)
        return {"usable": True, "reason": "", "tolerance": f"{text} ({first.note})" if first.note else text,
                "kinds": sorted(kind.value for kind in kinds)}  # fmt: skip

    def _passing_canary(self, opened: OpenTarget, sets: Sequence[InputSet]) -> str:
        """The first wrong answer that would pass on every one of the sets."""
        names = ["A result of zeros", "The mean of the result"]
        names += [f"A copy of {i.name}" for i in opened.signature.inputs]
        passing = set(names)
        for which in sets:
            bounds = self._expect(opened, which).bounds
            inputs = self._named_inputs(opened, which)
            passing = {name for name in passing if _all_pass(bounds, _canary(name, bounds, inputs))}
        return next((name for name in names if name in passing), "")


def _canary(name: str, bounds: Sequence[tolerance.Bound], inputs: Sequence[tuple[str, Tensor]]) -> list[Tensor | None]:
    made: list[Tensor | None] = []
    for limit in bounds:
        like = limit.expected
        if name == "A result of zeros":
            made.append(torch.zeros_like(like, dtype=limit.dtype))
        elif name == "The mean of the result":
            if like.numel() == 1:
                made.append(None)  # it is its own mean
                continue
            numbers = like.double()
            mean = float(numbers.nan_to_num(0.0, 0.0, 0.0).mean()) if like.numel() else 0.0
            made.append(torch.full_like(numbers, mean).to(limit.dtype))
        else:
            tensor = next(t for other, t in inputs if name == f"A copy of {other}")
            made.append(tensor if tensor.shape == like.shape and tensor.dtype == limit.dtype else None)
    return made


def _all_pass(bounds: Sequence[tolerance.Bound], outputs: Sequence[Tensor | None]) -> bool:
    return all(o is not None and tolerance.compare(o, b).right for o, b in zip(outputs, bounds, strict=True))


def _finite_enough(bounds: Sequence[tolerance.Bound]) -> bool:
    return all(b.exact or b.settled is None for b in bounds)


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def _unusable(reason: str) -> dict[str, Any]:
    return {"usable": False, "reason": reason, "tolerance": "", "kinds": []}


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
