"""Cleaning what models write: line ends, characters nobody sees, thoughts, quotes that no compiler knows."""

from __future__ import annotations

import html
import itertools
import json
import re

# soft hyphen, zero-width and direction marks, word joiner, variation selectors, byte order mark
_INVISIBLE = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff"
                        "\U000e0000-\U000e01ef\x00]")  # fmt: skip
_SPACES = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")

#: with more tags than this of one kind a text is none that a model means; pairing them would take minutes
MOST_TAGS = 50

#: look-alikes of ASCII that word processors and some models put into code
_LOOK_ALIKES = str.maketrans({
    # single, double, low, prime and angled quotation marks; hyphens, dashes and the minus sign
    **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\uff02\u00ab\u00bb", '"'),
    **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\uff07\u00b4", "'"),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    # ellipsis, relations, Greek question mark, fraction slash, asterisk operator
    "\u2026": "...", "\u2264": "<=", "\u2265": ">=", "\u2260": "!=", "\u037e": ";", "\u2044": "/", "\u2217": "*",
    # full-width ASCII
    **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if code not in (0xFF02, 0xFF07)},
    # Cyrillic letters that look like Latin ones
    **dict(zip("\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425", "ABEKMHOPCTX", strict=True)),
    **dict(zip("\u0430\u0435\u043e\u0440\u0441\u0443\u0445", "aeopcyx", strict=True)),
})  # fmt: skip
_NUMBERED = re.compile(r"^\s*(\d+)(\s*[|:│]\s?|[ \t]+|$)")
#: a reply whose edits are escaped is escaped as a whole
_ESCAPED_MARK = "&lt;" * 5
_ESCAPE = re.compile(r"&(?:lt|gt|quot|amp|apos|nbsp|#0?39|#x27);", re.IGNORECASE)

_REFUSALS = re.compile(
    r"\bI(?:'m| am) (?:sorry|unable to|not able to)\b|\bI must decline\b|\bas an AI\b|"
    r"\bI (?:don't|do not) feel comfortable\b|"
    r"\b(?:can't|cannot|can not|won't|will not|unable to) (?:help|assist|comply|provide|fulfil|write|create|generate|"
    r"produce|continue|share|do that)", re.IGNORECASE,
)  # fmt: skip


def clean(text: str) -> str:
    """The text with Unix line ends and without characters that cannot be seen."""
    text = text.encode("utf-8", "ignore").decode("utf-8", "ignore").replace("\r\n", "\n").replace("\r", "\n")
    if _ESCAPED_MARK in text:
        text = unescaped(text)
    return _SPACES.sub(" ", _INVISIBLE.sub("", text))


def unquoted(text: str) -> str:
    """The text without the marks of a quotation, where every line has one."""
    lines = [line for line in text.split("\n") if line.strip()]
    if lines and all(line.startswith(">") and not line.startswith(">>>") for line in lines):
        return re.sub(r"^> ?", "", text, flags=re.MULTILINE)
    return text


def unescaped(text: str) -> str:
    """The text without HTML's escapes of what code is made of."""
    # these alone: `html.unescape` would make a sign of `&reg` or `&copy` too
    return _ESCAPE.sub(lambda match: html.unescape(match[0]), text).replace("\u00a0", " ")


def plain_code(text: str) -> str:
    """Code with ASCII in place of look-alikes, without line numbers, and without HTML's escapes."""
    if "&lt;" in text or "&gt;" in text or "&quot;" in text:
        text = unescaped(text)
    if not text.isascii():
        text = text.translate(_LOOK_ALIKES)
    lines = text.split("\n")
    return "\n".join(_unnumbered(lines))


def _unnumbered(lines: list[str]) -> list[str]:
    """The lines without their numbers, where each has a greater one than the line before."""
    matches = [_NUMBERED.match(line) for line in lines]
    found = [match for match, line in zip(matches, lines, strict=True) if match is not None and line.strip()]
    numbers = [int(match[1][:9]) for match in found]
    if len(found) < max(3, sum(bool(line.strip()) for line in lines)):
        return lines
    if any(a >= b for a, b in itertools.pairwise(numbers)):
        return lines
    # blanks behind a number are the indentation too
    blanks = min((len(match[2]) for match in found if match[2] and not match[2].strip()), default=0)
    return [line if match is None else line[match.end() if match[2].strip() else match.end(1) + blanks:]
            for match, line in zip(matches, lines, strict=True)]  # fmt: skip


def in_json(text: str) -> dict[str, str]:
    """Texts of a JSON object, those of objects and lists within it included; empty where the text is none."""
    text = text.strip()
    if not text.startswith("{"):
        return {}
    try:
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return {}
    texts: dict[str, str] = {}
    open_ = [("", found)]
    while open_:
        name, value = open_.pop()
        if isinstance(value, str):
            texts.setdefault(name, value)
        elif isinstance(value, dict):
            open_ += [(str(key), inner) for key, inner in reversed(value.items())]
        elif isinstance(value, list):
            open_ += [(f"{name} {number}", inner) for number, inner in reversed(list(enumerate(value)))]
    return texts


def refusal(text: str) -> str:
    """The sentence with which a model refuses; empty where it does not."""
    straight = text.replace("\u2019", "'")
    match = _REFUSALS.search(straight[:2000])
    if match is None:
        return ""
    start = max(straight.rfind(mark, 0, match.start()) for mark in ("\n", ". ", "! "))
    sentence = re.split(r"(?<=[.!?])\s", straight[start + 1:].strip(), maxsplit=1)[0]
    return " ".join(sentence.split())[:200]
