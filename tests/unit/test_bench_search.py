"""The search benchmark: its arithmetic, its accounting, and that it runs."""

from __future__ import annotations

import math

import pytest
from benchmarks.search import __main__ as bench
from benchmarks.search import baselines, figures, models, policies, report, runs, spaces, steps
from benchmarks.search.session import Curve, Session

from forge_tui.core.records import Edge
from forge_tui.search.config import SearchConfig


def test_figures_of_hand_made_curves() -> None:
    """Regret, share, calls to a part, catch-up and means are what they are by hand."""
    curve = [-0.5, 0.0, 0.0, 0.75, 1.0]
    assert figures.regret(curve, 1.5) == [2.0, 1.5, 1.5, 0.75, 0.5]
    assert figures.share_of_best(0.75, -0.5, 1.5) == pytest.approx(0.625)
    assert figures.share_of_best(-2.0, -0.5, 1.5) == 0.0
    assert figures.calls_to(curve, -0.5, 1.5, 0.7) == 5
    assert figures.calls_to(curve, -0.5, 1.5, 0.25) == 2
    assert figures.calls_to(curve, -0.5, 1.5, 0.95) is None
    assert figures.median_censored([3, None, 9]) == 9
    assert figures.median_censored([None, None, 9]) is None
    assert figures.median_censored([4, 2, None, None]) == 4
    assert figures.mean_curve([[1.0, 0.5], [3.0, 0.0]]) == [2.0, 0.25]
    assert figures.catch_up([0.9, 0.4, 0.3], 0.4) == 2
    assert (figures.ratio(3.0, 2.0), figures.ratio(0.0, 0.0), figures.ratio(1.0, 0.0)) == (1.5, 1.0, math.inf)
    assert figures.catch_up([0.9, 0.4, 0.3], 0.2) is None


def test_the_interval_covers_as_it_should() -> None:
    """A constant has no width; of 400 coin tosses the interval is about 2 standard errors to each side."""
    assert figures.interval([0.25] * 50) == (0.25, 0.25)
    low, high = figures.interval([0.0, 1.0] * 200)
    assert (low, high) == (pytest.approx(0.451, abs=0.01), pytest.approx(0.549, abs=0.01))


def test_the_report_compares_pairs() -> None:
    """Two rows on two spaces: means, paired differences and kinds by hand."""
    def outcome(name: str, a: list[float], b: list[float]) -> runs.Outcome:
        made = object.__new__(runs.Outcome)
        made.name, made.start, made.best_known = name, 0.0, 1.0
        made.curves = {"a": Curve(a, a), "b": Curve(b, b)}
        return made

    both = [outcome("x-1", [0.0, 0.5], [0.2, 0.2]), outcome("y-1", [0.5, 1.0], [0.0, 0.6])]
    found = report.Regrets(both)
    assert found.means["a"] == pytest.approx([0.75, 0.25])
    assert found.at("b", 2) == pytest.approx(0.6)
    assert found.over_all("a") == pytest.approx(0.5)
    delta, low, high = found.difference("a", "b", report.last)
    assert (delta, low, high) == (pytest.approx(-0.35), pytest.approx(-0.4), pytest.approx(-0.3))
    assert {kind: len(part) for kind, part in report.by_kind(both).items()} == {"x": 1, "y": 1}


@pytest.mark.parametrize("name", policies.ROWS)
def test_every_policy_keeps_its_budget_and_follows_its_seed(name: str) -> None:
    """Exactly the calls it was given, the same ones for the same seed, others for another seed."""
    row = policies.ROWS[name]
    one, same, other = (row(spaces.Generated("reduction", 4), seed, 12).curve for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert len(one.by_call) == 12
    assert len(one.by_evaluation) == 12 or "swept" in name
    assert one.by_call[-1] == one.by_evaluation[-1]


def test_a_call_is_a_reply_whatever_became_of_it() -> None:
    """Failures and repairs use up the budget; settings do not, and only with a sweep are there any."""
    for sweep in (None, SearchConfig(tune_after=0)):
        session = Session(spaces.Generated("fused", 2), 3, 25, sweep=sweep)
        baselines.play(baselines.greedy, session)
        edges = [node.edge for node in session._nodes]
        assert sum(edge is not Edge.TUNE for edge in edges) == session.used == 25
        assert (Edge.TUNE in edges) is (sweep is not None)
        assert Edge.REPAIR in edges
        assert len(session.recorder.curve.by_evaluation) == len(edges)


def test_rules_deal_out_calls_as_they_say() -> None:
    """Equal, by time, fifty each and Ansor's gradient on hand-made progress."""
    now = models.Progress([0.6, 0.3, 0.1], [2, 1, 1], [[None, 2.0, 1.0], [None, 0.9], [None, None]], 10)
    assert models.equal(now) == 1
    # (2 + 1) / 0.6 = 5, 2 / 0.3 = 6.7, 2 / 0.1 = 20
    assert models.by_time(now) == 0
    assert models.fifty_each(now) == 0
    # own time: 0.6 (0.2 * 0 + 0.8 * 1.0 / 2) = 0.24; 0.3 (0.2 * 0.1 / 3 + 0.8 * 0.9) = 0.218; 0.1 * 0.8 = 0.08
    assert models.gradient()(now) == 0
    now.calls[0] = 4
    assert models.gradient()(now) == 1
    now.calls[0] = 50
    assert models.fifty_each(now) == 1


def test_every_rule_gets_the_calls_it_was_given() -> None:
    """Gains never fall below zero or above what there is; each run has one gain per call."""
    for rule in models.RULES.values():
        gains = models.allocated(rule, "much to fuse", 0, 12, sweep=True)
        assert len(gains.after) == 12
        assert all(0 <= gain < 1 for gain in gains.after)
    ours = models.ours("much to fuse", 0, 12, models.ENDLESS)
    assert len(ours.after) == 12
    assert ours.at(100) == ours.after[-1]


def test_the_stop_rule_is_measured_against_the_whole_run_and_a_plain_cut() -> None:
    """Two models by hand: 6 of 8 calls kept, 0.45 of 0.5 of the gain; cut at call 6 both runs have 0.4."""
    ramp = [0.0, 0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.3]
    full = [models.Gains(ramp), models.Gains([0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.2, 0.2])]
    stopped = [models.Gains([*ramp[:7], 0.25]), models.Gains([0.1, 0.1, 0.1, 0.2])]
    found = dict.fromkeys((policies.OURS, *models.RULES, models.FULL_RUN), full) | {models.STOPPED: stopped}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "FULL", 8)
        saves, keeps = report.model_promises(found, [("much to fuse", 1), ("language", 1)])[-2:]
    assert (saves.found, saves.kept) == ("25%", True)
    assert keeps.found == "90.0%; worst model: much to fuse, 83%; every model cut at call 6 keeps 80.0%"
    assert not keeps.kept


def test_even_seeds_are_for_tuning_and_odd_ones_for_reports() -> None:
    """The two sets are disjoint and cover all kinds alike."""
    tuned, reported = (spaces.generated(20, odd=odd) for odd in (False, True))
    assert {seed % 2 for _, seed in tuned} == {0}
    assert {seed % 2 for _, seed in reported} == {1}
    assert min(seed for _, seed in reported) == min(seed for _, seed in bench.models_of(20)) == 1_000_001
    assert [kind for kind, _ in tuned] == [kind for kind, _ in reported]
    assert len(set(reported)) == 20


def test_the_floor_that_the_search_is_told_is_below_what_can_be_reached() -> None:
    """No design beats the floor; the best known is near the top and above a plain kernel."""
    for kind in spaces.KINDS:
        space = spaces.Generated(kind, 7)
        floor = math.log(space.target.time_us / space.target.floor_us)
        assert space.start < space.best_known <= space.land.ceiling + 1e-9 <= floor + 1e-9


def test_the_benchmark_runs_and_says_what_was_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few pairs give every table and a verdict per promise; a broken promise is exit code 1."""
    monkeypatch.setattr(steps, "NODES", 200)
    monkeypatch.setattr(bench.recorded, "pairs", lambda _seeds: [("softmax-cpu", 1)])
    monkeypatch.setattr(bench, "models_of", lambda _pairs: [("much to fuse", 1)])
    monkeypatch.setattr(models, "BUDGETS", (4, 8))
    monkeypatch.setattr(models, "FULL", 10)
    promises = bench.run(5, workers=1)
    text = capsys.readouterr().out
    assert all(name in text for name in (*policies.ROWS, *models.RULES))
    assert text.count("PASS") + text.count("FAIL") == len(promises) > 15
    broken = report.Promise("never", "always", kept=False)
    monkeypatch.setattr("sys.argv", ["bench-search", "--pairs", "1"])
    monkeypatch.setattr(bench, "run", lambda _pairs: [broken])
    assert bench.main() == 1
    monkeypatch.setattr(bench, "run", lambda _pairs: [report.Promise("a", "b", kept=True)])
    assert bench.main() == 0
