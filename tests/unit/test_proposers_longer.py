"""Replies that were cut off: asked for once more, larger or from where they ended; both calls are written down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, LlmCall, Proposal
from forge_tui.proposers import llm, longer
from forge_tui.search import simulate

KERNEL = '#include "forge_target.h"\nextern "C" int forge_launch(FORGE_PARAMS) {\n    return 0;\n}\n'
REPLY = f"family: one pass\nhypothesis: reads once\n```cpp\n{KERNEL}```\n"
TASK = Task(target=simulate.target("t"), device=simulate.DEVICE, edge=Edge.DRAFT, parent=None, failed=None, best=None,
            lineage=(), nodes=(), seed=1)  # fmt: skip
ASKED = {"max_tokens": 100, "messages": [{"role": "user", "content": "write"}]}


class FakeLiteLlm:
    """A client that answers by a script; the limit of output is a model's."""

    def __init__(self, most: int | None, *answers: tuple[str, str]) -> None:
        self.most = most
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []

    async def acompletion(self, **request: Any) -> Any:
        self.requests.append(request)
        text, finish = self.answers.pop(0)
        choice = SimpleNamespace(message=SimpleNamespace(content=text), finish_reason=finish)
        return SimpleNamespace(choices=[choice], usage=SimpleNamespace(prompt_tokens=10, completion_tokens=5))

    def get_model_info(self, model: str) -> dict[str, Any]:
        return {"max_output_tokens": self.most}

    def validate_environment(self, model: str) -> dict[str, Any]:
        return {"missing_keys": []}


class Books:
    """Calls as they were written down."""

    def __init__(self) -> None:
        self.calls: list[LlmCall] = []

    def open(self, task: Task, call: LlmCall) -> int:
        self.calls.append(call)
        return len(self.calls)

    def settle(self, number: int, call: LlmCall) -> None:
        self.calls[number - 1] = call


async def propose(fake: FakeLiteLlm, monkeypatch: pytest.MonkeyPatch) -> tuple[Proposal, list[LlmCall]]:
    """One proposal of the fake, and its calls; the last one is settled by who takes the proposal."""
    monkeypatch.setattr(llm, "_loaded", fake)
    proposer, books = llm.LlmProposer("openai/some-model", price=(1.0, 1.0)), Books()
    proposer.keep_books(books)
    proposer._stream = False
    proposal = await proposer.propose(TASK)
    assert proposal.call is not None
    books.settle(proposal.booked, proposal.call)
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
    fake = FakeLiteLlm(llm.pricing.DEFAULT_MAX_TOKENS, (REPLY[:95], "length"), (REPLY[95:], "stop"))
    proposal, calls = await propose(fake, monkeypatch)
    assert proposal.source == KERNEL
    second = fake.requests[1]
    assert second["max_tokens"] == fake.requests[0]["max_tokens"]
    assert second["messages"][-2:] == [{"role": "assistant", "content": REPLY[:95].rstrip()},
                                       {"role": "user", "content": longer.GO_ON}]  # fmt: skip
    assert [call.reply for call in calls] == [REPLY[:95], REPLY[95:]]


async def test_a_reply_is_asked_for_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second reply that is cut off as well is an attempt without a kernel, and both calls are paid."""
    fake = FakeLiteLlm(100_000, (REPLY[:80], "length"), (REPLY[:90], "length"))
    proposal, calls = await propose(fake, monkeypatch)
    assert (proposal.source, proposal.failure, proposal.infra) == (None, "truncated", False)
    assert [type(call) for call in calls] == [LlmCall, LlmCall]
    assert len(fake.requests) == 2


async def test_the_first_call_is_kept_where_the_second_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider's fault during the second call leaves the first one written down."""
    fake = FakeLiteLlm(100_000, (REPLY[:80], "length"))
    fake.answers.append(("", "stop"))
    proposal, calls = await propose(fake, monkeypatch)
    assert proposal.infra
    assert [(call.reply, call.state) for call in calls] == [(REPLY[:80], "done"), ("", "broken")]


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
