"""How often the timer tells a kernel from itself, and how well it finds a known difference.

    python tests/benchmarks/aa_timing.py [--device cpu] [--tries 300] [--threads 0] [--rows 512] [--columns 384]
                                         [--busy 0] [--differences]

An RMSNorm is timed against itself, as a candidate is against eager. Two promises are checked, and the exit code is 1
where one is broken: the interval holds 1.00 in at least 90% of the tries, and no verdict is `faster` or `slower`. Tries
are 300 on CUDA and 60 on the CPU unless given; each takes a second or two. `--busy N` keeps N cores busy meanwhile, to
see what a loaded machine does. With `--differences` the kernel is also timed against twins that compute 3%, 10% and 30%
of the rows twice, which should be found `slower`; nothing is promised there.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

CPU_SOURCE = """
#include "forge_target.h"
#include <cmath>
static inline __attribute__((noinline)) void one(const float* x, const float* w, float* out) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < forge::x_shape_1; ++j) sum += x[j] * x[j];
    const float scale = 1.0f / std::sqrt(sum / forge::x_shape_1 + 1e-6f);
#pragma omp simd
    for (int64_t j = 0; j < forge::x_shape_1; ++j) out[j] = x[j] * scale * w[j];
}
extern "C" __attribute__((visibility("default"))) int forge_launch(FORGE_PARAMS) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < forge::x_shape_0; ++r) {
        one(x + r * forge::x_shape_1, weight, out0 + r * forge::x_shape_1);
        if (r * 37 % 100 < EXTRA) {
            one(x + r * forge::x_shape_1, weight, out0 + r * forge::x_shape_1);
        }
    }
    return 0;
}
"""
CUDA_SOURCE = """
//@launch rows grid=x_shape_0 block=128
#include "forge_target.h"
__device__ __noinline__ void one(const float* x, const float* w, float* out) {
    __shared__ float sums[4];
    float sum = 0.0f;
    for (int64_t j = threadIdx.x; j < forge::x_shape_1; j += 128) sum += x[j] * x[j];
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    const float scale = rsqrtf((sums[0] + sums[1] + sums[2] + sums[3]) / forge::x_shape_1 + 1e-6f);
    for (int64_t j = threadIdx.x; j < forge::x_shape_1; j += 128) out[j] = x[j] * scale * w[j];
    __syncthreads();
}
extern "C" __global__ void rows(FORGE_PARAMS) {
    const int64_t r = blockIdx.x;
    one(x + r * forge::x_shape_1, weight, out0 + r * forge::x_shape_1);
    if (r * 37 % 100 < EXTRA) one(x + r * forge::x_shape_1, weight, out0 + r * forge::x_shape_1);
}
"""


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tries", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--columns", type=int, default=384)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--differences", action="store_true")
    chosen = parser.parse_args()
    chosen.tries = chosen.tries or (300 if chosen.device.startswith("cuda") else 60)
    return chosen


def bench(chosen: argparse.Namespace, folder: Path) -> Callable[[int, int], Any]:
    """A function from (per cent of more work, seed) to the summary of one timing against the kernel itself."""
    import msgspec
    import torch
    from evaluator_support import build
    from targets_fixture import make_target, spec

    from forge_tui.compiler.build import CommandCompiler
    from forge_tui.core.records import Built
    from forge_tui.evaluator import stats, timing
    from forge_tui.evaluator.inputs import patch
    from forge_tui.launch.kernel import load_kernel
    from forge_tui.profiler.device import describe

    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    where = torch.device(chosen.device)
    cuda = where.type == "cuda"
    x = spec(chosen.rows, chosen.columns)
    target = make_target("aa", [("x", x, "arg"), ("weight", spec(chosen.columns), "param")], [x])
    signature = msgspec.structs.replace(target.signature, device=chosen.device)
    target = msgspec.structs.replace(target, signature=signature)
    device = describe(chosen.device, ceilings=False)
    clock = timing.CudaClock(where, device.l2_bytes) if cuda else timing.CpuClock()
    limits = {"max_inner": 1, "warm_up_s": 1.0, "budget_s": 2.0} if cuda else {}
    sides: dict[int, timing.Side] = {}

    def side(extra: int) -> timing.Side:
        if extra not in sides:
            text = (CUDA_SOURCE if cuda else CPU_SOURCE).replace("EXTRA", str(extra))
            built = asyncio.run(CommandCompiler(device, folder).build(target, text, {})) if cuda else \
                build(target, text, folder)  # fmt: skip
            assert isinstance(built, Built), built
            kernel = load_kernel(built, signature, chosen.device)
            sides[extra] = timing.candidate_side(kernel, signature, where, None)
        return sides[extra]

    def one(extra: int, seed: int) -> Any:
        shapes = [(chosen.rows, chosen.columns), (chosen.columns,)]
        data = [[torch.randn(shape, device=where) for shape in shapes] for _ in range(3)]
        timer = timing.Timer(
            side(extra), side(0), data, clock, timing.scrubber(signature, where, None), patch,
            lambda _slot, _out: None, random.Random(seed), timing.Limits(**limits),
        )  # fmt: skip
        return stats.summarise(timer.run().pairs)

    return one


def main() -> int:
    """Time, count, print, judge."""
    from forge_tui.evaluator import stats

    chosen = arguments()
    busy = [multiprocessing.Process(target=spin, daemon=True) for _ in range(chosen.busy)]
    for process in busy:
        process.start()
    kept = True
    try:
        with tempfile.TemporaryDirectory() as folder:
            one = bench(chosen, Path(folder))
            for extra in (0, 3, 10, 30) if chosen.differences else (0,):
                begun = time.monotonic()
                found = [one(extra, number) for number in range(chosen.tries)]
                counts = collections.Counter(stats.verdict(s).value for s in found)
                ratios = [s.ratio for s in found]
                print(
                    f"{extra:3d}% more work: {dict(counts)}, ratio {statistics.median(ratios):.4f} "
                    f"({min(ratios):.3f} to {max(ratios):.3f}), width {statistics.median(s.width for s in found):.3f}, "
                    f"blocks {statistics.median(s.blocks for s in found):.0f}, {found[-1].candidate_us:.1f} us, "
                    f"{(time.monotonic() - begun) / chosen.tries:.2f} s a try",
                    flush=True,
                )
                if not extra:
                    kept = promises(found)
    finally:
        for process in busy:
            process.terminate()
    return 0 if kept else 1


def promises(found: list[Any]) -> bool:
    """Print what was promised of a kernel against itself and what came; whether it was kept."""
    from forge_tui.core.records import Verdict
    from forge_tui.evaluator import stats

    holds = sum(s.low <= 1.0 <= s.high for s in found)
    claims = [s for s in found if stats.verdict(s) is not Verdict.INCONCLUSIVE]
    print(f"     against itself: {holds} of {len(found)} intervals hold 1.00 ({holds / len(found):.1%}, promised 90%); "
          f"{len(claims)} verdicts of faster or slower (promised none)", flush=True)  # fmt: skip
    for summary in claims:
        print(f"     wrong: {summary.ratio:.4f}, {summary.low:.4f} to {summary.high:.4f}, {summary.blocks} blocks")
    return holds >= 0.9 * len(found) and not claims


if __name__ == "__main__":
    sys.exit(main())
