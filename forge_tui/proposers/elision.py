"""Comments that stand for code: a source that leaves out parts of itself must not be built as if it were whole."""

from __future__ import annotations

import re

#: longer lines are no such comments
MAX_LINE = 200

_DOTS_FIRST, _DOTS_LAST = re.compile(r"^[\[(<]*(?:\.{3,}|…)"), re.compile(r"(?:\.{3,}|…)[\])>]*$")
_WHAT = r"(?:code|kernels?|functions?|file|source|body|loops?|implementation|helpers|logic|parts?)"
#: no dots needed
_SAID = re.compile(
    rf"^(?:the )?(?:rest|remaining|remainder|everything else|(?:all )?other {_WHAT}|existing|previous)\b[\w ,'-]*"
    rf"\b(?:(?:unchanged|identical|untouched|omitted)(?: (?:as|from|to|in|for|here)\b[\w ,'-]*)?|as before|as is|"
    rf"(?:the )?same(?: (?:as|like)\b[\w ,'-]*)?)$"
    rf"|\b(?:omitted|left out|elided|shortened|abbreviated)\b.*\b(?:brevity|space|clarity)\b|\bfor brevity\b"
    rf"|^(?:your|insert|add|put)\b[\w ]*\bcode\b[\w ]*\bhere$"
    rf"|^(?:the )?{_WHAT}\b[\w ,'-]*\b(?:omitted|elided|left out)$"
    rf"|^(?:{_WHAT} )?(?:goes here|(?:is |are |stays? |remains? )?(?:omitted|unchanged) (?:from|in|as) .*)$",
    re.IGNORECASE,
)  # fmt: skip
#: with dots before or behind
_WORDS = re.compile(
    r"^(?:and |the |all |with |your |\(|\[)*(?:rest|remaining|remainder|unchanged|same|as before|omitted|existing|"
    r"previous|other|others|original|etc|similar|everything else|continue)\b"
    r"|\b(?:unchanged|as before|omitted|same as (?:before|above)|existing code)$", re.IGNORECASE,
)  # fmt: skip
#: where no code follows in its block
_ALONE = re.compile(
    rf"^(?:(?:the )?(?:rest|remainder|same {_WHAT}|existing {_WHAT}|previous {_WHAT}|unchanged|no changes?|omitted|"
    rf"as before|as above|same|same as (?:before|above|(?:the )?original)|identical|todo|implementation)\b[\w ,'-]*)$",
    re.IGNORECASE,
)  # fmt: skip
_BODY = re.compile(r"\{\s*(?:\.{3}|/\*\s*(?:\.{3}|…|same|unchanged|omitted|as before)[^*]*\*/)\s*\}", re.IGNORECASE)


def find(source: str, base: str = "") -> str:
    """The line by which a source says that parts of it are left out; empty where it is whole.

    Lines of `base`, which was shown, say nothing.
    """
    known = {line.strip() for line in base.split("\n")}
    lines = source.split("\n")
    for number, line in enumerate(lines):
        if line.strip() and line.strip() not in known and _elides(lines, number):
            return " ".join(line.split())
    body = _BODY.search(source)
    return "" if body is None or body[0] in base else " ".join(body[0].split())


def _elides(lines: list[str], number: int) -> bool:
    line = lines[number].strip()
    if line in ("...", "…", "[...]", "(...)") or re.match(r"(?:\.{3}|…)\s*\w", line):
        return True
    comment = line.startswith(("//", "/*"))
    if len(line) > MAX_LINE or not (comment or re.match(r"#\s*(?:\.{3}|…)", line)):
        return False
    text = line.lstrip("/*#").removesuffix("*/").strip()
    first, last = _DOTS_FIRST.search(text) is not None, _DOTS_LAST.search(text) is not None
    said = text.strip(" .…[]()<>-*")
    if _SAID.search(said) or ((first or last) and _WORDS.search(said)):
        return True
    if not said:
        # dots alone: between comments they go on with a list of those
        return first and not any(_is_comment(lines, number + step) for step in (-1, 1))
    before, behind = _next(lines, number, -1), _next(lines, number, 1)
    if not behind.startswith("}"):
        return False
    if before.endswith("{"):
        return first or last or _ALONE.match(said) is not None
    return first and last


def _is_comment(lines: list[str], number: int) -> bool:
    return 0 <= number < len(lines) and lines[number].strip().startswith(("//", "/*", "*"))


def _next(lines: list[str], number: int, step: int) -> str:
    """The next line that is not blank, in this direction."""
    number += step
    while 0 <= number < len(lines):
        if lines[number].strip():
            return lines[number].strip()
        number += step
    return ""
