"""What is kept of a bug: a log in the user's state folder."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from forge_tui import __version__
from forge_tui.core import secrets


def state_folder() -> Path:
    """`$XDG_STATE_HOME/forge-tui`, by default `~/.local/state/forge-tui`."""
    chosen = os.environ.get("XDG_STATE_HOME", "")
    # the XDG rules: a path that is not absolute is to be ignored
    root = Path(chosen) if chosen.startswith("/") else Path("~/.local/state").expanduser()
    return root / "forge-tui"


def write_crash_log(error: BaseException, arguments: Sequence[str]) -> Path | None:
    """Keep the traceback; returns where, or None where nothing can be written."""
    lines = [
        f"forge-tui {__version__}, Python {sys.version.split()[0]}, {sys.platform}",
        f"arguments: {' '.join(map(repr, arguments))}",
        "",
        "".join(traceback.format_exception(error)),
    ]
    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    for folder in (state_folder() / "crashes", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / name
            path.write_text(secrets.masked("\n".join(lines)), encoding="utf-8", errors="backslashreplace")
        except OSError:
            continue
        return path
    return None
