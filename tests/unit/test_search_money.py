"""Dollars: what is held back, what ends the search, who gets the next one."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.core.records import Evaluation, Node, Verdict
from forge_tui.search import simulate
from forge_tui.search.allocation import Outlook
from forge_tui.search.driver import Search, SearchConfig, Step, Stop
from forge_tui.search.tree import TargetTree

CONFIG = SearchConfig(proposers=("dear", "cheap", "templates"), max_usd=1.0, holds_usd={"dear": 0.3, "cheap": 0.05},
                      usd_per_percent=1e9, in_flight_per_target=4)  # fmt: skip


def yes(_step: Step) -> bool:
    """Everybody can do everything."""
    return True


def node_for(step: Step, node_id: int, usd: float = 0.0) -> Node:
    """The node that a step begins."""
    return Node(id=node_id, target_id=step.target_id, parent=step.parent, edge=step.edge, proposer=step.proposer,
                source=f"// {node_id}", language="cpp", tunables=step.tunables, repairs=step.failed,
                cost_usd=usd)  # fmt: skip


def wrong(seconds: float = 0.0) -> Evaluation:
    """A candidate that failed, and the machine's time that it took."""
    return Evaluation(verdict=Verdict.REJECTED, reason="wrong", verify_s=seconds)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(("step", "step", "finish", "drop", "rent")), st.integers(0, 5),
                          st.floats(0.1, 1.0)), max_size=80))  # fmt: skip
def test_the_budget_is_never_passed(script: list[tuple[str, int, float]]) -> None:
    """Whatever comes back in whatever order: where no call costs more than its hold, the sum stays within."""
    search = Search(CONFIG, [simulate.target("t", share=0.5), simulate.target("u", share=0.3)])
    asked: list[Step] = []
    flying: list[int] = []
    paid = rent = 0.0
    for number, (action, which, part) in enumerate(script):
        if action == "step":
            step = search.next_step(yes)
            if isinstance(step, Step):
                asked.append(step)
        elif action == "rent":
            # the machine's hours are nobody's to hold back, so they come out of what is not promised
            left = CONFIG.max_usd - paid - rent - sum(CONFIG.holds_usd.get(s.proposer, 0.0) for s in asked)
            rent += 0.1 * part * max(0.0, left)
            search.rent(rent)
        elif action == "finish" and flying:
            search.finish(flying.pop(which % len(flying)), wrong())
        elif action in ("finish", "drop") and asked:
            step = asked.pop(which % len(asked))
            usd = part * CONFIG.holds_usd.get(step.proposer, 0.0)
            paid += usd
            search.pay(usd)
            if action == "drop":
                search.drop(step, "no code")
            else:
                search.begin(step, node_for(step, number, usd))
                flying.append(number)
        assert paid + rent <= CONFIG.max_usd + 1e-9


def test_who_is_too_dear_for_the_rest_is_left_out_and_free_ones_go_on() -> None:
    """With 4 cents left neither model is asked, templates are; without them the search says why it ends."""
    for proposers, expected in ((("dear", "cheap", "templates"), "templates"), (("dear", "cheap"), None)):
        search = Search(msgspec.structs.replace(CONFIG, proposers=proposers), [simulate.target("t")])
        search.pay(0.96)
        step = search.next_step(yes)
        if expected is not None:
            assert isinstance(step, Step)
            assert step.proposer == expected
        else:
            said = "$0.96 of the budget of $1.00 are spent, and one more model call may cost $0.30."
            assert step == Stop(reason=said)


def test_rent_counts_as_spent() -> None:
    """The machine's hours end a budget too."""
    search = Search(CONFIG, [simulate.target("t")])
    search.pay(0.25)
    search.rent(0.75)
    said = "$1.00 of the budget of $1.00 are spent, $0.75 of it for the machine."
    assert search.next_step(yes) == Stop(reason=said)


def test_more_money_lets_a_search_go_on() -> None:
    """What was too dear once is asked for once there is more: nothing remembers the refusal."""
    poor = Search(msgspec.structs.replace(CONFIG, proposers=("dear",)), [simulate.target("t")])
    poor.pay(0.8)
    assert isinstance(poor.next_step(yes), Stop)
    poor.pay(-0.5)
    assert isinstance(poor.next_step(yes), Step)


def tree_with(attempts: int, seconds: float, share: float = 0.3) -> TargetTree:
    """A target at which so many candidates failed, each after so many seconds."""
    config = msgspec.structs.replace(CONFIG, proposers=("m",), max_usd=None)
    search = Search(config, [simulate.target("t", share=share)])
    for number in range(attempts):
        step = search.next_step(yes)
        assert isinstance(step, Step)
        search.begin(step, node_for(step, number))
        search.finish(number, wrong(seconds))
    return search.tree("t")


def test_an_attempt_costs_its_call_and_its_part_of_the_hour() -> None:
    """36 seconds at 10 dollars an hour are 10 cents, beside 5 cents for the call; rank is per dollar."""
    config = msgspec.structs.replace(CONFIG, gpu_usd_per_hour=10.0)
    tree = tree_with(3, 36.0)
    dear, free = Outlook(tree, config, 0.05), Outlook(tree, CONFIG, 0.0)
    assert dear.attempt_usd == pytest.approx(0.15)
    assert free.attempt_usd == 0
    assert dear.rank == pytest.approx(free.rank / 0.15)


def test_the_next_dollar_must_be_worth_it() -> None:
    """At 5 dollars for 1% the next dollar must save 0.2%; the reason gives both figures."""
    tree = tree_with(10, 0.0)
    config = msgspec.structs.replace(CONFIG, usd_per_percent=5.0)
    assert Outlook(tree, config, 0.01).closed() == ""
    assert Outlook(tree, config, 0.0).closed() == ""
    closed = Outlook(tree, config, 3.0).closed()
    said = r"expected gain of the next dollar 0\.\d+% of the model's time, below the 0\.2% asked for"
    assert re.fullmatch(said, closed)
    assert Outlook(tree, msgspec.structs.replace(config, usd_per_percent=500.0), 3.0).closed() == ""


def test_of_two_equal_targets_the_cheaper_one_is_searched() -> None:
    """A target whose candidates take ten times as long on a rented machine gets fewer of them."""
    config = SearchConfig(proposers=("m",), gpu_usd_per_hour=20.0, usd_per_percent=1e9, max_evaluations=60)
    search = Search(config, [simulate.target("slow", share=0.3), simulate.target("fast", share=0.3)])
    for number in range(60):
        step = search.next_step(yes)
        if not isinstance(step, Step):
            break
        search.begin(step, node_for(step, number))
        search.finish(number, wrong(20.0 if step.target_id == "slow" else 2.0))
    assert search.tree("fast").attempts > 1.5 * search.tree("slow").attempts
