"""The final confirmation of a winner: fresh processes, other seeds, then a sanitizer.

What a search found is the best of many measurements, by processes that met many candidates. A kernel counts as a
winner only if its very file is right and faster once more, where nothing of that is left.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forge_tui.core.errors import EnvironmentFault, ForgeError
from forge_tui.core.paths import scratch_root
from forge_tui.core.records import ITEMSIZE, Built, Confirmation, Device, Evaluation, Node, Target, Verdict
from forge_tui.evaluator import ncu
from forge_tui.evaluator.client import WorkerEvaluator
from forge_tui.evaluator.cpu_sanitizer import CpuSanitizer
from forge_tui.evaluator.job import Job
from forge_tui.evaluator.lease import lease
from forge_tui.evaluator.sanitizer import ComputeSanitizer, Sanitised
from forge_tui.evaluator.sets import InputSet, Kind, draw
from forge_tui.processes import folders

_LEASE_S = 600.0


class WinnerConfirmer:
    """Confirms winners of one model and device.

    The evaluator is one of its own, with seeds of its own; every winner meets a runner that never held another one.
    """

    def __init__(
        self, evaluator: WorkerEvaluator, device: Device, sanitizer: ComputeSanitizer | CpuSanitizer
    ) -> None:
        self._evaluator = evaluator
        self._device = device
        self._sanitizer = sanitizer

    async def confirm(self, target: Target, built: Built, node: Node, seed: int) -> Confirmation:
        """See `core.ports.Confirmer`."""
        started = time.monotonic()
        await self._evaluator.renew()
        found = await self._evaluator.evaluate(target, built, seed)
        verdict, reason, log = found.verdict, _reason(found), found.log
        sanitised = Sanitised()
        if verdict is Verdict.FASTER:
            try:
                sanitised = await self.sanitise(target, built, node, seed)
            except (ForgeError, OSError) as error:
                sanitised = Sanitised(missing=f"It could not be run under a sanitizer: {error}")
            if sanitised.found:
                verdict, reason, log = Verdict.REJECTED, sanitised.found, sanitised.log
        timed: dict[str, Any] = {}
        if verdict.right:
            timed = {"time_us": found.time_us, "baseline_us": found.baseline_us, "speedup": found.speedup,
                     "speedup_ci": found.speedup_ci}  # fmt: skip
        return Confirmation(
            verdict=verdict, reason=reason, sha256=built.sha256, sanitised=sanitised.passed,
            unsanitised=sanitised.missing, seconds=time.monotonic() - started, log=log, **timed,
        )  # fmt: skip

    async def sanitise(self, target: Target, built: Built, node: Node, seed: int) -> Sanitised:
        """Run a file on captured and fresh inputs under the sanitizer.

        Raises:
            ForgeError, OSError: the inputs cannot be written.
        """
        sets = [InputSet(kind=Kind.CAPTURED), InputSet(kind=Kind.FRESH, seed=draw(seed, "sanitise"))]
        with _folder("forge-sanitise-") as folder:
            job = await make_job(self._evaluator, self._device, target, built, sets, folder)
            if isinstance(self._sanitizer, CpuSanitizer):
                return await self._sanitizer.run(
                    target, node.source, node.tunables, built, Path(job.inputs_path), len(sets), folder
                )
            async with lease(self._device, _LEASE_S):
                return await self._sanitizer.run(job, node.source, folder)

    async def counters(self, target: Target, built: Built) -> str:
        """Hardware counters of a file on captured inputs, in at most 15 lines.

        Raises:
            EnvironmentFault: there is no ncu, or counters may not be read here.
            ForgeError, OSError: the inputs cannot be written.
        """
        if self._device.kind != "cuda":
            raise EnvironmentFault("Hardware counters are read of CUDA kernels only.", "Name --device cuda:0.")
        with _folder("forge-ncu-") as folder:
            sets = [InputSet(kind=Kind.CAPTURED)]
            job = await make_job(self._evaluator, self._device, target, built, sets, folder)
            async with lease(self._device, _LEASE_S):
                return ncu.summary(await ncu.measure(job, folder))

    async def close(self) -> None:
        """End the worker processes."""
        await self._evaluator.close()


@contextlib.contextmanager
def _folder(prefix: str) -> Iterator[Path]:
    """A folder for the inputs, which may be large; what a killed engine left goes first."""
    folders.sweep(prefix, scratch_root())
    own = folders.OwnFolder(prefix, scratch_root())
    try:
        yield own.path
    finally:
        own.close()


async def make_job(
    evaluator: WorkerEvaluator, device: Device, target: Target, built: Built, sets: list[InputSet], folder: Path
) -> Job:
    """A built file with its inputs, as a program without torch runs it.

    Raises:
        ForgeError, OSError: the inputs cannot be written.
    """
    inputs = folder / "inputs.bin"
    sizes = await evaluator.write_inputs(target, sets, inputs)
    signature = target.signature
    _, _, index = device.name.partition(":")
    return Job(
        image=built.path, plan=built.plan, device_index=int(index or 0), inputs_path=str(inputs), input_bytes=sizes,
        input_names=[i.name for i in signature.inputs], output_names=[o.name for o in signature.outputs],
        output_bytes=[o.spec.span * ITEMSIZE[o.spec.dtype] for o in signature.outputs],
    )  # fmt: skip


def _reason(found: Evaluation) -> str:
    """Why it is no winner; a slower kernel has no reason of its own."""
    if found.verdict is Verdict.SLOWER and found.speedup_ci is not None:
        low, high = found.speedup_ci
        return f"It is not faster: {found.speedup:.3f}x, 95% interval {low:.3f} to {high:.3f}."
    return found.reason
