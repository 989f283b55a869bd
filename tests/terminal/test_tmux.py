"""The screen in a real terminal multiplexer, over a real store."""

# ruff: noqa: D103 - helpers

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tui.fakes import make_node, verdict_of

from forge_tui.core.records import Edge, Verdict

from .record import command, record

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
LIMIT_S = 40.0


class Tmux:
    """A tmux server of our own with one window."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux.sock"
        self._dead = False

    def run(self, *args: str) -> str:
        return subprocess.run(["tmux", "-S", str(self._socket), "-f", "/dev/null", *args], capture_output=True,
                              text=True, check=True, timeout=20).stdout  # fmt: skip

    def start(self, argv: list[str], size: tuple[int, int], env: dict[str, str], folder: Path) -> None:
        words = " ".join(shlex.quote(word) for word in argv)
        given = {"FORGE_TUI_ASCII": "", "XDG_STATE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), **env}
        assign = " ".join(f"{name}={shlex.quote(value)}" for name, value in given.items() if value != "")
        line = f"unset NO_COLOR COLORTERM LC_ALL COLUMNS LINES; {assign} {words}; echo LEFT $?; exec sleep 300"
        self.run("new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "sh", "-c", line)

    def keys(self, *keys: str) -> None:
        self.run("send-keys", *keys)

    def text(self, *flags: str) -> str:
        return self.run("capture-pane", "-p", *flags)

    def wait(self, wanted: Callable[[str], bool], *flags: str) -> str:
        """The window's text once it is as wanted."""
        end = time.monotonic() + LIMIT_S
        text = ""
        while time.monotonic() < end:
            text = self.text(*flags)
            if wanted(text):
                return text
            time.sleep(0.05)
        raise AssertionError(f"not seen within {LIMIT_S} s:\n{text}")

    def stop(self) -> None:
        subprocess.run(["tmux", "-S", str(self._socket), "kill-server"], capture_output=True, check=False, timeout=20)


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    server = Tmux(tmp_path)
    yield server
    server.stop()


def has(*parts: str) -> Callable[[str], bool]:
    return lambda text: all(part in text for part in parts)


def test_a_session_at_80_by_24(tmux: Tmux, tmp_path: Path) -> None:
    """The store's session is shown, keys move, a new node appears, the end shows the result, q leaves with 0."""
    workspace, store, session = record(tmp_path / "w")
    tmux.start(command(workspace), (80, 24), {"TERM": "screen-256color"}, tmp_path)
    text = tmux.wait(has("● searching", "12/60 tried", "#14 read the weight", "//@tune BLOCK", "? help"))
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    tmux.keys("1")
    tmux.wait(has("1 hotspots  48.2 ms a model call", "RMSNorm", "memory-bound"))
    tmux.keys("2", "b")
    tmux.wait(has("▲F faster 2.35x [2.28, 2.42]"))
    tmux.keys(".")
    tmux.wait(has("FOLLOW"))
    fast = make_node(15, "t1", 4, Edge.IMPROVE, "a late idea", verdict_of(Verdict.FASTER, 5.5), language="cpp")
    store.add_node(session, msgspec.structs.replace(fast))
    tmux.wait(has("best 5.50x RMSNorm", "#15 a late idea", "▲F faster 5.50x"))
    store.set_state(session, "done", stop_reason="All evaluations were used.")
    store.release(session)
    tmux.wait(has("● done", "6 result", "All evaluations were used."))
    tmux.keys("q")
    tmux.wait(has("LEFT 0"))
    store.close()


def test_a_wide_terminal_and_the_way_out(tmux: Tmux, tmp_path: Path) -> None:
    """With TERM=xterm-256color at 200x50 all panes are there; ctrl+c says what twice does; the shell is clean after."""
    workspace, store, _ = record(tmp_path / "w")
    tmux.start(command(workspace), (200, 50), {"TERM": "xterm-256color"}, tmp_path)
    tmux.wait(has("1 hotspots", "2 search", "3 kernel", "4 telemetry", "5 events", "cpu ", "#13 RMSNorm"))
    tmux.keys("C-c")
    tmux.wait(has("ctrl+c again leaves. The search goes on in the background"))
    tmux.keys("C-c")
    text = tmux.wait(has("LEFT 0"))
    assert "hotspots" not in text
    flags = tmux.run("display-message", "-p", "#{alternate_on} #{mouse_any_flag} #{cursor_flag}").split()
    assert flags == ["0", "0", "1"]
    store.close()


def test_without_colours(tmux: Tmux, tmp_path: Path) -> None:
    """Under NO_COLOR not one colour code is sent, and cursor and focus still show, by reverse video."""
    workspace, store, _ = record(tmp_path / "w")
    tmux.start(command(workspace), (100, 30), {"TERM": "xterm-256color", "NO_COLOR": "1"}, tmp_path)
    text = tmux.wait(has("searching", "#14", "//@tune"), "-e")
    codes = {code for part in text.split("\x1b[")[1:] for code in part.split("m")[0].split(";")}
    assert codes <= {"", "0", "1", "3", "4", "7", "39", "49"}, codes
    assert any("\x1b[1;7m" in line and "#14" in line for line in text.splitlines())
    assert any("\x1b[1;7m" in line and "2 search" in line for line in text.splitlines())
    store.close()


@pytest.mark.parametrize(
    "env",
    [{"LC_ALL": "en_US.ISO-8859-1"}, {"FORGE_TUI_ASCII": "1"}, {"LC_ALL": "C", "PYTHONUTF8": "0",
     "PYTHONCOERCECLOCALE": "0"}],
)  # fmt: skip
def test_without_utf8(tmux: Tmux, tmp_path: Path, env: dict[str, str]) -> None:
    """Where the terminal has no UTF-8 every character on it is ASCII."""
    workspace, store, _ = record(tmp_path / "w")
    tmux.start(command(workspace), (80, 24), {"TERM": "xterm", **env}, tmp_path)
    text = tmux.wait(has("o searching", "^F faster", "#14", "//@tune"))
    assert text.isascii()
    assert "\\u" not in text
    store.close()


def test_ctrl_z_and_back(tmux: Tmux, tmp_path: Path) -> None:
    """ctrl+z gives the shell back, and fg the screen, at the same node."""
    workspace, store, _ = record(tmp_path / "w")
    tmux.run("new-session", "-d", "-x", "80", "-y", "24",
             "env", "-u", "COLUMNS", "-u", "LINES", "PS1=READY> ", f"XDG_STATE_HOME={tmp_path}",
             f"XDG_CONFIG_HOME={tmp_path}", "TERM=screen-256color",
             "bash", "--norc", "-i")  # fmt: skip
    tmux.wait(has("READY>"))
    tmux.keys(" ".join(shlex.quote(word) for word in command(workspace)), "Enter")
    tmux.wait(has("#14", "//@tune"))
    tmux.keys("b")
    tmux.wait(has("2.35x [2.28, 2.42]"))
    tmux.keys("C-z")
    tmux.wait(lambda text: "Stopped" in text and "2 search" not in text)
    tmux.keys("fg", "Enter")
    tmux.wait(has("2.35x [2.28, 2.42]", "2 search"))
    tmux.keys("Q")
    tmux.wait(lambda text: text.count("READY>") >= 2 and "2 search" not in text)
    store.close()


def test_copy_goes_to_tmux(tmux: Tmux, tmp_path: Path) -> None:
    """Inside tmux `y` fills tmux's buffer with the whole source, and says where the file is."""
    workspace, store, session = record(tmp_path / "w")
    tmux.start(command(workspace), (100, 30), {"TERM": "screen-256color"}, tmp_path)
    tmux.wait(has("#14", "//@tune"))
    tmux.keys("y")
    tmux.wait(has("Sent to tmux"))
    copied = tmp_path / "forge-tui" / "copied" / f"{session}-node14.cu"
    assert tmux.run("show-buffer").strip() == copied.read_text().strip()
    assert copied.read_text().startswith("//@tune BLOCK")
    store.close()


def test_a_killed_screen_leaves_a_usable_terminal(tmux: Tmux, tmp_path: Path) -> None:
    """After kill -9 the alternate screen, the mouse and the line settings are put right."""
    workspace, store, _ = record(tmp_path / "w")
    tmux.start(command(workspace), (80, 24), {"TERM": "screen-256color"}, tmp_path)
    tmux.wait(has("#14", "//@tune"))
    assert tmux.run("display-message", "-p", "#{alternate_on}").strip() == "1"
    pane = int(tmux.run("display-message", "-p", "#{pane_pid}"))
    os.kill(_child_of(pane), 9)
    tty = tmux.run("display-message", "-p", "#{pane_tty}").strip()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        flags = tmux.run("display-message", "-p", "#{alternate_on} #{mouse_any_flag} #{cursor_flag}").split()
        line = subprocess.run(["stty", "-a", "-F", tty], capture_output=True, text=True, check=True).stdout
        if flags == ["0", "0", "1"] and " icanon" in line and " echo " in line:
            break
        time.sleep(0.05)
    assert flags == ["0", "0", "1"]
    assert " icanon" in line
    store.close()


def _child_of(pid: int) -> int:
    """The Python process below the pane's shell."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0])
