"""Copying: a file always, tmux where we are in it, OSC 52 elsewhere."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest

from forge_tui.tui.clipboard import copy, send


def fake_tmux(folder: Path, *, takes_w: bool = True, works: bool = True) -> dict[str, str]:
    """A `tmux` that writes what it was given, and an environment that finds it."""
    script = folder / "tmux"
    refuse = "" if takes_w else 'case "$*" in *-w*) exit 1;; esac\n'
    body = f'cat > "{folder}/buffer"; echo "$@" > "{folder}/args"\n' if works else "exit 1\n"
    script.write_text(f"#!/bin/sh\n{refuse}{body}")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {"XDG_STATE_HOME": str(folder), "TMUX": "/tmp/tmux-0/default,1,0"}


@pytest.fixture
def path_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first in PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_tmux_gets_it_with_w(path_first: Path) -> None:
    """In tmux the buffer is loaded and passed on to the terminal; no escape is written."""
    written: list[str] = []
    done = copy("kernel\n", "a.cu", written.append, fake_tmux(path_first))
    assert done.way == "tmux"
    assert (path_first / "buffer").read_text() == "kernel\n"
    assert (path_first / "args").read_text().strip() == "load-buffer -w -"
    assert written == []
    assert done.path is not None
    assert done.path.read_text() == "kernel\n"


def test_an_old_tmux_gets_it_without_w(path_first: Path) -> None:
    """Where `-w` is unknown the buffer alone is loaded, and the sentence says how to paste it."""
    done = copy("kernel\n", "a.cu", lambda _: None, fake_tmux(path_first, takes_w=False))
    assert done.way == "tmux-buffer"
    assert "prefix ]" in done.sentence()


def test_a_broken_tmux_falls_back(path_first: Path) -> None:
    """If tmux fails OSC 52 is tried."""
    written: list[str] = []
    assert copy("x", "a.cu", written.append, fake_tmux(path_first, works=False)).way == "osc52"
    assert len(written) == 1


def test_osc52_outside_tmux(tmp_path: Path) -> None:
    """Elsewhere the text goes out as OSC 52, and nothing more is claimed than that it was sent."""
    written: list[str] = []
    done = copy("é\n", "a.cu", written.append, {"XDG_STATE_HOME": str(tmp_path)})
    payload = written[0].removeprefix("\x1b]52;c;").removesuffix("\a")
    assert base64.b64decode(payload).decode() == "é\n"
    assert done.sentence() == f"Written to {tmp_path}/forge-tui/copied/a.cu. Sent to the terminal, if it takes OSC 52."


def test_no_file_is_said(tmp_path: Path) -> None:
    """If the file cannot be written the rest still happens, and the sentence says why there is no file."""
    (tmp_path / "forge-tui").write_text("in the way")
    written: list[str] = []
    done = copy("x", "a.cu", written.append, {"XDG_STATE_HOME": str(tmp_path)})
    assert done.path is None
    assert len(written) == 1
    assert done.sentence().startswith("No file: ")


def test_a_tmux_out_of_reach_gets_a_wrapped_sequence(path_first: Path) -> None:
    """Inside tmux only what is wrapped, each escape twice, passes on to the terminal."""
    written: list[str] = []
    assert send("kernel\n", written.append, fake_tmux(path_first, works=False)) == "osc52"
    inner = written[0].removeprefix("\x1bPtmux;").removesuffix("\x1b\\")
    assert inner.startswith("\x1b\x1b]52;c;")
    assert base64.b64decode(inner.removeprefix("\x1b\x1b]52;c;").removesuffix("\a")) == b"kernel\n"


def test_without_a_terminal_nothing_is_claimed(tmp_path: Path) -> None:
    """The file alone is named."""

    def gone(sequence: str) -> None:
        raise OSError(6, f"No such device or address for {len(sequence)} characters")

    done = copy("x", "a.cu", gone, {"XDG_STATE_HOME": str(tmp_path)})
    assert done.sentence() == f"Written to {tmp_path}/forge-tui/copied/a.cu. There is no terminal to send it to."
