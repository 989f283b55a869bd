"""Search and replace blocks of a reply, applied to the source that they are edits of."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

from forge_tui.core.records import Record

# a mark without a word counts only where nothing else stands on its line; dashes and pluses alone are Markdown
_SEARCH = re.compile(r"^\s*(?:(<{5,9})\s*(?:(?:SEARCH|ORIGINAL|HEAD|OLD)\b.*)?|-{5,9}\s*SEARCH\b.*)$", re.IGNORECASE)
_MIDDLE = re.compile(r"^\s*(={5,9})\s*(?:(?:REPLACE|UPDATED|NEW)(?:\s+WITH)?)?\s*$", re.IGNORECASE)
_REPLACE = re.compile(r"^\s*(?:>{5,9}\s*(?:(?:REPLACE|UPDATED|END)\b.*)?|\+{5,9}\s*REPLACE\b.*)$", re.IGNORECASE)
_FENCE = re.compile(r"^\s*(?:`{3,}|~{3,})[ \t]*[\w+.-]*[ \t]*$")
#: parts named by a line of their own, each in a fence
_LABEL = re.compile(r"^\W*(search|replace(?:\s+with)?)\W*$", re.IGNORECASE)
#: what a part of a line may not begin or end in the middle of; `>>` is two tokens, as it closes templates
_TOKEN = re.compile(r"[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|[\w.])*|<<=|<<|->|\+\+|--|&&|\|\||::|[-+*/%&|^<>=!]=|//|/\*|\*/|"
                    r"\s+|.", re.DOTALL)  # fmt: skip

#: lines of an edit that may part it
MOST_RULES = 20


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
    fault: str = ""
    """What is wrong with the form of one of them."""
    spans: tuple[tuple[int, int], ...] = ()
    """Of each one the number of its first mark's line, and of the line behind it."""


class Applied(Record, frozen=True, kw_only=True):
    """The edited source, or why there is none."""

    source: str | None
    failure: str = ""
    notes: tuple[str, ...] = ()
    """What was made of edits that do not name whole lines."""


class _Place(Record, frozen=True, kw_only=True):
    start: int
    end: int
    text: str
    inside: bool = False
    """It is a part of a line."""


# ---- finding


def find(text: str, base: str = "") -> Found:
    """The edits in a text, in order; `base` decides where a line of code looks like a mark."""
    have = [line.strip() for line in base.split("\n")] if base else []
    found: list[Edit] = []
    spans: list[tuple[int, int]] = []
    lines = text.split("\n")
    fault, end, start, marks, middle = "", 0, -1, 0, False
    for number, line in enumerate(lines):
        opens = _SEARCH.match(line)
        closes = start >= 0 and middle and _REPLACE.match(line)
        if opens or closes:
            if start >= 0 and middle:
                body = lines[start:number]
                found.append(_edit(body if closes else _until_fence(body), marks, have))
                end = number + bool(closes)
                spans.append((start - 1, end))
            elif start >= 0:
                fault = fault or f"Edit {len(found) + 1} has no ======= between its two parts."
            start, marks, middle = (number + 1, len(opens[1] or "-------"), False) if opens else (-1, 0, False)
        elif start >= 0:
            middle = middle or _MIDDLE.match(line) is not None
    if start >= 0 and middle:
        body = _until_fence(lines[start:])
        if len(body) < len(lines) - start:
            found.append(_edit(body, marks, have))
            spans.append((start - 1, start + len(body)))
            start, end = -1, start + len(body)
    return Found(edits=tuple(found), open=start >= 0, end=end, fault=fault, spans=tuple(spans))


def without(text: str) -> str:
    """The text with blank lines where edits are."""
    lines = text.split("\n")
    for start, end in find(text).spans:
        lines[start:end] = [""] * (end - start)
    return "\n".join(lines)


def _edit(body: list[str], marks: int, have: list[str]) -> Edit:
    """The two parts; of several lines that could part them, one as long as the first mark, and that fits the source."""
    at = [i for i, line in enumerate(body) if _MIDDLE.match(line)]
    equal = [i for i in at if len(_MIDDLE.match(body[i])[1]) == marks] or at  # type: ignore[index]
    middle = equal[0]
    if len(equal) > 1:
        bare = [line.strip() for line in body]
        middle = next((i for i in reversed(equal[:MOST_RULES]) if _contains(have, bare[:i])), middle)
    return Edit(search=_unfenced(body[:middle]), replace=_unfenced(body[middle + 1:]))


def _contains(lines: list[str], part: list[str]) -> bool:
    return any(lines[i:i + len(part)] == part for i in range(len(lines) - len(part) + 1))


def _until_fence(body: list[str]) -> list[str]:
    """A body without its last mark: up to the fence that closes its block."""
    middle = next((i for i, line in enumerate(body) if _MIDDLE.match(line)), 0)
    first = next((i for i in range(middle + 1, len(body)) if body[i].strip()), len(body))
    fence = next((i for i in range(first + 1, len(body)) if _FENCE.match(body[i])), len(body))
    return body[:fence]


def _unfenced(part: list[str]) -> tuple[str, ...]:
    """A part without a fence around it."""
    full = [i for i, line in enumerate(part) if line.strip()]
    if full and _FENCE.match(part[full[0]]):
        last = full[-1] if len(full) > 1 and _FENCE.match(part[full[-1]]) else len(part)
        return tuple(part[full[0] + 1:last])
    return tuple(part)


def labelled(text: str) -> tuple[Edit, ...]:
    """Edits whose parts are fenced blocks under the words SEARCH and REPLACE."""
    found: list[Edit] = []
    search: tuple[str, ...] | None = None
    for label, body in _labelled_blocks(text.split("\n")):
        if label == "search":
            search = body
        elif search is not None:
            found.append(Edit(search=search, replace=body))
            search = None
    return tuple(found)


def _labelled_blocks(lines: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    label = ""
    body: list[str] | None = None
    for line in lines:
        if body is not None:
            if _FENCE.match(line):
                yield label, tuple(body)
                label, body = "", None
            else:
                body.append(line)
        elif label and _FENCE.match(line):
            body = []
        elif (match := _LABEL.match(line)) is not None:
            label = match[1].lower().split()[0]
        elif line.strip():
            label = ""


# ---- applying


def apply(base: str, edits: tuple[Edit, ...]) -> Applied:
    """The source after every edit; a part that is missing or not unique fails the whole.

    All are looked for in the source as it was shown, so that none finds what another one wrote; one after the other
    only where that does not work.
    """
    source = base.replace("\r\n", "\n")
    for number, edit in enumerate(edits, 1):
        if not any(line.strip() for line in edit.search):
            return Applied(source=None, failure=f"Edit {number} of {len(edits)}: its SEARCH part is empty.")
    at_once = _all_at_once(source, edits)
    if at_once is not None:
        return at_once
    notes: list[str] = []
    for number, edit in enumerate(edits, 1):
        place = _place(_Lines(source), edit)
        if isinstance(place, int):
            shown = next(line.strip() for line in edit.search if line.strip())
            what = "is not in the source" if place == 0 else f"is {place} times in the source"
            failure = f"Edit {number} of {len(edits)}: its SEARCH part {what}: `{shown[:80]}`."
            return Applied(source=None, failure=failure)
        notes += [_inside(number)] if place.inside else []
        source = _made(source, [place])
    return Applied(source=source, notes=tuple(notes))


def _all_at_once(source: str, edits: tuple[Edit, ...]) -> Applied | None:
    lines = _Lines(source)
    found: list[_Place] = []
    for edit in edits:
        place = _place(lines, edit)
        if isinstance(place, int):
            return None
        found.append(place)
    ordered = sorted(found, key=lambda place: (place.start, place.end))
    if any(a.end > b.start for a, b in itertools.pairwise(ordered)):
        return None
    notes = tuple(_inside(number) for number, place in enumerate(found, 1) if place.inside)
    return Applied(source=_made(source, ordered), notes=notes)


def _inside(number: int) -> str:
    return f"edit {number} was made inside a line"


def _made(source: str, places: list[_Place]) -> str:
    text = source + "\n"
    for place in reversed(places):
        text = text[:place.start] + place.text + text[place.end:]
    return text[:-1]


class _Lines:
    """A source by lines, as each way of comparing sees them."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines = source.split("\n")
        self.offsets = list(itertools.accumulate((len(line) + 1 for line in self.lines), initial=0))
        self._seen: dict[Callable[[str], str], list[str]] = {}

    def find(self, wanted: list[str], same: Callable[[str], str]) -> list[int]:
        """Numbers of the lines where these begin."""
        have = self._seen.get(same)
        if have is None:
            have = self._seen[same] = [same(line) for line in self.lines]
        first, count = same(wanted[0]), len(wanted)
        found = [i for i, line in enumerate(have) if line == first]
        rest = [same(line) for line in wanted] if found else []
        return [i for i in found if have[i:i + count] == rest]


def _place(source: _Lines, edit: Edit) -> _Place | int:
    """Where the part is and what goes there: exactly, then by blanks that differ. Else how often it is there."""
    search, replace = _trimmed(edit.search), list(edit.replace)
    if len(search) != len(edit.search):
        replace = _trimmed(tuple(replace))
    for same in (str, str.rstrip, str.strip, _squeezed):
        found = source.find(search, same)
        if len(found) == 1:
            at = found[0]
            text = "".join(line + "\n" for line in _indented(replace, search[0], source.lines[at]))
            return _Place(start=source.offsets[at], end=source.offsets[at + len(search)], text=text)
        if found:
            return len(found)
    part = "\n".join(search).strip()
    starts = _between_tokens(source.source, part)
    if len(starts) != 1:
        return len(starts)
    return _Place(start=starts[0], end=starts[0] + len(part), text="\n".join(replace).strip(), inside=True)


def _between_tokens(source: str, part: str) -> list[int]:
    """Where the part is, beginning and ending with whole words, numbers and operators."""
    starts: list[int] = []
    at = source.find(part)
    if at < 0:
        return starts
    borders = {match.start() for match in _TOKEN.finditer(source)} | {len(source)}
    while at >= 0:
        if at in borders and at + len(part) in borders:
            starts.append(at)
        at = source.find(part, at + 1)
    return starts


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
