"""Prompts that wait for a person: a folder with a prompt file, a note of what it is for, and the reply beside them.

`007-RMSNorm-draft.prompt.md` is answered by `007-RMSNorm-draft.reply.md`. Every file is complete from the moment it
has its name.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from forge_tui.core.errors import EnvironmentFault, UsageError
from forge_tui.core.records import Edge, Language, Record

FOLDER = "inbox"
MAX_REPLY_BYTES = 4 << 20
_PROMPT, _REPLY, _NOTE = ".prompt.md", ".reply.md", ".json"

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
        return "answered" if self.reply_path(entry).exists() else "open"

    def prompt_path(self, entry: Entry) -> Path:
        """Where the prompt lies."""
        return self.folder / (entry.name + _PROMPT)

    def reply_path(self, entry: Entry) -> Path:
        """Where the reply is to lie."""
        return self.folder / (entry.name + _REPLY)

    def prompt(self, entry: Entry) -> str:
        """The prompt's text.

        Raises:
            UsageError: it is no longer there.
        """
        return _text(self.prompt_path(entry))

    def reply(self, entry: Entry) -> str:
        """The reply's text.

        Raises:
            UsageError: it is not there, or too big.
        """
        return _text(self.reply_path(entry))

    def _read(self, paths: list[Path]) -> Iterator[Entry]:
        for path in paths:
            # a file that is just being removed, or somebody else's
            with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
                yield msgspec.json.decode(path.read_bytes(), type=Entry)

    # ---- writing

    def ask(self, entry: Entry, prompt: str) -> Entry:
        """Put a prompt into the inbox; its number and name are chosen here.

        Raises:
            EnvironmentFault: the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            number = max((e.number for e in self.entries()), default=0) + 1
            while True:
                made = msgspec.structs.replace(entry, number=number, name=_name(number, entry), at=time.time())
                claim = self.folder / f".{number}.claim"
                try:
                    os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
                except FileExistsError:
                    number += 1
                    continue
                break
            _put(self.prompt_path(made), prompt)
            self._note(made)
        except OSError as error:
            raise EnvironmentFault(f"The inbox {self.folder} cannot be written: {error.strerror or error}.",
                                   "Free space there, or name another --workspace.") from error  # fmt: skip
        return made

    def answer(self, entry: Entry, text: str) -> None:
        """Hand in a reply; one that was not read yet is replaced.

        Raises:
            UsageError: a search has read another one already.
            EnvironmentFault: the folder cannot be written.
        """
        if entry.taken:
            raise UsageError(f"Prompt {entry.number} has its reply already.")
        try:
            _put(self.reply_path(entry), text)
        except OSError as error:
            raise EnvironmentFault(f"{self.reply_path(entry)} cannot be written: {error.strerror or error}.") from error

    def take(self, entry: Entry) -> None:
        """Note that a search has read the reply."""
        # the reply is there either way, and is found again by what it is for
        with contextlib.suppress(OSError):
            self._note(msgspec.structs.replace(entry, taken=True))

    def _note(self, entry: Entry) -> None:
        _put(self.folder / (entry.name + _NOTE), msgspec.json.format(msgspec.json.encode(entry)).decode())


def _name(number: int, entry: Entry) -> str:
    target = re.sub(r"[^A-Za-z0-9.@]+", "_", entry.target).strip("_.")[:40] or "target"
    return f"{number:03d}-{target}-{entry.edge}"


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_REPLY_BYTES:
            raise UsageError(f"{path} has more than {MAX_REPLY_BYTES >> 20} MiB, which no reply has.")
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error


def _put(path: Path, text: str) -> None:
    """Write a whole file under a temporary name, then give it its own."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(text.encode("utf-8", "replace"))
    temporary.replace(path)
