"""What a resume says of a session that a limit ended."""

from __future__ import annotations

import pytest
import store_fixture as fixture

from forge_tui.core.errors import UsageError
from forge_tui.core.paths import Workspace
from forge_tui.core.records import SessionInfo
from forge_tui.engine.limits import Limit, check_resumable, ended_by, how_to_go_on
from forge_tui.search import simulate
from forge_tui.search.driver import Search, SearchConfig, Step, Stop


def info(tmp_path, reason: str, state: str = "done", **options: object) -> SessionInfo:
    """A session of 60 evaluations and 90 minutes."""
    given = {"max_evaluations": 60, "max_minutes": 90.0} | options
    return SessionInfo(id="s-1", options=fixture.options(Workspace(tmp_path), **given), state=state, created_at=0.0,
                       updated_at=0.0, stop_reason=reason)  # fmt: skip


def stop_of(paid: float, **config: object) -> str:
    """The reason that the search itself gives, after one step that was dropped and cost so much."""
    search = Search(SearchConfig(proposers=("m",), **config), [simulate.target("t")])
    step = search.next_step(lambda _: True)
    assert isinstance(step, Step)
    search.pay(paid)
    if "max_evaluations" in config:
        search.begin(step, fixture.node(1, "t", proposer="m"))
        search.finish(1, fixture.faster(1.5))
    else:
        search.drop(step, "It failed.")
    found = search.next_step(lambda _: True)
    assert isinstance(found, Stop)
    return found.reason


MINUTES = "The time limit of 90 minutes is reached."
NEEDED = "What it needs is more --minutes (it had 90), or look at it with forge-tui report."
OVER = "Nothing more is worth trying: no proposer has another idea (t)."


@pytest.mark.parametrize(("reason", "limit"), [
    (stop_of(0.0, max_evaluations=1), Limit(option="evaluations", value=60)),
    (stop_of(2.0, max_usd=1.0), Limit(option="usd", value=1.0)),
    (stop_of(0.9, max_usd=1.0, holds_usd={"m": 0.3}), Limit(option="usd", value=1.0)),
    (MINUTES, Limit(option="minutes", value=90.0)), ("The time limit of 1 minute is reached.",
                                                     Limit(option="minutes", value=90.0)), (OVER, None),
])  # fmt: skip
def test_the_limit_is_the_one_that_ended_it(tmp_path, reason, limit):
    """By the sentence of the search itself."""
    assert ended_by(info(tmp_path, reason, max_usd=1.0)) == limit


@pytest.mark.parametrize(("reason", "given", "hint"), [
    (MINUTES, {}, "Give it more with --minutes (it had 90), or look at it with forge-tui report."),
    (MINUTES, {"max_evaluations": 500}, NEEDED), (MINUTES, {"max_minutes": 90.0}, NEEDED),
    ("$1.00 of the budget of $1.00 are spent.", {},
     "Give it more with --usd (it had 1.25), or look at it with forge-tui report."),
    (OVER, {}, "With more --evaluations, --minutes or --usd it looks again, or look at it with forge-tui report."),
    (OVER, {"max_evaluations": 10}, "What was given is no more than it had, or look at it with forge-tui report."),
])  # fmt: skip
def test_what_lets_it_go_on_is_named(tmp_path, reason, given, hint):
    """Without the limit that ended it, or with no more of it than before, a resume would end at once."""
    with pytest.raises(UsageError) as caught:
        check_resumable(info(tmp_path, reason, max_usd=1.25), given)
    assert (caught.value.what, caught.value.hint) == (f"Session s-1 is done: {reason}", hint)


def test_more_of_it_goes_on(tmp_path):
    """A wider limit, any where nothing was left to try, and none where it was only interrupted."""
    check_resumable(info(tmp_path, MINUTES), {"max_minutes": 91.0})
    check_resumable(info(tmp_path, OVER), {"max_evaluations": 61})
    check_resumable(info(tmp_path, "Stopped by request.", state="interrupted"), {})
    check_resumable(info(tmp_path, "It failed.", state="failed"), {"max_minutes": 1.0})
    assert how_to_go_on(info(tmp_path, MINUTES)) == "forge-tui resume s-1 goes on with more --minutes (it had 90)"
    assert how_to_go_on(info(tmp_path, OVER)) == (
        "forge-tui resume s-1 goes on with more --evaluations, --minutes or --usd, if anything is worth trying then")
