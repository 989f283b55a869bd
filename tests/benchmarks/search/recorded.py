"""Recorded landscapes in the benchmark: every packaged one, many seeds each.

The author is the simulated model of recorded landscapes (`search.player`, which states its failure rates), the judge
gives recorded verdicts and times drawn from the recorded blocks as the device `sim:` does. What counts as truth is the
median of all blocks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from forge_tui.core import landscapes
from forge_tui.core.records import Evaluation, Node, Verdict
from forge_tui.engine.sim import timed
from forge_tui.search.landscape import FAMILY_ODDS
from forge_tui.search.player import RecordedPlayer, taken_apart
from forge_tui.search.recorded import TargetLandscape

from . import baselines, policies, runs, trees
from .figures import calls_to, catch_up, mean, median_censored, ratio, share_of_best
from .report import POINTS, Promise, Regrets, last
from .session import Recorder, Session
from .spaces import Space

FOLDER = Path(landscapes.__file__).parents[1] / "examples" / "landscapes"
#: seeds a landscape; odd ones, even ones are for tuning
SEEDS = 100
PLAIN = (policies.RANDOM, policies.BEST_OF_N)
UCT_OWN = "published UCT at the operator's own time"


class Recorded:
    """One recorded target; the seed draws the times."""

    def __init__(self, name: str, land: TargetLandscape, seed: int) -> None:
        self.name, self.land, self.seed = name, land, seed
        self.target = land.target
        self.best_known = land.best_value
        self.start = plain(land)
        self._timed: dict[int, Evaluation] = {}

    def author(self) -> RecordedPlayer:
        """See `spaces.Space`."""
        return RecordedPlayer({self.target.id: self.land})

    def judge(self) -> RecordedJudge:
        """See `spaces.Space`."""
        return RecordedJudge(self)

    def truth(self, node: Node) -> float:
        """See `spaces.Space`."""
        index = self.land.find(node.source, node.tunables)
        value = self.land.value(index) if index is not None else None
        assert value is not None, "asked for right nodes alone"
        return value

    def measured(self, index: int) -> Evaluation:
        """The timing of a point with this seed: equal for every policy, which makes pairs of their runs."""
        if index not in self._timed:
            point = self.land.points[index]
            bare = Evaluation(verdict=point.verdict, reason=point.reason, sha256=point.code)
            rng = random.Random(f"{self.name} {self.seed} {point.code}")
            self._timed[index] = timed(bare, point, rng) if point.verdict.right else bare
        return self._timed[index]


class RecordedJudge:
    """Duplicates by source, then by machine code, as a session finds them; each machine code is timed once."""

    def __init__(self, space: Recorded) -> None:
        self._space = space
        self._keys: dict[object, int] = {}
        self._codes: dict[str, int] = {}

    def judge(self, node: Node, baseline_us: float) -> Evaluation:
        """See `spaces.Judge`; the reference was timed beside each kernel, so `baseline_us` is not used."""
        del baseline_us
        source, fault, _ = taken_apart(node.source)
        land = self._space.land
        # no two recorded sources are one kernel, so their text will do for the normalised one, which takes long to make
        setting = land.defaults(source) | node.tunables
        first = self._keys.setdefault((node.source, tuple(sorted(setting.items()))), node.id)
        if first != node.id:
            return Evaluation(verdict=Verdict.DUPLICATE, reason=f"The same source as node {first}.")
        index = land.find(source, node.tunables)
        if index is None:
            return Evaluation(verdict=Verdict.REFUSED, reason="not recorded")
        if fault is not None:
            return Evaluation(verdict=fault, reason="simulated")
        code = land.points[index].code
        if code:
            first = self._codes.setdefault(code, node.id)
            if first != node.id:
                return Evaluation(verdict=Verdict.DUPLICATE, reason=f"Compiles to the same code as node {first}.")
        return self._space.measured(land.original(index))


def plain(land: TargetLandscape) -> float:
    """Value of a plain first kernel: the median of the author's right drafts.

    A draft is any point of a source, and the first sources come more often.
    """
    weighed: list[tuple[float, float]] = []
    for number in range(len(land.sources)):
        here = [i for i, point in enumerate(land.points) if point.source == number]
        odds = FAMILY_ODDS[min(number, len(FAMILY_ODDS) - 1)] / max(1, len(here))
        weighed += [(value, odds) for i in here if (value := land.value(i)) is not None]
    half = sum(odds for _, odds in weighed) / 2
    for value, odds in sorted(weighed):
        half -= odds
        if half <= 1e-12:
            return value
    raise ValueError("no right kernel was recorded")


@lru_cache(maxsize=64)
def lands(folder: Path = FOLDER) -> dict[str, TargetLandscape]:
    """Every packaged target by the name of its file, and its own where a file has several."""
    found: dict[str, TargetLandscape] = {}
    for path in sorted(folder.glob("*.landscape")):
        targets = landscapes.read(path).targets
        for target in targets:
            name = path.stem if len(targets) == 1 else f"{path.stem}:{target.target.name}"
            if name in found:
                name = f"{path.stem}:{target.target.id}"
            found[name] = TargetLandscape(target)
    return found


def _own_time(space: Space, seed: int, calls: int) -> Recorder:
    session = Session(space, seed, calls)
    return baselines.play(trees.published_uct, session, time_ms=space.target.time_us / 1e3).recorder


def rows() -> list[policies.Row]:
    """Every policy of the benchmark, and the published UCT with the time that the operator really takes."""
    return [*policies.ROWS.values(), policies.Row(UCT_OWN, _own_time)]


def on_recorded(pair: tuple[str, int]) -> runs.Outcome:
    """All rows on one landscape with one seed."""
    name, seed = pair
    return runs.on_space(Recorded(name, lands()[name], seed), seed, rows())


def pairs(seeds: int, *, odd: bool = True) -> list[tuple[str, int]]:
    """So many seeds for every landscape."""
    return [(name, 2 * i + odd) for name in lands() for i in range(seeds)]


def by_name(outcomes: Sequence[runs.Outcome]) -> dict[str, list[runs.Outcome]]:
    """The outcomes by landscape."""
    found: dict[str, list[runs.Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.name, []).append(outcome)
    return found


def tables(outcomes: Sequence[runs.Outcome]) -> list[str]:
    """Every policy on every landscape, as lines."""
    lines: list[str] = []
    for name, here in by_name(outcomes).items():
        regrets, one = Regrets(here), here[0]
        lines += [
            f"\nRecorded: {name}, {len(here)} seeds. Best known {one.best_known:.3f}, a plain kernel {one.start:.3f} "
            "(natural logarithms of speedups).",
            f"{'':42}{'share of best at call':^24} {'regret at call':^26} {'1-50':>8}  calls to 95% (reached)",
            f"{'':42}" + "".join(f"{n:>6}" for n in POINTS) + " " + "".join(f"{n:>6}" for n in POINTS),
        ]
        for row in regrets.curves:
            curves = [o.curves[row].by_call for o in here]
            shares = [mean([share_of_best(c[n - 1], one.start, one.best_known) for c in curves]) for n in POINTS]
            reached = [calls_to(c, one.start, one.best_known, 0.95) for c in curves]
            lines.append(
                f"{row:42}" + "".join(f"{100 * s:5.0f}%" for s in shares) + " "
                + "".join(f"{regrets.at(row, n):6.3f}" for n in POINTS) + f" {regrets.over_all(row):8.3f}"
                + f"  {median_censored(reached) or f'>{policies.CALLS}':>5} ({mean([c is not None for c in reached]):.0%})"
            )  # fmt: skip
    return lines


def promises(outcomes: Sequence[runs.Outcome]) -> list[Promise]:
    """What must hold on recorded landscapes.

    Worse means: the 95% bootstrap interval of the mean paired difference in regret lies wholly above zero, after the
    last call or on average over all calls.
    """
    found: list[Promise] = []
    for name, here in by_name(outcomes).items():
        regrets = Regrets(here)
        for ours in (policies.OURS, policies.SWEPT):
            for other in PLAIN:
                ends = [regrets.difference(ours, other, what) for what in (last, mean)]
                said = ", ".join(f"{when} {delta:+.3f} [{low:+.3f}, {high:+.3f}]"
                                 for when, (delta, low, high) in zip((f"call {policies.CALLS}", "mean"), ends, strict=True))
                found.append(Promise(f"{name}: '{ours}' not worse than {other}", said,
                                     all(low <= 0 for _, low, _ in ends)))  # fmt: skip
    calls, end = Regrets(outcomes), policies.CALLS
    level = calls.at(UCT_OWN, end)
    caught = [catch_up(calls.means[name], level) for name in (policies.OURS, policies.EAGER)]
    found.append(Promise(f"recorded: catches up with the {UCT_OWN}'s {end}-call result by call 25",
                         f"call {caught[0]} (settings swept at once: {caught[1]})",
                         caught[0] is not None and caught[0] <= 25))  # fmt: skip
    less = 1 - ratio(calls.at(policies.OURS, end), level)
    found.append(Promise(f"recorded: regret after {end} calls at least 35% below the {UCT_OWN}'s", f"{less:.0%}",
                         less >= 0.35))  # fmt: skip
    return found
