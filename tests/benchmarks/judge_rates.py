"""Both error rates of the judge: cheats that pass, and right kernels that are refused.

    python tests/benchmarks/judge_rates.py [--exploits | --honest N] [--seed 1] [--budget 0.1] [--device cuda:0]

Without a choice it runs every cheat of `tests/exploits` and 1,000 variants (tunables, shapes) of the right kernels of
`tests/exploits/zoo`, about two seconds each on two cores. The cheats are built by plain g++, past the lint and the
inspection of the built file, so that what is measured is the evaluator alone; the right kernels go through both.
With a CUDA device it runs the cheats and the right kernels below `tests/exploits/cuda`, through the compiler. Every
cheat that was caught for another reason, and every refusal of a right kernel, is printed with its reason. The
promise: every cheat caught, for the right reason; fewer than 3 of 1,000 right kernels refused. `--budget` is the
time in seconds that a timing may take, which the verdict on rightness does not need.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "exploits"))

import collection
import evaluator_support as support
import torch

from forge_tui.compiler.build import CommandCompiler
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Built, CompileFailure, Evaluation, Target
from forge_tui.evaluator import client

#: builds that run ahead of the evaluator
_AHEAD = 4


async def exploits(place: Workspace) -> tuple[int, int]:
    """Every CPU cheat; how many were caught for their reason, of how many."""
    targets = {name: support.make_target(place, *where) for name, where in collection.TARGETS.items()}
    evaluators = {factory: support.evaluator(place, factory, timeout_s=4.0) for factory in ("build", "build_bf16")}
    caught = right = 0
    for path in collection.CHEATS:
        kernel = collection.read(path)
        built = await asyncio.to_thread(
            support.build, targets[kernel.target], kernel.source, place.root / "built", collection.HERE
        )
        evaluator = evaluators[collection.TARGETS[kernel.target][1]]
        result = await evaluator.evaluate(targets[kernel.target], built, 11)
        unmet = kernel.unmet(result)
        caught += result.verdict.value in ("rejected", "crashed", "timed_out")
        right += not unmet
        if unmet:
            print(f"  {path.stem}: {unmet}", flush=True)
    for evaluator in evaluators.values():
        await evaluator.close()
    total = len(collection.CHEATS)
    print(f"cheats: {caught} of {total} caught, {right} for the right reason")
    return right, total


async def honest(place: Workspace, count: int, seed: int) -> tuple[int, int]:
    """Variants of the right kernels; how many were refused, of how many that could be judged."""
    compiler = CommandCompiler(support.CPU, place.builds)
    counts: collections.Counter[str] = collections.Counter()
    refused: list[str] = []
    started = time.monotonic()
    for factory, group in itertools.groupby(collection.variants(count, seed), key=lambda v: v.factory):
        evaluator = support.evaluator(place, factory, model=collection.ZOO_MODEL)
        for path, same in itertools.groupby(group, key=lambda v: v.target):
            target = support.make_target(place, path, factory, model=collection.ZOO_MODEL, floor_us=0.001)
            check = await evaluator.open(target)
            chosen = list(same)
            if not check.usable:
                counts["not to be judged"] += len(chosen)
                print(f"  {path} {factory} cannot be judged: {check.reason}", flush=True)
                continue
            for variant, built in await _built(compiler, target, chosen):
                result: Evaluation | CompileFailure = built if isinstance(built, CompileFailure) else (
                    await evaluator.evaluate(target, built, seed)
                )  # fmt: skip
                counts[result.verdict.value] += 1
                if not result.verdict.right:
                    refused.append(f"{variant}: {result.verdict.value}: {result.reason}")
                    print(f"  {refused[-1]}", flush=True)
        await evaluator.close()
    judged = counts.total() - counts["not to be judged"]
    seconds = time.monotonic() - started
    print(f"right kernels: {len(refused)} of {judged} refused ({len(refused) * 1000 / max(judged, 1):.1f} of 1,000); "
          f"{dict(counts)}; {seconds:.0f} s")  # fmt: skip
    return len(refused), judged


async def _built(
    compiler: CommandCompiler, target: Target, chosen: list[collection.Variant]
) -> list[tuple[collection.Variant, Built | CompileFailure]]:
    slots = asyncio.Semaphore(_AHEAD)

    async def one(variant: collection.Variant) -> tuple[collection.Variant, Built | CompileFailure]:
        async with slots:
            return variant, await compiler.build(target, variant.path.read_text(), variant.tunables)

    return await asyncio.gather(*(one(variant) for variant in chosen))


async def on_cuda(place: Workspace, name: str) -> tuple[int, int]:
    """Cheats and right kernels of CUDA through compiler and evaluator; how many ended as they must, of how many."""
    import cuda_rooms

    rooms = cuda_rooms.Rooms(place, name)
    as_expected = 0
    paths = [*collection.CUDA_CHEATS, *collection.CUDA_HONEST]
    for path in paths:
        unmet = await rooms.unmet(collection.read(path))
        as_expected += not unmet
        if unmet:
            print(f"  {path.stem}: {unmet}", flush=True)
    await rooms.close()
    print(f"CUDA: {as_expected} of {len(paths)} kernels ended as they must "
          f"({len(collection.CUDA_CHEATS)} cheats, {len(collection.CUDA_HONEST)} right ones)")  # fmt: skip
    return as_expected, len(paths)


async def run(chosen: argparse.Namespace) -> int:
    """Run what was chosen; the exit code says whether the promise was kept."""
    kept = True
    with tempfile.TemporaryDirectory() as folder:
        place = support.workspace(Path(folder))
        if chosen.device != "cpu":
            done, total = await on_cuda(place, chosen.device)
            return int(done < total)
        both = chosen.honest is None and not chosen.exploits
        if both or chosen.exploits:
            right, total = await exploits(place)
            kept = kept and right == total
        if both or chosen.honest:
            refused, judged = await honest(place, chosen.honest or 1000, chosen.seed)
            kept = kept and refused * 1000 < 3 * judged
    return int(not kept)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exploits", action="store_true")
    parser.add_argument("--honest", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=0.1)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    client._BUDGET_S["cpu"] = chosen.budget
    torch.set_num_threads(2)
    sys.exit(asyncio.run(run(chosen)))


if __name__ == "__main__":
    main()
