"""Which winners stay in the model: each alone, all together, then backward elimination; with reasons in words.

Plain logic over a `Bench`; no torch here. A kernel stays only if taking it out slows the model with the whole interval.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from forge_tui.core.errors import ExitCode, ForgeError, WorkerDied
from forge_tui.core.records import DeployDecision, Deployment, Winner
from forge_tui.deploy.messages import Check, Comparison, CompileResult, HostTimes, Prepared, Served

Progress = Callable[[str, DeployDecision | None], None]


class Bench(Protocol):
    """The model in a process of its own. Every operation may raise `WorkerDied`; the next one starts a new process."""

    async def prepare(self) -> Prepared:
        """Load the model; raises ForgeError if it cannot be loaded."""

    async def check(self, indices: Sequence[int]) -> Check:
        """One model call with these kernels in."""

    async def compare(self, first: Sequence[int], second: Sequence[int], budget_s: float) -> Comparison:
        """The model with one set of kernels over the model with another."""

    async def host(self, index: int) -> HostTimes:
        """Host times of one call."""

    async def compiled(self, budget_s: float) -> CompileResult:
        """The original under torch.compile over the original; failures and time-outs are results."""

    def remaining_s(self) -> float:
        """Seconds left for everything."""


class Gate:
    """One decision over a list of winners; one use."""

    def __init__(self, bench: Bench, winners: Sequence[Winner], on_progress: Progress) -> None:
        self._bench = bench
        self._winners = winners
        self._say = on_progress
        self._decisions: dict[int, DeployDecision] = {}
        self._alone: dict[int, Served] = {}
        self._facts: dict[int, dict[str, Any]] = {}
        self._budget_s = 0.6
        self._model_s = 0.0
        self._tolerance = ""

    async def run(self, *, compile_baseline: bool) -> Deployment:
        """Decide, then measure what stays against the original, and the original under torch.compile.

        Raises:
            ForgeError: the model cannot be loaded, or the original itself cannot be measured.
        """
        prepared = await self._bench.prepare()
        self._tolerance = prepared.tolerance
        self._budget_s = min(6.0, max(0.6, 0.015 * prepared.model_ms))
        self._model_s = prepared.model_ms / 1e3
        self._say(f"The original takes {prepared.model_ms:.3g} ms; allowed difference: {prepared.tolerance}.", None)
        if prepared.incomparable:
            kept: list[int] = []
            for i in range(len(self._winners)):
                self._exclude(i, f"its results cannot be checked inside the model: {prepared.incomparable}")
        else:
            for i in range(len(self._winners)):
                await self._try_alone(i)
            kept = await self._right_together([i for i in range(len(self._winners)) if i not in self._decisions])
            kept = await self._eliminate(kept)
        kept, check, final = await self._final(kept)
        for i in kept:
            self._keep(i, check.served[kept.index(i)])
        deployment = self._deployment(check, final)
        return await self._with_compile(deployment) if compile_baseline else deployment

    # ---- each alone

    async def _try_alone(self, i: int) -> None:
        name = self._winners[i].target.name
        if self._short_of_time():
            self._exclude(i, "there was no time left to try it inside the model")
            return
        try:
            check = await self._bench.check([i])
            served = self._alone[i] = check.served[0]
            reason = _unserved(served) or _wrong(check, "with this kernel alone")
            if reason:
                self._note(i, served)
                self._exclude(i, reason)
                return
            comparison = await self._bench.compare([i], [], self._budget_s)
            host = await self._bench.host(i)
        except WorkerDied as error:
            self._exclude(i, f"inside the model it ended the process: {_lower(error.what)}")
            return
        except ForgeError as error:
            what = "inside the model it failed" if error.exit_code is ExitCode.BUG else "it could not be put in"
            self._exclude(i, f"{what}: {_lower(error.what)}")
            return
        self._note(i, served, comparison, host)
        self._say(f"{name} alone: {comparison.words()}; {served.calls} calls, {_fallback_words(served)}.", None)
        if comparison.ci[1] < 1.0:
            self._exclude(i, f"inside the model it is slower: {comparison.words()}")

    def _note(
        self, i: int, served: Served, comparison: Comparison | None = None, host: HostTimes | None = None
    ) -> None:
        """What was measured with the kernel alone; whether it stays is decided later."""
        self._partial(i).update(
            calls=served.calls, fallbacks=served.fallbacks,
            alone_speedup=comparison.speedup if comparison else None, alone_ci=comparison.ci if comparison else None,
            host_us=host.guarded_us if host else None, host_us_original=host.original_us if host else None,
        )  # fmt: skip

    # ---- all together

    async def _right_together(self, indices: list[int]) -> list[int]:
        """The largest set, found by halving, with which the outputs stay within the limits."""
        if len(indices) < 2:
            return indices
        ranked = sorted(indices, key=lambda i: -(self._partial(i).get("alone_speedup") or 0.0))
        return await self._add([], ranked)

    async def _add(self, good: list[int], more: list[int]) -> list[int]:
        """`good` with as many of `more` as stay right; what breaks the outputs is excluded."""
        if not more:
            return good
        reason = await self._breaks([*good, *more])
        if not reason:
            return [*good, *more]
        if len(more) == 1:
            self._exclude(more[0], reason)
            return good
        half = len(more) // 2
        return await self._add(await self._add(good, more[:half]), more[half:])

    async def _breaks(self, indices: list[int]) -> str:
        """Why these kernels cannot be in together, or nothing."""
        try:
            return _wrong(await self._bench.check(indices), "together with the other kernels")
        except WorkerDied as error:
            return f"together with the other kernels it ended the process: {_lower(error.what)}"
        except ForgeError as error:
            return f"together with the other kernels it failed: {_lower(error.what)}"

    # ---- backward elimination

    async def _eliminate(self, kept: list[int]) -> list[int]:
        """What is left when every kernel is out whose removal does not slow the model."""
        if len(kept) == 1 and (self._partial(kept[0]).get("alone_ci") or (0.0,))[0] > 1.0:
            return kept  # beside no others it was measured already
        lost = await self._overlaps(kept)
        overlapping = {i for pair in lost for i in pair}
        proven: set[int] = set()
        while kept:
            gains: dict[int, Comparison] = {}
            # what lies inside another kernel as a whole is asked when it is settled whether that one stays
            idle = [i for i in kept if any(lost.get((i, j)) == self._alone[i].calls for j in kept)]
            for i in [i for i in kept if i not in proven and i not in idle]:
                comparison = await self._gain(i, kept)
                if comparison is None:
                    kept = [j for j in kept if j != i]
                elif comparison.ci[0] > 1.0:
                    proven.add(i)
                else:
                    gains[i] = comparison
            losers = sorted(gains, key=lambda i: gains[i].speedup)
            if not losers and not idle:
                return kept
            # of overlapping kernels one at a time: its removal gives others their calls back
            tangled = [i for i in losers if i in overlapping][:1]
            for i in [*(i for i in losers if i not in overlapping), *tangled] or idle:
                reason = _no_gain(gains[i]) if i in gains else "inside the model it gains nothing"
                self._exclude(i, reason + self._why_hidden(i, kept, lost))
                kept = [j for j in kept if j != i]
                proven -= {inner for inner, outer in lost if outer == i}
        return kept

    async def _gain(self, i: int, kept: list[int]) -> Comparison | None:
        """The model with all of `kept` over the model without `i`; None if that cannot be had, and `i` is out."""
        if self._short_of_time():
            self._exclude(i, "there was no time left to see whether it helps inside the model")
            return None
        try:
            comparison = await self._bench.compare(kept, [j for j in kept if j != i], 2 * self._budget_s)
        except ForgeError as error:
            self._exclude(i, f"the model could not be timed with and without it: {_lower(error.what)}")
            return None
        self._say(f"{self._winners[i].target.name} beside the others: {comparison.words()}.", None)
        return comparison

    async def _overlaps(self, kept: list[int]) -> dict[tuple[int, int], int]:
        """(inner, outer) to the calls that the inner kernel no longer serves when the outer one is in."""
        lost: dict[tuple[int, int], int] = {}
        served = await self._served_by(kept) if len(kept) > 1 else {}
        for inner in [i for i, calls in served.items() if calls < self._alone[i].calls]:
            for outer in kept:
                if outer != inner:
                    calls = (await self._served_by([inner, outer])).get(inner, self._alone[inner].calls)
                    if calls < self._alone[inner].calls:
                        lost[inner, outer] = self._alone[inner].calls - calls
        return lost

    async def _served_by(self, indices: list[int]) -> dict[int, int]:
        """Calls that each of these serves beside the others; nothing if the model cannot run so."""
        try:
            return {i: s.calls for i, s in zip(indices, (await self._bench.check(indices)).served, strict=True)}
        except ForgeError:
            return {}

    def _why_hidden(self, i: int, kept: list[int], lost: dict[tuple[int, int], int]) -> str:
        for outer in kept:
            if (i, outer) in lost:
                name = self._winners[outer].target.name
                return f"; {lost[i, outer]} of its {self._alone[i].calls} calls lie inside those of {name}"
        return ""

    # ---- the end

    async def _final(self, kept: list[int]) -> tuple[list[int], Check, Comparison]:
        """What stays, its outputs, and the whole model with it over without it."""
        while True:
            try:
                check = await self._bench.check(kept)
                reason = "" if check.difference.within or not kept else _wrong(check, "at the end, with all that stay")
                final = await self._bench.compare(kept, [], 3 * self._budget_s)
            except ForgeError as error:
                if not kept:
                    raise
                reason = f"the model with all that stay failed: {_lower(error.what)}"
            else:
                if not kept or (not reason and final.ci[0] > 1.0):
                    return kept, check, final
                reason = reason or f"with all that stay the model is not faster: {final.words()}"
            for i in kept:
                self._exclude(i, reason)
            kept = []

    async def _with_compile(self, deployment: Deployment) -> Deployment:
        self._say("Measuring torch.compile of the original model.", None)
        result = await self._bench.compiled(2 * self._budget_s)
        if result.comparison is None:
            self._say(f"torch.compile is no baseline here: {result.failure}", None)
            return msgspec.structs.replace(deployment, baseline_failures={"compile": result.failure})
        self._say(f"torch.compile over eager: {result.comparison.words()}.", None)
        # the ratio was measured in turns; scaled to this run's eager time it stands beside the other figures
        compiled_ms = deployment.baseline_ms / result.comparison.speedup
        return msgspec.structs.replace(deployment, baselines_ms={"compile": compiled_ms})

    def _deployment(self, check: Check, final: Comparison) -> Deployment:
        deployed_ms = statistics.median(a for a, _ in final.samples)
        baseline_ms = statistics.median(b for _, b in final.samples)
        decisions = tuple(self._decisions[i] for i in range(len(self._winners)))
        count = sum(d.deployed for d in decisions)
        what = f"{count} of {len(decisions)} kernels stay" if count else "No kernel stays; the model is the original"
        self._say(f"{what}: {final.words()}.", None)
        gap = check.difference
        speedup, interval = final.speedup, final.ci
        if not count:
            # both sides of that measurement were the original: what differs is the machine's noise, not a result
            deployed_ms, speedup, interval = baseline_ms, 1.0, (1.0, 1.0)
        return Deployment(
            baseline_ms=baseline_ms, deployed_ms=deployed_ms, speedup=speedup, speedup_ci=interval,
            # JSON has no infinity
            max_abs_error=min(gap.max_abs, sys.float_info.max), rms_error=min(gap.rms, sys.float_info.max),
            within_tolerance=gap.within, decisions=decisions,
            tolerance=self._tolerance, samples=tuple(final.samples),
        )  # fmt: skip

    def _partial(self, i: int) -> dict[str, Any]:
        return self._facts.setdefault(i, {})

    def _exclude(self, i: int, reason: str) -> None:
        self._decide(i, deployed=False, why_not=reason)
        self._say(f"{self._winners[i].target.name} stays out: {reason}.", self._decisions[i])

    def _keep(self, i: int, served: Served) -> None:
        self._partial(i).update(calls=served.calls, fallbacks=served.fallbacks)
        self._decide(i, deployed=True, why_not="")
        self._say(f"{self._winners[i].target.name} stays in.", self._decisions[i])

    def _decide(self, i: int, *, deployed: bool, why_not: str) -> None:
        winner = self._winners[i]
        self._decisions[i] = msgspec.convert(
            {"target_id": winner.target.id, "node_id": winner.node_id, "deployed": deployed, "why_not": why_not,
             **self._partial(i)}, DeployDecision)  # fmt: skip

    def _short_of_time(self) -> bool:
        """Whether what is left is needed for the last measurement."""
        return self._bench.remaining_s() < 8 * self._budget_s + 40 * self._model_s + 5


def _unserved(served: Served) -> str:
    """Why a kernel did nothing in the model, or nothing."""
    if served.fault:
        return f"a launch inside the model failed: {_lower(served.fault)}"
    if served.calls:
        return ""
    if served.fallbacks:
        return f"it served no call inside the model: {_fallback_words(served)}"
    return "no call of the model reached it"


def _fallback_words(served: Served) -> str:
    if not served.fallbacks:
        return "none given back"
    return f"{served.fallbacks} given back ({', '.join(f'{n} for {why}' for why, n in served.reasons.items())})"


def _wrong(check: Check, when: str) -> str:
    for served in check.served:
        if served.fault:
            return f"{when} a launch failed: {_lower(served.fault)}"
    return "" if check.difference.within else f"{when} {check.difference.why}"


def _no_gain(comparison: Comparison) -> str:
    if comparison.ci[1] < 1.0:
        return f"inside the model it costs time: {comparison.words()}"
    return f"inside the model it gains nothing: {comparison.words()}"


def _lower(sentence: str) -> str:
    """A sentence as the end of another one."""
    sentence = sentence.strip().rstrip(".")
    first = sentence.partition(" ")[0]
    return sentence[:1].lower() + sentence[1:] if first.istitle() and first.isalpha() else sentence

