"""Copying: through tmux where we are in one, OSC 52 elsewhere, and always into a file."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from forge_tui.processes.environment import clean_environment


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of a copy: the file, and which way the text went to the terminal."""

    path: Path | None
    way: str
    """`tmux`, `tmux-buffer`, `osc52`, or empty where there is no terminal."""
    fault: str = ""

    def sentence(self) -> str:
        """What the user is told; never claims more than is known."""
        sent = {
            "tmux": "Sent to tmux and the terminal.",
            "tmux-buffer": "In tmux's buffer: paste with prefix ].",
            "osc52": "Sent to the terminal, if it takes OSC 52.",
            "": "There is no terminal to send it to.",
        }[self.way]
        where = f"Written to {self.path}." if self.path is not None else f"No file: {self.fault}"
        return f"{where} {sent}"


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where copies are written."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "forge-tui" / "copied"


def copy(text: str, name: str, write: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> Copied:
    """Copy `text`; blocks for tmux, so it is called in a thread.

    `name` is the file's name. `write` sends an escape sequence to the terminal.
    """
    path: Path | None = state_folder(environ) / name
    fault = ""
    try:
        assert path is not None
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        path, fault = None, f"{error.strerror or error}."
    return Copied(path, send(text, write, environ), fault)


def send(text: str, write: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> str:
    """Send `text` to the terminal's clipboard; returns the way, empty where `write` raises OSError."""
    inside = bool(environ.get("TMUX"))
    if inside:
        for argv, way in ((["load-buffer", "-w", "-"], "tmux"), (["load-buffer", "-"], "tmux-buffer")):
            if _tmux(argv, text):
                return way
    encoded = base64.b64encode(text.encode("utf-8", errors="replace")).decode()
    sequence = f"\x1b]52;c;{encoded}\a"
    if inside:
        # a tmux that cannot be spoken to hands on what is wrapped so
        sequence = f"\x1bPtmux;{sequence.replace(chr(27), chr(27) * 2)}\x1b\\"
    try:
        write(sequence)
    except OSError:
        return ""
    return "osc52"


def _tmux(argv: list[str], text: str) -> bool:
    try:
        done = subprocess.run(
            ["tmux", *argv], input=text.encode("utf-8", errors="replace"), capture_output=True, timeout=5, check=False,
            env=clean_environment(),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
