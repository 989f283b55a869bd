"""sessions and report."""

import contextlib
import json
import os
import sqlite3
from pathlib import Path

import msgspec
import pytest
import store_fixture as fixture

from forge_tui.cli import main, output
from forge_tui.cli.commands.run import read_start
from forge_tui.core.errors import UsageError
from forge_tui.core.paths import Workspace
from forge_tui.core.reports import RunReport
from forge_tui.store.version import SCHEMA_VERSION
from forge_tui.store.writer import Store


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    """Each test may write one document, in a folder of its own."""
    monkeypatch.setattr(output, "_written", False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def done(tmp_path):
    """A finished session in the current folder's workspace."""
    return fixture.finished(tmp_path / ".forge")


def test_sessions_are_listed(done, capsys):
    """One line a session: what it was, how far it is, what it gave; a dead engine's session is `stopped`."""
    workspace, name = done
    with contextlib.closing(Store.open(workspace)) as store:
        second = store.create_session(fixture.options(workspace, "example:resnet")).id
        store.set_state(second, "searching")
    assert main.main(["sessions"]) == 0
    head, rule, first, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["session", "state", "model", "device", "tried", "speedup", "cost", "changed"]
    assert set(rule) == {"-"}
    assert first.split()[:7] == [name, "done", "example:tiny-llm", "cpu", "5", "1.250x", "$0.0100"]
    assert last.split()[:7] == ["resnet-1", "stopped", "example:resnet", "cpu", "0", "-", "-"]


def test_sessions_as_json(done, capsys):
    """The document has the workspace and each session's numbers."""
    workspace, name = done
    assert main.main(["sessions", "--workspace", str(workspace.root), "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["workspace"] == str(workspace.root)
    assert len(read["sessions"]) == 1
    session = read["sessions"][0]
    assert (session["id"], session["state"], session["speedup"], session["evaluations"]) == (name, "done", 1.25, 5)
    assert (session["cost_usd"], session["elapsed_s"], session["engine_pid"]) == (0.01, 90.0, 0)


def test_empty_workspace_says_how_to_start(tmp_path, capsys):
    """No database is a fault, no session in it a note; as JSON it is an empty list."""
    assert main.main(["sessions"]) == 4
    assert "Start with forge-tui run MODEL." in capsys.readouterr().err
    Store.open(Workspace(tmp_path / ".forge")).close()
    assert main.main(["sessions"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"There is no session in {tmp_path}/.forge. Start one with forge-tui run MODEL.\n")
    assert main.main(["report"]) == 2
    assert "There is no session in" in capsys.readouterr().err
    assert main.main(["sessions", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sessions"] == []


def test_report_in_its_three_forms(done, capsys, monkeypatch):
    """Text by default, the report's record as JSON, a document as Markdown; by id, prefix, or the last one."""
    _, name = done
    assert main.main(["report"]) == 0
    assert "whole model  5.000 ms before, 4.000 ms after: 1.250x" in capsys.readouterr().out
    assert main.main(["report", name, "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("# example:tiny-llm on cpu: 1.250x\n")
    assert main.main(["report", "tiny", "--json"]) == 0
    read = msgspec.json.decode(capsys.readouterr().out, type=RunReport)
    assert (read.session, read.speedup, read.speedup_vs_best, len(read.targets)) == (name, 1.25, 1.125, 2)


def test_report_names_what_the_issue_asks_for(done, capsys):
    """The keys that scripts rely on are all there."""
    assert main.main(["report", "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert set(read) >= {
        "session", "model", "device", "under", "baseline_ms", "deployed_ms", "speedup", "speedup_vs_eager",
        "speedup_vs_best", "max_abs_error", "targets", "evaluations", "cost_usd", "stop_reason",
    }  # fmt: skip
    assert set(read["targets"][0]) >= {
        "name", "signature", "calls", "share", "headroom_ms", "verdict", "baseline_us", "best_us", "speedup",
        "speedup_ci", "evaluations", "deployed", "why_not",
    }  # fmt: skip


def test_unknown_session_is_a_sentence(done, capsys):
    """A wrong id is exit code 2 and names the right one."""
    assert main.main(["report", "tiny-lm-1"]) == 2
    assert "Did you mean tiny-llm-1?" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["sessions"], ["report", "x"], ["resume"]])
def test_newer_database_is_a_sentence(done, arguments, capsys):
    """A database of a later version is exit code 4 and one sentence, whatever reads it."""
    workspace, _ = done
    with contextlib.closing(sqlite3.connect(workspace.database)) as raw:
        raw.execute("UPDATE meta SET schema_version = ?", (SCHEMA_VERSION + 1,))
        raw.commit()
    assert main.main(arguments) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    versions = f"(schema {SCHEMA_VERSION + 1}, this one knows {SCHEMA_VERSION})"
    assert f"was written by a newer Forge TUI {versions}: upgrade forge-tui" in err


def test_an_own_kernel_is_read_at_once_or_refused(tmp_path):
    """`--start` and `check` take a file; a pipe, a folder, a huge or a binary one is a sentence."""
    os.mkfifo(tmp_path / "pipe.cpp")
    (tmp_path / "folder.cpp").mkdir()
    (tmp_path / "huge.cpp").write_bytes(b"/" * (1 << 20) + b"/")
    (tmp_path / "binary.cpp").write_bytes(b"\x7fELF\xff")
    (tmp_path / "k.cpp").write_text("// größe\n")
    for name, said in (("pipe", "is a pipe, not a file"), ("folder", "is a folder, not a file"),
                       ("huge", "has more than 1 MiB"), ("binary", "is not UTF-8 text"),
                       ("none", "cannot be read: No such file or directory")):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            read_start(tmp_path / f"{name}.cpp", "cpu")
        assert caught.value.what == f"{tmp_path / name}.cpp {said}."
    assert read_start(Path(f"norm={tmp_path}/k.cpp"), "cpu").source == "// größe\n"
