"""Dollars: what is held back, what ends the search, who gets the next one."""

from __future__ import annotations

import re
from collections.abc import Callable

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


ASKED = SearchConfig(proposers=("templates", "inbox"), people=("inbox",), usd_per_percent=1e9, stop_after=1000)


def by(*names: str) -> Callable[[Step], bool]:
    """Only these can do anything now."""
    return lambda step: step.proposer in names


def waiting(**changes: object) -> Search:
    """A search with a question that nobody has answered."""
    search = Search(msgspec.structs.replace(ASKED, **changes), [simulate.target("t")])
    assert isinstance(search.next_step(by("inbox")), Step)
    search.ask_again()
    return search


def evaluated(search: Search, count: int, first: int = 0) -> None:
    """So many more candidates of the templates, all wrong."""
    for number in range(first, first + count):
        step = search.next_step(by("templates"))
        assert isinstance(step, Step)
        assert step.proposer == "templates"
        search.begin(step, node_for(step, number))
        search.finish(number, wrong())


def test_a_question_holds_back_no_evaluation_and_no_end() -> None:
    """All three evaluations go to who is there; then the search is over, however long the person takes."""
    search = waiting(max_evaluations=3)
    evaluated(search, 2)
    last = search.next_step(by("templates"))
    assert isinstance(last, Step)
    assert search.full
    assert search.next_step(yes) is None, "what is at work is waited for"
    search.begin(last, node_for(last, 2))
    assert search.next_step(yes) is None
    search.finish(2, wrong())
    assert search.next_step(yes) == Stop(reason="All 3 evaluations are used up.")


def test_a_question_is_waited_for_while_there_is_an_evaluation_left_for_its_answer() -> None:
    """Where nobody else can do anything a person is waited for; never for more answers than there are evaluations."""
    search = waiting(max_evaluations=2)
    evaluated(search, 1)
    assert not search.full
    assert search.next_step(by("inbox")) is None, "a second answer would have no evaluation"
    assert search.next_step(by()) is None


def test_settings_leave_the_evaluations_to_who_is_asked() -> None:
    """With as many questions open as steps may run at a target its settings are not swept; other proposers go on."""
    target = simulate.target("t")
    search = Search(msgspec.structs.replace(ASKED, in_flight_per_target=1), [target])
    step = search.next_step(by("templates"))
    assert isinstance(step, Step)
    node = msgspec.structs.replace(node_for(step, 0), source="//@tune A 1 2 3 4\n")
    search.begin(step, node)
    search.finish(0, Evaluation(verdict=Verdict.SLOWER, speedup=0.9, baseline_us=100.0))
    asked = [search.next_step(by("inbox")) for _ in range(2)]
    assert [step.proposer for step in asked if isinstance(step, Step)] == ["inbox"] * 2
    assert search.next_step(by()) is None
    search.ask_again()
    other = search.next_step(by("templates"))
    assert isinstance(other, Step)
    assert other.proposer == "templates"


def test_a_question_whose_answer_is_of_no_use_is_not_waited_for() -> None:
    """Where the target is near its floor by then, the search is over."""
    search = waiting()
    step = search.next_step(by("templates"))
    assert isinstance(step, Step)
    search.begin(step, node_for(step, 0))
    assert search.next_step(by()) is None
    search.finish(0, Evaluation(verdict=Verdict.FASTER, speedup=3.9, speedup_ci=(3.8, 4.0), baseline_us=100.0))
    assert search.next_step(yes) == Stop(reason="Nothing more is worth trying: near the floor of this device (t).")


def test_no_dollars_left_ends_the_wait_for_a_person() -> None:
    """Also where the rent alone spent them."""
    for spend in (lambda s: s.pay(2.0), lambda s: s.rent(1.0)):
        search = waiting(max_usd=1.0)
        assert search.next_step(by()) is None
        spend(search)
        stop = search.next_step(yes)
        assert isinstance(stop, Stop)
        assert "of the budget of $1.00 are spent" in stop.reason


def test_a_budget_of_nothing_asks_only_what_costs_nothing() -> None:
    """Templates, settings and people go on with 0 dollars; models do not, whether their price is known or not."""
    for holds, said in (({"m": 0.3}, ", and one more model call may cost $0.30."),
                        ({"m": 0.0}, ", and nobody knows what one more model call may cost.")):  # fmt: skip
        config = msgspec.structs.replace(ASKED, proposers=("m", "templates", "inbox"), max_usd=0.0, holds_usd=holds)
        search = Search(config, [simulate.target("t")])
        asked = [search.next_step(yes), search.next_step(yes)]
        assert [step.proposer for step in asked if isinstance(step, Step)] == ["templates", "inbox"]
        alone = Search(msgspec.structs.replace(config, proposers=("m",)), [simulate.target("t")])
        assert alone.next_step(yes) == Stop(reason=f"$0.00 of the budget of $0.00 are spent{said}")
        rented = Search(config, [simulate.target("t")])
        rented.rent(0.01)
        assert isinstance(rented.next_step(yes), Stop), "whatever goes on costs rent"


def test_a_model_that_costs_nothing_needs_no_budget() -> None:
    """Who takes nothing is not in the table of prices."""
    config = msgspec.structs.replace(ASKED, proposers=("local",), max_usd=0.0)
    search = Search(config, [simulate.target("t")])
    assert isinstance(search.next_step(yes), Step)
    search.expect("local", 0.0)
    assert isinstance(search.next_step(yes), Step)


def test_the_usual_price_counts_what_came_to_nothing() -> None:
    """Ten calls of 10 cents with five kernels are 10 cents an attempt; calls of a provider's fault make it dearer."""
    search = Search(msgspec.structs.replace(ASKED, proposers=("m",)), [simulate.target("t"), simulate.target("u")])
    drops = []

    def price() -> float:
        return search._experience.usual_price(("m",))

    nodes = []
    for number in range(10):
        step = search.next_step(yes)
        assert isinstance(step, Step)
        assert price() == (pytest.approx(0.1) if number else 0.0), "what is on its way is not divided by"
        if number % 2:
            drops.append(search.drop(step, "no code", cost_usd=0.1))
        else:
            nodes.append(msgspec.structs.replace(node_for(step, number, 0.1), evaluation=wrong()))
            search.begin(step, nodes[-1])
            search.finish(number, wrong())
    step = search.next_step(yes)
    assert isinstance(step, Step)
    drops.append(search.drop(step, "it broke off", infra=True, cost_usd=0.5))
    assert price() == pytest.approx(1.5 / 10)
    assert search.drop(step, "busy", infra=True) is None
    lost = search.next_step(yes)
    assert isinstance(lost, Step)
    nodes.append(node_for(lost, 99, 0.2))
    search.begin(lost, nodes[-1])
    search.finish(99, Evaluation(verdict=Verdict.INFRA))
    assert price() == pytest.approx(1.7 / 10), "a failure of ours is no attempt, and its call was paid for"
    nodes[-1] = msgspec.structs.replace(nodes[-1], evaluation=Evaluation(verdict=Verdict.INFRA))
    again = Search(search.config, [simulate.target("t"), simulate.target("u")])
    again.restore(nodes, [drop for drop in drops if drop is not None])
    assert again.state() == search.state()
    assert again._experience.usual_price(("m",)) == price()
    assert sum(tree.tries for tree in search._trees.values()) == 10
