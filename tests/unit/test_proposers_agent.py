"""Models that try kernels by tools before they answer, through the real client in both wire formats."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from fault_server import KERNEL, REPLY, FaultServer, Play, always, in_turn, serving
from hypothesis import given
from hypothesis import strategies as st
from test_proposers_llm import KEY, WAYS, Ledger, a_task

from forge_tui.core.ports import Task
from forge_tui.core.records import LlmCall
from forge_tui.proposers import calling, llm, tools

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the")
FENCED = f"Let me see.\n```cpp\n{KERNEL}```\n"
OTHER = KERNEL.replace("return 0;", "return 0; // other")


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up keys in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FaultServer]:
    """A running server."""
    calling.load_litellm()
    async with serving() as made:
        yield made


class Bench:
    """Tools that say what they were asked."""

    def __init__(self) -> None:
        self.uses: list[tuple[int, str, str]] = []

    async def use(self, task: Task, call: int, tool: str, source: str) -> str:
        """A word, and a note of it."""
        self.uses.append((call, tool, source))
        return f"seen {len(self.uses)}"


def made(
    server: FaultServer, model: str, *, steps: int = 2, stream: bool = True
) -> tuple[llm.LlmProposer, Ledger, Bench]:
    """A proposer with tools, its books and its bench."""

    async def at_once(seconds: float) -> None:
        del seconds

    proposer = llm.LlmProposer(model, api_base=server.base_for(model), sleep=at_once, tool_uses=steps, price=(1.0, 2.0))
    ledger, bench = Ledger(), Bench()
    proposer.keep_books(ledger)
    proposer.equip(bench)
    proposer.caller.stream = stream
    return proposer, ledger, bench


def results(request: dict[str, Any]) -> list[str]:
    """What tools said, in either wire format."""
    found = []
    for message in request["body"]["messages"]:
        if message["role"] == "tool":
            content = message["content"]
            found.append(content if isinstance(content, str) else content[0]["text"])
        elif isinstance(message.get("content"), list):
            for part in message["content"]:
                if part.get("type") == "tool_result":
                    content = part["content"]
                    found.append(content if isinstance(content, str) else content[0]["text"])
    return found


@WAYS
async def test_a_kernel_is_tried_and_then_sent(server: FaultServer, model: str, stream: bool) -> None:
    """The block of the message is tried, what the tool says goes back, and the answer is the proposal."""
    server.script = in_turn(Play(text=FENCED, tools=(("check_kernel", "{}"),)),
                            Play(text="", tools=(("time_kernel", json.dumps({"source": OTHER})),)), Play())  # fmt: skip
    proposer, ledger, bench = made(server, model, stream=stream)
    proposal = await proposer.propose(a_task())
    assert proposal.source == KERNEL
    assert bench.uses == [(1, "check_kernel", KERNEL), (2, "time_kernel", OTHER)]
    assert [results(request) for request in server.requests] == [
        [], ["seen 1\n1 tool call is left."], ["seen 1\n1 tool call is left.", f"seen 2\n{_NONE}"]]  # fmt: skip
    assert all(len(request["body"]["tools"]) == len(tools.NAMES) for request in server.requests)
    rows = list(ledger.calls.values())
    assert [(row.state, row.attempt) for row in rows] == [("done", 1), ("done", 2), ("done", 3)]
    assert (proposal.booked, proposal.call) == (3, rows[2])
    assert tools.read(rows[0].reply) == (FENCED, (tools.ToolCall(id=rows[0].reply.split('"id": "')[1].split('"')[0],
                                                                 name="check_kernel", arguments="{}"),))  # fmt: skip
    assert "seen 1" in rows[1].prompt


_NONE = "No tool calls are left. Reply with the kernel now, in the form that was asked for."


@WAYS
async def test_a_model_that_never_answers_is_ended(server: FaultServer, model: str, stream: bool) -> None:
    """After the last tool it is told so twice; then the kernel that it tried last counts as its answer."""
    server.script = always(Play(text=FENCED, tools=(("compile_kernel", "{}"), ("compile_kernel", "{}"))))
    proposer, ledger, bench = made(server, model, stream=stream)
    proposal = await proposer.propose(a_task())
    assert proposal.source == KERNEL
    assert len(bench.uses) == 2
    assert len(server.requests) == len(ledger.calls) == 4
    assert results(server.requests[-1])[2:] == [_NONE] * 4


async def test_the_kernel_above_is_meant(server: FaultServer) -> None:
    """An answer without a kernel means the one that was tried last."""
    server.script = in_turn(Play(text=FENCED, tools=(("check_kernel", "{}"),)), Play(text="family: plain\nThat is it."))
    proposer, _, _ = made(server, "openai/m")
    proposal = await proposer.propose(a_task())
    assert (proposal.source, proposal.family) == (KERNEL, "plain")


@pytest.mark.parametrize(("name", "arguments", "text", "said"), [
    ("run_shell", "{}", FENCED, "There is no tool 'run_shell'; there are compile_kernel, "),
    ("check_kernel", "{}", "hm", "There is no kernel yet"), ("check_kernel", "[1", "hm", "There is no kernel yet"),
    ("check_kernel", '{"source": 3}', "hm", "There is no kernel yet"),
])  # fmt: skip
async def test_what_cannot_be_tried_is_said(
    server: FaultServer, name: str, arguments: str, text: str, said: str
) -> None:
    """Unknown tools, no kernel, arguments that are no JSON."""
    server.script = in_turn(Play(text=text, tools=((name, arguments),)), Play())
    proposer, _, bench = made(server, "openai/m")
    assert (await proposer.propose(a_task())).source == KERNEL
    assert bench.uses == []
    assert results(server.requests[1])[0].startswith(said)


async def test_a_server_without_tools_is_asked_without(server: FaultServer) -> None:
    """A refusal that speaks of tools leads to the plain request, now and later; nothing dies."""
    server.script = lambda number, body: (Play("400", message="tools are not supported by this model")
                                          if "tools" in body else Play())  # fmt: skip
    proposer, ledger, bench = made(server, "openai/m")
    for _ in range(2):
        assert (await proposer.propose(a_task())).source == KERNEL
    assert [("tools" in request["body"]) for request in server.requests] == [True, False, False]
    assert ledger.states == ["failed", "done", "done"]
    assert bench.uses == []


async def test_tools_are_off_unless_asked_for(server: FaultServer) -> None:
    """Neither in the request nor in the prompt."""
    proposer, _, _ = made(server, "openai/m", steps=0)
    assert (await proposer.propose(a_task())).source == KERNEL
    (request,) = server.requests
    assert "tools" not in request["body"]
    assert "# Tools" not in json.dumps(request["body"])


async def test_an_ended_engines_conversation_goes_on(server: FaultServer) -> None:
    """Replies that came are not asked for again: their tools are used, and the next reply is the first to be paid."""
    proposer, ledger, bench = made(server, "openai/m")
    reply = tools.written(FENCED, (tools.ToolCall(id="c1", name="check_kernel", arguments="{}"),))
    call = LlmCall(model="openai/m", prompt="p", reply=reply, finish="tool_calls", cost_usd=0.5)
    ledger.came = lambda task, model: [(7, call)]  # type: ignore[method-assign]
    proposal = await proposer.propose(a_task())
    assert proposal.source == KERNEL
    assert bench.uses == [(7, "check_kernel", KERNEL)]
    assert results(server.requests[0]) == ["seen 1\n1 tool call is left."]
    assert [row.attempt for row in ledger.calls.values()] == [2]


@given(st.text(), st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9), st.text()), max_size=3))
def test_the_ledgers_form_comes_back(text: str, calls: list[tuple[str, str, str]]) -> None:
    """A reply with its tools is read as it was written, whatever it holds."""
    asked = tuple(tools.ToolCall(id=a, name=b, arguments=c) for a, b, c in calls)
    assert tools.read(tools.written(text, asked)) == (text, asked)


def test_a_reply_that_looks_like_tools_is_a_reply() -> None:
    """Text of a model that writes our mark is no tool."""
    text = f"{REPLY}\n--- tools asked for ---\nnothing"
    assert tools.read(text) == (text, ())


def test_arguments_nested_without_end_are_no_kernel() -> None:
    """What a model sends must not end the search: neither as arguments of a tool, nor behind the ledger's mark."""
    deep = '{"source": ' + "[" * 99999 + "]" * 99999 + "}"
    call = tools.ToolCall(id="c1", name="check_kernel", arguments=deep)
    assert call.source is None
    reply = tools.written(FENCED, (call,))
    assert tools.read(reply) == (FENCED, (call,))
    forged = reply[: reply.index('[{"id"')] + deep
    assert tools.read(forged) == (forged, ())
