"""Who may be asked: rests, outages, refusals, what a person mends."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forge_tui.core.records import Proposal
from forge_tui.engine.bench import OUTAGE_LIMIT, REFUSALS, REST_S, Bench


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
def bench() -> Bench:
    """Two models, with a clock."""
    proposers: Any = {"a": Model(), "b": Model()}
    return Bench(proposers, Clock())


def test_rests_double_and_end_with_an_answer(bench):
    """After a fault a model rests, longer each time, while the other is asked; an answer forgets it."""
    for strike in range(3):
        assert bench.failed("a", fault()) == f"a is asked again in {REST_S * 2**strike:.0f} s: busy."
        assert bench.available("a") is None
        assert bench.available("b") is not None
        assert bench.soonest_s == REST_S * 2**strike
        assert bench.failed("a", fault()) == "", "a call of the same outage"
        assert bench.reasons(mended_by_time=True) == "a: busy."
        bench._now.now += REST_S * 2**strike
        assert bench.available("a") is not None
        assert bench.soonest_s == math.inf
    bench.answered("a")
    assert bench.failed("a", fault()).startswith(f"a is asked again in {REST_S:.0f} s")


def test_a_provider_is_left_alone_as_long_as_it_asked(bench):
    """Its own number counts where it is longer."""
    bench.failed("a", fault(retry_after_s=90.0))
    assert bench.soonest_s == 90.0


def test_an_outage_ends_somewhere(bench):
    """So many rests in a row, and the model waits for a person; with both out nobody is left."""
    for _ in range(OUTAGE_LIMIT):
        said = bench.failed("a", fault())
        bench._now.now += 1000
    assert said == f"a: busy. ({OUTAGE_LIMIT} times in a row)"
    assert bench.is_out("a")
    assert not bench.nobody
    assert bench.failed("b", fault(fatal=True, failure="no key.")) == "b: no key."
    assert bench.nobody
    assert bench.reasons(mended_by_time=False) == f"a: busy. ({OUTAGE_LIMIT} times in a row); b: no key."
    models = dict(bench._proposers)
    bench.revive()
    assert not bench.nobody
    assert [bench.available(name) is model for name, model in models.items()] == [True, True]
    assert [model.revived for model in models.values()] == [1, 1]


def test_refused_requests_put_nobody_out_unless_all_are(bench):
    """A prompt that is too long says nothing of the next one; a dozen in a row do."""
    for _ in range(REFUSALS - 1):
        assert bench.failed("a", fault(this_request=True)) == ""
        assert bench.available("a") is not None
    assert bench.failed("a", fault(this_request=True)).startswith("a is asked again in")
    assert bench.available("a") is None
