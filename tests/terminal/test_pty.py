"""The screen at the end of a line that breaks: hang-up, stall, termination; and how much it sends."""

# ruff: noqa: D103 - helpers

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tui.tui.terminal import RESET, prepare_colors

from .record import command, record

LIMIT_S = 40.0


class Line:
    """A child on a pseudo-terminal."""

    def __init__(self, argv: list[str], size: tuple[int, int], folder: Path) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "TMUX")}
            env |= {"TERM": "xterm-256color", "XDG_STATE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
            os.execve(argv[0], argv, env)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.got = b""

    def read(self, seconds: float) -> bytes:
        """What comes within that time."""
        out = b""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self.fd], [], [], left)[0]:
                try:
                    part = os.read(self.fd, 65536)
                except OSError:
                    break
                if not part:
                    break
                out += part
        self.got += out
        return out

    def wait_for(self, wanted: bytes) -> None:
        end = time.monotonic() + LIMIT_S
        while wanted not in self.got:
            assert time.monotonic() < end, self.got[-2000:]
            self.read(0.1)

    def exit_code(self, *, reading: bool = True) -> int:
        """The exit code of the ended child; a signal's as 128 + number."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if reading:
                self.read(0.05)
            else:
                time.sleep(0.05)
        raise AssertionError("still there")

    def close(self) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            os.close(self.fd)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    workspace, store, _ = record(tmp_path / "w")
    child = Line(command(workspace), (200, 50), tmp_path)
    child.wait_for(b"//@tune")
    yield child
    child.close()
    store.close()


def samplers_of(parent: int) -> list[int]:
    """Live sampling processes that this process started."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int(entry.name)
            words = (entry / "cmdline").read_bytes()
            stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if b"telemetry.sampler" in words and int(stat[1]) == parent and stat[0] != "Z":
                found.append(pid)
    return found


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGTERM, 143)])
def test_signals_end_it_cleanly(line: Line, number: signal.Signals, code: int) -> None:
    """A hang-up ends with 129, a termination with 143; the terminal is reset, no traceback, no sampler left."""
    (sampler,) = samplers_of(line.pid)
    line.got = b""
    os.kill(line.pid, number)
    assert line.exit_code() == code
    line.read(0.3)
    assert b"\x1b[?1049l" in line.got
    assert b"Traceback" not in line.got
    assert not Path(f"/proc/{sampler}").exists()


def test_a_line_that_is_cut(line: Line) -> None:
    """When the terminal is gone the process is, too, and does not spin."""
    os.close(line.fd)
    assert line.exit_code(reading=False) == 129


def test_a_reader_that_stalls(line: Line) -> None:
    """Nobody reads for a while, keys and all; then the screen goes on, and leaves when told."""
    for _ in range(60):
        os.write(line.fd, b"z")
        time.sleep(0.03)
    line.got = b""
    line.read(1.0)
    assert len(line.got) > 10_000
    os.write(line.fd, b"Q")
    assert line.exit_code() == 0


def test_an_idle_screen_sends_little(line: Line) -> None:
    """With telemetry and the clock running, a 200x50 screen at rest stays below 2 KB a second."""
    line.read(3.0)
    sent = len(line.read(5.0))
    assert 0 < sent < 10_000, sent


def test_the_reset_undoes_every_mode() -> None:
    """Alternate screen, mouse, paste, focus, keyboard protocol, cursor and wrap are all put back."""
    for mode in ("1049l", "1000l", "1003l", "1006l", "1004l", "2004l", "2048l", "7h", "25h"):
        assert f"\x1b[?{mode}" in RESET
    assert "\x1b[<u" in RESET


@pytest.mark.parametrize(
    ("given", "colorterm"),
    [({"TERM": "foot"}, "truecolor"), ({"TERM": "xterm-kitty"}, "truecolor"), ({"TERM": "xterm-256color"}, None),
     ({"TERM": "foot", "TMUX": "x"}, None), ({"TERM": "alacritty", "COLORTERM": ""}, "")],
)  # fmt: skip
def test_known_truecolor_terminals(given: dict[str, str], colorterm: str | None) -> None:
    """Terminals that have true colour and do not say so get it; what is said is left alone."""
    environ = dict(given)
    prepare_colors(environ)
    assert environ.get("COLORTERM") == colorterm


def test_a_stalled_line_that_is_cut(line: Line) -> None:
    """A link that stalls until the output is full and then breaks does not leave a process behind."""
    for _ in range(60):
        os.write(line.fd, b"z")
        time.sleep(0.02)
    os.close(line.fd)
    assert line.exit_code(reading=False) == 129


def test_a_terminal_without_a_size_gets_one(tmp_path: Path) -> None:
    """On a pseudo-terminal of 0x0 the screen takes 80x24, comes to rest, and obeys SIGTERM."""
    workspace, store, _ = record(tmp_path / "w")
    child = Line(command(workspace), (0, 0), tmp_path)
    try:
        child.wait_for(b"//@tune")
        child.read(1.0)
        assert len(child.read(1.0)) < 20_000
        assert os.get_terminal_size(child.fd) == (80, 24)
        os.kill(child.pid, signal.SIGTERM)
        assert child.exit_code() == 143
    finally:
        child.close()
        store.close()
