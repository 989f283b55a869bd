"""Tables of the benchmark, and its promises with what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import models, policies, steps
from .figures import (
    calls_to,
    catch_up,
    interval,
    mean,
    mean_curve,
    median_censored,
    ratio,
    regret,
    share_of_best,
)
from .runs import Outcome

POINTS = (5, 10, 20, 50)
#: a published UCT is compared with at the times of a call that operators of real models have
PROMISED_TIMES_MS = (0.005, 0.05, 1.0)


@dataclass(frozen=True, slots=True)
class Promise:
    """One line of what must hold."""

    text: str
    found: str
    kept: bool


class Regrets:
    """Curves of regret per row, over the same spaces in the same order."""

    def __init__(self, outcomes: Sequence[Outcome], *, by_evaluation: bool = False) -> None:
        self.outcomes = outcomes
        self.curves = {
            name: [
                regret(o.curves[name].by_evaluation[: policies.CALLS] if by_evaluation else o.curves[name].by_call,
                       o.best_known)
                for o in outcomes
            ]
            for name in outcomes[0].curves
        }  # fmt: skip
        self.means = {name: mean_curve(curves) for name, curves in self.curves.items()}

    def at(self, name: str, calls: int) -> float:
        """Mean regret after so many calls."""
        return self.means[name][calls - 1]

    def over_all(self, name: str) -> float:
        """Mean regret over calls 1 to the last."""
        return mean(self.means[name])

    def difference(self, name: str, other: str, what: Callable[[list[float]], float]) -> tuple[float, float, float]:
        """Mean of the paired differences name - other of a figure of a curve, with its interval."""
        pairs = zip(self.curves[name], self.curves[other], strict=True)
        differences = [what(a) - what(b) for a, b in pairs]
        return mean(differences), *interval(differences)


def last(curve: list[float]) -> float:
    """The regret after the last call."""
    return curve[-1]


def tables(outcomes: Sequence[Outcome], rows: Sequence[policies.Row]) -> list[str]:
    """Everything about single operators, as lines."""
    calls, evaluations = Regrets(outcomes), Regrets(outcomes, by_evaluation=True)
    ours = policies.OURS
    lines = [
        f"One operator, {len(outcomes)} landscape-seed pairs, {policies.CALLS} calls. A call is one reply; regret is",
        "ln(best known / chosen). Share: part of the way from a plain kernel to the best known. Difference: regret to",
        f"that of '{ours}' after {policies.CALLS} calls, paired, with its 95% interval (negative: better than ours).",
        f"{'':42}{'share of best at call':^24} {'regret at call':^26} {'mean':>6} {'difference':>25} catch-up",
        f"{'':42}" + "".join(f"{n:>6}" for n in POINTS) + " " + "".join(f"{n:>6}" for n in POINTS) + f" {'1-50':>8}",
    ]
    for row in rows:
        shares = [
            mean([share_of_best(o.curves[row.name].by_call[n - 1], o.start, o.best_known) for o in outcomes])
            for n in POINTS
        ]
        delta, low, high = calls.difference(row.name, ours, last)
        caught = catch_up(calls.means[ours], calls.at(row.name, policies.CALLS))
        lines.append(
            f"{row.name:42}" + "".join(f"{100 * s:5.0f}%" for s in shares) + " "
            + "".join(f"{calls.at(row.name, n):6.3f}" for n in POINTS) + f" {calls.over_all(row.name):8.3f}"
            + ("" if row.name == ours else f"   {delta:+.3f} [{low:+.3f}, {high:+.3f}]  {caught or '-':>6}")
        )  # fmt: skip
    lines += ["", "Catch-up: the call at which ours has the row's regret of the last call.", ""]
    lines.append(f"{'Calls to a part of the way (median)':42}{'70%':>6}{'90%':>6}{'95%':>6}   reach 95%"
                 f"   share at evaluation {', '.join(map(str, POINTS))}")  # fmt: skip
    for row in rows:
        reached = {
            part: [calls_to(o.curves[row.name].by_call, o.start, o.best_known, part) for o in outcomes]
            for part in (0.7, 0.9, 0.95)
        }
        medians = [median_censored(found) for found in reached.values()]
        shares = [
            mean([share_of_best(o.curves[row.name].by_evaluation[n - 1], o.start, o.best_known) for o in outcomes])
            for n in POINTS
        ]
        part = mean([c is not None for c in reached[0.95]])
        lines.append(f"{row.name:42}" + "".join(f"{m or f'>{policies.CALLS}':>6}" for m in medians)
                     + f"{100 * part:10.0f}%   " + " ".join(f"{100 * s:4.0f}%" for s in shares))  # fmt: skip
    lines += ["", f"Regret after {policies.CALLS} calls by kind; where ours is not the best, the best is named."]
    plain = [r.name for r in rows if r.name not in (policies.SWEPT, policies.EAGER, policies.UCT_SWEPT)]
    for kind, part_of in by_kind(outcomes).items():
        here = Regrets(part_of)
        best = min(plain, key=lambda name: here.at(name, policies.CALLS))
        note = "" if best == ours else f"   {best} {here.at(best, policies.CALLS):.3f}"
        lines.append(f"  {kind:14}{ours} {here.at(ours, policies.CALLS):.3f}{note}")
    # settings cost evaluations, and this is where that shows
    lines.append("")
    for name in (ours, policies.SWEPT, policies.EAGER):
        lines.append(f"Evaluations of '{name}': {mean([len(o.curves[name].by_evaluation) for o in outcomes]):.0f} in "
                     f"{policies.CALLS} calls; regret at evaluation 10, 20, 50: "
                     + ", ".join(f"{evaluations.at(name, n):.3f}" for n in POINTS[1:]))  # fmt: skip
    return lines


def by_kind(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """The outcomes by what comes before the last dash of their names."""
    kinds: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        kinds.setdefault(outcome.name.rpartition("-")[0], []).append(outcome)
    return kinds


def operator_promises(outcomes: Sequence[Outcome]) -> list[Promise]:
    """What must hold on single operators."""
    calls = Regrets(outcomes)
    ours, end = policies.OURS, policies.CALLS
    found = []
    for ms in PROMISED_TIMES_MS:
        name = policies.UCT[ms]
        caught = catch_up(calls.means[ours], calls.at(name, end))
        swept = catch_up(calls.means[policies.EAGER], calls.at(name, end))
        found.append(Promise(f"catches up with the {name}'s {end}-call result by call 25",
                             f"call {caught} (settings swept at once: {swept})",
                             caught is not None and caught <= 25))  # fmt: skip
        less = 1 - calls.at(ours, end) / calls.at(name, end)
        found.append(Promise(f"regret after {end} calls at least 35% below the {name}'s", f"{less:.0%}", less >= 0.35))
    for name in (policies.HALVING, policies.METR):
        times = ratio(calls.at(ours, end), calls.at(name, end))
        found.append(Promise(f"not more than 5% worse than {name} after {end} calls", f"{times - 1:+.1%}",
                             times <= 1.05))  # fmt: skip
        delta, low, high = calls.difference(ours, name, mean)
        found.append(Promise(f"less mean regret over calls 1 to {end} than {name}",
                             f"{delta:+.3f} [{low:+.3f}, {high:+.3f}]", delta < 0))  # fmt: skip
    for kind, part in by_kind(outcomes).items():
        here = Regrets(part)
        worst = max(here.at(ours, end) - here.at(name, end) for name in (policies.RANDOM, policies.BEST_OF_N))
        found.append(Promise(f"never worse than random or best of N: {kind}", f"regret {worst:+.3f}", worst <= 0))
    return found


def stated(outcomes: Sequence[Outcome]) -> str:
    """What is not promised but should be known."""
    calls, end = Regrets(outcomes), policies.CALLS
    name = policies.UCT[max(policies.UCT_TIMES_MS)]
    caught = catch_up(calls.means[policies.OURS], calls.at(name, end))
    less = 1 - ratio(calls.at(policies.OURS, end), calls.at(name, end))
    return (f"Not promised: the {name} a call, where its score does follow speed, is caught up with at call {caught}; "
            f"{less:.0%} less regret after {end} calls.")  # fmt: skip


def model_table(found: dict[str, list[models.Gains]], jobs: Sequence[tuple[str, int]], title: str) -> list[str]:
    """Gains of whole models, as lines."""
    lines = [title, f"{'':44}" + "".join(f"{b:>8}" for b in models.BUDGETS) + "   at 40 and 150, by profile"]
    for name, gains in found.items():
        cells = [mean([g.at(b) for g in gains]) for b in models.BUDGETS]
        parts = [
            "/".join(f"{100 * mean([g.at(b) for g, job in zip(gains, jobs, strict=True) if job[0] == p]):.1f}"
                     for b in (40, 150))
            for p in dict.fromkeys(profile for profile, _ in jobs)
        ]  # fmt: skip
        lines.append(f"{name:44}" + "".join(f"{100 * c:7.2f}%" for c in cells) + "   " + "  ".join(parts))
    return lines


def model_promises(found: dict[str, list[models.Gains]], jobs: Sequence[tuple[str, int]]) -> list[Promise]:
    """What must hold of the split of calls between operators and of the stop rule."""
    ours = mean([g.at(40) for g in found[policies.OURS]])
    equal = mean([g.at(40) for g in found["equal shares"]])
    promises = [
        Promise("whole-model gain at 40 calls at least 1.8 times that of equal shares", f"{ratio(ours, equal):.2f}",
                ours >= 1.8 * equal)
    ]  # fmt: skip
    for name in models.RULES:
        if name != "equal shares":
            other = mean([g.at(40) for g in found[name]])
            text = f"more whole-model gain at 40 calls than {name}"
            promises.append(Promise(text, f"{ratio(ours, other):.2f} times", ours > other))
    full, stopped = found[models.FULL_RUN], found[models.STOPPED]
    saved = 1 - mean([len(g.after) for g in stopped]) / models.FULL
    kept = ratio(mean([g.at(models.FULL) for g in stopped]), mean([g.at(models.FULL) for g in full]))
    by_profile = {
        p: ratio(*(mean([g.at(models.FULL) for g, job in zip(gains, jobs, strict=True) if job[0] == p])
                   for gains in (stopped, full)))
        for p in dict.fromkeys(profile for profile, _ in jobs)
    }
    worst = min(by_profile, key=lambda p: by_profile[p])
    promises.append(Promise("the stop rule saves at least 25% of the calls", f"{saved:.0%}", saved >= 0.25))
    calls = round((1 - saved) * models.FULL)
    cut = ratio(mean([g.at(calls) for g in full]), mean([g.at(models.FULL) for g in full]))
    promises.append(Promise("the stop rule keeps at least 95% of the mean gain",
                            f"{kept:.1%}; worst model: {worst}, {by_profile[worst]:.0%}; "
                            f"every model cut at call {calls} keeps {cut:.1%}", kept >= 0.95))  # fmt: skip
    return promises


def step_promises(costs: Sequence[steps.Cost]) -> list[Promise]:
    """What must hold of a tree of 10,000 nodes."""
    slowest, largest = max(c.median_ms for c in costs), max(c.memory_mb for c in costs)
    return [
        Promise(f"a step at {steps.NODES:,} nodes under {steps.PROMISED_MS:g} ms",
                f"{slowest:.2f} ms, worst single one {max(c.worst_ms for c in costs):.1f} ms",
                slowest < steps.PROMISED_MS),
        Promise(f"memory beside the sources under {steps.PROMISED_MB:g} MB", f"{largest:.1f} MB",
                largest < steps.PROMISED_MB),
    ]  # fmt: skip
