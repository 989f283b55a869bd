"""Commands to an engine: over a real socket, and a resume that is a real process."""

from __future__ import annotations

import json
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forge_tui.core.errors import ForgeError
from forge_tui.core.paths import Workspace
from forge_tui.tui import remote


@contextmanager
def engine(workspace: Workspace, session: str, answer: dict[str, Any] | None) -> Iterator[list[dict[str, Any]]]:
    """A socket that takes one command and answers; with None it closes without a word."""
    got: list[dict[str, Any]] = []
    path = workspace.socket(session)
    path.parent.mkdir(parents=True, exist_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen(1)

    def serve() -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as lines:
            got.append(json.loads(lines.readline()))
            if answer is not None:
                connection.sendall(json.dumps(answer).encode() + b"\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield got
    finally:
        thread.join(5)
        server.close()


@pytest.mark.parametrize("op", ["pause", "resume", "stop"])
def test_a_command_is_one_line(tmp_path: Path, op: str) -> None:
    """The engine gets the op, and its ok is enough."""
    workspace = Workspace(tmp_path)
    with engine(workspace, "s", {"ok": True}) as got:
        remote.command(workspace, "s", op)
    assert got == [{"op": op}]


@pytest.mark.parametrize(
    ("answer", "said"),
    [({"ok": False, "error": "Not now."}, "Not now."), (None, "The engine gave no answer."),
     ({}, "The engine gave no answer.")],
)  # fmt: skip
def test_a_refusal_is_raised_with_its_words(tmp_path: Path, answer: dict[str, Any] | None, said: str) -> None:
    """A command that the engine does not take is no success."""
    workspace = Workspace(tmp_path)
    with engine(workspace, "s", answer), pytest.raises(ForgeError, match=said):
        remote.command(workspace, "s", "pause")


def test_no_engine_is_said(tmp_path: Path) -> None:
    """Without a socket the sentence says how to start one."""
    with pytest.raises(ForgeError, match="forge-tui resume"):
        remote.command(Workspace(tmp_path), "s", "stop")


def fake_python(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """A program in the interpreter's place that writes down its arguments."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\necho "$@" > "{folder}/args"\n{body}\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(script))
    return folder / "args"


def test_resume_starts_a_detached_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line is asked to go on with the session in this workspace, detached."""
    args = fake_python(tmp_path, monkeypatch, "exit 0")
    remote.resume(Workspace(tmp_path / "w"), "tiny-llm-1")
    assert args.read_text().split() == [
        "-m", "forge_tui", "resume", "tiny-llm-1", "--workspace", str(tmp_path / "w"), "--detach",
    ]  # fmt: skip


def test_a_failed_resume_gives_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command said last is what the user reads."""
    fake_python(tmp_path, monkeypatch, "echo noise >&2; echo 'The disk is full.' >&2; exit 4")
    with pytest.raises(ForgeError, match=r"^The disk is full\.$"):
        remote.resume(Workspace(tmp_path), "s")
    fake_python(tmp_path, monkeypatch, "exit 7")
    with pytest.raises(ForgeError, match="exit code 7"):
        remote.resume(Workspace(tmp_path), "s")
