"""The engine's side of evaluation: judge and runner as worker processes, and verdicts made of what they say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from forge_tui.core.errors import ForgeError, StoreError, WorkerDied
from forge_tui.core.paths import Workspace
from forge_tui.core.ports import TargetCheck
from forge_tui.core.records import Built, Device, Evaluation, ModelSpec, Target, Verdict
from forge_tui.evaluator import stats
from forge_tui.evaluator.lease import lease
from forge_tui.evaluator.sandbox import FORGED
from forge_tui.evaluator.scratch import Scratch
from forge_tui.evaluator.sets import ADVERSARIAL, EXTRA_RUNS, InputSet, Kind, draw, fresh, standard
from forge_tui.processes.child import WorkerProcess

#: building a large model, and references of large targets, take their time
_OPEN_S = 600.0
_JUDGE_S = 300.0
_LEASE_S = 600.0
#: a stage may take this much, and so many times what eager would need for its runs, within the evaluation's limit
_PATIENCE_S = 10.0
_PATIENCE_FACTOR = 1000.0
#: making, copying and comparing the data of a run
_BYTES_PER_S = 2e8
#: what a worker is given beyond the limit that it keeps itself
_GRACE_S = 10.0
_BUDGET_S = {"cpu": 1.0, "cuda": 2.0}
#: below this part of the floor a time is not believed
_BELOW_FLOOR = {"cpu": 0.25, "cuda": 0.7}


@dataclass(slots=True)
class _Usable:
    """What opening a target found."""

    check: TargetCheck
    kinds: frozenset[Kind]
    calls: int


class _Ended(Exception):
    """Carries the verdict out of a stage."""

    def __init__(self, verdict: Verdict, reason: str, log: str = "", **found: Any) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason
        self.log = log
        self.found = found


class WorkerEvaluator:
    """Evaluates built candidates in worker processes, one at a time.

    A candidate that crashes or hangs costs its runner, never the judge, and the next candidate gets a new one.
    """

    def __init__(
        self, spec: ModelSpec, device: Device, workspace: Workspace, *, threads: int, seed: int, log_dir: Path,
        timeout_s: float,
    ) -> None:  # fmt: skip
        self._spec = msgspec.to_builtins(spec)
        self._device = device
        self._seed = seed
        self._timeout_s = timeout_s
        settings = {"artifacts": str(workspace.artifacts), "seed": seed, "threads": threads}
        judge = settings | {"device": device.name, "judge_seed": draw(seed, "judge")}
        runner = settings | {"device": msgspec.to_builtins(device)}
        self._judge = WorkerProcess("forge_tui.evaluator.judge", log_dir / "judge.log", args=_settings(judge))
        self._runner = WorkerProcess("forge_tui.evaluator.runner", log_dir / "runner.log", args=_settings(runner))
        self._scratch: Scratch | None = None
        self._lock = asyncio.Lock()
        self._opened: dict[str, _Usable] = {}
        self._held: dict[str, int] = {}
        """Targets by the process id of the runner that has them."""

    async def open(self, target: Target) -> TargetCheck:
        """Prepare references for a target; idempotent. A target that cannot be judged is not usable, with the reason.

        Raises:
            ForgeError: the model cannot be built, or the device is not there.
        """
        async with self._lock:
            try:
                return (await self._open(target)).check
            except (WorkerDied, StoreError) as error:
                # one target less, not the end of the session
                return TargetCheck(usable=False, reason=str(error))

    async def evaluate(self, target: Target, built: Built, seed: int) -> Evaluation:
        """Verify, then time. A fault of the candidate is a verdict; a fault of ours is `Verdict.INFRA`."""
        async with self._lock:
            result = _Result(built)
            try:
                opened = await self._open(target)
                if not opened.check.usable:
                    raise _Ended(Verdict.INFRA, f"{target.name} cannot be judged: {opened.check.reason}")
                if self._device.kind == "cuda":
                    # a kernel that only verifies would still disturb a timing of someone else
                    async with lease(self._device, _LEASE_S):
                        await self._stages(target, opened, built, seed, result)
                else:
                    await self._stages(target, opened, built, seed, result)
            except _Ended as ended:
                result.fields |= {"verdict": ended.verdict, "reason": ended.reason, "log": ended.log, **ended.found}
            except ForgeError as error:
                log = error.log if isinstance(error, WorkerDied) else ""
                result.fields |= {"verdict": Verdict.INFRA, "reason": str(error), "log": log}
            return Evaluation(**result.fields)

    async def close(self) -> None:
        """End the worker processes and remove what they left."""
        await asyncio.gather(self._judge.stop(), self._runner.stop())
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    # ---- stages

    async def _open(self, target: Target) -> _Usable:
        found = self._opened.get(target.id)
        if found is not None:
            return found
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
        found = self._opened[target.id] = _Usable(check, kinds, max(1, target.captured_calls))
        return found

    async def _ready_runner(self, target: Target) -> dict[str, Any]:
        """Have the runner that lives hold the target; nothing where it already does."""
        if self._runner.running and self._held.get(target.id) == self._runner.pid:
            return {}
        answer = await self._runner.request("open", _OPEN_S, limit_s=_OPEN_S - _GRACE_S, **self._fields(target))
        self._held[target.id] = self._runner.pid
        return answer

    async def _stages(self, target: Target, opened: _Usable, built: Built, seed: int, result: _Result) -> None:
        # whether a new runner comes up has nothing to do with the candidate
        await self._ready_runner(target)
        started = time.monotonic()
        try:
            await self._verify(target, opened, built, seed, result)
        finally:
            result.fields["verify_s"] = time.monotonic() - started
        started = time.monotonic()
        try:
            if self._device.kind == "cpu":
                async with lease(self._device, _LEASE_S):
                    await self._time(target, opened, built, seed, result)
            else:
                await self._time(target, opened, built, seed, result)
        finally:
            result.fields["timing_s"] = time.monotonic() - started

    async def _verify(self, target: Target, opened: _Usable, built: Built, seed: int, result: _Result) -> None:
        usual = [s for s in standard(opened.calls, self._seed) if s.kind in opened.kinds]
        own = [s for s in fresh(opened.calls, seed) if s.kind in opened.kinds]
        # what is simply wrong is best told on ordinary inputs, so the odd ones come last
        sets = sorted([*usual, *own], key=lambda s: (s.kind in ADVERSARIAL, s.kind is not Kind.CAPTURED))
        keep = [i for i, which in enumerate(sets) if which in usual]
        limit_s = self._limit_s(target, opened, len(sets) + EXTRA_RUNS, len(sets) + EXTRA_RUNS)
        with self._file("verify") as path:
            reply = await self._run("verify", target, built, sets, path, limit_s, "verified", keep=keep)
            await self._compare(target, path, reply["runs"], result)

    async def _time(self, target: Target, opened: _Usable, built: Built, seed: int, result: _Result) -> None:
        # two at least: FRESH is in every usable target
        sets = [s for s in fresh(opened.calls, draw(seed, "timing")) if s.kind in opened.kinds]
        limit_s = self._limit_s(target, opened, 100, 20)
        with self._file("time") as path:
            reply = await self._run("time", target, built, sets, path, limit_s, "timed",
                                    budget_s=_BUDGET_S[self._device.kind])  # fmt: skip
            runs = [{"which": k["which"], "slot": k["slot"], "poison": 0xFF, "condition": "in a timed call"}
                    for k in reply["kept"]]  # fmt: skip
            await self._compare(target, path, runs, result)
        self._conclude(target, [(a, b) for a, b in reply["pairs"]], result)

    def _conclude(self, target: Target, pairs: list[stats.Pair], result: _Result) -> None:
        summary = stats.summarise(pairs)
        verdict = stats.verdict(summary)
        reason = ""
        least = _least_us(target, self._device)
        if summary.candidate_us < least:
            verdict = Verdict.REJECTED
            reason = (f"Faster than the hardware allows: {summary.candidate_us:.3g} us, where moving its "
                      f"{target.bytes_moved} bytes takes {target.floor_us:.3g} us.")  # fmt: skip
        elif verdict is Verdict.INCONCLUSIVE:
            reason = f"The interval {summary.low:.3f} to {summary.high:.3f} does not say which is faster."
        result.fields |= {
            "verdict": verdict, "reason": reason, "time_us": summary.candidate_us, "baseline_us": summary.baseline_us,
            "speedup": summary.ratio, "speedup_ci": (summary.low, summary.high), "samples": tuple(pairs),
        }  # fmt: skip

    # ---- one request

    async def _run(
        self, op: str, target: Target, built: Built, sets: list[InputSet], path: Path, limit_s: float, doing: str,
        **fields: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """A stage in the runner; a candidate's fault ends the evaluation."""
        message = self._fields(target) | {
            "built": msgspec.to_builtins(built), "sets": msgspec.to_builtins(sets), "path": str(path),
            "limit_s": limit_s,
        } | fields  # fmt: skip
        # the CPU runner keeps the limit itself; on CUDA the process has to go
        grace = _GRACE_S if self._device.kind == "cpu" else 0.0
        try:
            reply = await self._runner.request(op, limit_s + grace, **message)
        except WorkerDied as error:
            if error.timed_out:
                raise _Ended(Verdict.TIMED_OUT, _no_end(doing, limit_s), error.log) from None
            raise _Ended(Verdict.CRASHED, f"The process ended while it was {doing}: {error.what}", error.log) from None
        if "timed_out" in reply:
            raise _Ended(Verdict.TIMED_OUT, _no_end(doing, limit_s))
        if "fault" in reply:
            reason = f"The kernel could not be {doing}: {reply['fault'].rstrip('.')}."
            raise _Ended(Verdict.INFRA, reason, self._runner.log_tail())
        if "crashed" in reply:
            if self._device.kind == "cuda":
                # the context is lost with the kernel
                await self._runner.stop()
            raise _Ended(Verdict.CRASHED, _crash(reply["crashed"], doing), self._runner.log_tail())
        if "rejected" in reply:
            raise _Ended(Verdict.REJECTED, reply["rejected"])
        return reply

    async def _compare(self, target: Target, path: Path, runs: list[Any], result: _Result) -> None:
        answer = await self._judge.request("compare", _JUDGE_S, runs=runs, path=str(path), **self._fields(target))
        for name in ("max_abs_error", "error_vs_eager"):
            if answer[name] is not None:
                result.fields[name] = max(answer[name], result.fields.get(name) or 0.0)
        if answer["wrong"]:
            raise _Ended(Verdict.REJECTED, answer["wrong"])
        if not answer["judged"]:
            raise _Ended(Verdict.INFRA, "No output could be compared.")

    def _limit_s(self, target: Target, opened: _Usable, runs: int, data_runs: int) -> float:
        """Seconds for a stage of so many calls, of which so many come with data of their own."""
        calling = _PATIENCE_FACTOR * runs * (opened.check.eager_us or 0.0) / 1e6
        specs = [i.spec for i in target.signature.inputs] + [o.spec for o in target.signature.outputs]
        size = sum(spec.nbytes for spec in specs)
        return min(self._timeout_s, _PATIENCE_S + calling + data_runs * size / _BYTES_PER_S)

    def _fields(self, target: Target) -> dict[str, Any]:
        # the workers need neither source nor graph
        slim = msgspec.structs.replace(target, graph=None, source="")
        return {"target": msgspec.to_builtins(slim), "spec": self._spec}

    @contextlib.contextmanager
    def _file(self, stem: str) -> Any:
        if self._scratch is None:
            self._scratch = Scratch()
        path = self._scratch.path(stem)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


class _Result:
    """What is known of an evaluation so far."""

    def __init__(self, built: Built) -> None:
        self.fields: dict[str, Any] = {
            "verdict": Verdict.INFRA, "compile_s": built.compile_s, "sha256": built.sha256,
            "resources": built.resources,
        }  # fmt: skip


def _settings(values: dict[str, Any]) -> tuple[str, str]:
    return "--settings", json.dumps(values)


def _least_us(target: Target, device: Device) -> float:
    """A time below which something is amiss; on the CPU only where the caches cannot hold what is moved."""
    if device.kind == "cpu":
        cache = device.ceilings.cache_bytes if device.ceilings is not None else 0
        if not cache or target.bytes_moved <= cache:
            return 0.0
    return _BELOW_FLOOR[device.kind] * _memory_floor_us(target, device) * _cold_part(target, device)


def _memory_floor_us(target: Target, device: Device) -> float:
    """The part of the floor that no kernel goes below: work may be saved by rewriting sums, reading may not."""
    gbps = device.ceilings.copy_gbps if device.ceilings is not None else 0.0
    return min(target.floor_us, target.bytes_moved / (gbps * 1e3)) if gbps > 0 else 0.0


def _cold_part(target: Target, device: Device) -> float:
    """The part of a floor that DRAM must serve inside the timed window, 0 to 1.

    Inputs are cold in every sample, but on a GPU outputs that fit in L2 may be written back later, so a right kernel of
    a small tensor can beat the floor of all its bytes.
    """
    written = sum(out.spec.nbytes for out in target.signature.outputs)
    if device.kind == "cpu" or written > device.l2_bytes or not target.bytes_moved:
        return 1.0
    return max(0.0, 1.0 - written / target.bytes_moved)


def _no_end(doing: str, limit_s: float) -> str:
    return f"It did not end within {limit_s:.0f} s while it was {doing}; does it loop for ever?"


_SIGNALS = {
    "SIGSEGV": "a memory access outside of its buffers, or too deep a stack",
    "SIGBUS": "a memory access outside of its buffers",
    "SIGFPE": "an integer division by zero",
    "SIGABRT": "it called abort, or the C library found its memory damaged",
    "SIGILL": "an instruction that this CPU does not have, or unreachable code",
    "SIGSYS": "a system call that kernels may not make",
    "SIGKILL": "it was killed, most likely for the memory it took",
    "SIGXFSZ": "it wrote a file",
}


def _crash(how: str, doing: str) -> str:
    if how == FORGED:
        return f"While it was {doing}, it wrote into the channel that its results come through."
    if how.startswith("exit code"):
        return f"It ended the process ({how}) while it was {doing}."
    known = _SIGNALS.get(how)
    return f"It crashed with {how} while it was {doing}{f': {known}' if known else ''}."
