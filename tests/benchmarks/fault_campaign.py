"""A row of evaluations of good, wrong, hanging, crashing, hogging, flooding and bombing kernels on one evaluator.

    python tests/benchmarks/fault_campaign.py [--count 200] [--seed 1] [--device cpu] [--timeout 2]

Every verdict must be the expected one, however the kernel before it ended; no process, no file, no descriptor and no
memory may be left. Prints a table and the ratios; exit code 1 where something is amiss. 200 evaluations on the CPU take
two to five minutes. With `--device cuda:0` the same is done with CUDA kernels on the GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

_MOST_GROWTH = 32 << 20


async def campaign(chosen: argparse.Namespace, folder: Path) -> int:
    """Run, print, and say how it ended."""
    import fault_sources as sources
    from campaign import Campaign, files, mixed
    from evaluator_support import CPU, build, make_target, spec, workspace

    from forge_tui.compiler.build import CommandCompiler
    from forge_tui.evaluator.client import WorkerEvaluator

    place = workspace(folder / "workspace")
    gpu = chosen.device.startswith("cuda")
    if gpu:
        from forge_tui.profiler.device import describe

        device = describe(chosen.device, ceilings=False)
        good, bad = [sources.CUDA_GOOD], sources.CUDA
    else:
        device, good, bad = CPU, [sources.GOOD, sources.WRONG], sources.CPU
    target = make_target(place, "norm", device=chosen.device, floor_us=0.01)
    evaluator = WorkerEvaluator(spec(), device, place, threads=2, seed=3, log_dir=place.logs,
                                timeout_s=max(chosen.timeout, 8.0 if gpu else 0.0))  # fmt: skip
    compiler = CommandCompiler(device, place.builds, timeout_s=max(4.0, chosen.timeout), memory_bytes=2 << 30)
    made = Campaign(target, evaluator, compiler, lambda source: build(target, source, place.root / "built"))
    memory = device_memory(chosen.device) if gpu else 0
    started = time.monotonic()
    before = files(place)
    try:
        check = await evaluator.open(target)
        assert check.usable, check.reason
        await made.run(mixed(good, bad, chosen.count, chosen.seed))
    finally:
        await made.close(place.logs)
    left = sorted(files(place) - before)
    descriptors, grown = made.growth()
    leaked = device_memory(chosen.device) - memory if gpu else 0
    print(made.table())
    processes = sum(" left processes" in problem for problem in made.problems)
    right = chosen.count - sum(problem.startswith("evaluation") for problem in made.problems) + processes
    print(f"\n{chosen.count} evaluations in {time.monotonic() - started:.0f} s, {right} of {chosen.count} verdicts as "
          f"expected ({100 * right / chosen.count:.1f}%).")  # fmt: skip
    print(f"Left behind: {len(left)} files, {processes} times processes, {descriptors} descriptors, "
          f"{grown / 2**20:.1f} MiB of memory in this process"
          + (f", {leaked / 2**20:.0f} MiB of device memory." if gpu else "."))  # fmt: skip
    for line in [*made.problems, *left]:
        print(f"  {line}")
    amiss = made.problems or left or descriptors > 0 or grown > _MOST_GROWTH or leaked > _MOST_GROWTH
    print("Something is amiss." if amiss else "Nothing is amiss.")
    return int(bool(amiss))


def device_memory(name: str) -> int:
    """Bytes in use on a GPU, by all processes."""
    import torch

    free, total = torch.cuda.mem_get_info(torch.device(name))
    return total - free


def main() -> int:
    """Take the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds for a stage of an evaluation")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        # whatever is left there is ours
        tempfile.tempdir = str(Path(folder) / "temporary")
        Path(tempfile.tempdir).mkdir()
        return asyncio.run(campaign(chosen, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
