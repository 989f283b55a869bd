"""Search and replace blocks of a reply, applied to the source that they are edits of."""

from __future__ import annotations

import re

from forge_tui.core.records import Record

_SEARCH = re.compile(r"^\s*<{5,9}\s*(?:SEARCH|ORIGINAL|HEAD)\b.*$", re.IGNORECASE)
_MIDDLE = re.compile(r"^\s*={5,9}\s*$")
_REPLACE = re.compile(r"^\s*>{5,9}\s*(?:REPLACE|UPDATED|END)?\b.*$", re.IGNORECASE)


class Edit(Record, frozen=True, kw_only=True):
    """One replacement of whole lines."""

    search: tuple[str, ...]
    replace: tuple[str, ...]


class Found(Record, frozen=True, kw_only=True):
    """Edits of a text; `open` says that the last one ends in its middle."""

    edits: tuple[Edit, ...] = ()
    open: bool = False
    end: int = 0
    """Number of the line behind the last one."""


class Applied(Record, frozen=True, kw_only=True):
    """The edited source, or why there is none."""

    source: str | None
    failure: str = ""


def find(text: str) -> Found:
    """The edits in a text, in order."""
    edits: list[Edit] = []
    search: list[str] | None = None
    replace: list[str] | None = None
    end = 0
    for number, line in enumerate(text.split("\n")):
        if _SEARCH.match(line):
            search, replace = [], None
        elif search is not None and replace is None and _MIDDLE.match(line):
            replace = []
        elif search is not None and replace is not None and _REPLACE.match(line):
            edits.append(Edit(search=tuple(search), replace=tuple(replace)))
            search, replace, end = None, None, number + 1
        elif replace is not None:
            replace.append(line)
        elif search is not None:
            search.append(line)
    return Found(edits=tuple(edits), open=search is not None, end=end)


def apply(base: str, edits: tuple[Edit, ...]) -> Applied:
    """The source after every edit, in order; a part that is missing or not unique fails the whole."""
    source = base.replace("\r\n", "\n")
    for number, edit in enumerate(edits, 1):
        where = f"Edit {number} of {len(edits)}"
        shown = next((line.strip() for line in edit.search if line.strip()), "")
        if not shown:
            return Applied(source=None, failure=f"{where}: its SEARCH part is empty.")
        changed, count = _replaced(source, edit)
        if changed is None:
            what = "is not in the source" if count == 0 else f"is {count} times in the source"
            return Applied(source=None, failure=f"{where}: its SEARCH part {what}: `{shown[:80]}`.")
        source = changed
    return Applied(source=source)


def _replaced(source: str, edit: Edit) -> tuple[str | None, int]:
    """The source with one edit made, or how often its part is there: exactly, then by blanks that differ."""
    lines = source.split("\n")
    search, replace = _trimmed(edit.search), list(edit.replace)
    if len(search) != len(edit.search):
        replace = _trimmed(tuple(replace))
    for same in (str, str.rstrip, str.strip, _squeezed):
        wanted = [same(line) for line in search]
        have = [same(line) for line in lines]
        found = [i for i in range(len(have) - len(wanted) + 1) if have[i:i + len(wanted)] == wanted]
        if len(found) == 1:
            at = found[0]
            return "\n".join([*lines[:at], *_indented(replace, search[0], lines[at]), *lines[at + len(wanted):]]), 1
        if found:
            return None, len(found)
    part = "\n".join(search).strip()
    times = source.count(part)
    if times == 1:
        return source.replace(part, "\n".join(replace).strip(), 1), 1
    return None, times


def _trimmed(lines: tuple[str, ...]) -> list[str]:
    """Without blank lines at both ends."""
    full = [i for i, line in enumerate(lines) if line.strip()]
    return list(lines[full[0]:full[-1] + 1]) if full else []


def _squeezed(line: str) -> str:
    return "".join(line.split())


def _indented(lines: list[str], searched: str, found: str) -> list[str]:
    """The lines moved as the found one is against the searched one."""
    old, new = (text[: len(text) - len(text.lstrip())] for text in (searched, found))
    if old == new or not all(line.startswith(old) for line in lines if line.strip()):
        return lines
    return [new + line[len(old):] if line.strip() else line for line in lines]
