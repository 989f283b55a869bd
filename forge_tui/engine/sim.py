"""The device `sim:FILE`: a recorded landscape in the place of compiler, judge, timer and model."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from forge_tui.core import landscapes
from forge_tui.core.errors import EnvironmentFault, UsageError
from forge_tui.core.landscapes import Point, RecordedLandscape
from forge_tui.core.ports import Proposer, TargetCheck
from forge_tui.core.profiles import Hotspot, Mode, Profile
from forge_tui.core.records import (
    Built,
    CompileFailure,
    Confirmation,
    DeployDecision,
    Deployment,
    Device,
    Evaluation,
    LaunchPlan,
    Node,
    RunOptions,
    Target,
    Verdict,
    Winner,
)
from forge_tui.engine.rooms import Progress
from forge_tui.evaluator import stats
from forge_tui.evaluator.conclude import why_open
from forge_tui.processes.quiet import Quiet
from forge_tui.search.player import PLAYER, RecordedPlayer, RecordedTemplates, taken_apart
from forge_tui.search.recorded import TargetLandscape

_UNKNOWN = "This kernel is not in the recorded landscape, which answers for what was recorded and for nothing else."
_MARK = "simulated:"
#: by verdict, what a player's mistake is said to be
_MISTAKES = {
    Verdict.COMPILE_ERROR: "it does not compile",
    Verdict.REJECTED: "its results are wrong",
    Verdict.CRASHED: "it reads outside of its buffers",
    Verdict.TIMED_OUT: "it does not end",
}


class SimRooms:
    """Rooms over one file, which stands for the model too; a recorded second takes `options.pace` seconds."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options

    @cached_property
    def landscape(self) -> RecordedLandscape:
        """The file's content."""
        return landscapes.read(Path(self.options.model.path))

    @cached_property
    def _lands(self) -> dict[str, TargetLandscape]:
        return {recorded.target.id: TargetLandscape(recorded) for recorded in self.landscape.targets}

    def check_tools(self) -> None:
        """Raise UsageError if the file is no landscape."""
        self.landscape  # noqa: B018 - read now

    async def describe_device(self) -> Device:
        """The device that it was recorded on, marked as such."""
        device = self.landscape.device
        return msgspec.structs.replace(device, model=f"{device.model} (recorded)")

    async def profile(self) -> Profile:
        """What the file knows of the model: its targets, and the rest as one sum."""
        targets = tuple(recorded.target for recorded in self.landscape.targets)
        total_ms = self.landscape.model_ms
        spots = [
            Hotspot(id=0, parent=None, name=self.landscape.model, kind="model", path="", calls=1, total_ms=total_ms,
                    self_ms=max(0.0, total_ms - sum(t.calls * t.time_us / 1e3 for t in targets)), share=1.0),
            *(Hotspot(id=number, parent=0, name=t.name, kind=t.kind, path=", ".join(t.instances), calls=t.calls,
                      total_ms=t.calls * t.time_us / 1e3, self_ms=t.calls * t.time_us / 1e3, share=t.share,
                      headroom_ms=t.headroom_ms, target_id=t.id, floor_ms=t.calls * t.floor_us / 1e3, bound=t.bound,
                      signature=t.signature.describe()) for number, t in enumerate(targets, 1)),
        ]  # fmt: skip
        return Profile(device=await self.describe_device(), model_ms=total_ms, busy_ms=total_ms, overhead=1.0,
                       hotspots=tuple(spots), targets=targets)  # fmt: skip

    async def what_if(
        self, profile: Profile, target_ids: Sequence[str], modes: Sequence[Mode] = (), *, on_progress: object,
    ) -> Profile:  # fmt: skip
        """Nothing can be replaced here."""
        del target_ids, modes, on_progress
        return profile

    def compiler(self, device: Device) -> SimCompiler:
        """See `engine.rooms.Rooms`."""
        return SimCompiler(self._lands, device, self.options.pace)

    def evaluator(self, device: Device, quiet: Quiet) -> SimEvaluator:
        """See `engine.rooms.Rooms`."""
        del device
        return SimEvaluator(self._lands, self.landscape, quiet, self.options.pace)

    def confirmer(self, device: Device) -> SimConfirmer:
        """See `engine.rooms.Rooms`."""
        return SimConfirmer(self.evaluator(device, Quiet(exclusive=False)))

    def proposer(self, name: str) -> Proposer:
        """`templates` or `sim`.

        Raises:
            UsageError: any other name.
        """
        if name == RecordedTemplates.name:
            return RecordedTemplates(self._lands)
        if name == PLAYER:
            return RecordedPlayer(self._lands)
        raise UsageError(f"{name} cannot write kernels for a recorded landscape, which knows only its own.",
                         f"Leave --model out, or say --model {PLAYER}.")  # fmt: skip

    def at_hand(self, target: Target, device: Device) -> bool:
        """See `engine.rooms.Rooms`."""
        del device
        return target.id in self._lands

    async def deploy(self, device: Device, winners: Sequence[Winner], on_progress: Progress) -> Deployment:
        """What the model would gain by its targets' recorded shares: there is no model to put kernels into."""
        del device
        on_progress("A recorded landscape has no model to deploy into: its time is worked out from the targets' "
                    "recorded times.", None)  # fmt: skip
        before_ms = self.landscape.model_ms
        after = {"low": before_ms, "middle": before_ms, "high": before_ms}
        decisions: list[DeployDecision] = []
        worst = 0.0
        for winner in winners:
            land = self._lands[winner.target.id]
            index = land.by_code(winner.built.sha256)
            assert index is not None, "a winner was evaluated"
            low, middle, high = stats.median_interval([*map(landscapes.block_speedup, land.blocks(index))])
            spent_ms = winner.target.calls * winner.target.time_us / 1e3
            known = {"low": low, "middle": middle, "high": high}
            alone = {name: before_ms - spent_ms * (1 - 1 / ratio) for name, ratio in known.items()}
            after = {name: ms - before_ms + alone[name] for name, ms in after.items()}
            errors = land.points[index].errors
            worst = max(worst, errors[0] if errors else 0.0)
            decision = DeployDecision(
                target_id=winner.target.id, node_id=winner.node_id, deployed=True, calls=winner.target.calls,
                alone_speedup=before_ms / alone["middle"],
                alone_ci=(before_ms / alone["low"], before_ms / alone["high"]),
            )  # fmt: skip
            on_progress("", decision)
            decisions.append(decision)
        return Deployment(
            baseline_ms=before_ms, deployed_ms=after["middle"], speedup=before_ms / after["middle"],
            speedup_ci=(before_ms / after["low"], before_ms / after["high"]), max_abs_error=worst, rms_error=0.0,
            within_tolerance=True, decisions=tuple(decisions), tolerance="that of each kernel when it was recorded",
        )  # fmt: skip


class SimCompiler:
    """Recorded machine code by source and setting."""

    def __init__(self, lands: Mapping[str, TargetLandscape], device: Device, pace: float) -> None:
        self._lands = lands
        self._device = device
        self._pace = pace

    async def build(self, target: Target, source: str, tunables: dict[str, int]) -> Built | CompileFailure:
        """See `core.ports.Compiler`; what was not recorded is refused."""
        land = self._lands[target.id]
        text, fault, _ = taken_apart(source)
        index = land.find(text, tunables)
        if index is None:
            return CompileFailure(verdict=Verdict.REFUSED, reason=_UNKNOWN)
        point = land.points[index]
        compile_s = point.seconds[0]
        await asyncio.sleep(compile_s * self._pace)
        if fault is Verdict.COMPILE_ERROR:
            return CompileFailure(verdict=fault, reason=_mistake(fault), compile_s=compile_s)
        if not point.code:
            return CompileFailure(verdict=point.verdict, reason=point.reason, compile_s=compile_s)
        path, code = "", point.code
        if fault is not None:
            path, code = f"{_MARK}{fault}", hashlib.sha256(source.encode()).hexdigest()[:16]
        return Built(path=path, sha256=code, language=self._device.language, plan=LaunchPlan(), compile_s=compile_s,
                     resources=land.points[land.original(index)].resources)  # fmt: skip


class SimEvaluator:
    """Recorded verdicts; times are drawn anew from the recorded blocks, until the ratio is known well enough."""

    def __init__(
        self, lands: Mapping[str, TargetLandscape], landscape: RecordedLandscape, quiet: Quiet, pace: float
    ) -> None:
        self._lands = lands
        self._checks = {recorded.target.id: recorded.check for recorded in landscape.targets}
        self._quiet = quiet
        self._pace = pace

    async def open(self, target: Target) -> TargetCheck:
        """What opening the target found when it was recorded."""
        return self._checks[target.id]

    async def evaluate(self, target: Target, built: Built, seed: int) -> Evaluation:
        """See `core.ports.Evaluator`; a function of the file and the seed."""
        if built.path.startswith(_MARK):
            verdict = Verdict(built.path.removeprefix(_MARK))
            return Evaluation(verdict=verdict, reason=_mistake(verdict), sha256=built.sha256, compile_s=built.compile_s)
        land = self._lands[target.id]
        index = land.by_code(built.sha256)
        if index is None:
            return Evaluation(verdict=Verdict.INFRA, reason=_UNKNOWN)
        point = land.points[index]
        _, verify_s, timing_s = point.seconds
        async with self._quiet.working():
            await asyncio.sleep(verify_s * self._pace)
        common = Evaluation(
            verdict=point.verdict, reason=point.reason, compile_s=built.compile_s, verify_s=verify_s,
            timing_s=timing_s, sha256=built.sha256, resources=built.resources,
            max_abs_error=point.errors[0] if point.errors else None,
            error_vs_eager=point.errors[1] if point.errors else None,
        )  # fmt: skip
        if not point.verdict.right:
            return common
        async with self._quiet.timing():
            await asyncio.sleep(timing_s * self._pace)
        return timed(common, point, random.Random(f"sim {target.id} {built.sha256} {seed}"))  # noqa: S311

    async def close(self) -> None:
        """Nothing is held open."""


def timed(common: Evaluation, point: Point, rng: random.Random) -> Evaluation:
    """An evaluation with times drawn from a point's blocks, judged as the real timer's are."""
    pairs: list[stats.Pair] = []
    while len(pairs) < 2 * stats.LOOKS[-1] and not stats.enough(pairs):
        pairs += rng.choice(point.blocks)
    summary = stats.summarise(pairs)
    verdict = stats.verdict(summary)
    return msgspec.structs.replace(
        common, verdict=verdict, time_us=summary.candidate_us, baseline_us=summary.baseline_us, speedup=summary.ratio,
        speedup_ci=(summary.low, summary.high), samples=tuple(pairs),
        reason=why_open(summary, None) if verdict is Verdict.INCONCLUSIVE else "",
    )  # fmt: skip


class SimConfirmer:
    """Draws once more, with another seed."""

    def __init__(self, evaluator: SimEvaluator) -> None:
        self._evaluator = evaluator

    async def confirm(self, target: Target, built: Built, node: Node, seed: int) -> Confirmation:
        """See `core.ports.Confirmer`."""
        del node
        found = await self._evaluator.evaluate(target, built, seed)
        return Confirmation(
            verdict=found.verdict, reason=found.reason, time_us=found.time_us, baseline_us=found.baseline_us,
            speedup=found.speedup, speedup_ci=found.speedup_ci, sha256=built.sha256,
            unsanitised="A recorded landscape has no kernel to run under a sanitizer.",
        )  # fmt: skip

    async def counters(self, target: Target, built: Built) -> str:
        """There are none.

        Raises:
            EnvironmentFault: always.
        """
        del target, built
        raise EnvironmentFault("A recorded landscape has no hardware counters.", "Name --device cuda:0.")

    async def close(self) -> None:
        """Nothing is held open."""


def _mistake(verdict: Verdict) -> str:
    return f"A mistake that the simulated model made: {_MISTAKES.get(verdict, 'it fails')}."
