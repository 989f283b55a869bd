"""Replies as a person hands them in: from a file, from stdin, from an editor. What was typed outlives every refusal."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from forge_tui.cli import output
from forge_tui.core.errors import EnvironmentFault, ForgeError, UsageError
from forge_tui.core.files import UnreadableError, as_text, check_size, read_text
from forge_tui.proposers.desk import MAX_REPLY_BYTES, Desk, Entry

STDIN = "-"


@contextlib.contextmanager
def written(desk: Desk, entry: Entry, file: str | None) -> Iterator[str]:
    """The reply in `file`, on stdin (`-`), or from `$EDITOR`, while it is handed in.

    What was typed is a draft before anything is made of it. Where handing it in fails it stays, and the error says
    where.

    Raises:
        UsageError: it cannot be read.
        EnvironmentFault: the inbox cannot be written.
    """
    if file is not None and file != STDIN:
        yield _of_file(file)
        # a draft that was handed in is none
        if any(path.samefile(file) for path in desk.drafts(entry)):
            Path(file).unlink(missing_ok=True)
        return
    if file == STDIN:
        text = _of_stdin(desk, entry)
        path = _kept(desk, entry, text)
        with _staying(entry, path, text):
            yield text
    else:
        with _editing(desk, entry) as path:
            text = _of_editor(entry, path)
            with _staying(entry, path, text):
                yield text
    if path is not None:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _staying(entry: Entry, path: Path | None, text: str) -> Iterator[None]:
    try:
        yield
    except ForgeError as error:
        if path is None:
            output.text(text)
            where = "What you wrote could be kept nowhere and is on stdout."
        else:
            where = f"What you wrote is kept: forge-tui inbox reply {entry.number} {shlex.quote(str(path))}."
        raise type(error)(error.what, f"{error.hint} {where}".lstrip(), exit_code=error.exit_code) from error


def _of_file(file: str) -> str:
    try:
        return read_text(file, MAX_REPLY_BYTES)
    except UnreadableError as error:
        hint = "Say - to read from stdin." if "pipe" in str(error) or "device" in str(error) else ""
        raise UsageError(f"{file} {error}.", hint) from error


# ---- stdin


def _of_stdin(desk: Desk, entry: Entry) -> str:
    if sys.stdin is None:
        raise UsageError("Nothing can be read from stdin, which is closed.", "Name a file.")
    if sys.stdin.isatty():
        output.note("Paste the reply, then press Ctrl-D on a line of its own.")
    data = bytearray()
    try:
        with _as_interrupt(signal.SIGHUP, signal.SIGTERM):
            while len(data) <= MAX_REPLY_BYTES and (line := sys.stdin.buffer.readline(1 << 16)):
                data += line
        check_size(len(data), MAX_REPLY_BYTES)
        return as_text(bytes(data))
    except KeyboardInterrupt:
        text = data.decode("utf-8", "replace")
        if text.strip() and (path := _kept(desk, entry, text)) is not None:
            output.note(f"What came so far is kept in {path}.")
        raise
    except UnreadableError as error:
        raise UsageError(f"What came from stdin {error}.") from error
    except OSError as error:
        raise UsageError(f"Stdin cannot be read: {error.strerror}.", "Name a file.") from error


@contextlib.contextmanager
def _as_interrupt(*numbers: signal.Signals) -> Iterator[None]:
    """Let a line that breaks, or whoever ends this, be answered as Ctrl-C is: by keeping what came."""
    before = [(number, signal.signal(number, signal.default_int_handler)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _kept(desk: Desk, entry: Entry, text: str) -> Path | None:
    """A draft of it, in the first place that takes one; None where none does, or nothing is worth keeping."""
    if not text.strip():
        return None
    for folder in _folders(desk):
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return desk.keep(entry, text, folder)
    return None


def _folders(desk: Desk) -> Iterator[Path]:
    from forge_tui.tui.clipboard import state_folder

    yield desk.folder
    try:
        own = state_folder().with_name("drafts")
    except RuntimeError:
        # a user without a home
        own = desk.folder
    yield own
    yield Path(tempfile.gettempdir())


# ---- the editor


@contextlib.contextmanager
def _editing(desk: Desk, entry: Entry) -> Iterator[Path]:
    """The draft to be edited: that of last time, or a new one."""
    if not _editor() or sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("Missing argument 'FILE'.", "Name a file, say - for stdin, or set EDITOR.")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(desk.editing(entry))
            known = desk.drafts(entry)
            path = known[-1] if known else desk.keep(entry, "")
            if path.stat().st_size:
                output.note(f"{path} has what you wrote last time.")
        except BlockingIOError:
            raise UsageError(f"A reply to prompt {entry.number} is being written in another terminal.",
                             "End that editor, or name a file.") from None  # fmt: skip
        except OSError as error:
            raise EnvironmentFault(f"The inbox {desk.folder} cannot be written: {error.strerror or error}.",
                                   "Free space there before you write a reply.") from error  # fmt: skip
        yield path


def _editor() -> str:
    return os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""


def _of_editor(entry: Entry, path: Path) -> str:
    code = _run_editor(path)
    try:
        text = read_text(path, MAX_REPLY_BYTES)
    except UnreadableError as error:
        raise UsageError(f"{path} {error}.") from error
    if code:
        with _staying(entry, path, text) if text.strip() else contextlib.nullcontext():
            raise UsageError(f"The editor ended with code {code}; nothing was handed in.")
    if not text.strip():
        raise UsageError("The draft is empty; nothing was handed in.",
                         "An editor that does not wait needs to be told to, as in EDITOR='code --wait'.")  # fmt: skip
    return text


def _run_editor(path: Path) -> int:
    # Ctrl-C is the editor's; a handler, unlike SIG_IGN, is not inherited
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.run([*shlex.split(_editor()), str(path)], check=False).returncode
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"The editor {_editor()!r} cannot be started: {error}.", "Set EDITOR.") from error
    finally:
        signal.signal(signal.SIGINT, before)
