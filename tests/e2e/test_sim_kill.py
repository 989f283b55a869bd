"""A session on a recorded landscape, killed anywhere and resumed, ends as if it had never been."""

from __future__ import annotations

import random

import pytest
from benchmarks import kill_points as kills

from forge_tui.core.records import Edge


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the landscape of several targets."""
    folder = tmp_path_factory.mktemp("lands")
    return folder, kills.both(folder / "both.landscape")


def test_copies_of_random_commits_end_alike(files, tmp_path):
    """Several targets, several steps in flight, replies without a kernel, a budget of dollars; some killed twice."""
    _, both = files
    rng, tally = random.Random(1), kills.Tally()
    careless = kills.Case(kills.case(both, 5, max_evaluations=24), careless=True)
    wanted = kills.in_process(careless, 12, rng, tmp_path / "careless", tally)
    broke = kills.Case(kills.case(both, 6, max_evaluations=60, max_usd=1.5, proposers=("sim",)))
    poor = kills.in_process(broke, 8, rng, tmp_path / "poor", tally)
    assert (tally.failures, tally.copies) == ([], 20)
    assert tally.again > 2
    assert any("4 nodes" in state or "steps" in state for state in tally.states), "something was in flight"
    assert {Edge.DRAFT, Edge.TUNE, Edge.IMPROVE} <= {node["edge"] for node in wanted["nodes"]}
    assert wanted["drops"]
    assert wanted["undone"] == []
    assert "of the budget of $1.50 are spent" in poor["reason"]
    assert 1.0 < poor["dollars"] <= 1.5


def test_a_call_on_its_way_costs_its_dollars_and_nothing_else(files, tmp_path):
    """Commits of a session with books, some of them while a call is made; then one that its budget ends."""
    _, both = files
    rng, tally = random.Random(3), kills.Tally()
    booked = kills.Case(kills.case(both, 11, max_evaluations=16), booked=True)
    wanted = kills.in_process(booked, 6, rng, tmp_path / "booked", tally)
    assert (tally.failures, tally.copies) == ([], 6)
    assert tally.paying >= 2
    states = [(row[3]["state"], row[3]["error"]) for row in wanted["calls"]]
    assert {("broken", "It broke off."), ("done", "")} <= set(states)
    assert any(data["refused"] for data in wanted["drops"])
    assert any(data["drop"] and data["drop"]["infra"] for data in wanted["drops"])
    spent = [*wanted["nodes"], *(data["drop"] for data in wanted["drops"] if data["drop"])]
    assert sum(step["cost_usd"] for step in spent) == pytest.approx(wanted["dollars"]), "every dollar belongs to a step"
    poor = kills.Case(kills.case(both, 12, max_evaluations=60, max_usd=1.5, proposers=("sim",)), booked=True)
    broke = kills.in_process(poor, 4, rng, tmp_path / "poor", tally)
    assert (tally.failures, tally.copies) == ([], 10)
    assert "of the budget of $1.50 are spent, and one more model call may cost" in broke["reason"]
    assert 0.9 < broke["dollars"] <= 1.5


def test_killed_processes_end_alike(files, tmp_path):
    """The real engine, SIGKILL at random moments."""
    _, both = files
    tally = kills.Tally()
    one = kills.Case(kills.case(both, 7, max_evaluations=24))
    kills.engine(tmp_path / "whole", one)
    kills.real(one, 2, random.Random(2), tmp_path, kills.outcome(tmp_path / "whole"), tally)
    assert (tally.failures, tally.real) == ([], 2)


def test_a_difference_is_seen(files, tmp_path):
    """Another seed is another tree, and its differences are named."""
    _, both = files
    for seed in (1, 2):
        kills.engine(tmp_path / str(seed), kills.Case(kills.case(both, seed, max_evaluations=6)))
    said = kills.differences(kills.outcome(tmp_path / "2"), kills.outcome(tmp_path / "1"))
    assert any(text.startswith("nodes from place") for text in said)
    assert any(text.startswith("dollars: ") for text in said)
    assert kills.differences(kills.outcome(tmp_path / "1"), kills.outcome(tmp_path / "1")) == []


def test_what_is_paced_ends_alike(files, tmp_path):
    """Waiting as long as it took, so that builds and verdicts overtake each other, changes nothing."""
    _, both = files
    found = []
    for pace in (0.0, 0.002):
        place = tmp_path / str(pace)
        kills.engine(place, kills.Case(kills.case(both, 9, max_evaluations=20, pace=pace)))
        found.append(kills.outcome(place))
    assert kills.differences(*found) == []


def test_a_kill_in_the_midst_of_confirmations_neither_searches_on_nor_confirms_more(files, tmp_path):
    """Winners that did not hold are slower from then on; a resumed session goes on with the confirmations alone."""
    _, both = files
    one = kills.Case(kills.case(both, 0, max_evaluations=200, usd_per_percent=0.05), careless=True)
    deploying = []

    def after(number):
        if kills.doing(tmp_path / "whole") == "deploying":
            deploying.append(number)
            kills.copy(tmp_path / "whole", tmp_path / f"at-{number}")

    session = kills.engine(tmp_path / "whole", one, after=after)
    wanted = kills.outcome(tmp_path / "whole")
    failed = [n for n in wanted["nodes"] if n["evaluation"]["confirmation"] and n["evaluation"]["verdict"] != "faster"]
    assert failed
    assert wanted["reason"].startswith("Nothing more is worth trying: "), "there is budget left to search on"
    for number in deploying:
        kills.engine(tmp_path / f"at-{number}", one, session)
        assert kills.differences(kills.outcome(tmp_path / f"at-{number}"), wanted) == [], number
    assert len(deploying) > 5
