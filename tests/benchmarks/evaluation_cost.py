"""What a candidate costs: seconds to compile, verify and time it, beside the same candidate through `load_inline`.

    python tests/benchmarks/evaluation_cost.py [--device cuda:0] [--sustained] [--count 60] [TARGET ...]

For a softmax, an RMSNorm, a group norm and a matmul (outputs of 32 MB on a GPU, half a MB on a CPU) the kernels of
`tests/benchmarks/kernels` go through compiler, judge and timer, and then the same source, in the same run, through
`torch.utils.cpp_extension.load_inline` from an empty folder and 100 timed calls, which neither verifies anything nor
compares with eager. What opening a target costs once is printed by itself. The promise on an H200: 15 times less.

`--sustained` sends `--count` candidates, all settings of the four kernels in turn, through compiler and evaluator as
a search does: compiles run ahead on all cores, evaluations one at a time. The promise with 16 cores: one a second.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import evaluator_support as support
from load_inline import C_TYPES, wrapper

from forge_tui.compiler.build import CommandCompiler
from forge_tui.contract import directives, header, pragmas
from forge_tui.contract.source import read
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Built, Device, Target
from forge_tui.engine.pipeline import EVALUATING
from forge_tui.evaluator.client import WorkerEvaluator
from forge_tui.launch.kernel import allocate_outputs
from forge_tui.models import capture
from forge_tui.models.load import load_model

HERE = Path(__file__).parent
MODEL = HERE.parent / "fixtures" / "models_eval" / "costly.py"
TARGETS = ("softmax", "rms_norm", "group_norm", "matmul")
#: as in the wrapper of CUDA kernels, on the CPU
CPU_TYPES = {**C_TYPES, "bfloat16": "forge::bfloat16", "float16": "forge::half"}
RUNS = 100


def describe(name: str) -> Device:
    """The device of the command line."""
    if name == "cpu":
        return support.CPU
    from forge_tui.profiler.device import describe as look

    return look(name, ceilings=False)


class Room:
    """Compiler, evaluator and targets on one device."""

    def __init__(self, place: Workspace, device: Device) -> None:
        self.place = place
        self.device = device
        self.factory = "build_small" if device.kind == "cpu" else "build_large"
        cores = len(os.sched_getaffinity(0))
        self.compiler = CommandCompiler(device, place.builds, jobs=cores)
        self.evaluator = WorkerEvaluator(
            support.spec(self.factory, MODEL), device, place, threads=device.threads or 0, seed=3, log_dir=place.logs,
            timeout_s=60.0,
        )  # fmt: skip
        self.ahead = asyncio.Semaphore(2 * cores)

    async def open(self, name: str) -> Target:
        """A target, opened; prints what that took."""
        target = support.make_target(
            self.place, name, self.factory, device=self.device.name, model=MODEL, floor_us=0.001
        )
        started = time.perf_counter()
        check = await self.evaluator.open(target)
        if not check.usable:
            raise SystemExit(f"{name} cannot be judged: {check.reason}")
        size = sum(o.spec.nbytes for o in target.signature.outputs) / 2**20
        print(f"{name}: {target.signature.describe()}, {size:.1f} MB out, opened once in "
              f"{time.perf_counter() - started:.1f} s, eager {check.eager_us:.0f} us", flush=True)  # fmt: skip
        return target

    def source(self, name: str) -> str:
        """The candidate for a target."""
        return (HERE / "kernels" / f"{name}.{'cpp' if self.device.kind == 'cpu' else 'cu'}").read_text()


async def compare(room: Room, names: Sequence[str]) -> None:
    """Print a line for each target and the ratio over all."""
    ours_s = inline_s = 0.0
    for name in names:
        target = await room.open(name)
        source = room.source(name)
        started = time.perf_counter()
        built = await room.compiler.build(target, source, {})
        assert isinstance(built, Built), built
        result = await room.evaluator.evaluate(target, built, 5)
        ours = time.perf_counter() - started
        assert result.verdict.right, result.reason
        build_s, call_s, us = await asyncio.to_thread(inline, room, target, built, source)
        inline_total = build_s + call_s
        ours_s, inline_s = ours_s + ours, inline_s + inline_total
        print(f"  compile {built.compile_s:.2f} s, verify {result.verify_s:.2f} s, time {result.timing_s:.2f} s, "
              f"in all {ours:.2f} s; {result.verdict.value}, {result.time_us:.0f} us\n"
              f"  load_inline {build_s:.2f} s, {RUNS} runs {call_s:.3f} s ({us:.0f} us each), in all "
              f"{inline_total:.2f} s: {inline_total / ours:.1f} times", flush=True)  # fmt: skip
    print(f"all: {ours_s:.2f} s against {inline_s:.2f} s, {inline_s / ours_s:.1f} times")


def inline(room: Room, target: Target, built: Built, source: str) -> tuple[float, float, float]:
    """The candidate through `load_inline`: seconds to build, seconds of the timed calls, median microseconds."""
    from torch.utils.cpp_extension import load_inline

    device = room.device
    chosen = directives.parse(source).chosen({})
    source = pragmas.filled(read(source), chosen)
    defines = [f"-D{name}={value}" for name, value in chosen.items()]
    declared = "using V = std::vector<torch::Tensor>;\nvoid forge_call(V, V, torch::Tensor);"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "forge_target.h").write_text(header.render(target, device))
        common = {"functions": ["forge_call"], "extra_include_paths": [folder], "build_directory": folder}
        started = time.perf_counter()
        if device.kind == "cpu":
            module = load_inline(
                f"inline_{target.instances[0]}", cpp_sources=source + "\n" + cpu_wrapper(target),
                extra_cflags=["-O3", "-march=native", "-fopenmp", *defines], **common,
            )  # fmt: skip
        else:
            module = load_inline(
                f"inline_{target.instances[0]}", cpp_sources=declared, cuda_sources=source + "\n" + wrapper(
                    target, built), extra_cuda_cflags=["-O3", *defines], **common,
            )  # fmt: skip
        build_s = time.perf_counter() - started
        loaded = load_model(support.spec(room.factory, MODEL), device.name)
        inputs = capture.load(room.place.captures / Path(target.capture).name, 0, device.name, loaded)
        outputs = allocate_outputs(target.signature, device.name)
        workspace = torch.zeros(max(1, built.plan.workspace_bytes), dtype=torch.uint8, device=device.name)
        started = time.perf_counter()
        times = []
        for _ in range(RUNS):
            if device.kind == "cuda":
                torch.cuda.synchronize()
            before = time.perf_counter()
            module.forge_call(inputs, outputs, workspace)
            if device.kind == "cuda":
                torch.cuda.synchronize()
            times.append((time.perf_counter() - before) * 1e6)
        return build_s, time.perf_counter() - started, statistics.median(times)


def cpu_wrapper(target: Target) -> str:
    """A host function around `forge_launch`."""
    ins = [f"(const {CPU_TYPES[i.spec.dtype]}*)ins[{n}].data_ptr()" for n, i in enumerate(target.signature.inputs)]
    outs = [f"({CPU_TYPES[o.spec.dtype]}*)outs[{n}].data_ptr()" for n, o in enumerate(target.signature.outputs)]
    arguments = ", ".join([*ins, *outs, "workspace.data_ptr()", "ForgeDims{}"])
    return (
        "void forge_call(std::vector<torch::Tensor> ins, std::vector<torch::Tensor> outs, torch::Tensor workspace) {\n"
        f"  TORCH_CHECK(forge_launch({arguments}) == 0);\n}}\n"
    )


def settings(source: str) -> Iterator[dict[str, int]]:
    """All settings of a source's tunables, the defaults first."""
    tunes = directives.parse(source).tunes
    for values in itertools.product(*(tune.values for tune in tunes)):
        yield dict(zip([tune.name for tune in tunes], values, strict=True))


async def sustain(room: Room, names: Sequence[str], count: int) -> None:
    """Candidates a second, with compiles ahead of the evaluator."""
    opened = {name: await room.open(name) for name in names}
    queues = [[(name, setting) for setting in settings(room.source(name))] for name in names]
    wanted = [one for row in itertools.zip_longest(*queues) for one in row if one is not None][:count]
    verdicts: dict[str, int] = {}
    spent = [0.0, 0.0, 0.0]

    # as many at once as a search gives to the device
    evaluating = asyncio.Semaphore(EVALUATING[room.device.kind])

    async def one(number: int, name: str, setting: dict[str, int]) -> None:
        async with room.ahead:
            built = await room.compiler.build(opened[name], room.source(name), setting)
        assert isinstance(built, Built), (name, setting, built)
        async with evaluating:
            result = await room.evaluator.evaluate(opened[name], built, number)
        verdicts[result.verdict.value] = verdicts.get(result.verdict.value, 0) + 1
        for at, seconds in enumerate((built.compile_s, result.verify_s or 0.0, result.timing_s or 0.0)):
            spent[at] += seconds
        if not result.verdict.right:
            print(f"  {name} {setting}: {result.verdict.value}: {result.reason}", flush=True)

    started = time.perf_counter()
    await asyncio.gather(*(one(number, *what) for number, what in enumerate(wanted)))
    seconds = time.perf_counter() - started
    mean = [value / len(wanted) for value in spent]
    print(f"{len(wanted)} candidates in {seconds:.1f} s on {len(os.sched_getaffinity(0))} cores: "
          f"{len(wanted) / seconds:.2f} a second; mean compile {mean[0]:.2f} s, verify {mean[1]:.2f} s, time "
          f"{mean[2]:.2f} s; {verdicts}")  # fmt: skip


async def run(chosen: argparse.Namespace) -> None:
    """What the command line asks for."""
    names = chosen.targets or TARGETS
    with tempfile.TemporaryDirectory() as folder:
        room = Room(support.workspace(Path(folder)), describe(chosen.device))
        try:
            if chosen.sustained:
                await sustain(room, names, chosen.count)
            else:
                await compare(room, names)
        finally:
            await room.evaluator.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sustained", action="store_true")
    parser.add_argument("--count", type=int, default=60)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
