"""Every row of the benchmark: how it is run, and with which settings.

Settings were chosen by `python -m benchmarks.search tune` (from `tests/`): every baseline that has any gets about as
many of them as were tried of ours by hand and by grid, on the same even seeds, by the same measure (regret after the
last call plus mean regret over all calls). The published UCT is not tuned, its constants are what is compared with; a
tuned one on the logarithm of time stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product

from forge_tui.search.config import SearchConfig

from . import baselines, ours, trees
from .session import Recorder, Session
from .spaces import Space

Run = Callable[..., Recorder]
Settings = Mapping[str, float]

CALLS = 50
EFFORT_TEXT = (
    "Settings tried on even seeds: 70 to 160 for each tuned baseline (7 where there is only one setting; none for\n"
    "the published UCT, whose constants are what is compared with), all on 150 pairs, the best 8 again on 600. Of\n"
    "ours some 100: 40 of its shape, 45 of its edges and repairs, a grid of 12; the study that its shape comes from\n"
    "had tried some 90 others on a simulation like this one. Its split between operators took some 25, Ansor's\n"
    "gradient got 50; its stop rule took some 50."
)


@dataclass(frozen=True)
class Row:
    """One policy."""

    name: str
    run: Run
    settings: Settings = field(default_factory=dict)
    """What was chosen, or what was published."""
    grid: tuple[Settings, ...] = ()
    """What it was chosen from; empty where nothing is tuned."""

    def __call__(self, space: Space, seed: int, calls: int = CALLS) -> Recorder:
        return self.run(space, seed, calls, **self.settings)


def grid(**values: tuple[float, ...]) -> tuple[Settings, ...]:
    """All combinations."""
    return tuple(dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))


def _baseline(policy: baselines.Policy, *, sweep: bool = False) -> Run:
    def run(space: Space, seed: int, calls: int, **settings: float) -> Recorder:
        session = Session(space, seed, calls, sweep=SearchConfig() if sweep else None)
        return baselines.play(policy, session, **settings).recorder

    return run


def _ours(*, sweep: bool) -> Run:
    def run(space: Space, seed: int, calls: int, **settings: float) -> Recorder:
        return ours.search(space, seed, calls, sweep=sweep, **settings)

    return run


OURS, SWEPT = "this search", "this search, settings swept"
EAGER = "this search, settings swept at once"
HALVING, METR = "successive halving of greedy lineages", "weighted resampling (METR)"
RANDOM, BEST_OF_N = "random", "best of N"
UCT_TIMES_MS = (0.005, 0.05, 1.0, 100.0)
UCT = {ms: f"published UCT at {ms:g} ms" for ms in UCT_TIMES_MS}
UCT_SWEPT = "published UCT at 0.05 ms, settings swept"
UCT_LOG = "UCT on log time, tuned"

_uct = _baseline(trees.published_uct)

ROWS = {
    row.name: row
    for row in (
        Row(RANDOM, _baseline(baselines.random_parent), {"repairs": 2}, grid(repairs=(0, 1, 2, 3, 4, 5, 6))),
        Row(BEST_OF_N, _baseline(baselines.best_of_n), {"repairs": 3}, grid(repairs=(0, 1, 2, 3, 4, 5, 6))),
        Row("greedy refinement", _baseline(baselines.greedy), {"repairs": 3, "drafts": 2},
            grid(repairs=(0, 1, 2, 3, 4, 5, 6), drafts=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10))),
        Row("beam", _baseline(baselines.beam), {"width": 2, "branch": 1, "repairs": 3},
            grid(width=(1, 2, 3, 4, 5, 6), branch=(1, 2, 3, 4, 5), repairs=(0, 1, 2, 3, 4))),
        Row(HALVING, _baseline(baselines.successive_halving), {"lineages": 2, "repairs": 3, "drafts": 2},
            grid(lineages=(2, 3, 4, 6, 8), repairs=(0, 1, 2, 3, 4), drafts=(1, 2, 3, 4, 5, 6))),
        Row(METR, _baseline(baselines.weighted_resampling), {"temperature": 0.05, "drafts": 4, "repairs": 1},
            grid(temperature=(0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2), drafts=(1, 2, 3, 4, 6),
                 repairs=(1, 2, 3, 4))),
        Row("AB-MCTS-A", _baseline(trees.ab_mcts_a), {"low": -0.25, "high": 0.25, "tau2": 0.005, "repairs": 3},
            grid(low=(-2.0, -1.0, -0.5, -0.25), high=(0.25, 0.5, 1.0, 1.5), tau2=(0.005, 0.02, 0.1),
                 repairs=(2, 3, 4))),
        *(Row(name, _uct, {"time_ms": ms}) for ms, name in UCT.items()),
        Row(UCT_SWEPT, _baseline(trees.published_uct, sweep=True), {"time_ms": 0.05}),
        Row(UCT_LOG, _uct, {"log": True, "c": 0.1, "wide": 0.2, "repairs": 2, "stagnation": 20},
            grid(log=(True,), c=(0.01, 0.025, 0.05, 0.1, 0.2, 0.4), wide=(0.2, 0.3, 0.5, 0.7), repairs=(2, 3, 4),
                 stagnation=(10, 20))),
        Row(OURS, _ours(sweep=False), {},
            grid(explore=(0.3, 0.4, 0.5), explore_roots=(0.15, 0.2), repair_gate=(0.4, 0.6))),
        Row(SWEPT, _ours(sweep=True), {}),
        Row(EAGER, _ours(sweep=True), {"tune_share": 100.0, "tune_after": -1}),
    )
}  # fmt: skip
