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
            f"\nRecorded: {name}, {len(here)} seeds. ln(speedup): best {one.best_known:.3f}, plain {one.start:.3f}.",
            f"{'':42}{'share of best at call':^24} {'regret at call':^26} {'1-50':>8}  calls to 95% (reached)",
            f"{'':42}" + "".join(f"{n:>6}" for n in POINTS) + " " + "".join(f"{n:>6}" for n in POINTS),
        ]
        for row in regrets.curves:
            curves = [o.curves[row].by_call for o in here]
            shares = [mean([share_of_best(c[n - 1], one.start, one.best_known) for c in curves]) for n in POINTS]
            reached = [calls_to(c, one.start, one.best_known, 0.95) for c in curves]
            median, part = median_censored(reached), mean([c is not None for c in reached])
            lines.append(
                f"{row:42}" + "".join(f"{100 * s:5.0f}%" for s in shares) + " "
                + "".join(f"{regrets.at(row, n):6.3f}" for n in POINTS) + f" {regrets.over_all(row):8.3f}"
                + f"  {median or f'>{policies.CALLS}':>5} ({part:.0%})"
            )  # fmt: skip
    return lines


def compared(here: Sequence[runs.Outcome], ours: str, other: str) -> tuple[list[str], bool]:
    """Differences in regret to another policy in words, and whether any of them is for the worse."""
    calls, evaluations = Regrets(here), Regrets(here, by_evaluation=True)
    said, worse = [], False
    for regrets, unit in ((calls, "call"), (evaluations, "evaluation")):
        for what, when in ((last, f"{unit} {policies.CALLS}"), (mean, "mean")):
            delta, low, high = regrets.difference(ours, other, what)
            said.append(f"{when} {delta:+.3f} [{low:+.3f}, {high:+.3f}]")
            worse |= low > 0
    return said, worse


def promises(outcomes: Sequence[runs.Outcome]) -> list[Promise]:
    """What must hold of the search as it runs, settings swept.

    Worse means: the 95% bootstrap interval of the mean paired difference in regret lies wholly above zero, at equal
    calls or at equal evaluations, after the last one or on average over all.
    """
    found: list[Promise] = []
    ours, end = policies.SWEPT, policies.CALLS
    for name, here in by_name(outcomes).items():
        for other in PLAIN:
            said, worse = compared(here, ours, other)
            found.append(Promise(f"recorded {name}: not worse than {other}", ", ".join(said), not worse))
    calls = Regrets(outcomes)
    level = calls.at(UCT_OWN, end)
    caught = catch_up(calls.means[ours], level)
    found.append(Promise(f"recorded: catches up with the {UCT_OWN}'s {end}-call result by call 25", f"call {caught}",
                         caught is not None and caught <= 25))  # fmt: skip
    less = 1 - ratio(calls.at(ours, end), level)
    found.append(Promise(f"recorded: regret after {end} calls at least 35% below the {UCT_OWN}'s", f"{less:.0%}",
                         less >= 0.35))  # fmt: skip
    return found


def stated(outcomes: Sequence[runs.Outcome]) -> list[str]:
    """What is not promised but should be known, as lines: how it is without settings, and against swept ones."""
    calls, end = Regrets(outcomes), policies.CALLS
    lines = [
        f"Not worse on recorded landscapes: no 95% interval of the paired difference in regret of '{policies.SWEPT}',",
        f"by calls or by evaluations, at {end} or on average, lies wholly above zero.",
    ]
    for name, here in by_name(outcomes).items():
        for other in PLAIN:
            said, worse = compared(here, policies.OURS, other)
            word = "worse than" if worse else "not worse than"
            lines.append(f"Not promised: {name} without settings is {word} {other}: {', '.join(said[:2])}.")
    for ours, other in ((policies.OURS, UCT_OWN), (policies.SWEPT, policies.UCT_SWEPT), (policies.EAGER, UCT_OWN)):
        level = calls.at(other, end)
        lines.append(f"Not promised: '{ours}' catches up with the {other} on recorded landscapes at call "
                     f"{catch_up(calls.means[ours], level)}, {1 - ratio(calls.at(ours, end), level):.0%} less regret.")
    return lines
