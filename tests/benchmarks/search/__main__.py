"""Runs the benchmark: `python -m benchmarks.search` from `tests/`, or `make bench-search`.

`tune` instead prints what each setting of each policy reaches on the even seeds, which is how settings were chosen.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial

from . import models, policies, recorded, report, runs, steps
from .figures import mean, regret
from .spaces import FRESH, Generated, Kind, generated


def _models(job: tuple[str, int], *, sweep: bool, beatable: bool) -> dict[str, models.Gains]:
    """Every way to deal out calls on one model."""
    profile, seed = job
    swept = {} if sweep else dict(models.UNSWEPT)
    endless = {**models.ENDLESS, **swept}
    calls = max(models.BUDGETS)
    found = {policies.OURS: models.ours(profile, seed, models.FULL, endless, beatable=beatable)}
    for name, rule in models.RULES.items():
        found[name] = models.allocated(rule, profile, seed, calls, sweep=sweep, beatable=beatable)
    if not beatable:
        found["this search, floor told too low (0.5)"] = models.ours(profile, seed, calls, endless, slack=0.5)
        found[models.FULL_RUN] = found[policies.OURS]
        found[models.STOPPED] = models.ours(profile, seed, models.FULL, swept)
    return found


def _together(found: Sequence[dict[str, models.Gains]]) -> dict[str, list[models.Gains]]:
    return {name: [one[name] for one in found] for name in found[0]}


def models_of(pairs: int) -> list[tuple[str, int]]:
    """The models of a run: a twentieth of the pairs per profile."""
    return [(profile, FRESH + 1 + 2 * i) for i in range(max(1, pairs // 20)) for profile in models.PROFILES]


def run(pairs: int, *, workers: int | None = None, say: bool = True) -> list[report.Promise]:
    """Everything on odd seeds that nothing was chosen by; returns the promises."""
    out = print if say else (lambda *_args, **_kwargs: None)
    began = time.perf_counter()
    outcomes = runs.spread(runs.on_generated, generated(pairs, odd=True), workers=workers)
    out(*report.tables(outcomes, list(policies.ROWS.values())), sep="\n")
    promises = report.operator_promises(outcomes)
    on_recorded = runs.spread(recorded.on_recorded, recorded.pairs(max(1, pairs // 10)), workers=workers)
    out(*recorded.tables(on_recorded), sep="\n")
    promises += recorded.promises(on_recorded)
    jobs = models_of(pairs)
    for sweep, beatable, title in (
        (True, False, "Settings swept; vendors' operators are never beatable."),
        (False, False, "Without settings."),
        (True, True, "Settings swept; one vendor operator in four has a weak library and can be beaten."),
    ):
        together = _together(runs.spread(partial(_models, sweep=sweep, beatable=beatable), jobs, workers=workers))
        text = f"\nShare of the model's time saved after so many calls, {len(jobs)} models of eight operators. {title}"
        out(*report.model_table(together, jobs, text), sep="\n")
        if sweep and not beatable:
            promises += report.model_promises(together, jobs)
    costs = [steps.measure(shape, sweep=sweep, nodes=steps.NODES) for shape in steps.SHAPES for sweep in (True, False)]
    out(f"\nA tree of {steps.NODES:,} nodes:")
    for cost in costs:
        out(f"  {cost.shape}, {'settings' if cost.sweep else 'descents'}: {cost.median_ms:.2f} ms a step "
            f"(worst {cost.worst_ms:.1f}), {cost.memory_mb:.1f} MB beside sources, restored in {cost.restore_s:.2f} s")
    promises += report.step_promises(costs)
    out("\nPromises")
    for promise in promises:
        out(f"  {'PASS' if promise.kept else 'FAIL'}  {promise.text}: {promise.found}")
    out(report.stated(outcomes), *recorded.stated(on_recorded), sep="\n")
    out(f"{policies.EFFORT_TEXT}\n{time.perf_counter() - began:.0f} s")
    return promises


#: the first pass of tuning has so many times fewer pairs, and leaves so many settings to the second
COARSE, LEFT = 4, 8


def _tried(pair: tuple[Kind, int], *, which: dict[str, list[int]]) -> dict[tuple[str, int], tuple[float, float]]:
    kind, seed = pair
    space, found = Generated(kind, seed), {}
    for name, numbers in which.items():
        row = policies.ROWS[name]
        for i in numbers:
            curve = regret(row.run(space, seed, policies.CALLS, **row.grid[i]).curve.by_call, space.best_known)
            found[name, i] = (curve[-1], mean(curve))
    return found


def _scores(pairs: int, which: dict[str, list[int]]) -> dict[str, list[tuple[float, float, int]]]:
    """Per row: (last + mean regret, last regret, number of the setting), the best first."""
    tried = runs.spread(partial(_tried, which=which), generated(pairs, odd=False))
    return {
        name: sorted((mean([sum(t[name, i]) for t in tried]), mean([t[name, i][0] for t in tried]), i) for i in numbers)
        for name, numbers in which.items()
    }


def _tried_gradient(job: tuple[str, int]) -> list[float]:
    return [
        models.allocated(models.gradient(a, w, deployed=d), *job, 40, sweep=True).at(40)
        for a, w, d in models.GRADIENTS
    ]


def tune(pairs: int) -> None:
    """What each setting reaches on even seeds: all of them on a quarter of the pairs, the best of them on all."""
    coarse = _scores(max(1, pairs // COARSE), {name: [*range(len(row.grid))] for name, row in policies.ROWS.items()})
    fine = _scores(pairs, {name: [i for _, _, i in scores[:LEFT]] for name, scores in coarse.items()})
    for name, scores in fine.items():
        row = policies.ROWS[name]
        print(f"{name}: {len(row.grid)} settings; now {dict(row.settings)}")
        for both, end, i in scores[:3]:
            print(f"    {both:.3f} (last {end:.3f}) {dict(row.grid[i])}")
    jobs = [(profile, 2 * i) for i in range(max(1, pairs // 20)) for profile in models.PROFILES]
    gains = list(zip(*runs.spread(_tried_gradient, jobs), strict=True))
    for gain, setting in sorted(zip(map(mean, gains), models.GRADIENTS, strict=True), reverse=True)[:3]:
        print(f"gradient {setting}: {100 * gain:.2f}% at 40 calls")


def main() -> int:
    """1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="bench-search", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("run", "tune"), default="run")
    parser.add_argument("--pairs", type=int, default=1000, help="landscape-seed pairs (100 is quick)")
    given = parser.parse_args()
    if given.what == "tune":
        tune(given.pairs)
        return 0
    return 0 if all(promise.kept for promise in run(given.pairs)) else 1


if __name__ == "__main__":
    sys.exit(main())
