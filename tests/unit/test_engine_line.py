"""Whose turn it is: sources in the order of decisions, then verdicts in the order of nodes."""

from __future__ import annotations

import asyncio

from forge_tui.core.records import Edge
from forge_tui.engine.line import Line, Place
from forge_tui.search.driver import Step


def step(seed: int) -> Step:
    """A draft."""
    return Step(target_id="t", edge=Edge.DRAFT, parent=None, proposer="m", seed=seed)


def may(place: Place) -> bool:
    """Whether it has been called."""
    return place.turn.is_set()


def test_one_at_a_time_sources_before_verdicts() -> None:
    """The oldest step without a source, and only then the oldest node; who has a source waits for its turn anew."""
    line = Line(in_order=True)
    node = line.enter(None)
    one, two = line.enter(step(1)), line.enter(step(2))
    assert (len(line), line.steps) == (3, (step(1), step(2)))
    assert not any(map(may, (node, one, two))), "nothing is folded in while more may be decided"
    line.call_next()
    line.call_next()
    assert [may(p) for p in (node, one, two)] == [False, True, False]
    line.has_node(one)
    assert not may(one)
    line.call_next()
    assert [may(p) for p in (node, one, two)] == [False, False, True]
    line.leave(two)
    line.call_next()
    assert [may(p) for p in (node, one)] == [True, False]
    late = line.enter(step(3))
    line.call_next()
    assert [may(p) for p in (node, one, late)] == [False, False, True], "a new step comes before what was called"
    assert (len(line), line.steps) == (3, (step(3),))


async def test_without_order_nobody_waits() -> None:
    """Everything is folded in as it comes; in order it waits to be called."""
    free, strict = Line(in_order=False), Line(in_order=True)
    await asyncio.wait_for(free.turn_of(free.enter(step(1))), 1)
    place = strict.enter(step(1))
    waiting = asyncio.create_task(strict.turn_of(place))
    await asyncio.sleep(0)
    assert not waiting.done()
    strict.call_next()
    await asyncio.wait_for(waiting, 1)
