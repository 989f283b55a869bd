"""Sessions whose models try kernels before they answer: every use is in the store, every evaluation counts."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from fault_server import REPLY, FaultServer, Play, serving
from test_engine_money import LlmRooms, asked, events
from test_engine_sessions import Session

from forge_tui.core.events import Kind
from forge_tui.core.records import ToolUse
from forge_tui.engine import replays
from forge_tui.proposers import llm

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the")


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up keys."""
    monkeypatch.setenv("OPENAI_API_KEY", "none-at-all")


@pytest.fixture
def session(tmp_path):
    """An empty workspace."""
    return Session(tmp_path / ".forge")


class ToolRooms(LlmRooms):
    """Real models with tools, over simulated workers."""

    def proposer(self, name: str) -> llm.LlmProposer:
        return llm.LlmProposer(name, api_base=self.server.base_for(name), price=self.price, tool_uses=3)


def tries(tool: str) -> Any:
    """A model that tries every kernel once by a tool before it sends it."""

    def script(number: int, body: dict[str, Any]) -> Play:
        tried = sum(message["role"] == "tool" for message in body["messages"])
        if tried:
            return Play(text=REPLY.replace("return 0;", f"return 0; // {number}"))
        source = REPLY.split("```cpp\n")[1].split("```")[0].replace("return 0;", f"return 0; // try {number}")
        return Play(text="", tools=((tool, json.dumps({"source": source})),))

    return script


def uses(session: Any) -> list[ToolUse]:
    """What the store has of tools, without those for which no evaluation was left."""
    with contextlib.closing(session.reader) as reader:
        return [use for use in reader.tool_uses(session.id) if "no evaluations left" not in use.answer]


@pytest.mark.parametrize(("tool", "said", "judged"), [
    ("time_kernel", "Right on every input. candidate ", True), ("check_kernel", "Right on every input.", True),
    ("compile_kernel", "It compiles.", False), ("read_machine_code", "This tool cannot be used now.", False),
    ("roofline", "Right on every input, ", True),
])  # fmt: skip
async def test_every_use_is_kept_and_every_evaluation_counts(
    session: Any, tool: str, said: str, judged: bool
) -> None:
    """The row has tool, source, verdict and what was said; an evaluation by a tool is one of the session's."""
    async with serving() as server:
        server.script = tries(tool)
        await session.run(ToolRooms(server), options=asked(max_evaluations=6))
    with contextlib.closing(session.reader) as reader:
        nodes, entries = reader.nodes(session.id), reader.llm_calls(session.id)
    kept = uses(session)
    assert kept
    assert all(use.tool == tool and "// try" in use.source and use.answer.startswith(said) for use in kept)
    assert {use.call_id for use in kept} <= {entry.id for entry in entries}
    assert all(use.verdict == "faster" for use in kept) is (judged)
    assert len(nodes) + (len(kept) if judged else 0) == 6
    with_tool = [entry for entry in entries if entry.call.finish == "tool_calls"]
    assert len(with_tool) >= len(kept)
    if tool == "read_machine_code":
        assert any("There is no disassembler." in data["text"] for data in events(session, Kind.LOG))


async def test_evaluations_by_tools_count_for_the_next_engine(session: Any) -> None:
    """A resume has no more of them than were left."""
    async with serving() as server:
        server.script = tries("time_kernel")
        await session.run(ToolRooms(server), options=asked(max_evaluations=9))
        first = len(uses(session))
        await session.run(ToolRooms(server), options=asked(max_evaluations=16))
    with contextlib.closing(session.reader) as reader:
        assert len(reader.nodes(session.id)) + len(uses(session)) == 16
    assert 0 < first < len(uses(session))


async def test_a_judge_that_falls_over_is_our_fault(session: Any) -> None:
    """The model is told that the tool cannot be used, the log says why, and no evaluation is used up for it."""
    async with serving() as server:
        server.script = tries("check_kernel")
        await session.run(ToolRooms(server, infra=True), options=asked(max_evaluations=30))
    assert all(use.answer == "This tool cannot be used now." and use.verdict == "infra" for use in uses(session))
    said = [data["text"] for data in events(session, Kind.LOG)]
    assert any("could not be tried: The judge fell over." in text for text in said)


async def test_tools_of_a_server_that_has_none(session: Any) -> None:
    """The session goes on without them."""
    async with serving() as server:
        assert isinstance(server, FaultServer)
        server.script = lambda number, body: (
            Play("400", message="this model has no tools") if "tools" in body
            else Play(text=REPLY.replace("return 0;", f"return 0; // {number}")))  # fmt: skip
        await session.run(ToolRooms(server), options=msgspec.structs.replace(asked(), max_evaluations=3))
    with contextlib.closing(session.reader) as reader:
        assert len(reader.nodes(session.id)) == 3
    assert uses(session) == []


async def test_a_replay_gives_answers_and_not_what_was_tried(session: Any) -> None:
    """A reply that only asked for a tool is no attempt of a recording."""
    async with serving() as server:
        server.script = tries("check_kernel")
        await session.run(ToolRooms(server), options=asked(max_evaluations=12))
    with contextlib.closing(session.reader) as reader:
        found = replays.of_session(reader, session.id)
        sources = [node.source for node in reader.nodes(session.id)]
    assert [entry.source for entry in found] == sources
    assert all("tools asked for" not in entry.reply for entry in found)
