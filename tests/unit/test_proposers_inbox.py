"""The inbox: files that wait, and replies that are found again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from forge_tui.core import secrets
from forge_tui.core.errors import EnvironmentFault, UsageError
from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, Evaluation, Node, Proposal, Verdict
from forge_tui.proposers import inbox, strategies
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


async def test_a_reply_on_a_slow_line_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without a kernel may still grow for some looks; with one it is taken at once."""
    monkeypatch.setattr(inbox, "SETTLED", 10**6)
    made = proposer(tmp_path)
    waiting, entry = await asked(made, DRAFT)
    path = made.desk.reply_path(entry)
    for end in (10, len(REPLY) // 2, len(REPLY)):
        assert not waiting.done()
        path.write_text(REPLY[:end])
        await asyncio.sleep(0.03)
    assert (await asyncio.wait_for(waiting, 10)).source == KERNEL
    monkeypatch.setattr(inbox, "SETTLED", 3)
    waiting, entry = await asked(made, msgspec.structs.replace(DRAFT, seed=2), number=2)
    made.desk.reply_path(entry).write_text(REPLY[:90])
    assert (await asyncio.wait_for(waiting, 10)).failure == "truncated"


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


async def test_other_kernels_of_the_prompt_are_no_answers(tmp_path: Path) -> None:
    """The best kernel, which the prompt shows beside the one to improve, may be quoted behind the reply's own."""
    best = msgspec.structs.replace(PARENT, id=1, source=KERNEL.replace("return 0", "return 1 - 1"))
    made = proposer(tmp_path)
    waiting, entry = await asked(made, msgspec.structs.replace(IMPROVE, best=best, nodes=(PARENT, best)))
    assert (entry.base, entry.shown) == (KERNEL, (best.source,))
    mine = KERNEL.replace("return 0", "return 2 - 2")
    made.desk.answer(entry, f"```cpp\n{mine}```\nIt is shorter than the best one:\n```cpp\n{best.source}```\n")
    assert (await asyncio.wait_for(waiting, 10)).source == mine


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


async def test_two_open_prompts_of_a_target_differ(tmp_path: Path) -> None:
    """The second draft is asked to begin with a move of its own; with the first answered the plain one comes back."""
    made = proposer(tmp_path)
    first, one = await asked(made, DRAFT)
    second, two = await asked(made, msgspec.structs.replace(DRAFT, seed=2), number=2)
    plain, other = made.desk.prompt(one), made.desk.prompt(two)
    assert other.startswith(plain)
    more = " ".join(other.removeprefix(plain).split())
    assert more.startswith("Another kernel for this target is being written at the same time. So that the two differ, "
                           "begin with this move: ")  # fmt: skip
    fitting = [s.name for s in strategies.CATALOGUE if "memory" in s.bounds and "cpp" in s.languages]
    assert sum(f"this move: {name}. " in more for name in fitting) == 1
    made.desk.answer(one, REPLY)
    await asyncio.wait_for(first, 10)
    third, three = await asked(made, msgspec.structs.replace(DRAFT, seed=3), number=3)
    assert made.desk.prompt(three) == plain
    for waiting in (second, third):
        waiting.cancel()


async def test_what_somebody_removes_is_written_again(tmp_path: Path) -> None:
    """Prompt, note, or the whole folder: while it is waited for a prompt comes back, as does one of a killed engine."""
    made = proposer(tmp_path)
    waiting, entry = await asked(made, DRAFT)
    prompt = made.desk.prompt(entry)
    everything = [path.name for path in made.desk.folder.iterdir()]
    for removed in (["001-F.softmax-draft.prompt.md"], ["001-F.softmax-draft.json"], everything):
        for name in removed:
            (made.desk.folder / name).unlink()
        if len(removed) > 1:
            made.desk.folder.rmdir()
        while not made.desk.entries() or not made.desk.prompt_path(entry).exists():  # noqa: ASYNC110 - files
            await asyncio.sleep(0.001)
        assert (made.desk.entry(1), made.desk.prompt(entry)) == (entry, prompt)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    made.desk.prompt_path(entry).unlink()
    again = asyncio.create_task(proposer(tmp_path).propose(DRAFT))
    while not made.desk.prompt_path(entry).exists():  # noqa: ASYNC110 - files
        await asyncio.sleep(0.001)
    assert made.desk.prompt(entry) == prompt
    made.desk.answer(entry, REPLY)
    assert (await asyncio.wait_for(again, 10)).source == KERNEL
    # a reply that was read, and then removed, leaves nothing to wait for: the question is asked anew
    made.desk.reply_path(entry).unlink()
    last, second = await asked(proposer(tmp_path), DRAFT, number=2)
    assert made.desk.state(second) == "open"
    last.cancel()


async def test_what_is_no_reply_is_waited_on(tmp_path: Path) -> None:
    """A pipe, a folder, a binary or a huge file in the reply's place holds nothing up; the next reply is read."""
    made = proposer(tmp_path)
    waiting, entry = await asked(made, DRAFT)
    path = made.desk.reply_path(entry)
    for put, said in ((lambda: os.mkfifo(path), "is a pipe, not a file"), (path.mkdir, "is a folder, not a file"),
                      (lambda: path.write_bytes(b"\0" * 99), "is not text"),
                      (lambda: path.write_bytes(b"x" * (1 << 20) + b"x"), "has more than 1 MiB"),
                      (lambda: path.symlink_to("nowhere"), "cannot be read: No such file or directory")):  # fmt: skip
        put()
        await asyncio.sleep(0.02)
        assert not waiting.done()
        assert (made.desk.state(entry), made.desk.fault(entry)) == ("open", said)
        path.rmdir() if path.is_dir() else path.unlink()
    path.write_text(REPLY)
    assert (await asyncio.wait_for(waiting, 10)).source == KERNEL


async def test_keys_stay_out_of_prompts_and_replies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value of a key in the model's source or in a reply reaches neither the files of the inbox nor the ledger."""
    monkeypatch.setattr(secrets, "_known", set())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SOME_API_KEY", "0123456789abcdefgh")
    keys = tmp_path / "config" / "forge-tui" / "keys"
    keys.parent.mkdir(parents=True)
    keys.write_text("OTHER_API_KEY=zyxwvutsrqponmlk\n")
    keys.chmod(0o600)
    made = proposer(tmp_path)
    target = msgspec.structs.replace(DRAFT.target, source='KEYS = "0123456789abcdefgh", "zyxwvutsrqponmlk"\n')
    waiting, entry = await asked(made, msgspec.structs.replace(DRAFT, target=target))
    assert 'KEYS = "[key]", "[key]"' in made.desk.prompt_path(entry).read_text()
    made.desk.reply_path(entry).write_text(REPLY.replace("reads once", "reads 0123456789abcdefgh once"))
    proposal = await asyncio.wait_for(waiting, 10)
    assert (proposal.source, proposal.idea) == (KERNEL, "reads [key] once")
    assert proposal.call is not None
    assert proposal.call.reply == REPLY.replace("reads once", "reads [key] once")
    assert "zyxw" not in proposal.call.prompt
    made.desk.answer(await _open(made.desk), "zyxwvutsrqponmlk")
    assert made.desk.reply_path(made.desk.entry(2)).read_text() == "[key]"


async def _open(desk: Desk) -> Entry:
    return desk.ask(msgspec.structs.replace(desk.entry(1), taken=False), "?")


async def test_one_of_several_replies_at_once_is_taken(tmp_path: Path) -> None:
    """Each of the others is told that there is one; the one that was taken is whole."""
    made = proposer(tmp_path)
    waiting, entry = await asked(made, DRAFT)
    waiting.cancel()
    texts = [REPLY.replace("reads once", f"reads {i} times") for i in range(12)]
    done = await asyncio.gather(*(asyncio.to_thread(Desk(tmp_path).answer, entry, text) for text in texts),
                                return_exceptions=True)  # fmt: skip
    assert done.count(None) == 1
    assert {str(error)[:32] for error in done if error is not None} == {"Prompt 1 was answered already; n"}
    assert made.desk.reply(entry) == texts[done.index(None)]


async def test_a_replaced_reply_is_kept(tmp_path: Path) -> None:
    """Until a search has read it a reply can be replaced; the earlier one becomes a draft."""
    made = proposer(tmp_path)
    waiting, entry = await asked(made, DRAFT)
    waiting.cancel()
    half = made.desk.folder / f".{entry.name}.reply.md.4711"
    half.write_text("fir")
    made.desk.answer(entry, "first")
    assert not half.exists()
    with pytest.raises(UsageError, match="no search has read the reply yet"):
        made.desk.answer(entry, "second")
    made.desk.answer(entry, "second", replace=True)
    made.desk.answer(entry, "third", replace=True)
    assert (made.desk.reply(entry), [p.read_text() for p in made.desk.drafts(entry)]) == ("third", ["first", "second"])
    made.desk.take(entry)
    with pytest.raises(UsageError, match="a search has read the reply"):
        made.desk.answer(entry, "fourth", replace=True)


async def test_a_full_disk_loses_no_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the new one cannot be written the earlier one stays in its place, and nothing half-written is left."""
    made = proposer(tmp_path)
    waiting, entry = await asked(made, DRAFT)
    waiting.cancel()
    made.desk.answer(entry, "first")
    before = {path.name for path in made.desk.folder.iterdir()}

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        made.desk.answer(entry, "second", replace=True)
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        made.desk.ask(entry, "?")
    monkeypatch.undo()
    assert made.desk.reply(entry) == "first"
    assert {path.name for path in made.desk.folder.iterdir()} == {*before, ".2.claim"}


async def test_files_of_others_in_the_inbox_are_no_prompts(tmp_path: Path) -> None:
    """A pipe, a folder or a note whose files would lie elsewhere is passed over, and nothing is waited for."""
    made = proposer(tmp_path)
    waiting, entry = await asked(made, DRAFT)
    os.mkfifo(made.desk.folder / "pipe.json")
    (made.desk.folder / "folder.json").mkdir()
    (made.desk.folder / "bad.json").write_text("{}")
    (made.desk.folder / "deep.json").write_text('{"x":' + "[" * 99999 + "]" * 99999 + "}")
    outside = msgspec.structs.replace(entry, number=7, name="../../outside")
    (made.desk.folder / "007-x.json").write_bytes(msgspec.json.encode(outside))
    assert made.desk.entries() == [entry]
    waiting.cancel()
