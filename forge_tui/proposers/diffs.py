"""Unified diffs in a reply, read as edits: models send them though they were asked for something else."""

from __future__ import annotations

import re
from collections.abc import Iterable

from forge_tui.proposers.edits import Edit

DIFF = re.compile(r"^@@ .*@@|^--- \S+.*\n\+\+\+ \S+", re.MULTILINE)
#: what blocks with diffs are called
TAGS = frozenset(["diff", "patch", "udiff"])
_HUNK = re.compile(r"^@@(?:[ -].*)?$", re.MULTILINE)
_FILE = re.compile(r"^(?:diff --git |index [0-9a-f]+|--- \S|\+\+\+ \S|\*\*\* )")
_END = re.compile(r"^\s*(?:`{3,}|~{3,})")


def find(text: str, tagged: Iterable[str] = ()) -> tuple[Edit, ...]:
    """The hunks of a reply's text; `tagged` are its blocks called diffs, whose hunks may lack a head."""
    if _HUNK.search(text):
        return _hunks(text.split("\n"))
    return tuple(edit for block in tagged for edit in _hunks(["@@", *block.split("\n")]))


def new_source(edits: tuple[Edit, ...]) -> str:
    """The source of a diff that takes nothing away: a file that was not there; empty where it is another one."""
    if any(line.strip() for edit in edits for line in edit.search):
        return ""
    return "\n".join(line for edit in edits for line in edit.replace)


def _hunks(lines: list[str]) -> tuple[Edit, ...]:
    found: list[Edit] = []
    old: list[str] | None = None
    new: list[str] = []
    for line in [*lines, "```"]:
        ends = _HUNK.match(line) or _FILE.match(line) or _END.match(line)
        if ends and old is not None:
            if old != new:
                found.append(Edit(search=tuple(old), replace=tuple(new)))
            old = None
        if _HUNK.match(line):
            old, new = [], []
        elif old is not None and not ends:
            sign, rest = line[:1], line[1:]
            if sign == "\\":
                continue
            kept = rest if sign in ("-", "+", " ") else line
            if sign != "+":
                old.append(kept)
            if sign != "-":
                new.append(kept)
    return tuple(found)
