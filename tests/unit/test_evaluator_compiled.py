"""The compiled original on the CPU, for real: compiled by another process, checked by the judge, timed in turns."""

from __future__ import annotations

import pytest
from evaluator_support import CPU, build, make_target, spec, workspace

from forge_tui.evaluator.client import WorkerEvaluator
from forge_tui.evaluator.compiled_baseline import UNASKED

#: one pass over the rows against eager's six operations: several times as fast, however loaded the machine
FAST = """
#include "forge_target.h"
#include <cmath>
extern "C" __attribute__((visibility("default"))) int forge_launch(FORGE_PARAMS) {
    for (int64_t r = 0; r < forge::x_shape_0; ++r) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < 96; ++j) sum += x[r * 96 + j] * x[r * 96 + j];
        const float scale = 1.0f / std::sqrt(sum / 96 + float(forge::eps));
#pragma omp simd
        for (int64_t j = 0; j < 96; ++j) out0[r * 96 + j] = x[r * 96 + j] * scale * weight[j];
    }
    return 0;
}
"""
SLOW = FAST.replace("return 0;", "for (volatile int i = 0; i < 3000000; ++i) {}\n    return 0;")


@pytest.mark.slow
async def test_a_winner_is_timed_against_the_compiled_original(tmp_path):
    """A slow candidate gives no occasion to compile; the first fast one does, once, and both ratios are there."""
    place = workspace(tmp_path)
    target = make_target(place, "norm")
    made = WorkerEvaluator(spec(), CPU, place, threads=1, seed=3, log_dir=place.logs, timeout_s=20.0, patience_s=0.0,
                           compile_baseline=True)  # fmt: skip
    try:
        slow = await made.evaluate(target, build(target, SLOW, tmp_path / "built"), 1)
        assert slow.timings.missing == {"compile": UNASKED}
        first, second = [
            await made.evaluate(target, build(target, f"{FAST}// {number}\n", tmp_path / "built"), number)
            for number in (2, 3)
        ]
    finally:
        await made.close()
    for result in (first, second):
        assert result.timings.missing == {}, result.timings.missing
        sides = [side.name for side in result.timings.sides]
        assert sides == ["candidate", "eager", "compile"]
        assert result.timings.vs_best.speedup <= result.timings.vs_eager.speedup
        assert result.speedup == result.timings.vs_eager.speedup
    (package,) = (place.artifacts / "compiled").iterdir()
    assert package.suffix == ".pt2"
