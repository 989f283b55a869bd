"""The lines of a reply that say what its author meant: `family:`, `hypothesis:`, `expect:`, `risk:`, in any dress."""

from __future__ import annotations

import re

NAMES = ("family", "hypothesis", "expect", "risk")
MAX_LINE = 300

_NAME = r"(family|hypothesis|expect(?:ed|ation)?|risks?)"
_DRESS = r"(?:(?://|/\*|[>*_`#|\"-]|\d{1,2}[.)])[ \t]*+)*+"
_FIELD = re.compile(rf"^[ \t]*+{_DRESS}{_NAME}[*_`\"]*[ \t]*(?:[:\uff1a|]|[\u2013\u2014-](?=[ \t]))[*_`]*[ \t]*(\S.*)$",
                    re.IGNORECASE | re.MULTILINE)  # fmt: skip
_BARE = re.compile(rf"^[ \t]*+(?:[*_`#-]+[ \t]*+)?{_NAME}[*_`]*[ \t]*[:\uff1a]", re.IGNORECASE)
_TAGGED = re.compile(rf"<{_NAME}>([^<]{{1,1000}})</", re.IGNORECASE)
#: a heading, with what it is about on the next line
_HEADING = re.compile(rf"^[ \t]*(?:#{{1,6}}|\*\*|__)[ \t]*{_NAME}[ \t]*:?[ \t]*(?:\*\*|__)?:?[ \t]*\n\s*+([^\n]+)$",
                      re.IGNORECASE | re.MULTILINE)  # fmt: skip
#: the form's own words, copied
_PLACEHOLDERS = ("two or three words that name", "one sentence: what makes", "the time in microseconds, or",
                 "what could make it wrong")  # fmt: skip


def read(text: str) -> dict[str, str]:
    """The first of each, by name, without marks around it."""
    found: dict[str, str] = {}
    for pattern in (_FIELD, _TAGGED, _HEADING):
        for name, value in pattern.findall(text):
            plain = _plain(name, value)
            if plain:
                found.setdefault(_key(name), plain)
    return found


def of_json(texts: dict[str, str]) -> dict[str, str]:
    """Those among the texts of a JSON object."""
    found = {_key(name): _plain(name, value) for name, value in texts.items() if _key(name) in NAMES}
    return {name: value for name, value in found.items() if value}


def parted(source: str) -> tuple[str, str]:
    """Such lines at the beginning of a block that are no comments, and the source behind them."""
    lines = source.split("\n")
    number = 0
    while number < len(lines) and (not lines[number].strip() or _BARE.match(lines[number])):
        number += 1
    if not any(line.strip() for line in lines[:number]):
        return "", source
    return "\n".join(lines[:number]), "\n".join(lines[number:])


def _key(name: str) -> str:
    name = name.lower()
    return next((known for known in NAMES if name in (known, f"{known}s", f"{known}ed", f"{known}ation")), name)


def _plain(name: str, value: str) -> str:
    text = " ".join(value.split()).removesuffix("*/").strip(" *_`|\"'")
    if text.startswith("<") and text.endswith(">"):
        text = text[1:-1].strip()
    if text.lower().startswith(_PLACEHOLDERS):
        return ""
    text = text[:MAX_LINE]
    # families are compared as texts, and moves are named in small letters
    return text.rstrip(".").lower() if _key(name) == "family" else text
