"""The only writer of stdout: one JSON document, or text; all else goes to stderr."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from typing import Any, TextIO

import msgspec

from forge_tui.core.errors import EnvironmentFault

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_written = False


def document(value: Any) -> None:
    """Write the one JSON document of `--json`; what JSON has no number for becomes null.

    Raises:
        EnvironmentFault: stdout cannot be written.
        BrokenPipeError: nobody reads it any more.
    """
    global _written
    if _written:
        raise AssertionError("a command writes one JSON document")
    _written = True
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        # half a surrogate pair, as paths that are no UTF-8 have: no JSON text holds it
        encoded = msgspec.json.encode(_without_surrogates(msgspec.to_builtins(value)))
    _write(sys.stdout, msgspec.json.format(encoded, indent=2).decode() + "\n")


def error_document(what: str, hint: str, exit_code: int) -> None:
    """Write a fault as the JSON document, unless the document is out already; never raises."""
    if not _written:
        with contextlib.suppress(OSError, EnvironmentFault):
            document({"error": {"what": what, "hint": hint, "exit_code": exit_code}})


def text(value: str) -> None:
    """Write text to stdout, for people.

    Raises:
        EnvironmentFault: stdout cannot be written.
        BrokenPipeError: nobody reads it any more.
    """
    _write(sys.stdout, value.rstrip("\n") + "\n")


def foreign(value: str) -> None:
    """Write a text of others to stdout as it is; on a terminal without what could drive it.

    Raises:
        EnvironmentFault: stdout cannot be written.
        BrokenPipeError: nobody reads it any more.
    """
    text(_CONTROL.sub("?", value) if sys.stdout is not None and sys.stdout.isatty() else value)


def note(value: str) -> None:
    """Write a line to stderr: progress, faults. A stderr that is gone does not stop the work."""
    with contextlib.suppress(OSError, EnvironmentFault):
        _write(sys.stderr, value.rstrip("\n") + "\n")


def terminal_width() -> int:
    """The terminal's columns; 0, without limit, where stdout is none."""
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if on_terminal else 0


def silence() -> None:
    """Have nothing more written to a stdout that nobody reads, not at the interpreter's end either."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_surrogates(item) for item in value]
    return value


def _write(stream: TextIO | None, value: str) -> None:
    if stream is None:  # closed by the caller: `>&-`
        return
    encoding = stream.encoding or "utf-8"
    try:
        # a character that the locale has not is written as its number rather than raising
        stream.write(value.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise EnvironmentFault(f"The output cannot be written: {error.strerror or error}.") from error
