"""Prompt templates of a person's own: found, tried, and refused in one sentence."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from forge_tui.core.errors import ConfigError
from forge_tui.core.records import Edge, ModelSpec, RunOptions
from forge_tui.proposers import book, llm, prompt, registry, strategies, trial


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folders of a workspace and of a user."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = (tmp_path / "work" / "prompts", tmp_path / "config" / "forge-tui" / "prompts")
    for folder in made:
        folder.mkdir(parents=True)
    return made


def options(places: tuple[Path, Path], device: str = "cpu") -> RunOptions:
    """A session in the workspace."""
    return RunOptions(model=ModelSpec(text="m.py", path="/m.py"), device=device, workspace=str(places[0].parent))


def system(places: tuple[Path, Path]) -> str:
    """The first part of a prompt with the templates in force."""
    return prompt.render(trial.tasks("cpp")[0], trial.checked_book(options(places))).system


def test_a_file_of_the_same_name_takes_the_place(places: tuple[Path, Path]) -> None:
    """The workspace's goes before the user's, the user's before the program's; the rest stays."""
    assert system(places).startswith("You write kernels")
    (places[1] / "role.j2").write_text("Of the user, for {{ device.model }}.\n")
    assert system(places).startswith("Of the user, for a CPU.\n")
    (places[0] / "role.j2").write_text("Of the workspace.\n")
    assert system(places).startswith("Of the workspace.\n")
    assert "# Contract (CPU" in system(places)


@pytest.mark.parametrize(("text", "said"), [
    ("one\n{% if %}", "role.j2, line 2 cannot be used: Expected an expression"),
    ("one\ntwo {{ nothing }}", "role.j2, line 2 cannot be used: 'nothing' is undefined."),
    ("{{ device.wheels }}", "role.j2, line 1 cannot be used: 'dict object' has no attribute 'wheels'."),
    ('{% include "other.j2" %}', "role.j2, line 1 cannot be used: it includes other.j2, which is not there."),
    ('{{ "".__class__.__mro__ }}', "role.j2, line 1 cannot be used: access to attribute '__class__'"),
    ("{{ 1 / 0 }}", "role.j2, line 1 cannot be used: ZeroDivisionError: division by zero."),
    ("{% for i in range(10**9) %}x{% endfor %}", "role.j2, line 1 cannot be used: OverflowError"),
])  # fmt: skip
def test_a_broken_file_is_said_in_one_sentence(places: tuple[Path, Path], text: str, said: str) -> None:
    """Which file, which line, what is wrong; nothing of the machine is reached from a template."""
    (places[0] / "role.j2").write_text(text)
    with pytest.raises(ConfigError) as caught:
        registry.make("openai/gpt-4o", options(places))
    assert said in caught.value.what
    assert str(places[0]) in caught.value.what
    assert "\n" not in caught.value.what
    assert caught.value.hint == "Mend it, or remove it: the program's own then takes its place."


def test_every_edge_is_tried(places: tuple[Path, Path]) -> None:
    """A template that only a repair uses is found out before the run."""
    (places[0] / "task_repair.j2").write_text("{{ nothing }}")
    with pytest.raises(ConfigError, match=r"task_repair\.j2, line 1"):
        trial.checked_book(options(places))
    edges = {task.edge for task in trial.tasks("cuda")}
    # a kernel from elsewhere is taken as it is: no model is asked to carry it over
    named = {Edge(path.stem.removeprefix("task_")) for path in book.PACKAGED.glob("task_*.j2")}
    assert edges == set(llm.ASKED) - {Edge.TRANSFER} == named
    moves = {strategies.choose("memory", "cuda", t.seed) is None for t in trial.tasks("cuda") if t.edge == Edge.IMPROVE}
    assert moves == {True, False}


def test_a_file_that_is_no_text_is_refused(places: tuple[Path, Path]) -> None:
    """Bytes that are not UTF-8 are said to be that, in a template and in an example."""
    (places[0] / "role.j2").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"role\.j2 is not UTF-8 text"):
        trial.checked_book(options(places))
    (places[0] / "role.j2").unlink()
    (places[0] / "example.cpp").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"example\.cpp is not UTF-8 text"):
        trial.checked_book(options(places))


async def test_a_file_that_breaks_during_a_run_ends_the_model(places: tuple[Path, Path]) -> None:
    """Nothing is asked, and the reason is the sentence."""
    proposer = registry.make("openai/gpt-4o", options(places))
    (places[0] / "card.j2").write_text("{{ nothing }}")
    assert isinstance(proposer, llm.LlmProposer)
    proposer._templates = book.PromptBook(book.folders(places[0].parent))
    proposal = await proposer.propose(trial.tasks("cpp")[0])
    assert (proposal.infra, proposal.fatal, proposal.call) == (True, True, None)
    assert "card.j2, line 1 cannot be used: 'nothing' is undefined." in proposal.failure
    assert not proposer.can(trial.tasks("cpp")[0])


@pytest.mark.parametrize(("text", "said"), [
    ("a\n{% for i in range(99999) %}\n{% for j in range(99999) %}{% endfor %}{% endfor %}",
     "role.j2, line 3 cannot be used: it is not done after 1 s."),
    ("\n{{ 'x' * 10 ** 9 }}", "role.j2, line 2 cannot be used: it takes too much memory."),
    ("{% set n = namespace(x='x') %}\n{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
     "role.j2, line 2 cannot be used: it takes too much memory."),
    ("{% for i in range(99999) %}a line of text\n{% endfor %}", "role.j2 cannot be used: it makes more than 256 KiB"),
    ('{% include "role.j2" %}', "role.j2, line 1 cannot be used: it goes round in a circle."),
    ("{% if 1 %}" * 2000, "role.j2 cannot be used: it goes round in a circle."),
], ids=["loops", "memory", "doubling", "text", "circle", "nesting"])  # fmt: skip
def test_a_file_without_end_is_ended(places: tuple[Path, Path], text: str, said: str) -> None:
    """Loops, huge numbers, memory, text without end, circles: within seconds there is a sentence, and a next try."""
    (places[0] / "role.j2").write_text(text)
    made = book.PromptBook(book.folders(places[0].parent))
    with pytest.raises(ConfigError) as caught:
        trial.check(made, "cpp")
    assert f"{places[0]}/{said}" in caught.value.what
    first = trial.tasks("cpp")[0]
    assert made.render("task_draft", prompt.facts(first, made)).startswith("# Task\n"), "the rest still works"
    (places[0] / "role.j2").write_text("Short.")
    assert system(places).startswith("Short.\n")


def test_a_renderer_that_ends_is_started_again(places: tuple[Path, Path]) -> None:
    """Killed between two prompts, or amid one, it is not missed; where it ends every time the file is at fault."""
    (places[0] / "role.j2").write_text("Of the workspace.")
    made = trial.checked_book(options(places))
    renderer = made._renderer
    assert renderer is not None
    for _ in range(2):
        assert renderer._process is not None
        os.kill(renderer._process.pid, signal.SIGKILL)
        renderer._process.wait()
        assert prompt.render(trial.tasks("cpp")[0], made).system.startswith("Of the workspace.")
    os.kill(renderer._process.pid, signal.SIGSTOP)
    threading.Timer(0.1, os.kill, (renderer._process.pid, signal.SIGKILL)).start()
    assert prompt.render(trial.tasks("cpp")[0], made).system.startswith("Of the workspace.")
    process, argv = renderer._process, renderer._argv
    renderer.close()
    renderer._argv = [sys.executable, "-c", "import os; os.abort()"]
    with pytest.raises(ConfigError, match=r"lineage\.j2, or what it includes, takes too much time or memory"):
        prompt.render(trial.tasks("cpp")[0], made)
    renderer._argv = ["/none"]
    with pytest.raises(ConfigError, match=r"lineage\.j2 cannot be rendered: No such file or directory"):
        prompt.render(trial.tasks("cpp")[0], made)
    renderer._argv = argv
    assert prompt.render(trial.tasks("cpp")[0], made).system.startswith("Of the workspace.")
    process = renderer._process
    del made, renderer
    assert process is not None
    assert process.returncode == -signal.SIGKILL, "it goes with its book"


def test_what_is_no_file_is_refused_at_once(places: tuple[Path, Path]) -> None:
    """A pipe, a folder, a huge file, a link to nothing; a folder of templates that is none."""
    path = places[0] / "role.j2"
    for put, said in ((lambda: os.mkfifo(path), "is a pipe, not a file"), (path.mkdir, "is a folder, not a file"),
                      (lambda: path.write_bytes(b"x" * (1 << 18) + b"x"), "has more than 256 KiB"),
                      (lambda: path.symlink_to("none"), "cannot be read: No such file or directory")):  # fmt: skip
        put()
        with pytest.raises(ConfigError) as caught:
            trial.checked_book(options(places))
        assert caught.value.what == f"The prompt file {path} {said}."
        path.rmdir() if path.is_dir() else path.unlink()
    places[0].rmdir()
    places[0].write_text("role")
    with pytest.raises(ConfigError) as caught:
        trial.checked_book(options(places))
    assert caught.value.what == f"The folder of prompt templates {places[0]} cannot be read: Not a directory."


@pytest.mark.parametrize(("name", "hint"), [
    ("rolle.j2", "Did you mean role.j2?"), ("Role.j2", "Did you mean role.j2?"), ("role.txt", "Did you mean role.j2?"),
    ("role", "Did you mean role.j2?"), ("role.j2.txt", "Did you mean role.j2?"),
    ("task_improv.jinja2", "Did you mean task_improve.j2?"), ("exmaple.cu", "Did you mean example.cu?"),
    ("mine.j2", "The program's are card.j2, contract_cpp.j2, "),
])  # fmt: skip
def test_a_misnamed_file_is_found_out(places: tuple[Path, Path], name: str, hint: str) -> None:
    """What stands for nothing of the program's, and is included by nobody, is not passed over."""
    (places[1] / name).write_text("Of the user.")
    with pytest.raises(ConfigError) as caught:
        trial.checked_book(options(places))
    assert caught.value.what == f"The prompt file {places[1] / name} stands for none of the program's."
    assert caught.value.hint.startswith(hint)


def test_files_that_are_meant_to_be_there(places: tuple[Path, Path]) -> None:
    """Own files that a template includes, by name or by one that is worked out; notes, and what editors leave."""
    (places[0] / "role.j2").write_text('{% include "mine.j2" %}')
    (places[1] / "mine.j2").write_text('Of the {% include "us" ~ "er.j2" %}')
    (places[1] / "user.j2").write_text("user.")
    for name in ("README.md", ".role.j2.swp", "role.j2~", "rolle.j2.bak"):
        (places[0] / name).write_text("{{ nothing")
    (places[0] / "old").mkdir()
    assert system(places).startswith("Of the user.\n")
