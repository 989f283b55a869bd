"""How often the timer tells two equal kernels apart, and how well it finds a known difference.

    python tests/benchmarks/aa_timing.py [--tries 40] [--threads 0] [--rows 512] [--columns 384] [--busy 0]

An RMSNorm is built twice from one source and timed against itself: `faster` and `slower` should both stay below a few
per cent. Then it is timed against a twin that computes some rows twice, 3%, 10% and 30% of them, which should be found
`slower`. `--busy N` keeps N cores busy meanwhile, to see what a loaded machine does to the verdicts. Nothing is
asserted: the numbers depend on the machine. Each try takes about a second.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import random
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

SOURCE = """
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


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass


def main() -> None:
    """Time, count, print."""
    import torch
    from evaluator_support import build
    from targets_fixture import make_target, spec

    from forge_tui.evaluator import stats, timing
    from forge_tui.evaluator.inputs import patch
    from forge_tui.launch.kernel import load_kernel

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=40)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--columns", type=int, default=384)
    parser.add_argument("--busy", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    busy = [multiprocessing.Process(target=spin, daemon=True) for _ in range(chosen.busy)]
    for process in busy:
        process.start()
    x = spec(chosen.rows, chosen.columns)
    target = make_target("aa", [("x", x, "arg"), ("weight", spec(chosen.columns), "param")], [x])
    where = torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder:

        def side(extra: int, copy: int) -> timing.Side:
            text = f"{SOURCE.replace('EXTRA', str(extra))}// {copy}\n"
            kernel = load_kernel(build(target, text, Path(folder)), target.signature, "cpu")
            return timing.candidate_side(kernel, target.signature, where, None)

        for extra in (0, 3, 10, 30):
            candidate, baseline = side(extra, 1), side(0, 2)
            counts: collections.Counter[str] = collections.Counter()
            ratios, widths, blocks = [], [], []
            for number in range(chosen.tries):
                data = [[torch.randn(chosen.rows, chosen.columns), torch.randn(chosen.columns)] for _ in range(3)]
                timer = timing.Timer(
                    candidate, baseline, data, timing.CpuClock(), timing.scrubber(target.signature, where, None), patch,
                    lambda _slot, _out: None, random.Random(number),
                )  # fmt: skip
                summary = stats.summarise(timer.run().pairs)
                counts[stats.verdict(summary).value] += 1
                ratios.append(summary.ratio)
                widths.append(summary.width)
                blocks.append(summary.blocks)
            print(
                f"{extra:3d}% more work: {dict(counts)}, ratio {statistics.median(ratios):.4f} "
                f"({min(ratios):.3f} to {max(ratios):.3f}), width {statistics.median(widths):.3f}, "
                f"blocks {statistics.median(blocks):.0f}, {summary.candidate_us:.1f} us",
                flush=True,
            )
    for process in busy:
        process.terminate()


if __name__ == "__main__":
    main()
