"""`prompt` and `replies`: what a model would be asked, and what models said."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import store_fixture as fixture

from forge_tui.cli import main, output
from forge_tui.core.errors import UsageError
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Edge, Evaluation, Node, Verdict
from forge_tui.engine.asking import task_of
from forge_tui.proposers.replay import from_lines
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store

Done = tuple[Workspace, str]


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Done:
    """A finished session in the current folder's workspace."""
    monkeypatch.setattr(output, "_written", False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return fixture.finished(tmp_path / ".forge")


def test_a_prompt_is_printed(done: Done, capsys: pytest.CaptureFixture[str]) -> None:
    """By default the improvement of the best kernel of the first target; the count goes to stderr."""
    assert main.main(["prompt"]) == 0
    found = capsys.readouterr()
    assert "# Target: RMSNorm" in found.out
    assert "# The kernel to improve (2.000x, 100 us)" in found.out
    assert "- idea 3 -> 2.000x, 100 us\n- idea 2 -> 1.500x" in found.out
    assert found.err.startswith("improve of RMSNorm: at most ")
    assert main.main(["prompt", "--target", "RMSNorm", "--node", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["edge"] == "repair"
    assert "no such name: foo" in document["request"]
    assert sum(document["most_tokens"].values()) > 1000


def test_a_persons_own_templates_are_used(done: Done, capsys: pytest.CaptureFixture[str]) -> None:
    """The command shows what would be sent, overrides included, or what is wrong with them."""
    folder = done[0].root / "prompts"
    folder.mkdir()
    (folder / "role.j2").write_text("Be brief.\n")
    assert main.main(["prompt", "--edge", "draft"]) == 0
    assert capsys.readouterr().out.startswith("Be brief.\n")
    (folder / "role.j2").write_text("{{ nothing }}")
    assert main.main(["prompt", "--edge", "draft"]) == 3
    assert "role.j2, line 1 cannot be used: 'nothing' is undefined." in capsys.readouterr().err


def test_each_edge_has_its_task(done: Done) -> None:
    """Drafts have no parent, repairs a failed kernel, merges a second approach, the rest the best kernel."""
    workspace, name = done
    with contextlib.closing(Store.open(workspace)) as store:
        store.add_node(name, Node(id=6, target_id="test-RMSNorm", parent=None, edge=Edge.DRAFT, proposer="m",
                                  source="// other\n", language="cpp", family="other"))  # fmt: skip
        store.set_evaluation(name, 6, fixture.faster(1.75))
        store.add_node(name, Node(id=7, target_id="test-RMSNorm", parent=3, edge=Edge.IMPROVE, proposer="m",
                                  source="// wrong\n", language="cpp"))  # fmt: skip
        store.set_evaluation(name, 7, Evaluation(verdict=Verdict.REJECTED, reason="Wrong."))
    with contextlib.closing(Reader.open(workspace)) as reader:
        made = {edge: task_of(reader, name, "RMSNorm", edge) for edge in
                (Edge.DRAFT, Edge.IMPROVE, Edge.REPAIR, Edge.REWRITE, Edge.MERGE)}  # fmt: skip
        ids = {edge: tuple(n.id if n is not None else None for n in (t.parent, t.failed, t.other, t.best))
               for edge, t in made.items()}  # fmt: skip
        assert ids == {Edge.DRAFT: (None, None, None, 3), Edge.IMPROVE: (3, None, None, 3),
                       Edge.REPAIR: (3, 7, None, 3), Edge.REWRITE: (3, None, None, 3),
                       Edge.MERGE: (3, None, 6, 3)}  # fmt: skip
        assert [n.id for n in made[Edge.REPAIR].lineage] == [3, 2]
        for arguments, said in (((None, Edge.REPAIR, 3), "Node 3 has nothing to repair"),
                                ((None, None, 99), f"Session {name} has no node 99. It has 1 to 7."),
                                (("RMSNorm", Edge.DRAFT, 3), "A draft begins with no kernel, and --node 3 names one."),
                                ((None, Edge.IMPROVE, 7), "Node 7 is no right kernel to begin with. Say --edge repair"),
                                ((None, Edge.MERGE, 7), "Node 7 is no right kernel to begin with."),
                                (("F.softmax", None, 3), "Node 3 is no kernel of F.softmax. Leave out --target."),
                                (("nosuch", None, None), "no target 'nosuch'"),
                                (("F.softmax", Edge.MERGE, None), "no second approach")):  # fmt: skip
            with pytest.raises(UsageError, match=said):
                task_of(reader, name, *arguments)
        # a node alone says of which target it is
        assert (task_of(reader, name, None, None, 4).target.name, task_of(reader, name, None, None, 7).edge) == (
            "F.softmax", Edge.REPAIR)  # fmt: skip


def test_an_unknown_edge_is_said(done: Done, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence names the edges there are."""
    assert main.main(["prompt", "--edge", "tune"]) == 2
    assert "Edges are draft, improve, repair, rewrite, merge." in capsys.readouterr().err


def test_replies_are_written_for_a_replay(done: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line a reply, with the kernel that was read from it; to a file or to stdout."""
    path = tmp_path / "replies.jsonl"
    assert main.main(["replies", done[1], "--output", str(path)]) == 0
    assert f"--model replay:{path}" in capsys.readouterr().err
    (entry,) = from_lines(path.read_text(), "it")
    assert (entry.target, entry.edge, entry.source, entry.model) == ("RMSNorm", "draft", "// kernel 1\n", "openai/some")
    assert main.main(["replies"]) == 0
    assert capsys.readouterr().out == path.read_text()


def test_recorded_replies_are_looked_for_before_a_run(
    done: Done, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run on recorded replies that are not there ends before anything is measured."""
    (tmp_path / "m.py").write_text("def build():\n    raise AssertionError\n")
    assert main.main(["run", "m.py", "--device", "cpu", "--model", "replay:nosuch"]) == 2
    assert "nosuch" in capsys.readouterr().err
