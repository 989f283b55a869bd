"""The inbox: files that wait, replies that are found again, and the commands around them."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import sys
from pathlib import Path

import msgspec
import pytest

from forge_tui.cli import main, output
from forge_tui.core.errors import UsageError
from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, Evaluation, Node, Proposal, Verdict
from forge_tui.proposers.desk import Desk, Entry
from forge_tui.proposers.inbox import InboxProposer
from forge_tui.search import simulate

KERNEL = '#include "forge_target.h"\nextern "C" int forge_launch(FORGE_PARAMS) {\n    return 0;\n}\n'
REPLY = f"family: one pass\nhypothesis: reads once\n```cpp\n{KERNEL}```\n"
EDIT = "family: edited\n<<<<<<< SEARCH\n    return 0;\n=======\n    return 1 - 1;\n>>>>>>> REPLACE\n"
DRAFT = Task(target=simulate.target("F.softmax"), device=simulate.DEVICE, edge=Edge.DRAFT, parent=None, failed=None,
             best=None, lineage=(), nodes=(), seed=1)  # fmt: skip
PARENT = Node(id=0, target_id="F.softmax", parent=None, edge=Edge.DRAFT, proposer="m", source=KERNEL, language="cpp",
              evaluation=Evaluation(verdict=Verdict.FASTER, speedup=1.5, time_us=10.0))  # fmt: skip
IMPROVE = msgspec.structs.replace(DRAFT, edge=Edge.IMPROVE, parent=PARENT, best=PARENT, lineage=(PARENT,),
                                  nodes=(PARENT,))  # fmt: skip


def proposer(folder: Path, **options: object) -> InboxProposer:
    """An inbox that looks often."""
    return InboxProposer(folder, "s-1", poll_s=0.001, **options)  # type: ignore[arg-type]


async def asked(made: InboxProposer, task: Task, number: int = 1) -> tuple[asyncio.Task[Proposal], Entry]:
    """A proposal that waits, and its prompt."""
    waiting = asyncio.create_task(made.propose(task))
    while not [e for e in made.desk.entries() if e.number == number]:  # noqa: ASYNC110 - files, of which nobody tells
        await asyncio.sleep(0.001)
    return waiting, made.desk.entry(number)


async def test_a_reply_file_becomes_a_kernel(tmp_path: Path) -> None:
    """The prompt lies in a file whose name says what it is; what is put beside it is read, once it is whole."""
    made = proposer(tmp_path)
    waiting, entry = await asked(made, DRAFT)
    assert made.desk.prompt_path(entry) == tmp_path / "inbox" / "001-F.softmax-draft.prompt.md"
    assert "# Contract (CPU" in made.desk.prompt(entry)
    assert (made.waiting, made.desk.state(entry)) == (1, "open")
    (tmp_path / "inbox" / "001-F.softmax-draft.reply.md").write_text(REPLY)
    proposal = await asyncio.wait_for(waiting, 10)
    assert (proposal.source, proposal.family, proposal.idea) == (KERNEL, "one pass", "reads once")
    assert proposal.call is not None
    assert (proposal.call.prompt, proposal.call.reply) == (made.desk.prompt(entry), REPLY)
    assert (proposal.call.cost_usd, proposal.call.priced) == (0.0, True)
    assert (made.waiting, made.desk.state(made.desk.entry(1))) == (0, "taken")


async def test_an_empty_or_growing_file_is_waited_for(tmp_path: Path) -> None:
    """A file that was only just made, or still grows, is no reply yet."""
    made = proposer(tmp_path)
    waiting, entry = await asked(made, DRAFT)
    path = made.desk.reply_path(entry)
    path.touch()
    for end in range(0, len(REPLY), 20):
        path.write_text(REPLY[:end])
        await asyncio.sleep(0)
    path.write_text(REPLY)
    assert (await asyncio.wait_for(waiting, 10)).source == KERNEL


async def test_edits_are_of_the_source_that_was_shown(tmp_path: Path) -> None:
    """A reply that edits the parent is applied to it; one without a kernel is an attempt that failed."""
    made = proposer(tmp_path)
    waiting, entry = await asked(made, IMPROVE)
    made.desk.answer(entry, EDIT)
    assert (await asyncio.wait_for(waiting, 10)).source == KERNEL.replace("return 0", "return 1 - 1")
    waiting, entry = await asked(made, msgspec.structs.replace(IMPROVE, seed=2), number=2)
    made.desk.answer(entry, "I have no idea.")
    proposal = await asyncio.wait_for(waiting, 10)
    assert (proposal.source, proposal.failure, proposal.infra) == (None, "The reply has no code block.", False)


async def test_a_reply_that_was_read_but_not_kept_is_found_again(tmp_path: Path) -> None:
    """An engine that died between reading and storing asks the same step again, and no new prompt is written."""
    for _ in range(2):
        made = proposer(tmp_path)
        if not made.desk.entries():
            waiting, entry = await asked(made, DRAFT)
            made.desk.answer(entry, REPLY)
            await asyncio.wait_for(waiting, 10)
        else:
            assert (await asyncio.wait_for(made.propose(DRAFT), 10)).source == KERNEL
    assert len(made.desk.entries()) == 1
    # another step with the same question gets a prompt of its own, for that reply was read
    waiting, entry = await asked(made, msgspec.structs.replace(DRAFT, seed=9), number=2)
    waiting.cancel()
    assert made.desk.state(entry) == "open"


async def test_an_unread_reply_serves_the_same_question(tmp_path: Path) -> None:
    """After a kill the search may ask in another order: the same target, edge and source is the same question."""
    made = proposer(tmp_path)
    waiting, entry = await asked(made, DRAFT)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    made.desk.answer(entry, REPLY)
    again = proposer(tmp_path)
    proposal = await asyncio.wait_for(again.propose(msgspec.structs.replace(DRAFT, seed=77)), 10)
    assert proposal.source == KERNEL
    other, other_entry = await asked(again, msgspec.structs.replace(IMPROVE, seed=78), number=2)
    other.cancel()
    assert other_entry.edge == Edge.IMPROVE


async def test_templates_come_first_and_few_prompts_wait(tmp_path: Path) -> None:
    """A person is asked once every template was tried; alone two prompts of a target wait, beside templates one."""

    class Templates:
        name = "templates"

        def can(self, task: Task) -> bool:
            assert task.edge is Edge.DRAFT
            return not task.nodes

    made = proposer(tmp_path, first=Templates())
    assert not made.can(DRAFT)
    assert made.can(IMPROVE)
    # then on top of their winner, and anew only after that
    anew = msgspec.structs.replace(DRAFT, best=PARENT, nodes=(PARENT,))
    assert not made.can(anew)
    assert made.can(msgspec.structs.replace(anew, best=None))
    flying = msgspec.structs.replace(PARENT, id=1, evaluation=None)
    assert not made.can(msgspec.structs.replace(anew, best=None, nodes=(PARENT, flying)))
    mine = msgspec.structs.replace(PARENT, id=1, proposer="inbox")
    assert made.can(msgspec.structs.replace(anew, nodes=(PARENT, mine)))
    waiting, _ = await asked(made, IMPROVE)
    assert not made.can(msgspec.structs.replace(IMPROVE, seed=2))
    assert made.can(msgspec.structs.replace(IMPROVE, target=simulate.target("other")))
    waiting.cancel()
    alone = proposer(tmp_path / "alone")
    waits = [(await asked(alone, msgspec.structs.replace(DRAFT, seed=i), i))[0] for i in (1, 2)]
    assert not alone.can(msgspec.structs.replace(DRAFT, seed=3))
    for one in waits:
        one.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert alone.can(DRAFT)
    assert not alone.can(msgspec.structs.replace(DRAFT, edge=Edge.TUNE))


async def test_two_engines_get_numbers_of_their_own(tmp_path: Path) -> None:
    """Prompts asked at one time have different numbers, and odd names of targets make plain files."""
    entry = Entry(number=0, name="", session="s", target_id="t", target="a/../b c@2", edge=Edge.DRAFT, language="cpp",
                  place="", seed=1)  # fmt: skip
    desks = [Desk(tmp_path) for _ in range(4)]
    made = await asyncio.gather(*(asyncio.to_thread(desk.ask, entry, "?") for desk in desks for _ in range(5)))
    assert sorted(e.number for e in made) == list(range(1, 21))
    assert made[0].name.endswith("-a_.._b_c@2-draft")
    assert {path.parent for path in tmp_path.rglob("*.prompt.md")} == {tmp_path / "inbox"}


# ---- commands


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """The current folder's inbox with one open prompt."""
    monkeypatch.setattr(output, "_written", False)
    monkeypatch.chdir(tmp_path)
    made = Desk(tmp_path / ".forge")
    made.ask(Entry(number=0, name="", session="m-1", target_id="t", target="RMSNorm", edge=Edge.IMPROVE, language="cpp",
                   place="x", seed=1, base=KERNEL), "Make it faster.\n")  # fmt: skip
    return made


def test_open_prompts_are_listed(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """One line a prompt, with what it is about and whether anybody waits; read ones only with --all."""
    assert main.main(["inbox"]) == 0
    found = capsys.readouterr()
    head, _, row = found.out.splitlines()
    assert head.split() == ["number", "target", "edge", "state", "session", "asked"]
    assert row.split()[:7] == ["1", "RMSNorm", "improve", "open", "m-1", "(not", "running)"]
    assert "inbox reply NUMBER FILE" in found.err
    desk.take(desk.entry(1))
    assert main.main(["inbox"]) == 0
    assert "No prompt waits" in capsys.readouterr().err
    assert main.main(["inbox", "--all", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["prompts"][0]["state"] == "taken"
    assert document["prompts"][0]["prompt"] == str(desk.folder / "001-RMSNorm-improve.prompt.md")


def test_a_prompt_is_shown_and_a_reply_handed_in(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file or stdin; the reply lies where the search looks for it."""
    assert main.main(["inbox", "show", "1"]) == 0
    assert capsys.readouterr().out == "Make it faster.\n"
    (tmp_path / "reply.md").write_text(REPLY)
    assert main.main(["inbox", "reply", "1", "reply.md"]) == 0
    assert desk.reply(desk.entry(1)) == REPLY
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(EDIT.encode())))
    assert main.main(["inbox", "reply", "1", "-"]) == 0
    assert desk.reply(desk.entry(1)) == EDIT
    desk.take(desk.entry(1))
    assert main.main(["inbox", "reply", "1", "reply.md"]) == 2
    assert "Prompt 1 has its reply already." in capsys.readouterr().err


@pytest.mark.parametrize(("text", "said"), [
    ("no kernel", "The reply has no code block."),
    (REPLY[:90], "The reply ends in its middle."),
    ("", "The reply is empty."),
    (EDIT.replace("return 0", "return 7"), "its SEARCH part is not in the source"),
])
def test_a_reply_without_a_kernel_is_refused(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    """What was pasted wrong is said at once; --force hands it in all the same."""
    (tmp_path / "reply.md").write_text(text)
    assert main.main(["inbox", "reply", "1", "reply.md"]) == 2
    assert said in capsys.readouterr().err
    assert desk.state(desk.entry(1)) == "open"
    assert main.main(["inbox", "reply", "1", "reply.md", "--force"]) == 0
    assert desk.state(desk.entry(1)) == "answered"


def test_faults_of_the_commands_are_sentences(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown number, a file that is not there, no file and no editor, options in the wrong place."""
    for command, said in ((["show", "7"], "There is no prompt 7"), (["reply", "1", "nosuch"], "nosuch cannot be read"),
                          (["reply", "1"], "Missing argument 'FILE'."),
                          (["--all", "show", "1"], "options go behind the command")):  # fmt: skip
        assert main.main(["inbox", *command]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(UsageError, match="Open ones are 1"):
        desk.entry(2)


def test_the_prompt_goes_to_the_clipboard(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By OSC 52 to the terminal, and as a file; nothing on stdout."""
    sent: list[str] = []
    monkeypatch.setattr("forge_tui.cli.commands.inbox._to_terminal", sent.append)
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert main.main(["inbox", "show", "1", "--copy"]) == 0
    found = capsys.readouterr()
    assert found.out == ""
    assert "Sent to the terminal" in found.err
    assert base64.b64decode(sent[0].removeprefix("\x1b]52;c;").removesuffix("\a")) == b"Make it faster.\n"


def test_the_editor_brings_a_reply(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a file the editor is opened on an empty one, and what it leaves is the reply."""
    (tmp_path / "reply.md").write_text(REPLY)
    script = tmp_path / "editor"
    script.write_text(f'#!/bin/sh\ncat "{tmp_path}/reply.md" > "$1"\n')
    script.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(script))
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert main.main(["inbox", "reply", "1"]) == 0
    assert desk.reply(desk.entry(1)) == REPLY
    script.write_text("#!/bin/sh\nexit 3\n")
    assert main.main(["inbox", "reply", "1"]) == 2
    assert "The editor ended with code 3" in capsys.readouterr().err
