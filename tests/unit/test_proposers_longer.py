"""Replies that were cut off: asked for once more, larger or from where they ended; both calls are written down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, LlmCall, Proposal
from forge_tui.proposers import calling, llm, longer, pricing
from forge_tui.search import simulate

KERNEL = '#include "forge_target.h"\nextern "C" int forge_launch(FORGE_PARAMS) {\n    return 0;\n}\n'
REPLY = f"family: one pass\nhypothesis: reads once\n```cpp\n{KERNEL}```\n"
TASK = Task(target=simulate.target("t"), device=simulate.DEVICE, edge=Edge.DRAFT, parent=None, failed=None, best=None,
            lineage=(), nodes=(), seed=1)  # fmt: skip
ASKED = {"max_tokens": 100, "messages": [{"role": "user", "content": "write"}]}


class FakeLiteLlm:
    """A client that answers by a script; the limit of output is a model's."""

    def __init__(self, most: int | None, *answers: Any) -> None:
        self.most = most
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []

    async def acompletion(self, **request: Any) -> Any:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        text, finish = answer
        choice = SimpleNamespace(message=SimpleNamespace(content=text), finish_reason=finish)
        return SimpleNamespace(choices=[choice], usage=SimpleNamespace(prompt_tokens=10, completion_tokens=5))

    def validate_environment(self, model: str) -> dict[str, Any]:
        return {"missing_keys": []}


class Books:
    """Calls as they were written down."""

    def __init__(self) -> None:
        self.calls: list[LlmCall] = []
        self.kept: list[tuple[int, LlmCall]] = []

    def open(self, task: Task, call: LlmCall) -> int:
        self.calls.append(call)
        return len(self.calls)

    def settle(self, number: int, call: LlmCall) -> None:
        assert self.calls[number - 1].state == "open"
        self.calls[number - 1] = call

    def came(self, task: Task, model: str) -> list[tuple[int, LlmCall]]:
        """What an earlier engine got, each once."""
        given, self.kept = self.kept, []
        return given


def made(fake: FakeLiteLlm, monkeypatch: pytest.MonkeyPatch) -> tuple[llm.LlmProposer, Books]:
    """A proposer that asks the fake, and its books."""
    monkeypatch.setattr(calling, "_loaded", fake)
    monkeypatch.setattr(calling.table, "row", lambda model: {"max_output_tokens": fake.most})
    monkeypatch.setenv("OPENAI_API_KEY", "none-at-all")
    proposer, books = llm.LlmProposer("openai/some-model", price=(1.0, 1.0)), Books()
    proposer.keep_books(books)
    proposer.caller.stream = False
    return proposer, books


async def propose(fake: FakeLiteLlm, monkeypatch: pytest.MonkeyPatch) -> tuple[Proposal, list[LlmCall]]:
    """One proposal of the fake, and its calls."""
    proposer, books = made(fake, monkeypatch)
    proposal = await proposer.propose(TASK)
    assert proposal.booked == len(books.calls)
    return proposal, books.calls


async def test_a_cut_reply_is_asked_for_with_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the model can send more, the same is asked with twice the room; the second reply counts."""
    fake = FakeLiteLlm(100_000, (REPLY[:80], "length"), (REPLY, "stop"))
    proposal, calls = await propose(fake, monkeypatch)
    assert proposal.source == KERNEL
    first, second = fake.requests
    assert second["max_tokens"] == 2 * first["max_tokens"]
    assert second["messages"] == first["messages"]
    assert [(call.reply, call.state, call.attempt) for call in calls] == [
        (REPLY[:80], "done", 1), (REPLY, "done", 2)]  # fmt: skip
    # the longer one had more set aside before it was made
    assert (calls[1].reserved_usd or 0) - (calls[0].reserved_usd or 0) == pytest.approx(
        first["max_tokens"] / 1e6, rel=0.01)  # fmt: skip


async def test_a_model_without_more_room_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its limit a model is shown its own text and asked to go on; the two are one reply."""
    fake = FakeLiteLlm(pricing.DEFAULT_MAX_TOKENS, (REPLY[:95], "length"), (REPLY[95:], "stop"))
    proposal, calls = await propose(fake, monkeypatch)
    assert proposal.source == KERNEL
    second = fake.requests[1]
    assert second["max_tokens"] == fake.requests[0]["max_tokens"]
    assert second["messages"][-2:] == [{"role": "assistant", "content": REPLY[:95].rstrip()},
                                       {"role": "user", "content": longer.GO_ON}]  # fmt: skip
    assert [call.reply for call in calls] == [REPLY[:95], REPLY[95:]]


async def test_where_the_limit_is_not_known_it_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server refuses more than it has: an unknown model goes on behind its text with the room that it had."""
    fake = FakeLiteLlm(None, (REPLY[:95], "length"), (REPLY[95:], "stop"))
    proposal, _ = await propose(fake, monkeypatch)
    assert proposal.source == KERNEL
    assert [request["max_tokens"] for request in fake.requests] == [pricing.DEFAULT_MAX_TOKENS] * 2


async def test_a_reply_is_asked_for_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second reply that is cut off as well is an attempt without a kernel, and both calls are paid."""
    fake = FakeLiteLlm(100_000, (REPLY[:80], "length"), (REPLY[:90], "length"))
    proposal, calls = await propose(fake, monkeypatch)
    assert (proposal.source, proposal.failure, proposal.infra) == (None, "truncated", False)
    assert [type(call) for call in calls] == [LlmCall, LlmCall]
    assert len(fake.requests) == 2


class Refusal(Exception):
    """A server that does not take so much."""

    status_code = 400


@pytest.mark.parametrize("fault", [("", "stop"), Refusal("max_tokens is too large: at most 8192")])
async def test_a_second_call_that_fails_is_the_models_failure(monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    """The first reply was an answer: the attempt is over, both calls are in the books, the model is asked again."""
    fake = FakeLiteLlm(100_000, (REPLY[:80], "length"), fault)
    proposer, books = made(fake, monkeypatch)
    proposal = await proposer.propose(TASK)
    assert (proposal.infra, proposal.fatal, proposal.this_request) == (False, False, False)
    assert proposal.failure.startswith("truncated, and it could not be made longer: openai/some-model ")
    assert [call.state for call in books.calls] == ["done", "broken" if isinstance(fault, tuple) else "failed"]
    assert proposer.can(TASK)


async def test_a_budget_that_is_too_small_for_more_ends_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply that came stays paid for once, and counts as the model's."""
    fake = FakeLiteLlm(100_000, (REPLY[:80], "length"))
    proposer, books = made(fake, monkeypatch)
    opened = books.open
    monkeypatch.setattr(books, "open", lambda task, call: opened(task, call) if call.attempt == 1 else None)
    proposal = await proposer.propose(TASK)
    assert (proposal.infra, proposal.booked, proposal.call) == (False, 1, books.calls[0])
    assert "The budget does not allow another call" in proposal.failure
    assert proposer.can(TASK)


async def test_who_says_that_the_reply_is_over_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a kernel behind `stop` is not paid for a second time."""
    fake = FakeLiteLlm(100_000, (REPLY[:-20], "stop"))
    proposal, calls = await propose(fake, monkeypatch)
    assert proposal.source is None
    assert len(calls) == 1


@pytest.mark.parametrize("replies", [[(REPLY, "stop")], [(REPLY[:80], "length"), (REPLY, "stop")]])
async def test_replies_of_an_ended_engine_are_used(monkeypatch: pytest.MonkeyPatch,
                                                    replies: list[tuple[str, str]]) -> None:  # fmt: skip
    """What came and was paid for is read as if it came now: nobody is asked, nothing is opened."""
    fake = FakeLiteLlm(100_000)
    proposer, books = made(fake, monkeypatch)
    books.kept = [(7 + i, LlmCall(model="openai/some-model", prompt="p", reply=text, finish=finish, cost_usd=0.5))
                  for i, (text, finish) in enumerate(replies)]  # fmt: skip
    proposal = await proposer.propose(TASK)
    assert proposal.source == KERNEL
    assert proposal.booked == 6 + len(replies)
    assert (fake.requests, books.calls) == ([], [])


async def test_only_the_second_half_of_a_kept_reply_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine was killed between a cut-off reply and its end."""
    fake = FakeLiteLlm(100_000, (REPLY, "stop"))
    proposer, books = made(fake, monkeypatch)
    books.kept = [(7, LlmCall(model="openai/some-model", prompt="p", reply=REPLY[:80], finish="length"))]
    proposal = await proposer.propose(TASK)
    assert proposal.source == KERNEL
    assert [call.attempt for call in books.calls] == [2]
    assert len(fake.requests) == 1


@pytest.mark.parametrize(("text", "reply", "whole"), [
    ("```cpp\nint a = 1", "2;\n}\n```", "```cpp\nint a = 12;\n}\n```"),
    ("```cpp\nint a;\n", "int b;\n```", "```cpp\nint a;\nint b;\n```"),
    ("```cpp\nint a;", "#pragma omp simd\n```", "```cpp\nint a;\n#pragma omp simd\n```"),
    ("```cpp\nint a;\n", "```cpp\nint b;\n```", "```cpp\nint a;\nint b;\n```"),
    ("family: x\n" * 10, "family: x\n" * 10 + "```", "family: x\n" * 10 + "```"),
])  # fmt: skip
def test_the_parts_are_joined_where_they_were_cut(text: str, reply: str, whole: str) -> None:
    """In the middle of a line, between lines, without a second fence, and not at all where the reply began anew."""
    assert longer.joined(longer.request(ASKED, text, 100), text, reply) == whole


def test_hidden_thought_that_took_all_the_room_gets_more() -> None:
    """Without any text there is nothing to go on from: the same is asked with what room there is."""
    assert longer.request(ASKED, "", None) == ASKED | {"max_tokens": 200}
    assert longer.request(ASKED, "", 150) == ASKED | {"max_tokens": 150}
    assert longer.request(ASKED, "", 100) == ASKED
