"""Tokens counted by the provider before a call is paid, against a server on 127.0.0.1."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from fault_server import FaultServer, Play, always, in_turn, serving

from forge_tui.proposers import calling, counting, pricing, tools
from forge_tui.proposers.prompt import Prompt

MODEL = "anthropic/claude-sonnet-4-5"
KEY = "sk-test-0123456789abcdef"
WORDS = "#include <forge.h>\n" * 400
PROMPT = Prompt(system=WORDS, card="card", request="do it")

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def litellm() -> Any:
    """LiteLLM, imported once."""
    return calling.load_litellm()


@pytest_asyncio.fixture(loop_scope="module")
async def server() -> AsyncIterator[FaultServer]:
    """A running server that counts 900 tokens."""
    async with serving() as made:
        made.count = always(Play())
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def counter() -> AsyncIterator[counting.Counter]:
    """A counter that is closed."""
    made = counting.Counter(MODEL, timeout_s=0.4)
    yield made
    await made.close()


def request(server: FaultServer, request_text: str = "do it", **more: Any) -> dict[str, Any]:
    """What would be handed to LiteLLM."""
    prompt = Prompt(system=WORDS, card="card", request=request_text)
    return {"messages": prompt.messages(markers=True), "api_base": server.base, "api_key": KEY} | more


async def test_the_providers_count_takes_the_place_of_the_bound(server, counter, litellm) -> None:
    """What is sent is what the call would send; the reservation is a little more than the count, far from the bytes."""
    found = await counter.count(litellm, request(server))
    assert (found.tokens, found.exact, found.why) == (900, True, "")
    assert found.most == 950
    assert found.most < pricing.prompt_bound(litellm, MODEL, request(server)["messages"]) / 5
    (sent,) = server.counted
    assert sent["path"] == "/v1/messages/count_tokens"
    assert any(KEY in text for text in sent["headers"].values())
    assert sent["body"]["model"] == "claude-sonnet-4-5"
    assert [part["text"] for part in sent["body"]["system"]] == [WORDS]
    (message,) = sent["body"]["messages"]
    assert (message["role"], [part["text"] for part in message["content"]]) == ("user", ["card", "do it"])


async def test_equal_prompts_are_counted_once(server, counter, litellm, monkeypatch) -> None:
    """By content: another text is another count, and old ones are let go."""
    for text in ("a", "b", "a", "a"):
        await counter.count(litellm, request(server, text))
    assert len(server.counted) == 2
    plain = [{"role": "user", "content": "hello"}]
    assert (await counter.count(litellm, request(server, messages=plain))).tokens <= 64 + 5
    monkeypatch.setattr(counting, "_KEPT", 3)
    for text in ("a", "c", "a", "b"):
        await counter.count(litellm, request(server, text))
    # "b" was let go for "c", "a" was not
    assert len(server.counted) == 5


@pytest.mark.parametrize(("play", "why", "again"), [
    (Play(kind="404"), "There is no model", False), (Play(kind="401"), "refused the key", False),
    (Play(kind="html"), "cannot be read", False), (Play(kind="malformed"), "cannot be read", False),
    (Play(kind="redirect", text="http://127.0.0.1:9/"), "count of tokens", False),
    (Play(kind="429"), "rate limited", True), (Play(kind="500"), "failed (500)", True),
    (Play(kind="drop"), "cannot be reached", True), (Play(kind="slow"), "did not answer in time", True),
    (Play(uncached=0, cached=0), "cannot be read", False),
])  # fmt: skip
async def test_without_a_count_there_is_the_bound(server, counter, litellm, play, why, again, monkeypatch) -> None:
    """Every fault falls back at once, is not met again for a while, and then tried again where it may pass."""
    server.count = in_turn(play, Play())
    bound = pricing.prompt_bound(litellm, MODEL, request(server)["messages"])
    began = time.monotonic()
    found = await counter.count(litellm, request(server))
    assert time.monotonic() - began < 3
    assert (found.tokens, found.most, found.exact) == (bound, bound, False)
    assert why in found.why
    assert KEY not in found.why
    assert (await counter.count(litellm, request(server))).tokens == bound
    assert len(server.counted) == 1
    now = time.monotonic()
    monkeypatch.setattr(counting.time, "monotonic", lambda: now + counting._PAUSE_S + 1)
    assert (await counter.count(litellm, request(server))).exact is again


async def test_what_is_counted_is_what_the_call_sends(server, counter, litellm) -> None:
    """System, messages and tools are those of LiteLLM's own request, a used tool and a continued reply included."""
    call = tools.ToolCall(id="toolu_1", name="time_kernel", arguments='{"source": "int main"}')
    asked = request(server)
    asked["messages"] += [
        tools.said("let me see", (call,)), tools.answered(call, "12 us"), tools.said("", (call,)),
        tools.answered(call, "11 us"), {"role": "user", "content": "and?"}, {"role": "assistant", "content": "half"},
        {"role": "user", "content": "go on"},
    ]  # fmt: skip
    asked["tools"] = tools.DEFINITIONS
    assert (await counter.count(litellm, asked)).exact
    await litellm.acompletion(model=MODEL, max_tokens=9, max_retries=0, **asked)
    counted, sent = server.counted[0]["body"], server.requests[0]["body"]

    def texts(content: Any) -> list[Any]:
        parts = [{"text": content}] if isinstance(content, str) else content
        return [(part.get("text"), part.get("cache_control"), part.get("name"), part.get("input"),
                 part.get("content") and texts(part["content"])) for part in parts]  # fmt: skip

    def said(messages: list[dict[str, Any]]) -> list[Any]:
        found: list[Any] = []
        for message in messages:
            # neighbours of one role are one message to the provider
            if not found or found[-1][0] != message["role"]:
                found.append((message["role"], []))
            found[-1][1].extend(texts(message["content"]))
        return found

    assert texts(counted["system"]) == texts(sent["system"])
    assert said(counted["messages"]) == said(sent["messages"])
    assert [(t["name"], t["description"]) for t in counted["tools"]] == [
        (t["name"], t["description"]) for t in sent["tools"]]  # fmt: skip
    assert counted["tools"][0]["input_schema"]["properties"] == sent["tools"][0]["input_schema"]["properties"]
    assert counted["model"] == sent["model"]
    odd = await counter.count(litellm, request(server, messages=[{"role": "tool", "content": "x"}]))
    assert odd.why == "The prompt has a form that cannot be counted."


async def test_nobody_listens_and_no_key(server, counter, litellm, monkeypatch, tmp_path) -> None:
    """Neither is an exception."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    found = await counter.count(litellm, request(server, api_base="http://127.0.0.1:9", api_key=""))
    assert not found.exact
    assert "cannot be reached" in found.why
    lacking = await counting.Counter(MODEL).count(litellm, request(server, api_base=None, api_key=None))
    assert lacking.why == f"The count of tokens did not come: {MODEL} needs ANTHROPIC_API_KEY."


async def test_other_providers_are_not_asked(server, litellm) -> None:
    """Only Anthropic's models are counted for free."""
    for model in ("openai/gpt-4o", "hosted_vllm/x"):
        made = counting.Counter(model)
        found = await made.count(litellm, request(server))
        assert not found.exact
        assert found.tokens == pricing.prompt_bound(litellm, model, request(server)["messages"])
    assert server.counted == []


async def test_a_cancelled_call_is_cancelled(server, counter, litellm) -> None:
    """A search that stops does not wait for a count."""
    server.count = always(Play(kind="slow"))
    task = asyncio.create_task(counter.count(litellm, request(server)))
    await server.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_changed_key_is_another_client(server, counter, litellm) -> None:
    """A person may have put another one there."""
    await counter.count(litellm, request(server))
    await counter.count(litellm, request(server, "b", api_key="sk-other-0123456789"))
    assert any("sk-other" in text for text in server.counted[1]["headers"].values())
