"""Cleaning what models write: line ends, characters nobody sees, thoughts, quotes that no compiler knows."""

from __future__ import annotations

import html
import json
import re

# soft hyphen, zero-width and direction marks, word joiner, variation selectors, byte order mark
_INVISIBLE = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff"
                        "\U000e0000-\U000e01ef\x00]")  # fmt: skip
_SPACES = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")

#: with more tags than this of one kind a text is none that a model means; pairing them would take minutes
MOST_TAGS = 50

_WORDS = "think|thinking|thought|thoughts|reasoning|reflection|scratchpad|analysis"
_THOUGHT = re.compile(rf"(?:<|◁|\[)({_WORDS})(?:>|▷|\]).*?(?:<|◁|\[)/\1(?:>|▷|\])", re.DOTALL | re.IGNORECASE)
_THOUGHT_END = re.compile(rf"(?:<|◁|\[)/(?:{_WORDS})(?:>|▷|\])", re.IGNORECASE)
_THOUGHT_START = re.compile(rf"(?:<|◁|\[)(?:{_WORDS})(?:>|▷|\])", re.IGNORECASE)
#: channels of models whose template leaks into the text
_FINAL = re.compile(r"<\|channel\|>\s*final\s*<\|message\|>", re.IGNORECASE)
_MARK = re.compile(r"<\|(?:end|return|im_end|eot_id|endoftext|start|message|channel)\|>(?:assistant)?")

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
_NUMBERED = re.compile(r"^\s*\d+\s*[|:│]\s?")

_REFUSALS = re.compile(
    r"\bI(?:'m| am) (?:sorry|unable to|not able to)\b|\bI must decline\b|\bas an AI\b|"
    r"\bI (?:don't|do not) feel comfortable\b|"
    r"\b(?:can't|cannot|can not|won't|will not|unable to) (?:help|assist|comply|provide|fulfil|write|create|generate|"
    r"produce|continue|share|do that)", re.IGNORECASE,
)  # fmt: skip


def clean(text: str) -> str:
    """The text with Unix line ends and without characters that cannot be seen."""
    text = text.encode("utf-8", "ignore").decode("utf-8", "ignore").replace("\r\n", "\n").replace("\r", "\n")
    return _SPACES.sub(" ", _INVISIBLE.sub("", text))


def without_thoughts(text: str) -> str:
    """The text without blocks of reasoning, closed ones and one whose beginning is missing."""
    final = list(_FINAL.finditer(text))
    if final:
        text = text[final[-1].end():]
    if len(_THOUGHT_START.findall(text)) <= MOST_TAGS:
        text = _THOUGHT.sub("", text)
    ends = list(_THOUGHT_END.finditer(text))
    if ends:
        text = text[ends[-1].end():]
    return _MARK.sub("", _THOUGHT_START.sub("", text))


def unquoted(text: str) -> str:
    """The text without the marks of a quotation, where every line has one."""
    lines = [line for line in text.split("\n") if line.strip()]
    if lines and all(line.startswith(">") and not line.startswith(">>>") for line in lines):
        return re.sub(r"^> ?", "", text, flags=re.MULTILINE)
    return text


def plain_code(text: str) -> str:
    """Code with ASCII in place of look-alikes, without line numbers, and without HTML's escapes."""
    if "&lt;" in text or "&quot;" in text:
        text = html.unescape(text)
    if not text.isascii():
        text = text.translate(_LOOK_ALIKES)
    lines = text.split("\n")
    full = [line for line in lines if line.strip()]
    if len(full) > 2 and all(_NUMBERED.match(line) for line in full):
        lines = [_NUMBERED.sub("", line) for line in lines]
    return "\n".join(lines)


def in_json(text: str) -> dict[str, str]:
    """Texts of a JSON object; empty where the text is none."""
    text = text.strip()
    if not text.startswith("{"):
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(key): value for key, value in found.items() if isinstance(value, str)}


def refusal(text: str) -> str:
    """The sentence with which a model refuses; empty where it does not."""
    straight = text.replace("\u2019", "'")
    match = _REFUSALS.search(straight[:2000])
    if match is None:
        return ""
    start = max(straight.rfind(mark, 0, match.start()) for mark in ("\n", ". ", "! "))
    sentence = re.split(r"(?<=[.!?])\s", straight[start + 1:].strip(), maxsplit=1)[0]
    return " ".join(sentence.split())[:200]
