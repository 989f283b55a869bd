"""The terminal itself: colours it has but does not say, and putting it right when the screen dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
import termios
from collections.abc import MutableMapping

RESET = (
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"  # mouse
    "\x1b[?1004l\x1b[?2004l\x1b[?2048l\x1b[<u"  # focus, paste, resize reports, keyboard protocol
    "\x1b[?2026l\x1b[?1049l\x1b[?7h\x1b[?25h\x1b[0m"  # synchronised output, alternate screen, wrap, cursor, colours
)
"""Undoes everything that the screen switches on in a terminal."""

_TRUECOLOR_TERMS = ("alacritty", "foot", "xterm-ghostty", "xterm-kitty", "wezterm", "contour", "rio")


def prepare_colors(environ: MutableMapping[str, str] = os.environ) -> None:
    """Say truecolor for terminals known to have it, whose TERM alone would be taken for 16 colours."""
    term = environ.get("TERM", "")
    if "COLORTERM" not in environ and "TMUX" not in environ and term.split("-direct")[0] in _TRUECOLOR_TERMS:
        environ["COLORTERM"] = "truecolor"


def prepare_size() -> None:
    """Give a terminal that says it has no size one of 80x24.

    Pseudo-terminals made without a size (`script` in a pipe, some CI runners) report 0x0; Textual and Rich then fall
    back to different sizes and lay the screen out for ever, one for the other.
    """
    for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, AttributeError, ValueError):
            number = -1 if stream is None else stream.fileno()
            if os.isatty(number) and 0 in os.get_terminal_size(number):
                fcntl.ioctl(number, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))


class Guard:
    """Puts the terminal right if this process is killed outright.

    A tiny shell waits on a pipe; if it ends without the word from `close`, the shell writes `RESET` and the saved
    line settings. It ignores the stop that background writing would bring.
    """

    _SCRIPT = (
        "trap '' TTOU INT QUIT TSTP HUP; saved=$(stty -g </dev/tty 2>/dev/null); echo ready; "
        'read -r word; [ "$word" = bye ] && exit 0; '
        'printf %s "$FORGE_TUI_RESET" >/dev/tty 2>/dev/null; '
        '[ -n "$saved" ] && stty "$saved" </dev/tty 2>/dev/null'
    )

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start the shell; without a terminal or a shell there is none."""
        if not sys.stdout.isatty():
            return
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", self._SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", os.defpath), "FORGE_TUI_RESET": RESET},
            )  # fmt: skip
            # the line settings are saved before the screen changes them
            assert self._process.stdout is not None
            self._process.stdout.readline()
            self._process.stdout.close()

    def close(self) -> None:
        """All went well: the shell ends without a word."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.write(b"bye\n")
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1.0)
