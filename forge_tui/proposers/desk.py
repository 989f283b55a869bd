"""Prompts that wait for a person: a folder with a prompt file, a note of what it is for, and the reply beside them.

`007-RMSNorm-draft.prompt.md` is answered by `007-RMSNorm-draft.reply.md`. Every file that the program writes is
complete from the moment it has its name, and holds no value of a key.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec

from forge_tui.core.errors import EnvironmentFault, UsageError
from forge_tui.core.files import UnreadableError, read_bytes, read_text
from forge_tui.core.records import Edge, Language, Record
from forge_tui.proposers.deskfiles import held, put, put_new, without_keys
from forge_tui.proposers.parse import Reply, parse_reply

FOLDER = "inbox"
MAX_REPLY_BYTES = 1 << 20
_MAX_BYTES = 8 << 20
_PROMPT, _REPLY, _NOTE, _DRAFT = ".prompt.md", ".reply.md", ".json", ".draft"
#: how long a command waits for another one that hands in a reply to the same prompt
_LOCK_S = 5.0

State = Literal["open", "answered", "taken"]


class Entry(Record, frozen=True, kw_only=True):
    """One prompt and what its reply is for."""

    number: int
    name: str
    """The beginning of its files' names."""
    session: str
    target_id: str
    target: str
    edge: Edge
    language: Language
    place: str
    """Hash of the source that edits in the reply are of; empty where there is none."""
    seed: int
    base: str = ""
    """That source."""
    shown: tuple[str, ...] = ()
    """Other sources that the prompt has: none of them is an answer."""
    at: float = 0.0
    """Unix seconds."""
    taken: bool = False
    """Whether a search has read the reply."""


class Desk:
    """The inbox of one workspace; any process may read it and reply, engines add to it."""

    def __init__(self, workspace: Path) -> None:
        self.folder = workspace / FOLDER

    # ---- looking

    def entries(self) -> list[Entry]:
        """Everything there is, oldest first."""
        try:
            paths = sorted(self.folder.glob(f"*{_NOTE}"))
        except OSError:
            return []
        return sorted(self._read(paths), key=lambda entry: entry.number)

    def entry(self, number: int) -> Entry:
        """One prompt.

        Raises:
            UsageError: there is none of that number.
        """
        found = self.entries()
        for entry in found:
            if entry.number == number:
                return entry
        numbers = ", ".join(str(e.number) for e in found if self.state(e) == "open")
        hint = f"Open ones are {numbers}." if numbers else "None is open."
        raise UsageError(f"There is no prompt {number} in {self.folder}.", hint)

    def state(self, entry: Entry) -> State:
        """Whether it waits for a reply, has one, or was read."""
        if entry.taken:
            return "taken"
        return "answered" if self.stamp(entry) is not None and not self.fault(entry) else "open"

    def fault(self, entry: Entry) -> str:
        """Why what lies where the reply should is none, as what is said of it; empty where that is not so."""
        path = self.reply_path(entry)
        if not _there(path):
            return ""
        try:
            read_text(path, MAX_REPLY_BYTES)
        except UnreadableError as error:
            return str(error)
        return ""

    def stamp(self, entry: Entry) -> tuple[int, int] | None:
        """Size and time of change of the reply; None where there is none yet, or one that is only just begun."""
        try:
            found = self.reply_path(entry).stat()
        except OSError:
            return None
        return (found.st_size, found.st_mtime_ns) if found.st_size and stat.S_ISREG(found.st_mode) else None

    def prompt_path(self, entry: Entry) -> Path:
        """Where the prompt lies."""
        return self.folder / (entry.name + _PROMPT)

    def reply_path(self, entry: Entry) -> Path:
        """Where the reply is to lie."""
        return self.folder / (entry.name + _REPLY)

    def prompt(self, entry: Entry) -> str:
        """The prompt's text.

        Raises:
            UsageError: it is not there, or no text.
        """
        return _text(self.prompt_path(entry), _MAX_BYTES,
                     f"A search that waits for it writes it again: forge-tui resume {entry.session}.")  # fmt: skip

    def reply(self, entry: Entry) -> str:
        """The reply's text.

        Raises:
            UsageError: it is not there, too big, or no text.
        """
        return _text(self.reply_path(entry), MAX_REPLY_BYTES)

    def drafts(self, entry: Entry) -> list[Path]:
        """Replies that were not handed in, oldest first."""
        found = (path for path in self.folder.glob(f"{entry.name}{_DRAFT}*.md") if path.is_file())
        return sorted(found, key=lambda path: (len(path.name), path.name))

    def _read(self, paths: list[Path]) -> Iterator[Entry]:
        for path in paths:
            # a file that is just being removed, or somebody else's
            with contextlib.suppress(UnreadableError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                entry = msgspec.json.decode(read_bytes(path, _MAX_BYTES), type=Entry)
                # the names of its files follow from it, and must not lead elsewhere
                if path.name == entry.name + _NOTE:
                    yield entry

    # ---- asking

    def ask(self, entry: Entry, prompt: str) -> Entry:
        """Put a prompt into the inbox; its number and name are chosen here.

        Raises:
            EnvironmentFault: the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            number = max((e.number for e in self.entries()), default=0) + 1
            while not self._claim(number):
                number += 1
            made = msgspec.structs.replace(entry, number=number, name=_name(number, entry), at=time.time())
            self._write(made, prompt)
        except OSError as error:
            raise EnvironmentFault(f"The inbox {self.folder} cannot be written: {error.strerror or error}.",
                                   "Free space there, or name another --workspace.") from error  # fmt: skip
        return made

    def restore(self, entry: Entry, prompt: str) -> None:
        """Write again what somebody removed of a prompt that is waited for; where that fails, the next time may do."""
        paths = self.prompt_path(entry), self.folder / (entry.name + _NOTE)
        if all(map(_there, paths)):
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(exist_ok=True)
            self._write(entry, prompt)

    def collect(self, entry: Entry) -> str | None:
        """The reply, which is noted as read; None while it is no text, or is just being handed in."""
        try:
            with self._locked(entry, 0.0):
                text = self.reply(entry)
                self.take(entry)
        except (UsageError, OSError):
            return None
        return text

    def take(self, entry: Entry) -> None:
        """Note that a search has read the reply."""
        # the reply is there either way, and is found again by what it is for
        with contextlib.suppress(OSError):
            self._note(msgspec.structs.replace(entry, taken=True))

    def _claim(self, number: int) -> bool:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.folder / f".{number}.claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            return True
        return False

    def _write(self, entry: Entry, prompt: str) -> None:
        put(self.prompt_path(entry), without_keys(prompt))
        try:
            self._note(entry)
        except OSError:
            # nobody would know what it is for
            self.prompt_path(entry).unlink(missing_ok=True)
            raise

    def _note(self, entry: Entry) -> None:
        put(self.folder / (entry.name + _NOTE), msgspec.json.format(msgspec.json.encode(entry)).decode())

    # ---- replying

    def answer(self, entry: Entry, text: str, *, replace: bool = False) -> None:
        """Hand in a reply; of several at once one is taken. `replace` keeps an earlier, unread one as a draft.

        Raises:
            UsageError: there is a reply already.
            EnvironmentFault: the folder cannot be written.
        """
        path = self.reply_path(entry)
        try:
            with self._locked(entry, _LOCK_S):
                self.check_open(entry, replace=replace)
                for left in self.folder.glob(f".{path.name}.*"):
                    # of somebody who was killed while he wrote
                    left.unlink(missing_ok=True)
                with self._set_aside(entry):
                    # an empty file is one that is not there yet
                    put(path, without_keys(text) if text.strip() else "\n")
        except BlockingIOError:
            raise UsageError(f"Another reply to prompt {entry.number} is just being handed in.") from None
        except OSError as error:
            raise EnvironmentFault(f"{path} cannot be written: {error.strerror or error}.",
                                   "Free space there, or remove what is in the way.") from error  # fmt: skip

    def check_open(self, entry: Entry, *, replace: bool = False) -> None:
        """Raise UsageError if the prompt has a reply; with `replace` only if a search has read it."""
        now = next((e for e in self.entries() if e.number == entry.number), entry)
        if now.taken:
            raise UsageError(f"Prompt {entry.number} was answered already, and a search has read the reply.",
                             "forge-tui inbox lists the open ones.")  # fmt: skip
        if not replace and self.state(now) == "answered":
            raise UsageError(f"Prompt {entry.number} was answered already; no search has read the reply yet.",
                             f"Say --replace to hand in another one; forge-tui resume {entry.session} reads it where "
                             "no search runs.")  # fmt: skip

    def keep(self, entry: Entry, text: str, folder: Path | None = None) -> Path:
        """Put a reply that is not handed in into a draft of its own, by default beside the prompt.

        Raises:
            OSError: it cannot be written.
        """
        names = self._free_drafts(entry, self.folder if folder is None else folder)
        return next(path for path in names if put_new(path, without_keys(text)))

    @contextlib.contextmanager
    def _set_aside(self, entry: Entry) -> Iterator[None]:
        """Whatever lies in the reply's place becomes a draft, unless nothing comes to lie there instead."""
        path = self.reply_path(entry)
        aside = next(self._free_drafts(entry, self.folder)) if self.stamp(entry) or path.is_dir() else None
        if aside is not None:
            path.rename(aside)
        try:
            yield
        except OSError:
            if aside is not None:
                aside.rename(path)
            raise

    @staticmethod
    def _free_drafts(entry: Entry, folder: Path) -> Iterator[Path]:
        names = (f"{entry.name}{_DRAFT}{f'-{number}' if number > 1 else ''}.md" for number in count(1))
        return (folder / name for name in names if not _there(folder / name))

    def editing(self, entry: Entry) -> contextlib.AbstractContextManager[None]:
        """Hold the prompt while a reply is written in an editor; raises BlockingIOError where somebody else does."""
        return held(self.folder / f".{entry.name}.editing", 0.0)

    def _locked(self, entry: Entry, wait_s: float) -> contextlib.AbstractContextManager[None]:
        return held(self.folder / f".{entry.name}.lock", wait_s)


def read(entry: Entry, text: str) -> Reply:
    """What a reply to a prompt holds."""
    return parse_reply(text, entry.language, "", entry.base, entry.shown)


def _there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _name(number: int, entry: Entry) -> str:
    target = re.sub(r"[^A-Za-z0-9.@]+", "_", entry.target).strip("_.")[:40] or "target"
    return f"{number:03d}-{target}-{entry.edge}"


def _text(path: Path, most: int, hint: str = "") -> str:
    try:
        return without_keys(read_text(path, most))
    except UnreadableError as error:
        raise UsageError(f"{path} {error}.", hint) from error
