"""Sessions whose replies were cut off, played again from the ledger: what was one attempt stays one."""

from __future__ import annotations

import asyncio
import sqlite3
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from test_engine_sessions import OPTIONS, FakeRooms, Session
from test_inbox_sessions import kernel, reply

from forge_tui.core.errors import UsageError
from forge_tui.core.events import Kind
from forge_tui.engine import replays
from forge_tui.proposers import calling, llm, longer, pricing, replay

MODEL = "openai/some-model"
ONE = msgspec.structs.replace(OPTIONS, proposers=(MODEL,), max_evaluations=6)


def cut(number: int) -> str:
    """The reply up to a place within its kernel."""
    return reply(number).partition("return 0;")[0]


class Cutting:
    """A model whose replies are cut off in the kernel; it goes on where it was, or sends all of it with more room."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.room = pricing.max_tokens({"max_output_tokens": most}, MODEL, None)
        self.begun: list[int] = []
        self.asked = 0

    async def acompletion(self, **request: Any) -> Any:
        await asyncio.sleep(0.001)
        said, room = request["messages"], request["max_tokens"]
        finish = "stop"
        if said[-1]["content"] == longer.GO_ON:
            number = next(n for n in self.begun if reply(n).startswith(said[-2]["content"]))
            text = reply(number)[len(cut(number)):]
        elif room > self.room:
            text = reply(self.begun.pop(0))
        else:
            self.asked += 1
            text = "I will not."
            # every fifth refuses, once and for all
            if self.asked % 5:
                self.begun.append(self.asked)
                text, finish = cut(self.asked), "length"
        choice = SimpleNamespace(message=SimpleNamespace(content=text), finish_reason=finish)
        return SimpleNamespace(choices=[choice], usage=SimpleNamespace(prompt_tokens=10, completion_tokens=5))

    def validate_environment(self, model: str) -> dict[str, Any]:
        return {"missing_keys": []}

    async def close_litellm_async_clients(self) -> None:
        pass


async def recorded(tmp_path, monkeypatch, most: int) -> tuple[Session, list[str]]:
    """A session with such a model, and the kernels that it wrote."""
    monkeypatch.setattr(calling, "_loaded", Cutting(most))
    monkeypatch.setattr(calling.table, "row", lambda model: {"max_output_tokens": most})
    monkeypatch.setenv("OPENAI_API_KEY", "none-at-all")
    proposer = llm.LlmProposer(MODEL, price=(1.0, 1.0))
    proposer.caller.stream = False
    session = Session(tmp_path / f"first-{most}")
    await session.run(FakeRooms(proposer=proposer), options=ONE)
    return session, [node.source for node in session.reader.nodes(session.id) if node.proposer == MODEL]


@pytest.mark.parametrize("most", [4_000, 64_000])
async def test_a_reply_that_was_cut_off_is_one_attempt_again(tmp_path, monkeypatch, most):
    """With its end, whether the model went on or began anew; a refusal stays an attempt that failed."""
    session, mine = await recorded(tmp_path, monkeypatch, most)
    assert len(mine) >= 4
    assert set(mine) <= {kernel(number) for number in range(1, 40)}
    calls = [entry.call for entry in session.reader.llm_calls(session.id)]
    assert [call.finish for call in calls].count("length") >= len(mine)
    found = replays.of_session(session.reader, session.id)
    assert [entry.source for entry in found if entry.source] == mine
    assert {entry.finish for entry in found} == {"stop"}
    failed = [entry for entry in found if not entry.source]
    assert {entry.reply for entry in failed} <= {"I will not."}

    second = Session(tmp_path / "second")
    name = f"replay:{session.id}"
    await second.run(FakeRooms(proposer=replay.ReplayProposer(name, found)),
                     options=msgspec.structs.replace(ONE, proposers=(name,)))  # fmt: skip
    theirs = [node.source for node in second.reader.nodes(second.id) if node.proposer == name]
    # replies that were on their way at once came in any order then; a replay answers in the order of the questions
    assert sorted(theirs) == sorted(mine)
    dropped = [e.data["reason"] for e in second.reader.events(second.id) if e.kind == Kind.PROPOSAL_FAILED]
    assert len(dropped) <= len(failed)
    assert "truncated" not in dropped


async def test_ledgers_that_know_neither_step_nor_end_are_read_alike(tmp_path, monkeypatch):
    """Of an earlier layout, where several replies to one prompt were on their way at once, the kernel tells which."""
    session, _ = await recorded(tmp_path, monkeypatch, 4_000)
    before = replays.of_session(session.reader, session.id)
    with sqlite3.connect(session.workspace.database) as raw:
        raw.execute("UPDATE llm_calls SET seed = 0, finish = ''")
    raw.close()
    again = replays.of_session(session.reader, session.id)
    assert again == [msgspec.structs.replace(entry, finish="") for entry in before]


async def test_what_was_never_gone_on_with_stays_a_failure(tmp_path, monkeypatch):
    """A reply that ends in its middle, and is all that came, is an attempt that failed as it was then."""
    session, mine = await recorded(tmp_path, monkeypatch, 4_000)
    with sqlite3.connect(session.workspace.database) as raw:
        raw.execute("DELETE FROM llm_calls WHERE attempt > 1")
    raw.close()
    found = replays.of_session(session.reader, session.id)
    cut = [entry for entry in found if entry.finish == "length"]
    assert len(cut) == len(mine)
    assert not any(entry.source for entry in found)


def test_lines_of_a_file_may_hold_any_character(tmp_path):
    """Line ends of other alphabets within a reply do not split it; a mark at the file's beginning is no part of it."""
    one = replay.Recorded(target_id="t", edge="draft", language="cpp", reply="a\u2028b\x85c\x1cd\x0ce")
    text = replay.to_lines([one, one])
    with pytest.raises(UsageError, match="Line 1 of x is no recorded reply"):
        replay.from_lines('{"x":' + "[" * 99999 + "]" * 99999 + "}", "x")
    assert replay.from_lines("\ufeff" + text, "x") == replay.from_lines(text.replace("\n", "\r\n"), "x") == [one, one]


@pytest.mark.parametrize(("name", "said"), [
    ("/none/at/all", "/none/at/all cannot be read: No such file or directory."),
    ("none.jsonl", "none.jsonl cannot be read: No such file or directory."),
    ("/dev/zero", "/dev/zero is a device, not a file."), ("/tmp", "/tmp is a folder, not a file."),
    ("s-1", "There is no file s-1, and no session in "), (" ", "replay: names nothing."),
])  # fmt: skip
def test_what_cannot_be_played_is_a_sentence(tmp_path, name, said):
    """What looks like a file is named as one; nothing is waited for."""
    from forge_tui.core.paths import Workspace

    with pytest.raises(UsageError) as caught:
        replays.load(f"replay:{name}", Workspace(tmp_path))
    assert caught.value.what.startswith(said)
    assert caught.value.hint == "Say replay:SESSION, or replay:FILE of forge-tui replies --output."
