"""`inbox`: prompts are listed, shown and copied, and replies handed in without one being lost."""

from __future__ import annotations

import base64
import fcntl
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import msgspec
import pytest
import store_fixture as fixture
from test_proposers_inbox import EDIT, KERNEL, REPLY

from forge_tui.cli import main, output
from forge_tui.cli.inbox_news import InboxNews
from forge_tui.core import secrets
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Edge
from forge_tui.proposers.desk import Desk, Entry
from forge_tui.store.writer import Store

COMMAND = [sys.executable, "-m", "forge_tui", "inbox"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The current folder's workspace, with a session that was interrupted."""
    monkeypatch.setattr(output, "_written", False)
    monkeypatch.setattr(secrets, "_known", set())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = Workspace(tmp_path / ".forge")
    with fixture.session(made) as (store, _, name):
        store.set_state(name, "interrupted")
        store.release(name)
    return made


@pytest.fixture
def desk(place: Workspace) -> Desk:
    """Its inbox with one open prompt of that session."""
    made = Desk(place.root)
    made.ask(Entry(number=0, name="", session="tiny-llm-1", target_id="t", target="RMSNorm", edge=Edge.IMPROVE,
                   language="cpp", place="x", seed=1, base=KERNEL), "Make it faster.\n")  # fmt: skip
    return made


def over(place: Workspace, reason: str) -> None:
    """Have the session end."""
    store = Store.open(place)
    store.acquire("tiny-llm-1", os.getpid())
    store.set_state("tiny-llm-1", "done", stop_reason=reason)
    store.release("tiny-llm-1")
    store.close()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and what stderr had."""
    code = main.main(["inbox", *arguments])
    return code, capsys.readouterr().err


def typed(monkeypatch: pytest.MonkeyPatch, text: str | bytes) -> None:
    """Have this on stdin."""
    data = text.encode() if isinstance(text, str) else text
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def editor(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Have this shell script as the editor of a person at a terminal."""
    path = folder / "editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(path))
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)


def test_prompts_are_listed(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """One line a prompt: target, kind, state, whether a search runs, age; read ones only with --all."""
    second = desk.ask(msgspec.structs.replace(desk.entry(1), target="softmax", edge=Edge.DRAFT, session="x-9"), "?")
    for number, age_s in ((1, 3700), (2, 5)):
        made = msgspec.structs.replace(desk.entry(number), at=time.time() - age_s)
        (desk.folder / f"{made.name}.json").write_bytes(msgspec.json.encode(made))
    assert main.main(["inbox"]) == 0
    found = capsys.readouterr()
    head, _, *rows = found.out.splitlines()
    assert re.split(r"  +", head.strip()) == ["number", "target", "kind", "state", "session", "age"]
    assert [re.split(r"  +", row.strip()) for row in rows] == [
        ["1", "RMSNorm", "improve", "open", "tiny-llm-1 (not running)", "1 h 01 min"],
        ["2", "softmax", "draft", "open", "x-9 (gone)", "5 s"],
    ]
    assert "reply NUMBER FILE" in found.err
    desk.take(second)
    (desk.folder / f"{desk.entry(1).name}.reply.md").mkdir()
    code, told = said(capsys)
    assert (code, f"{desk.reply_path(desk.entry(1))} is a folder, not a file; prompt 1 waits" in told) == (0, True)
    assert main.main(["inbox", "--all", "--json"]) == 0
    first, last = json.loads(capsys.readouterr().out)["prompts"]
    assert (first["state"], first["search"], first["fault"]) == ("open", "not running", "is a folder, not a file")
    assert (last["state"], last["search"], last["prompt"]) == ("taken", "gone", str(desk.prompt_path(second)))
    assert 3700 <= first["age_s"] < 3800


def test_a_damaged_database_does_not_hide_the_prompts(
    desk: Desk, place: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason is said, and the list is there all the same."""
    place.database.write_bytes(b"not a database at all" * 50)
    assert main.main(["inbox"]) == 0
    found = capsys.readouterr()
    assert "RMSNorm" in found.out
    assert str(place.database) in found.err


def test_a_prompt_is_shown_and_a_reply_handed_in(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file or stdin; the reply lies where the search looks for it, and a second one takes --replace."""
    assert main.main(["inbox", "show", "1"]) == 0
    assert capsys.readouterr().out == "Make it faster.\n"
    (tmp_path / "reply.md").write_text(REPLY)
    code, told = said(capsys, "reply", "1", "reply.md")
    assert (code, "forge-tui resume tiny-llm-1 goes on with it" in told) == (0, True)
    assert desk.reply(desk.entry(1)) == REPLY
    assert said(capsys, "reply", "1", "reply.md") == (2, (
        "forge-tui: Prompt 1 was answered already; no search has read the reply yet. Say --replace to hand in another "
        "one; forge-tui resume tiny-llm-1 reads it where no search runs.\n"))
    typed(monkeypatch, EDIT)
    assert main.main(["inbox", "reply", "1", "-", "--replace"]) == 0
    assert desk.reply(desk.entry(1)) == EDIT
    assert [path.read_text() for path in desk.drafts(desk.entry(1))] == [REPLY]
    desk.take(desk.entry(1))
    code, told = said(capsys, "reply", "1", "reply.md", "--replace")
    assert (code, "Prompt 1 was answered already, and a search has read the reply." in told) == (2, True)


def test_a_running_search_needs_no_word(
    desk: Desk, place: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an engine at work nothing is said of resuming."""
    store = Store.open(place)
    store.acquire("tiny-llm-1", os.getpid())
    store.set_state("tiny-llm-1", "searching")
    (tmp_path / "reply.md").write_text(REPLY)
    code, told = said(capsys, "reply", "1", "reply.md")
    store.release("tiny-llm-1")
    store.close()
    assert (code, told) == (0, f"The reply to prompt 1 is in {desk.reply_path(desk.entry(1))}.\n")


@pytest.mark.parametrize(("reason", "needed"), [
    ("The time limit of 60 minutes is reached.", "--minutes (it had 60)"),
    ("All 60 evaluations are used up.", "--evaluations (it had 60)"),
])
def test_a_reply_to_a_session_that_is_over_says_so(
    desk: Desk, place: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str], reason: str, needed: str
) -> None:
    """It is kept where a resume finds it; the exit code and the sentence say that this takes another limit."""
    over(place, reason)
    (tmp_path / "reply.md").write_text(REPLY)
    code, told = said(capsys, "reply", "1", "reply.md")
    assert code == 2
    assert told.splitlines()[-1] == (
        f"forge-tui: The search of session tiny-llm-1 is over, so nobody reads it now: {reason} The reply stays where "
        f"it is; forge-tui resume tiny-llm-1 goes on with more {needed}.")
    assert desk.reply(desk.entry(1)) == REPLY


def test_a_prompt_whose_session_is_gone_takes_no_reply(
    desk: Desk, place: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody would ever read it."""
    place.database.unlink()
    (tmp_path / "reply.md").write_text(REPLY)
    code, told = said(capsys, "reply", "1", "reply.md")
    assert (code, "There is no session tiny-llm-1 in" in told) == (2, True)
    assert desk.state(desk.entry(1)) == "open"


@pytest.mark.parametrize(("text", "reason"), [
    ("no kernel", "The reply has no code block."),
    (REPLY[:90], "The reply ends in its middle."),
    ("", "The reply is empty."),
    (EDIT.replace("return 0", "return 7"), "its SEARCH part is not in the source"),
])
def test_a_reply_without_a_kernel_is_refused(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    """What was pasted wrong is said at once; --force hands it in all the same."""
    (tmp_path / "reply.md").write_text(text)
    code, told = said(capsys, "reply", "1", "reply.md")
    assert (code, reason in told, desk.state(desk.entry(1))) == (2, True, "open")
    assert main.main(["inbox", "reply", "1", "reply.md", "--force"]) == 0
    assert desk.state(desk.entry(1)) == "answered"


def test_a_reply_that_was_put_into_its_place_can_be_looked_at(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file that the search reads, named to the command, is told right or wrong and stays as it is."""
    path = desk.reply_path(desk.entry(1))
    path.write_text("no kernel")
    code, told = said(capsys, "reply", "1", str(path))
    assert (code, "The reply has no code block." in told) == (2, True)
    path.write_text(REPLY)
    assert said(capsys, "reply", "1", str(path))[0] == 0
    assert (path.read_text(), desk.drafts(desk.entry(1))) == (REPLY, [])


def test_what_is_no_file_is_refused_at_once(desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An endless device, a pipe that nobody writes, a folder, a binary and a huge file: one sentence each."""
    os.mkfifo("pipe")
    Path("binary").write_bytes(b"\x7fELF\0\1")
    with open("huge", "wb") as file:
        file.truncate(1 << 40)
    hint = " Say - to read from stdin."
    for name, why in (("/dev/zero", f"is a device, not a file.{hint}"), ("pipe", f"is a pipe, not a file.{hint}"),
                      (".", "is a folder, not a file."), ("binary", "is not text."), ("huge", "has more than 1 MiB."),
                      ("none", "cannot be read: No such file or directory.")):  # fmt: skip
        assert said(capsys, "reply", "1", name) == (2, f"forge-tui: {name} {why}\n")


@pytest.mark.parametrize(("data", "why"), [
    (b"\0\1\2", "What came from stdin is not text."),
    (b"x" * (1 << 20) + b"x", "What came from stdin has more than 1 MiB."),
])  # fmt: skip
def test_what_comes_from_stdin_is_bounded(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, data: bytes, why: str
) -> None:
    """As a file is; a stdin that is closed is said to be that."""
    typed(monkeypatch, data)
    assert said(capsys, "reply", "1", "-") == (2, f"forge-tui: {why}\n")
    monkeypatch.setattr(sys, "stdin", None)
    code, told = said(capsys, "reply", "1", "-")
    assert (code, "stdin, which is closed" in told) == (2, True)


def test_faults_of_the_commands_are_sentences(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown number, no file and no editor, options in the wrong place."""
    for command, what in ((["show", "7"], "There is no prompt 7"), (["show", "7"], "Open ones are 1."),
                          (["reply", "1"], "Missing argument 'FILE'."), (["copy", "8"], "There is no prompt 8"),
                          (["--all", "show", "1"], "options go behind the command")):  # fmt: skip
        code, told = said(capsys, *command)
        assert (code, what in told) == (2, True)


def test_the_prompt_goes_to_the_clipboard(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By OSC 52 to the terminal, beside its file; nothing on stdout; without a terminal that is said."""
    sent: list[str] = []
    monkeypatch.setattr("forge_tui.cli.commands.inbox._to_terminal", sent.append)
    monkeypatch.delenv("TMUX", raising=False)
    for command in (["show", "1", "--copy"], ["copy", "1"]):
        assert main.main(["inbox", *command]) == 0
        found = capsys.readouterr()
        assert found.out == ""
        assert found.err == f"Written to {desk.prompt_path(desk.entry(1))}. Sent to the terminal, if it takes OSC 52.\n"
        escape = sent.pop()
        assert base64.b64decode(escape.removeprefix("\x1b]52;c;").removesuffix("\a")) == b"Make it faster.\n"

    def gone(sequence: str) -> None:
        raise OSError(6, f"No such device or address, for {len(sequence)} characters")

    monkeypatch.setattr("forge_tui.cli.commands.inbox._to_terminal", gone)
    code, told = said(capsys, "copy", "1")
    assert (code, told.endswith("There is no terminal to send it to.\n")) == (0, True)


def test_a_prompt_cannot_drive_the_terminal(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier replies are quoted in it: a terminal gets no control characters, a pipe the text as it is."""
    desk.prompt_path(desk.entry(1)).write_text("a\x1b]0;title\a\tb\n")
    assert main.main(["inbox", "show", "1"]) == 0
    assert capsys.readouterr().out == "a\x1b]0;title\a\tb\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main.main(["inbox", "show", "1"]) == 0
    assert capsys.readouterr().out == "a?]0;title?\tb\n"


def test_who_follows_a_run_is_told_of_prompts(desk: Desk) -> None:
    """Each open one of the session once, with what to type; not those of others, or those that were answered."""
    lines: list[str] = []
    news = InboxNews(desk, "tiny-llm-1", lines.append, " --workspace w")
    for entry in (msgspec.structs.replace(desk.entry(1), session="other"), desk.entry(1)):
        desk.ask(entry, "?")
    desk.answer(desk.entry(3), REPLY)
    for _ in range(2):
        news.poll()
    assert " ".join(lines) == (
        "inbox     prompt 1 (improve of RMSNorm) waits for you: forge-tui inbox show 1 --workspace w, then "
        "forge-tui inbox reply 1 FILE --workspace w")  # fmt: skip
    desk.ask(desk.entry(1), "?")
    news.poll()
    assert [line.split(" (")[0] for line in lines[1:]] == ["inbox     prompt 4"]
    InboxNews(Desk(Path("nowhere")), "tiny-llm-1", lines.append).poll()
    assert len(lines) == 2


# ---- what a person typed


def test_the_editor_brings_a_reply(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is refused stays as a draft, which the next editor opens; a reply that is handed in leaves none."""
    editor(monkeypatch, tmp_path, 'echo "I thought hard." >> "$1"')
    code, told = said(capsys, "reply", "1")
    (draft,) = desk.drafts(desk.entry(1))
    assert (code, draft.read_text(), draft.stat().st_mode & 0o777) == (2, "I thought hard.\n", 0o600)
    assert told == ("forge-tui: The reply has no code block. Hand in another one, or say --force to count it as an "
                    f"attempt that failed. What you wrote is kept: forge-tui inbox reply 1 {draft}.\n")  # fmt: skip
    editor(monkeypatch, tmp_path, 'echo more >> "$1"; exit 3')
    code, told = said(capsys, "reply", "1")
    assert (code, draft.read_text()) == (2, "I thought hard.\nmore\n")
    assert f"{draft} has what you wrote last time." in told
    assert "The editor ended with code 3; nothing was handed in. What you wrote is kept" in told
    (tmp_path / "reply.md").write_text(REPLY)
    editor(monkeypatch, tmp_path, f'cat "{tmp_path}/reply.md" >> "$1"')
    assert main.main(["inbox", "reply", "1"]) == 0
    assert desk.reply(desk.entry(1)) == "I thought hard.\nmore\n" + REPLY
    assert desk.drafts(desk.entry(1)) == []


def test_an_editor_that_does_not_wait_is_said(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty draft is no reply; a program that is not there is named; what is typed is not asked for in vain."""
    editor(monkeypatch, tmp_path, "exit 0")
    code, told = said(capsys, "reply", "1")
    assert (code, "The draft is empty" in told, "code --wait" in told) == (2, True, True)
    monkeypatch.setenv("EDITOR", "/nowhere/vi")
    code, told = said(capsys, "reply", "1")
    assert (code, "The editor '/nowhere/vi' cannot be started" in told) == (4, True)
    editor(monkeypatch, tmp_path, f"touch {tmp_path}/opened")
    desk.answer(desk.entry(1), REPLY)
    assert said(capsys, "reply", "1")[0] == 2
    assert not (tmp_path / "opened").exists()


@pytest.mark.skipif(shutil.which("script") is None, reason="makes terminals by script(1)")
def test_two_editors_of_one_prompt_do_not_share_a_draft(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second is told; a file may be handed in meanwhile, and then the editor's text is kept."""
    Path("reply.md").write_text(REPLY)
    again = f"{sys.executable} -m forge_tui inbox reply 1"
    beside = f'script -qec "{again}" /dev/null > second; {again} reply.md'
    editor(monkeypatch, tmp_path, f'[ -e second ] && exit 9; cp reply.md "$1"; {beside}')
    code, told = said(capsys, "reply", "1")
    assert "A reply to prompt 1 is being written in another terminal." in Path("second").read_text()
    (draft,) = desk.drafts(desk.entry(1))
    assert (code, draft.read_text()) == (2, REPLY)
    assert "Prompt 1 was answered already" in told
    assert f"What you wrote is kept: forge-tui inbox reply 1 {draft}." in told
    assert desk.reply(desk.entry(1)) == REPLY


def test_what_came_from_stdin_is_kept(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused, it becomes a draft, without keys; handed in as a file it is one no more."""
    monkeypatch.setenv("SOME_API_KEY", "0123456789abcdefgh")
    typed(monkeypatch, "my key is 0123456789abcdefgh\n")
    code, told = said(capsys, "reply", "1", "-")
    (draft,) = desk.drafts(desk.entry(1))
    assert (code, draft.read_text(), str(draft) in told) == (2, "my key is [key]\n", True)
    assert f"A draft for prompt 1, not handed in, is {draft}." in said(capsys)[1]
    draft.write_text(REPLY + "0123456789abcdefgh")
    code, told = said(capsys, "reply", "1", str(draft))
    assert (code, "A key in the reply was masked." in told) == (0, True)
    assert (desk.reply(desk.entry(1)), desk.drafts(desk.entry(1))) == (REPLY + "[key]", [])


def test_without_a_place_in_the_inbox_the_text_goes_elsewhere(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that takes nothing more: the state folder keeps a draft, else stdout has the text; no editor is opened."""
    typed(monkeypatch, REPLY)
    real = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if desk.folder in self.parents:
            raise OSError(28, "No space left on device")
        return real(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    code, told = said(capsys, "reply", "1", "-")
    assert (code, "No space left on device" in told) == (4, True)
    assert "What you wrote is kept" in told
    monkeypatch.setattr("forge_tui.proposers.desk.put_new", _no_space)
    monkeypatch.setattr("forge_tui.tui.clipboard.state_folder", _no_home)
    typed(monkeypatch, REPLY)
    assert main.main(["inbox", "reply", "1", "-"]) == 4
    found = capsys.readouterr()
    assert found.out == REPLY
    assert "What you wrote could be kept nowhere and is on stdout." in found.err
    for path in desk.drafts(desk.entry(1)):
        path.unlink()
    editor(monkeypatch, tmp_path, f"touch {tmp_path}/opened")
    code, told = said(capsys, "reply", "1")
    assert (code, "Free space there before you write a reply." in told) == (4, True)
    assert not (tmp_path / "opened").exists()


def _no_space(path: Path, text: str) -> bool:
    raise OSError(28, f"No space left on device for {len(text)} characters in {path}")


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.skipif(shutil.which("script") is None, reason="makes terminals by script(1)")
def test_a_kill_amid_a_reply_loses_nothing(desk: Desk, tmp_path: Path) -> None:
    """Killed while the editor is open, the draft is there; the next call opens it, and nothing counts as a reply."""
    script = tmp_path / "slow"
    script.write_text(f'#!/bin/sh\nif [ -s "$1" ]; then exit 0; fi\ncat "{tmp_path}/reply.md" > "$1"\nkill -9 $PPID\n')
    script.chmod(0o755)
    (tmp_path / "reply.md").write_text(REPLY)
    line = f"EDITOR={script} {' '.join(COMMAND)} reply 1"
    done = subprocess.run(["script", "-qec", line, "/dev/null"], stdin=subprocess.DEVNULL, check=False, cwd=tmp_path)
    assert done.returncode == 128 + signal.SIGKILL
    assert (desk.state(desk.entry(1)), [p.read_text() for p in desk.drafts(desk.entry(1))]) == ("open", [REPLY])
    done = subprocess.run(["script", "-qec", line, "/dev/null"], stdin=subprocess.DEVNULL, check=False, cwd=tmp_path)
    assert (done.returncode, desk.reply(desk.entry(1))) == (0, REPLY)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_line_that_breaks_amid_a_paste_loses_nothing(desk: Desk, tmp_path: Path, number: signal.Signals) -> None:
    """What came until then becomes a draft."""
    with subprocess.Popen([*COMMAND, "reply", "1", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE,
                          cwd=tmp_path) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"family: mine\nhalf a ker\n")
        process.stdin.flush()
        state = Path(f"/proc/{process.pid}/stat")
        # read, and asleep for more
        while fcntl.ioctl(process.stdin, termios.FIONREAD, b"1234") != bytes(4) or " S " not in state.read_text():
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait() == 130
        (draft,) = desk.drafts(desk.entry(1))
        assert draft.read_text() == "family: mine\nhalf a ker\n"
        assert f"What came so far is kept in {draft}.".encode() in process.stderr.read()


def test_a_limit_of_file_size_is_a_sentence(desk: Desk, tmp_path: Path) -> None:
    """Where the system takes no more of a file, the reply is refused and nothing is left of it."""
    (tmp_path / "reply.md").write_text(REPLY.replace("```cpp\n", f"```cpp\n//{'x' * (1 << 17)}\n"))
    before = set(desk.folder.iterdir())
    done = subprocess.run(
        [*COMMAND, "reply", "1", "reply.md"], cwd=tmp_path, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16)),
    )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.startswith(f"forge-tui: {desk.reply_path(desk.entry(1))} cannot be written: File too large.")
    assert {path for path in desk.folder.iterdir() if path.suffix != ".lock"} == before
