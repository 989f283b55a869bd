"""Prompt templates of a person's own: found, tried, and refused in one sentence."""

from __future__ import annotations

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
