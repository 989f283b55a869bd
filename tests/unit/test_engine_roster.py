"""Who may be asked: rests, outages, refusals, what a person mends."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forge_tui.core.records import Edge, Proposal
from forge_tui.engine.roster import OUTAGE_LIMIT, REST_S, Roster, place_of
from forge_tui.search.driver import Step


class Clock:
    """Seconds that pass when told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Model:
    """A proposer that can be revived."""

    revived = 0

    def revive(self) -> None:
        """Count."""
        self.revived += 1


def fault(**changes: Any) -> Proposal:
    """A provider's fault."""
    return Proposal(source=None, infra=True, **({"failure": "busy."} | changes))


@pytest.fixture
def roster() -> Roster:
    """Two models, with a clock."""
    proposers: Any = {"a": Model(), "b": Model()}
    return Roster(proposers, Clock())


def test_rests_double_and_end_with_an_answer(roster):
    """After a fault a model rests, longer each time, while the other is asked; an answer forgets it."""
    for strike in range(3):
        assert roster.failed("a", fault()) == f"a is asked again in {REST_S * 2**strike:.0f} s: busy."
        assert roster.available("a") is None
        assert roster.available("b") is not None
        assert roster.soonest_s == REST_S * 2**strike
        assert roster.failed("a", fault()) == "", "a call of the same outage"
        assert roster.reasons(mended_by_time=True) == "a: busy."
        roster._now.now += REST_S * 2**strike
        assert roster.available("a") is not None
        assert roster.soonest_s == math.inf
    roster.answered("a")
    assert roster.failed("a", fault()).startswith(f"a is asked again in {REST_S:.0f} s")


def test_a_provider_is_left_alone_as_long_as_it_asked(roster):
    """Its own number counts where it is longer."""
    roster.failed("a", fault(retry_after_s=90.0))
    assert roster.soonest_s == 90.0


def test_an_outage_ends_somewhere(roster):
    """So many rests in a row, and the model waits for a person; with both out nobody is left."""
    for _ in range(OUTAGE_LIMIT):
        said = roster.failed("a", fault())
        roster._now.now += 1000
    assert said == f"a: busy. ({OUTAGE_LIMIT} times in a row)"
    assert roster.is_out("a")
    assert not roster.nobody
    assert roster.failed("b", fault(fatal=True, failure="no key.")) == "b: no key."
    assert roster.nobody
    assert roster.reasons(mended_by_time=False) == f"a: busy. ({OUTAGE_LIMIT} times in a row); b: no key."
    models = dict(roster._proposers)
    roster.revive()
    assert not roster.nobody
    assert [roster.available(name) is model for name, model in models.items()] == [True, True]
    assert [model.revived for model in models.values()] == [1, 1]


def step(edge: Edge = Edge.IMPROVE, parent: int | None = 1, failed: int | None = None, seed: int = 0) -> Step:
    """A request to the first model."""
    return Step(target_id="t", edge=edge, parent=parent, failed=failed, proposer="a", seed=seed)


def test_a_request_that_was_turned_down_says_nothing_of_others(roster):
    """The same one is not made again, whatever its seed, until a person acts; every other one is."""
    for number in range(100):
        roster.refused(place_of(step(parent=number)))
    assert roster.available("a") is not None
    assert roster.soonest_s == math.inf
    assert roster.refuses(step(parent=7, seed=5))
    assert not roster.refuses(step(parent=100))
    assert not roster.refuses(step(Edge.REWRITE, parent=7))
    assert not roster.refuses(step(Edge.REPAIR, parent=7, failed=9)), "a repair is about what failed"
    roster.revive()
    assert not roster.refuses(step(parent=7))


def test_a_rest_that_a_provider_asked_for_lasts_until_it_is_over(roster):
    """An older call that is answered meanwhile ends our own part of a rest, and no other."""
    roster.failed("a", fault(retry_after_s=60.0))
    roster._now.now += 1
    roster.answered("a")
    assert roster.available("a") is None
    assert roster.soonest_s == 59.0
    assert roster.reasons(mended_by_time=True) == "a: busy."
    roster._now.now += 59
    assert roster.available("a") is not None
    roster.answered("a")
    for _ in range(3):
        roster.failed("a", fault(retry_after_s=8.0))
        roster._now.now += roster.soonest_s
    # the fourth rest of our own is 40 s
    roster.failed("a", fault(retry_after_s=8.0))
    assert roster.soonest_s == 40.0
    roster.answered("a")
    assert roster.soonest_s == 8.0


def test_a_longer_rest_that_another_call_was_asked_for_counts(roster):
    """Of calls that fail together the longest word holds, and is said; it is one outage all the same."""
    roster.failed("a", fault(retry_after_s=10.0))
    roster._now.now += 2
    assert roster.failed("a", fault(retry_after_s=8.5)) == ""
    assert roster.soonest_s == 8.5
    assert roster.failed("a", fault(retry_after_s=600.0)) == "a is asked again in 600 s: busy."
    assert roster.soonest_s == 600.0
    assert roster._strikes == {"a": 1}
    roster.revive()
    assert roster.available("a") is not None, "a person's word is the last"
