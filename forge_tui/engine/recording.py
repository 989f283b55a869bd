"""Recording a landscape: every point of the template grid through the real compiler, judge and timer."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

import forge_tui
from forge_tui.contract import directives
from forge_tui.core import landscapes
from forge_tui.core.errors import EnvironmentFault, UsageError
from forge_tui.core.landscapes import Point, RecordedLandscape, RecordedSource, RecordedTarget
from forge_tui.core.paths import Workspace
from forge_tui.core.ports import Compiler, Evaluator, TargetCheck
from forge_tui.core.profiles import Profile
from forge_tui.core.records import CompileFailure, Device, Evaluation, Record, RunOptions, Target, Verdict
from forge_tui.core.words import count
from forge_tui.engine.check import pick_target
from forge_tui.engine.journal import Journal
from forge_tui.engine.pipeline import binary_key, compiles_ahead, steps_at_once
from forge_tui.engine.profiles import profile_cached
from forge_tui.engine.rooms import Rooms
from forge_tui.processes.quiet import Quiet
from forge_tui.proposers.templates import proposer as templates
from forge_tui.proposers.templates.expr import Unfit
from forge_tui.proposers.templates.wider import widened

#: settings of all sources of a target together, unless the templates themselves have more
MOST_POINTS = 1000
_INFRA_TRIES = 2
#: so many points in a row that failed through us end a recording
_INFRA_LIMIT = 4
_SAY_EVERY_S = 10.0
#: hexadecimal digits by which machine code is told apart
_CODE_DIGITS = 16

#: index of a source, and its setting
Place = tuple[int, tuple[int, ...]]


class RecordingRooms(Rooms, Protocol):
    """Rooms with an evaluator for recordings."""

    def recorder(self, device: Device, quiet: Quiet) -> Evaluator:
        """An evaluator that times a few blocks against eager alone."""


class Recorded(Record, frozen=True, kw_only=True):
    """What a recording came to."""

    output: str
    points: int
    """In the file, those of earlier recordings included."""
    new: int
    grid: int
    complete: bool
    verdicts: dict[str, int]
    best: dict[str, float]
    """Largest median speedup by name of target."""
    seconds: float
    reason: str = ""
    """Why it is not complete."""


@dataclass(slots=True)
class _Work:
    """One target on the way."""

    target: Target
    sources: tuple[RecordedSource, ...]
    check: TargetCheck = field(default_factory=lambda: TargetCheck(usable=False))
    points: dict[Place, Point] = field(default_factory=dict)
    order: dict[Place, int] = field(default_factory=dict)
    """Every place of the grid with a number of its own, in the order in which they are recorded."""


def sources_of(target: Target, device: Device) -> tuple[RecordedSource, ...]:
    """What the templates write for a target, in the order in which they propose it."""
    fit = templates.fits(target, device)
    found: list[RecordedSource] = []
    for variant, idea in fit.variants:
        with contextlib.suppress(Unfit):
            text = templates.write(target, device, variant)
            text = widened(text, device.language, MOST_POINTS // len(fit.variants))
            tunes = {tune.name: tune.values for tune in directives.parse(text).tunes}
            found.append(RecordedSource(family=f"template:{fit.family}/{variant}", idea=idea, text=text,
                                        tunables=tunes))  # fmt: skip
    return tuple(found)


def grid_of(sources: Sequence[RecordedSource]) -> list[Place]:
    """Every (source, setting): the defaults first, then all others in an order in which any part is an even sample."""
    every = [
        (index, setting) for index, source in enumerate(sources)
        for setting in itertools.product(*source.tunables.values())
    ]  # fmt: skip

    def rank(place: Place) -> tuple[bool, str]:
        index, setting = place
        default = setting == tuple(values[0] for values in sources[index].tunables.values())
        return not default, f"{index:03}" if default else hashlib.sha256(repr(place).encode()).hexdigest()

    return sorted(every, key=rank)


class _Bench:
    """Compiles and evaluates points, each machine code of a target once."""

    def __init__(self, compiler: Compiler, evaluator: Evaluator, quiet: Quiet, device: Device) -> None:
        self._compiler = compiler
        self._evaluator = evaluator
        self._quiet = quiet
        self._ahead = asyncio.Semaphore(compiles_ahead(device))
        self._evaluating = asyncio.Semaphore(steps_at_once(device))
        self._claimed: dict[tuple[str, str], Place] = {}

    def know(self, work: _Work) -> None:
        """Take in what an earlier recording found."""
        for place, point in work.points.items():
            if point.verdict is not Verdict.DUPLICATE and point.code:
                self._claimed.setdefault((work.target.id, point.code), place)

    async def run(
        self, work: _Work, place: Place, source: str, tunables: dict[str, int], seed: int
    ) -> tuple[Evaluation, str]:
        """The verdict on a point, and what tells its machine code from others'."""
        async with self._ahead, self._quiet.compiling():
            built = await self._compiler.build(work.target, source, tunables)
        if isinstance(built, CompileFailure):
            return Evaluation(verdict=built.verdict, reason=built.reason, compile_s=built.compile_s), ""
        code = binary_key(built.sha256, built.plan, built.plans)[:_CODE_DIGITS]
        claim = work.target.id, code
        if self._claimed.setdefault(claim, place) != place:
            return Evaluation(verdict=Verdict.DUPLICATE, compile_s=built.compile_s), code
        async with self._evaluating:
            found = await self._evaluator.evaluate(work.target, built, seed)
        if found.verdict is Verdict.INFRA:
            del self._claimed[claim]
        return found, code


class Recording:
    """Records the targets of one model into one file. `say` gets lines of progress."""

    def __init__(
        self, rooms: RecordingRooms, options: RunOptions, workspace: Workspace, output: Path,
        say: Callable[[str], None], *, limit: int | None = None,
    ) -> None:  # fmt: skip
        """Take where to, and at most how many new points; the time limit and the targets are in the options."""
        self._rooms = rooms
        self._options = options
        self._workspace = workspace
        self._output = output
        self._say = say
        self._limit = limit
        self._started = self._said = time.monotonic()
        self.new = 0
        """Points that this recording added, those in flight included."""
        self._infra = 0
        self._reason = ""

    async def run(self) -> Recorded:
        """Record until the grid is done, a limit is reached, or it is cancelled: what there is is kept in all cases.

        Raises:
            UsageError: no template fits, or the file is of another recording.
            EnvironmentFault: a target cannot be judged, or evaluations fail for reasons outside the kernels.
        """
        self._rooms.check_tools()
        profile = await profile_cached(self._rooms, self._options, self._workspace)
        works = self._choose(profile)
        key = self._key(profile.device, works)
        earlier = self._earlier(key, works)
        journal = Journal(self._output, key)
        complete = False
        try:
            self._take_in(works, [*earlier, *journal.points])
            await self._evaluate(profile.device, works, journal)
            complete = not self._left(works)
        finally:
            self._write(profile, works, key)
            journal.close(remove=complete)
        return self._summary(works)

    # ---- what there is to do

    def _choose(self, profile: Profile) -> list[_Work]:
        device, names = profile.device, self._options.target_names
        if names:
            chosen = list({t.id: t for t in (pick_target(profile, name) for name in names)}.values())
        else:
            ranked = sorted(profile.targets, key=lambda t: t.headroom_ms, reverse=True)
            chosen = [t for t in ranked if templates.fits(t, device)][:1]
            if not chosen:
                raise UsageError("No template fits a target of this model.", "forge-tui profile says why.")
        works = [_Work(target, sources_of(target, device)) for target in chosen]
        for work in works:
            if not work.sources:
                why = templates.fits(work.target, device).reason
                raise UsageError(f"No template fits {work.target.name}: {why}.", "Name another --target.")
            work.order = {place: number for number, place in enumerate(grid_of(work.sources), 1)}
        return works

    def _key(self, device: Device, works: Sequence[_Work]) -> str:
        model = msgspec.to_builtins(self._options.model) | {"text": "", "path": ""}
        what = [model, device.identity, self._options.seed,
                [(w.target.id, [(s.family, s.text) for s in w.sources]) for w in works]]  # fmt: skip
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]

    def _earlier(self, key: str, works: Sequence[_Work]) -> list[tuple[int, Point]]:
        """Points of the file that is there already."""
        if not self._output.exists():
            return []
        known = landscapes.read(self._output)
        if known.key != key:
            raise UsageError(
                f"{self._output} is another recording (model, target, device or templates differ).",
                "Name another --output, or remove it.",
            )
        for work, recorded in zip(works, known.targets, strict=True):
            work.check = recorded.check
        return [(number, point) for number, recorded in enumerate(known.targets) for point in recorded.points]

    def _take_in(self, works: Sequence[_Work], found: Sequence[tuple[int, Point]]) -> None:
        for number, point in found:
            works[number].points[point.source, point.setting] = point
        for work in works:
            work.points = {(p.source, p.setting): p for p in _settled(work)}
        kept = sum(len(work.points) for work in works)
        if kept:
            self._say(f"{count(kept, 'point is', 'points are')} recorded already.")

    def _left(self, works: Sequence[_Work]) -> int:
        return sum(len(work.order) - len(_settled(work)) for work in works)

    # ---- evaluating

    async def _evaluate(self, device: Device, works: Sequence[_Work], journal: Journal) -> None:
        if not self._left(works) and all(work.check.usable for work in works):
            return
        quiet = Quiet(exclusive=device.kind == "cpu")
        evaluator = self._rooms.recorder(device, quiet)
        bench = _Bench(self._rooms.compiler(device), evaluator, quiet, device)
        try:
            for work in works:
                await self._open(evaluator, work)
            for number, work in enumerate(works):
                bench.know(work)
                todo = iter([place for place in work.order if place not in work.points])
                left = len(work.order) - len(work.points)
                self._say(f"{work.target.name}: {count(len(work.order), 'point')}, {left} to do.")
                async with asyncio.TaskGroup() as group:
                    for _ in range(compiles_ahead(device) + steps_at_once(device)):
                        group.create_task(self._worker(number, work, todo, bench, journal))
        except ExceptionGroup as faults:
            raise faults.exceptions[0] from None
        finally:
            await evaluator.close()

    async def _open(self, evaluator: Evaluator, work: _Work) -> None:
        work.check = await evaluator.open(work.target)
        if not work.check.usable:
            raise EnvironmentFault(f"{work.target.name} cannot be judged: {work.check.reason}")

    async def _worker(
        self, number: int, work: _Work, todo: Iterator[Place], bench: _Bench,
        journal: Journal,
    ) -> None:  # fmt: skip
        for place in todo:
            self._reason = self._limit_reached()
            if self._reason:
                return
            self.new += 1
            found, code = await self._one(work, place, bench)
            if found.verdict is Verdict.INFRA:
                self.new -= 1
                self._infra += 1
                self._say(f"{_words(work, place)} is left for later: {found.reason}")
                if self._infra >= _INFRA_LIMIT:
                    raise EnvironmentFault(f"The last {_INFRA_LIMIT} points failed for reasons outside the kernels: "
                                           f"{found.reason}", "The same command goes on.")  # fmt: skip
                continue
            if code and found.verdict is not Verdict.DUPLICATE:
                # it was evaluated
                self._infra = 0
            point = landscapes.point_of(*place, found, code)
            journal.add(number, point)
            work.points[place] = point
            self._progress(work)

    async def _one(self, work: _Work, place: Place, bench: _Bench) -> tuple[Evaluation, str]:
        source = work.sources[place[0]]
        tunables = dict(zip(source.tunables, place[1], strict=True))
        for attempt in range(_INFRA_TRIES):
            seed = (self._options.seed * 1_000_003 + work.order[place] * 101 + attempt) % 2**31
            found, code = await bench.run(work, place, source.text, tunables, seed)
            if found.verdict is not Verdict.INFRA:
                break
        return found, code

    def _limit_reached(self) -> str:
        if self._limit is not None and self.new >= self._limit:
            return f"the limit of {count(self._limit, 'point')} is reached"
        if time.monotonic() - self._started >= self._options.max_minutes * 60:
            unit = "minute" if self._options.max_minutes == 1 else "minutes"
            return f"the limit of {self._options.max_minutes:g} {unit} is reached"
        return ""

    def _progress(self, work: _Work) -> None:
        now, done, every = time.monotonic(), len(work.points), len(work.order)
        if now - self._said < _SAY_EVERY_S and done < every:
            return
        self._said = now
        rate = (now - self._started) / max(1, self.new)
        self._say(f"{work.target.name}: {done} of {every} points, {rate:.1f} s each, best {_best(work):.2f}x")

    # ---- the end

    def _write(self, profile: Profile, works: Sequence[_Work], key: str) -> None:
        """The landscape as far as it is, in the place of an earlier one."""
        if not any(_settled(work) for work in works) or not all(work.check.usable for work in works):
            # interrupted before the targets were opened: the journal has what there is
            return
        device = msgspec.structs.replace(profile.device, uuid="")
        content = landscapes.encode(RecordedLandscape(
            model=_name(self._options), model_ms=profile.model_ms, device=device, program=forge_tui.__version__,
            recorded=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d"), key=key,
            targets=tuple(
                RecordedTarget(target=msgspec.structs.replace(w.target, capture="", siblings=()), check=w.check,
                               sources=w.sources, points=_settled(w), grid=len(w.order))
                for w in works
            ),
        ))  # fmt: skip
        temporary = self._output.with_name(f"{self._output.name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(content)
            temporary.replace(self._output)
        except OSError as error:
            raise EnvironmentFault(f"{self._output} cannot be written: {error.strerror or error}.",
                                   "Free space there; the same command goes on.") from error  # fmt: skip
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _summary(self, works: Sequence[_Work]) -> Recorded:
        points = [point for work in works for point in _settled(work)]
        left = self._left(works)
        return Recorded(
            output=str(self._output), points=len(points), new=self.new, grid=sum(len(w.order) for w in works),
            complete=not left, verdicts=dict(Counter(str(p.verdict) for p in points)),
            best={w.target.name: _best(w) for w in works}, seconds=time.monotonic() - self._started,
            reason=(self._reason or "some points could not be evaluated") if left else "",
        )  # fmt: skip


def _settled(work: _Work) -> tuple[Point, ...]:
    """Points whose verdict stands, in the order of the grid: a duplicate of a point that failed through us has none."""
    known = {p.code for p in work.points.values() if p.verdict is not Verdict.DUPLICATE}
    found = [work.points[place] for place in sorted(work.points)]
    return tuple(p for p in found if p.verdict is not Verdict.DUPLICATE or p.code in known)


def _best(work: _Work) -> float:
    return max((landscapes.speedup(p) for p in work.points.values() if p.samples), default=0.0)


def _words(work: _Work, place: Place) -> str:
    source = work.sources[place[0]]
    settings = [f"{name}={value}" for name, value in zip(source.tunables, place[1], strict=True)]
    return " ".join([source.family, *settings])


def _name(options: RunOptions) -> str:
    """The model's name without the folders that it lies in."""
    text = options.model.text
    return text if text.startswith(("example:", "hf:")) and not text.startswith("hf:/") else text.rpartition("/")[2]
