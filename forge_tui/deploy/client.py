"""Winners put back into the model, decided inside the model; the one entry for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from forge_tui.core.paths import Workspace
from forge_tui.core.records import Deployment, Device, ModelSpec, Winner
from forge_tui.deploy.bench import WorkerBench
from forge_tui.deploy.gate import Gate, Progress


async def deploy(
    spec: ModelSpec,
    device: Device,
    workspace: Workspace,
    winners: Sequence[Winner],
    *,
    threads: int = 0,
    seed: int = 0,
    log: Path | None = None,
    timeout_s: float = 900.0,
    compile_baseline: bool = True,
    compile_timeout_s: float = 60.0,
    on_progress: Progress = lambda _text, _decision: None,
) -> Deployment:
    """Decide which winners stay in the model, and measure the whole model with them.

    `timeout_s` is for everything; what could not be tried in it stays out. `on_progress` gets a sentence for each step,
    and the decision where one was made. A kernel that ends the worker is left out, and the rest goes on.

    Raises:
        ForgeError: the model cannot be loaded or run.
        WorkerDied: the original model itself ended the process.
    """
    bench = WorkerBench(
        spec, device, winners, threads=threads, seed=seed, log=log or workspace.logs / "deploy.log",
        timeout_s=timeout_s, compile_timeout_s=compile_timeout_s,
    )  # fmt: skip
    try:
        return await Gate(bench, winners, on_progress).run(compile_baseline=compile_baseline)
    finally:
        await bench.close()
