"""The runner: `python -m forge_tui.evaluator.runner --in N --out N ...`, the only process that loads candidates.

On the CPU it forks a child for every stage of every candidate, so that nothing a candidate does outlives it. On CUDA a
context does not survive a fork, so candidates run in this process; after any CUDA error it answers and is of no more
use, and its client starts another.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import Built, Device, LaunchPlan, Signature, Verdict
from forge_tui.evaluator import compiled, confine, costs, sandbox, second_clock, stats, timing
from forge_tui.evaluator.afterwards import Afterwards
from forge_tui.evaluator.exchange import OutputFile, slot_bytes
from forge_tui.evaluator.inputs import patch
from forge_tui.evaluator.opened import OpenTarget, Targets
from forge_tui.evaluator.sets import EXTRA_RUNS, InputSet, Kind
from forge_tui.evaluator.verify import Dishonest, Verifier
from forge_tui.launch.kernel import Kernel, LaunchError, WrongFile, load_kernel
from forge_tui.processes.wire import fds_from_argv, serve

Reply = dict[str, Any]
_EAGER_CALLS = 9
#: a GPU's clocks take long to rise
_CUDA_WARM_UP_S = 1.0


class Runner:
    """Answers `open`, `verify` and `time`; a candidate's fault is a reply, a fault of ours an error."""

    def __init__(self, targets: Targets, device: Device, threads: int, fds: tuple[int, ...]) -> None:
        self._targets = targets
        self._device = device
        self._where = targets.device
        # as many as the device was described with, so that timings compare with its ceilings and the profile
        self._threads = threads or device.threads or len(os.sched_getaffinity(0))
        self._fds = fds
        self._lost = ""
        self._compiled: dict[str, compiled.Call] = {}
        """The originals compiled by torch, by target."""
        self._confined: list[Path] = []

    # ---- requests

    def open(self, message: dict[str, Any]) -> Reply:
        """Load model and captured inputs; how long eager takes on them."""
        opened = self._targets.open(message)

        def work() -> Reply:
            self._use_threads()
            clock = self._clock()
            times = [clock.sample(opened.call, [opened.captured[0]])[0] for _ in range(_EAGER_CALLS)]
            if message["warm"] and self._where.type == "cuda":
                second_clock.warm(self._where)
            # limits follow from it, and a machine that stalls for a moment makes some too long, never too short
            return {"eager_us": min(times[2:])}

        return self._contained(work, message["limit_s"])

    def verify(self, message: dict[str, Any]) -> Reply:
        """Run a candidate on input sets; the outputs are in the file, which run is in which slot in the reply."""
        opened = self._targets.open(message)
        sets = msgspec.convert(message["sets"], list[InputSet])
        # the others are of this evaluation only
        opened.keep([sets[i] for i in message["keep"]])
        outputs = self._file(message, opened, len(sets) + EXTRA_RUNS)

        def stage(kernel: Kernel) -> Reply:
            runs = Verifier(kernel, opened.signature, self._where, outputs).run(sets, opened.values)
            return {"runs": msgspec.to_builtins(runs)}

        return self._candidate(message, opened, stage)

    def compile(self, message: dict[str, Any]) -> Reply:
        """Have the original compiled by torch at hand; its outputs on the sets are in the file, for the judge."""
        opened = self._targets.open(message)
        sets = msgspec.convert(message["sets"], list[InputSet])
        outputs = self._file(message, opened, len(sets))
        try:
            if self._where.type == "cpu":
                call = compiled.load_package(Path(message["package"]))
            else:
                call = compiled.compile_here(opened.target, self._targets.loaded(message))
        except Exception as error:  # noqa: BLE001 - torch refuses much, in many ways
            return {"fault": compiled.why(error)}

        def work() -> Reply:
            self._use_threads()
            for slot, which in enumerate(sets):
                values = opened.values(which)
                try:
                    made = call([t.clone() for t in values] if which.kind is not Kind.CAPTURED else values)
                except RuntimeError as error:
                    if _cuda_error(error):
                        raise
                    return {"fault": compiled.why(error)}
                except Exception as error:  # noqa: BLE001 - on CUDA the first call compiles
                    return {"fault": compiled.why(error)}
                outputs.write(slot, made)
            return {"runs": [{"slot": i, "which": msgspec.to_builtins(s), "poison": 0} for i, s in enumerate(sets)]}

        reply = self._contained(work, message["limit_s"])
        if "runs" in reply:
            self._compiled[opened.target.id] = call
        return reply

    def time(self, message: dict[str, Any]) -> Reply:
        """Time a candidate against the baselines at hand; some outputs of timed calls are in the file."""
        opened = self._targets.open(message)
        sets = msgspec.convert(message["sets"], list[InputSet])
        slots = timing.kept_outputs(slot_bytes(opened.signature))
        outputs = self._file(message, opened, slots)

        baselines: dict[str, compiled.Call] = {"eager": opened.call}
        if message["compiled"] and opened.target.id in self._compiled:
            baselines["compile"] = self._compiled[opened.target.id]
        # the one that the verdict is against comes first
        ordered = sorted(baselines, key=lambda name: name != message["under"])

        def stage(kernel: Kernel) -> Reply:
            data = [opened.values(which) for which in sets]
            workspace = kernel.allocate_workspace()
            # drawn after the candidate is loaded, from outside of anything it could know
            rng = random.Random(os.urandom(16))  # noqa: S311
            clock = self._clock()
            sides = {"candidate": timing.candidate_side(kernel, opened.signature, self._where, workspace)}
            sides |= {name: baselines[name] for name in ordered}
            first, *others = [baselines[name] for name in ordered]
            timer = timing.Timer(
                sides["candidate"], first, data, clock, timing.scrubber(opened.signature, self._where, workspace),
                patch, outputs.write, rng,
                timing.Limits(budget_s=message["budget_s"], kept=slots, blocks=message["blocks"],
                              **self._inner_limits()), others,
            )  # fmt: skip
            threads = torch.get_num_threads()
            found = timer.run()
            if torch.get_num_threads() != threads:
                raise Dishonest("It changes the number of threads, which the original then has to live with.")
            kept = [
                {"slot": k.slot, "which": msgspec.to_builtins(msgspec.structs.replace(sets[k.data], patch=k.patch))}
                for k in found.kept
            ]
            samples = dict(zip(sides, found.samples(), strict=True))
            reply = {"samples": samples, "kept": kept, "inner": found.inner, "settled": found.settled}
            if self._where.type == "cuda" and stats.verdict(stats.summarise(found.pairs)) is not Verdict.SLOWER:
                graphs = frozenset(sides) - frozenset(message["no_graph"])
                reply |= self._more_clocks(sides, samples, timer.buffers, clock, kernel.plan, graphs)
            return reply

        return self._candidate(message, opened, stage, warm=(list(baselines.values()), sets[0]))

    def _more_clocks(
        self, sides: dict[str, timing.Side], samples: dict[str, list[float]], buffers: list[list[Tensor]],
        clock: timing.Clock, plan: LaunchPlan, graphs: frozenset[str],
    ) -> Reply:  # fmt: skip
        """The second clock, and what calls cost beside the deciding one."""
        medians = {name: statistics.median(times) for name, times in samples.items()}
        second = second_clock.check(
            sides["candidate"], sides["eager"], buffers, plan, medians["candidate"], self._where
        )
        found = costs.costs(sides, medians, buffers, clock, self._where, graphs=graphs)
        failed = [name for name in graphs if found[name].device_us is None]
        return {
            "second": second,
            "costs": {name: {"call_us": c.call_us, "device_us": c.device_us} for name, c in found.items()},
            # what a failed capture leaves behind is nobody's business
            "no_graph": failed, "retire": bool(failed),
        }  # fmt: skip

    # ---- containment

    def _candidate(
        self, message: dict[str, Any], opened: OpenTarget, stage: Callable[[Kernel], Reply],
        warm: tuple[list[compiled.Call], InputSet] | None = None,
    ) -> Reply:  # fmt: skip
        built = msgspec.convert(message["built"], Built)

        def work() -> Reply:
            self._use_threads()
            if warm is not None:
                # whatever the originals open or start at their first call must come before the limits
                for call in warm[0]:
                    call(opened.values(warm[1]))
            cpu = self._where.type == "cpu"
            if cpu:
                sandbox.limit(self._threads, _working_bytes(opened, built))
                before = Afterwards()
                confine.cpu_candidate(Path(built.path))
            else:
                self._confine(Path(message["path"]).parent)
            kernel = load_kernel(built, opened.signature, str(self._where))
            if cpu:
                sandbox.lock_down()
            try:
                reply = stage(kernel)
                if cpu:
                    before.check()
                return reply
            finally:
                if not cpu:
                    _close(kernel)

        return self._contained(lambda: _faults_as_replies(work), message["limit_s"])

    def _contained(self, work: Callable[[], Reply], timeout_s: float) -> Reply:
        if self._where.type == "cuda":
            return self._in_process(work)
        ended = sandbox.run_in_child(work, timeout_s, self._fds)
        if ended.timed_out:
            return {"timed_out": True}
        if ended.reply is None:
            return {"crashed": ended.how}
        return ended.reply

    def _in_process(self, work: Callable[[], Reply]) -> Reply:
        """In this process; the client keeps the time and kills."""
        if self._lost:
            raise EnvironmentFault(f"The CUDA context was lost ({self._lost}).")
        try:
            reply = work()
            if "crashed" not in reply:
                torch.cuda.synchronize(self._where)
        except torch.cuda.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            return {"fault": f"GPU memory ran out: {error}"}
        except RuntimeError as error:
            name = _cuda_error(error)
            if not name:
                raise
            reply = {"crashed": name}
        if "crashed" in reply:
            self._lost = reply["crashed"]
        return reply

    # ---- helpers

    def _file(self, message: dict[str, Any], opened: OpenTarget, slots: int) -> OutputFile:
        return OutputFile(Path(message["path"]), opened.signature, slots, reuse=self._where.type == "cuda")

    def _confine(self, scratch: Path) -> None:
        """On CUDA, once, when all that needs more has been done: the model is built, the context exists."""
        if scratch not in self._confined:
            # rules add up: a second folder would only take the first away
            assert not self._confined, "a runner has one folder for outputs"
            self._confined.append(scratch)
            confine.cuda_runner(self._confined)

    def _use_threads(self) -> None:
        if self._where.type == "cpu":
            torch.set_num_threads(self._threads)

    def _clock(self) -> timing.Clock:
        return timing.CudaClock(self._where, self._device.l2_bytes) if self._where.type == "cuda" else timing.CpuClock()

    def _inner_limits(self) -> dict[str, Any]:
        # on CUDA every call has a cold cache, which several in a row would not
        return {"max_inner": 1, "warm_up_s": _CUDA_WARM_UP_S} if self._where.type == "cuda" else {}


def _faults_as_replies(work: Callable[[], Reply]) -> Reply:
    """What the candidate did wrong, as a reply."""
    try:
        return work()
    except Dishonest as error:
        return {"rejected": str(error)}
    except WrongFile as error:
        return {"fault": error.what}
    except LaunchError as error:
        if error.returned is not None:
            return {"rejected": error.what}
        return {"crashed": error.code or error.what}


def _cuda_error(error: RuntimeError) -> str:
    """The first line of a CUDA error that torch met, else nothing."""
    text = str(error)
    return text.partition("\n")[0].removeprefix("CUDA error: ") if "CUDA error" in text else ""


def _close(kernel: Kernel) -> None:
    try:
        kernel.close()
    except LaunchError:
        # the context is lost, which the stage itself reports
        return


def _working_bytes(opened: OpenTarget, built: Built) -> int:
    """Memory that the stages need for buffers and copies of them, generously."""
    signature: Signature = opened.signature
    inputs = sum(i.spec.nbytes for i in signature.inputs)
    return 24 * (inputs + slot_bytes(signature)) + 8 * built.plan.workspace_bytes


def main(argv: list[str]) -> None:
    """Serve until the engine goes."""
    settings = msgspec.json.decode(argv[argv.index("--settings") + 1])
    device = msgspec.convert(settings["device"], Device)
    if device.kind == "cpu":
        # children start the threads, see `sandbox`
        torch.set_num_threads(1)
    elif settings["threads"]:
        torch.set_num_threads(settings["threads"])
    fds = fds_from_argv(argv)
    targets = Targets(device.name, Path(settings["artifacts"]), settings["seed"])
    runner = Runner(targets, device, settings["threads"], fds)
    serve({"open": runner.open, "verify": runner.verify, "compile": runner.compile, "time": runner.time}, *fds)


if __name__ == "__main__":
    main(sys.argv)
