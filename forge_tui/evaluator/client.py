"""The engine's side of evaluation: judge and runner as worker processes, and verdicts made of what they say."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from forge_tui.contract import dims
from forge_tui.core.errors import ForgeError, StoreError, WorkerDied
from forge_tui.core.paths import Workspace
from forge_tui.core.ports import TargetCheck
from forge_tui.core.records import Built, Device, Evaluation, ModelSpec, Target, Under, Verdict
from forge_tui.core.timings import Noise
from forge_tui.evaluator import confine
from forge_tui.evaluator.compiled_baseline import UNASKED, CompiledBaseline
from forge_tui.evaluator.conclude import TIMED, conclude, least_us
from forge_tui.evaluator.lease import lease
from forge_tui.evaluator.outcome import Ended, Outcome, crash, no_end
from forge_tui.evaluator.rounds import NotQuiet, Rounds
from forge_tui.evaluator.scratch import Scratch
from forge_tui.evaluator.sets import ADVERSARIAL, EXTRA_RUNS, InputSet, Kind, draw, fresh, patched, standard
from forge_tui.evaluator.sharing import SharedLease
from forge_tui.evaluator.watch import watch_for
from forge_tui.processes.child import WorkerProcess
from forge_tui.processes.quiet import Quiet
from forge_tui.processes.watch import Limits, memory_limit

#: building a large model, and references of large targets, take their time
_OPEN_S = 600.0
_JUDGE_S = 300.0
_LEASE_S = 600.0
#: a stage may take this much, and so many times what eager would need for its runs, within the evaluation's limit
_PATIENCE_S = 10.0
_PATIENCE_FACTOR = 1000.0
#: making, copying and comparing the data of a run
_BYTES_PER_S = 2e8
#: of the runner with its children; a kernel has no use for more
_MOST_THREADS = 8192
#: what a worker is given beyond the limit that it keeps itself
_GRACE_S = 10.0
_BUDGET_S = {"cpu": 1.0, "cuda": 2.0}


@dataclass(slots=True)
class _Usable:
    """What opening a target found."""

    check: TargetCheck
    kinds: frozenset[Kind]
    calls: int
    siblings: tuple[Target, ...] = ()
    """Other sizes at which a kernel must be right, those left out at which the original cannot be judged."""
    no_graph: set[str] = field(default_factory=set)
    """Sides of a timing that cannot be captured in a CUDA graph."""


class WorkerEvaluator:
    """Evaluates built candidates in worker processes, one stage at a time in the runner.

    A candidate that crashes or hangs costs its runner, never the judge, and the next candidate gets a new one. Several
    may be evaluated at once: the next one is run while the judge compares, and nothing else runs while one is timed.
    """

    def __init__(
        self, spec: ModelSpec, device: Device, workspace: Workspace, *, threads: int, seed: int, log_dir: Path,
        timeout_s: float, under: Under = "eager", compile_baseline: bool = False, patience_s: float | None = None,
        quiet: Quiet | None = None, draws: int | None = None, on_note: Callable[[str], None] = lambda _: None,
        blocks: int = 0,
    ) -> None:  # fmt: skip
        """Start nothing yet.

        With `compile_baseline` candidates are timed against the original under torch.compile too. `patience_s` is how
        long a timing waits for others' load to end; `on_note` gets a sentence where it does. `quiet` keeps compilers
        off the timing; `draws` seeds inputs where `seed`, the model's, should not. A timing has so many `blocks`, or
        for 0 as many as it takes.
        """
        self._spec = msgspec.to_builtins(spec)
        self._device = device
        self._seed = seed if draws is None else draws
        self._timeout_s = timeout_s
        self._blocks = blocks
        settings = {"artifacts": str(workspace.artifacts), "seed": seed, "threads": threads}
        judge = settings | {"device": device.name, "judge_seed": draw(self._seed, "judge")}
        runner = settings | {"device": msgspec.to_builtins(device)}
        self._judge = WorkerProcess("forge_tui.evaluator.judge", log_dir / "judge.log", args=_settings(judge))
        # a limit of address space would break CUDA; on the CPU the candidate's own process has one
        self._runner = WorkerProcess(
            "forge_tui.evaluator.runner", log_dir / "runner.log", args=_settings(runner),
            env=confine.cuda_environment(workspace.root / "cache" / "runner") if device.kind == "cuda" else None,
            limits=Limits(memory_limit(), _MOST_THREADS),
        )  # fmt: skip
        watch = watch_for(device, threads, lambda: [w.pid for w in (self._judge, self._runner) if w.pid])
        self._watch = watch
        self._rounds = Rounds(device, watch, on_note, patience_s)
        self._under: Under = under
        self._compiled = CompiledBaseline(
            device, self._spec["content_hash"], threads or device.threads, workspace, _settings(settings), log_dir,
            wanted=compile_baseline or under == "compile",
        )  # fmt: skip
        self._scratch: Scratch | None = None
        self._quiet = quiet or Quiet(exclusive=False)
        self._lease = SharedLease(lambda: lease(device, _LEASE_S))
        self._opening, self._running = asyncio.Lock(), asyncio.Lock()
        self._opened: dict[str, _Usable] = {}
        self._held: dict[str, int] = {}
        """Targets by the process id of the runner that has them."""

    async def open(self, target: Target) -> TargetCheck:
        """Prepare references for a target; idempotent. A target that cannot be judged is not usable, with the reason.

        Raises:
            ForgeError: the model cannot be built, or the device is not there.
        """
        try:
            return (await self._open(target)).check
        except (WorkerDied, StoreError) as error:
            # one target less, not the end of the session
            return TargetCheck(usable=False, reason=str(error))

    async def evaluate(self, target: Target, built: Built, seed: int) -> Evaluation:
        """Verify, then time. A fault of the candidate is a verdict; a fault of ours is `Verdict.INFRA`."""
        result = Outcome(built)
        try:
            opened = await self._open(target)
            if not opened.check.usable:
                raise Ended(Verdict.INFRA, f"{target.name} cannot be judged: {opened.check.reason}")
            if self._device.kind == "cuda":
                # a kernel that only verifies would still disturb a timing of someone else
                async with self._lease.hold():
                    await self._stages(target, opened, built, seed, result)
            else:
                await self._stages(target, opened, built, seed, result)
        except Ended as ended:
            result.fields |= {"verdict": ended.verdict, "reason": ended.reason, "log": ended.log}
        except ForgeError as error:
            log = error.log if isinstance(error, WorkerDied) else ""
            result.fields |= {"verdict": Verdict.INFRA, "reason": str(error), "log": log}
        return Evaluation(**result.fields)

    async def renew(self) -> None:
        """Have the next candidate meet a process that never held another one."""
        async with self._running:
            await self._runner.stop()

    async def write_inputs(self, target: Target, sets: list[InputSet], path: Path) -> list[list[int]]:
        """Write the tensors of some sets into a file, each from its first to its last element; returns their bytes.

        Raises:
            ForgeError: the judge cannot.
        """
        await self._open(target)
        answer = await self._judge.request(
            "inputs", _JUDGE_S, sets=msgspec.to_builtins(sets), path=str(path), **self._fields(target)
        )
        sizes: list[list[int]] = answer["sizes"]
        return sizes

    async def close(self) -> None:
        """End the worker processes and remove what they left."""
        await asyncio.gather(self._judge.stop(), self._runner.stop(), self._compiled.close(), self._watch.close())
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    # ---- stages

    async def _open(self, target: Target) -> _Usable:
        async with self._opening:
            found = self._opened.get(target.id)
            if found is None:
                async with self._quiet.working(), self._running:
                    found = await self._open_anew(target)
            return found

    async def _open_anew(self, target: Target) -> _Usable:
        fields = self._fields(target)
        answer = await self._judge.request("open", _OPEN_S, **fields)
        eager: dict[str, Any] = {}
        if answer["usable"]:
            eager = await self._ready_runner(target)
            problem = eager.get("fault") or eager.get("crashed") or ("it does not end" if "timed_out" in eager else "")
            if problem:
                answer |= {"usable": False, "reason": f"The original cannot be run on its own: {problem}."}
                await self._runner.stop()
        check = TargetCheck(
            usable=answer["usable"], reason=answer["reason"], tolerance=answer["tolerance"],
            eager_us=eager.get("eager_us"), remarks=tuple(answer["remarks"]),
        )  # fmt: skip
        kinds = frozenset(Kind(kind) for kind in answer["kinds"])
        found = _Usable(check, kinds, max(1, target.captured_calls))
        if check.usable and target.siblings:
            found = await self._open_siblings(target, found)
        self._opened[target.id] = found
        return found

    async def _open_siblings(self, target: Target, found: _Usable) -> _Usable:
        usable: list[Target] = []
        for sibling in target.siblings:
            try:
                known = self._opened.get(sibling.id) or await self._open_anew(sibling)
                check = known.check
            except StoreError as error:
                check = TargetCheck(usable=False, reason=str(error))
            if check.usable:
                usable.append(sibling)
            elif not sibling.made:
                # calls of this size will come, and their results could not be told from wrong ones
                reason = f"At {dims.words(target, sibling)}: {check.reason}"
                return dataclasses.replace(found, check=msgspec.structs.replace(check, reason=reason))
        return dataclasses.replace(found, siblings=tuple(usable))

    async def _ready_runner(self, target: Target) -> dict[str, Any]:
        """Have the runner that lives hold the target; nothing where it already does."""
        if self._runner.running and self._held.get(target.id) == self._runner.pid:
            return {}
        # a runner that follows a crashed one should be there soon, and may never need the tracer
        answer = await self._ask_runner(
            "open", _OPEN_S, limit_s=_OPEN_S - _GRACE_S, warm=not self._held, **self._fields(target)
        )
        self._held[target.id] = self._runner.pid
        return answer

    async def _ask_runner(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """A request to the runner, which goes where its CUDA context was lost: it would refuse all that comes."""
        reply = await self._runner.request(op, timeout_s, **fields)
        if "crashed" in reply and self._device.kind == "cuda":
            await self._runner.stop()
        return reply

    async def _stages(self, target: Target, opened: _Usable, built: Built, seed: int, result: Outcome) -> None:
        with result.spending("verify_s"):
            await self._verify(target, opened, built, seed, result)
            for sibling in opened.siblings:
                await self._verify_at(target, sibling, built, seed, result)
        if self._under == "compile":
            await self._compile(target, opened, result)
        await self._time_leased(target, opened, built, seed, result)
        if result.fields["timings"].missing.get("compile") != UNASKED:
            return
        # against eager alone; where the other baseline decides, its runner was taken along by another candidate
        if result.fields["verdict"] is not Verdict.FASTER and self._under != "compile":
            return
        if await self._compile(target, opened, result):
            # once for a target: from now on the compiled original is there from the start
            await self._time_again(target, opened, built, seed, result)
            return
        missing = self._compiled.missing(target, self._runner.pid)
        result.fields["timings"] = msgspec.structs.replace(result.fields["timings"], missing=missing)

    async def _time_again(self, target: Target, opened: _Usable, built: Built, seed: int, result: Outcome) -> None:
        """Time beside the compiled original; where that fails through us, what was found before it came stands."""
        before = dict(result.fields)
        try:
            await self._time_leased(target, opened, built, seed, result)
        except Ended as ended:
            if ended.verdict is not Verdict.INFRA or self._under == "compile":
                for name in TIMED:
                    result.fields.pop(name, None)
                raise
            spent = result.fields["timing_s"]
            result.fields.clear()
            result.fields |= before | {"timing_s": spent}
            missing = {"compile": ended.reason}
            result.fields["timings"] = msgspec.structs.replace(before["timings"], missing=missing)

    async def _time_leased(self, target: Target, opened: _Usable, built: Built, seed: int, result: Outcome) -> None:
        # on a GPU the whole evaluation has the lease
        leased = self._lease.hold() if self._device.kind == "cpu" else contextlib.nullcontext()
        async with leased:
            with result.spending("timing_s"):
                await self._time(target, opened, built, seed, result)

    async def _verify(self, target: Target, opened: _Usable, built: Built, seed: int, result: Outcome) -> None:
        usual = [s for s in standard(opened.calls, self._seed) if s.kind in opened.kinds]
        own = [s for s in fresh(opened.calls, seed) if s.kind in opened.kinds]
        # what is simply wrong is best told on ordinary inputs, so the odd ones come last
        sets = sorted([*usual, *patched(own, seed)], key=lambda s: (s.kind in ADVERSARIAL, s.kind is not Kind.CAPTURED))
        keep = [i for i, which in enumerate(sets) if which in usual]
        limit_s = self._limit_s(target, opened, len(sets) + EXTRA_RUNS, len(sets) + EXTRA_RUNS)
        with self._file("verify") as path:
            reply = await self._run("verify", target, built, sets, path, limit_s, result, "verified", keep=keep)
            await self._compare(target, path, reply["runs"], result)

    async def _verify_at(self, target: Target, sibling: Target, built: Built, seed: int, result: Outcome) -> None:
        """The same file on calls of another size; on ordinary inputs, the odd ones are for the target's own size."""
        opened = await self._open(sibling)
        opened = dataclasses.replace(opened, kinds=opened.kinds - set(ADVERSARIAL))
        try:
            await self._verify(sibling, opened, built.at(sibling), draw(seed, sibling.id), result)
        except Ended as ended:
            ended.reason = f"At {dims.words(target, sibling)}: {ended.reason}"
            raise

    async def _time(self, target: Target, opened: _Usable, built: Built, seed: int, result: Outcome) -> None:
        # two at least: FRESH is in every usable target
        sets = [s for s in fresh(opened.calls, draw(seed, "timing")) if s.kind in opened.kinds]
        limit_s = self._limit_s(target, opened, 100, 20)
        missing: dict[str, str] = {}

        def asked() -> dict[str, Any]:
            """What depends on the runner that lives when its turn has come."""
            nonlocal missing
            missing = self._compiled.missing(target, self._runner.pid)
            return {"compiled": not missing, "no_graph": sorted(opened.no_graph)}

        async def once() -> dict[str, Any]:
            with self._file("time") as path:
                reply = await self._run_alone(
                    "time", target, built, sets, path, limit_s, result, "timed", asked,
                    budget_s=_BUDGET_S[self._device.kind], under=self._under, blocks=self._blocks,
                )  # fmt: skip
                runs = [{"which": k["which"], "slot": k["slot"], "poison": 0xFF, "condition": "in a timed call"}
                        for k in reply["kept"]]  # fmt: skip
                await self._judged(target, path, runs, result)
            opened.no_graph.update(reply.get("no_graph", ()))
            if reply.get("retire"):
                await self.renew()
            return reply

        def conclude_(reply: dict[str, Any], noise: Noise | None) -> dict[str, Any]:
            return conclude(target, reply, kind=self._device.kind, under=self._under, missing=missing, noise=noise,
                            least_us=least_us(target, self._device))  # fmt: skip

        try:
            # waiting for others to be quiet included: what of ours would run meanwhile would be taken for theirs
            async with self._turn(result, timing=True):
                reply, noise = await self._rounds.run(
                    once, lambda reply: conclude_(reply, None)["verdict"] in (Verdict.SLOWER, Verdict.REJECTED)
                )
        except NotQuiet as busy:
            raise Ended(Verdict.INFRA, str(busy)) from None
        result.fields |= conclude_(reply, noise)

    async def _compile(self, target: Target, opened: _Usable, result: Outcome) -> bool:
        """Have the compiled original in the runner, checked by the judge; whether it has just come there."""
        if not self._compiled.lacking(target, self._runner.pid):
            return False
        sets = [s for s in (*standard(1, self._seed)[:1], *fresh(1, self._seed)) if s.kind in opened.kinds]
        limit_s = _OPEN_S - _GRACE_S

        async def make(**fields: Any) -> str:
            """Load or compile in the runner; why it is no baseline, or nothing."""
            with self._file("compile") as path:
                reply = await self._ask_runner("compile", _OPEN_S, sets=msgspec.to_builtins(sets), path=str(path),
                                               limit_s=limit_s, **fields, **self._fields(target))  # fmt: skip
                if "runs" not in reply:
                    return str(reply.get("fault") or reply.get("crashed") or "it does not end")
                answer = await self._judge.request("compare", _JUDGE_S, runs=reply["runs"], path=str(path),
                                                   **self._fields(target))  # fmt: skip
                wrong = answer["wrong"]
                return f"it gives other results: {wrong}" if wrong else ""

        async with self._turn(result), self._running:
            await self._ready_runner(target)
            return await self._compiled.ensure(target, self._fields(target), make, lambda: self._runner.pid)

    # ---- one request

    async def _run(
        self, op: str, target: Target, built: Built, sets: list[InputSet], path: Path, limit_s: float, result: Outcome,
        doing: str, **fields: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """A stage in the runner, beside others' comparisons; a candidate's fault ends the evaluation."""
        async with self._turn(result):
            return await self._run_alone(op, target, built, sets, path, limit_s, result, doing, dict, **fields)

    async def _run_alone(
        self, op: str, target: Target, built: Built, sets: list[InputSet], path: Path, limit_s: float, result: Outcome,
        doing: str, asked: Callable[[], dict[str, Any]], **fields: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """A stage in the runner, which holds the target; `asked` adds fields that depend on the runner that lives."""
        begun = time.monotonic()
        async with self._running:
            # whether a new runner comes up has nothing to do with the candidate
            await self._ready_runner(target)
            result.waited_s += time.monotonic() - begun
            return await self._run_now(op, target, built, sets, path, limit_s, doing, **fields, **asked())

    @contextlib.asynccontextmanager
    async def _turn(self, result: Outcome, *, timing: bool = False) -> AsyncIterator[None]:
        """Wait until the device may be used so; what others take of it is no time of this candidate."""
        asked = time.monotonic()
        async with self._quiet.timing() if timing else self._quiet.working():
            result.waited_s += time.monotonic() - asked
            yield

    async def _run_now(
        self, op: str, target: Target, built: Built, sets: list[InputSet], path: Path, limit_s: float, doing: str,
        **fields: Any,
    ) -> dict[str, Any]:  # fmt: skip
        message = self._fields(target) | {
            "built": msgspec.to_builtins(built), "sets": msgspec.to_builtins(sets), "path": str(path),
            "limit_s": limit_s,
        } | fields  # fmt: skip
        # the CPU runner keeps the limit itself; on CUDA the process has to go
        grace = _GRACE_S if self._device.kind == "cpu" else 0.0
        try:
            reply = await self._ask_runner(op, limit_s + grace, **message)
        except WorkerDied as error:
            if error.timed_out:
                raise Ended(Verdict.TIMED_OUT, no_end(doing, limit_s), error.log) from None
            raise Ended(Verdict.CRASHED, f"The process ended while it was {doing}: {error.what}", error.log) from None
        if "timed_out" in reply:
            raise Ended(Verdict.TIMED_OUT, no_end(doing, limit_s))
        if "fault" in reply:
            reason = f"The kernel could not be {doing}: {reply['fault'].rstrip('.')}."
            raise Ended(Verdict.INFRA, reason, self._runner.log_tail())
        if "crashed" in reply:
            raise Ended(Verdict.CRASHED, crash(reply["crashed"], doing), self._runner.log_tail())
        if "rejected" in reply:
            raise Ended(Verdict.REJECTED, reply["rejected"])
        return reply

    async def _compare(self, target: Target, path: Path, runs: list[Any], result: Outcome) -> None:
        async with self._turn(result):
            await self._judged(target, path, runs, result)

    async def _judged(self, target: Target, path: Path, runs: list[Any], result: Outcome) -> None:
        answer = await self._judge.request("compare", _JUDGE_S, runs=runs, path=str(path), **self._fields(target))
        for name in ("max_abs_error", "error_vs_eager"):
            if answer[name] is not None:
                result.fields[name] = max(answer[name], result.fields.get(name) or 0.0)
        if answer["wrong"]:
            raise Ended(Verdict.REJECTED, answer["wrong"])
        if not answer["judged"]:
            raise Ended(Verdict.INFRA, "The original gives no results to judge by on this evaluation's inputs.")

    def _limit_s(self, target: Target, opened: _Usable, runs: int, data_runs: int) -> float:
        """Seconds for a stage of so many calls, of which so many come with data of their own."""
        calling = _PATIENCE_FACTOR * runs * (opened.check.eager_us or 0.0) / 1e6
        specs = [i.spec for i in target.signature.inputs] + [o.spec for o in target.signature.outputs]
        size = sum(spec.nbytes for spec in specs)
        return min(self._timeout_s, _PATIENCE_S + calling + data_runs * size / _BYTES_PER_S)

    def _fields(self, target: Target) -> dict[str, Any]:
        # the workers need neither source nor graph
        slim = msgspec.structs.replace(target, graph=None, source="", siblings=())
        return {"target": msgspec.to_builtins(slim), "spec": self._spec}

    @contextlib.contextmanager
    def _file(self, stem: str) -> Iterator[Path]:
        if self._scratch is None:
            self._scratch = Scratch()
        # a CUDA kernel has no host code that could read what another one left
        with self._scratch.lent(stem, keep=self._device.kind == "cuda") as path:
            yield path


def _settings(values: dict[str, Any]) -> tuple[str, str]:
    return "--settings", json.dumps(values)
