"""A model's reply to a kernel source.

Replies are text from outside: nothing here raises on any of it.
"""

from __future__ import annotations

import re

from forge_tui.core.records import Language, Record

#: what a source must contain to be taken for a kernel
ENTRY: dict[Language, re.Pattern[str]] = {
    "cuda": re.compile(r"\b__global__\b"),
    "cpp": re.compile(r"\bforge_launch\b"),
}
HEADER = "forge_target.h"
MAX_LINE = 300

# soft hyphen, zero-width and direction marks, word joiner, variation selectors, byte order mark
_INVISIBLE = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff"
                        "\U000e0000-\U000e01ef\x00]")  # fmt: skip
_SPACES = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
_FENCE = re.compile(r"^[ \t]{0,8}(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_TAG = re.compile(r"<(kernel|source|code|answer)>\s*\n(.*?)\n\s*</\1>", re.DOTALL | re.IGNORECASE)
_FIELD = re.compile(r"^[ \t]*(?://)?[ \t>*_#-]*(family|hypothesis|expect|risk)[*_]*[ \t]*:[*_]*[ \t]*(\S.*)$",
                    re.IGNORECASE | re.MULTILINE)  # fmt: skip
_CUT = ("length", "max_tokens")


class Reply(Record, frozen=True, kw_only=True):
    """What a reply holds."""

    source: str | None
    family: str = ""
    hypothesis: str = ""
    fields: dict[str, str]
    """The first of each `family:`, `hypothesis:`, `expect:` and `risk:` line."""
    failure: str = ""
    """Why there is no source: `truncated`, `empty`, or a sentence."""


class _Block(Record, frozen=True, kw_only=True):
    text: str
    closed: bool


def clean(text: str) -> str:
    """The text with Unix line ends and without characters that cannot be seen."""
    text = text.encode("utf-8", "ignore").decode("utf-8", "ignore").replace("\r\n", "\n").replace("\r", "\n")
    return _SPACES.sub(" ", _INVISIBLE.sub("", text))


def parse_reply(text: str, language: Language, finish_reason: str = "") -> Reply:
    """The source in a reply, or why there is none.

    `finish_reason` is the provider's word for how the reply ended; one that was cut off is never taken.
    """
    text = clean(text)
    blocks, prose = _blocks(text)
    fields = _fields(prose)
    if finish_reason in _CUT or _cut_off(blocks):
        return _reply(None, fields, "truncated")
    if not text.strip():
        return _reply(None, fields, "empty")
    entry = ENTRY[language]
    sources = [block.text for block in blocks if entry.search(block.text)]
    if sources:
        # drafts come before the final version
        whole = [source for source in sources if HEADER in source] or sources
        source = whole[-1]
    elif not blocks and entry.search(bare := _without_prose(text)) and HEADER in bare:
        source = bare
    else:
        what = "`extern \"C\" __global__`" if language == "cuda" else "`forge_launch`"
        found = "no code block" if not blocks else "no code block with " + what
        return _reply(None, fields, f"The reply has {found}.")
    source = source.strip("\n") + "\n"
    return _reply(source, _fields(source) | fields, "")


def _reply(source: str | None, fields: dict[str, str], failure: str) -> Reply:
    return Reply(source=source, family=fields.get("family", ""), hypothesis=fields.get("hypothesis", ""),
                 fields=fields, failure=failure)  # fmt: skip


def _fields(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in _FIELD.findall(text):
        found.setdefault(name.lower(), value.strip().strip("*_`").strip()[:MAX_LINE])
    return found


def _blocks(text: str) -> tuple[list[_Block], str]:
    """Code blocks by fences or tags, in order, and the text around them."""
    blocks: list[_Block] = []
    prose: list[str] = []
    fence, lines = "", list[str]()
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                blocks.append(_Block(text="\n".join(lines), closed=True))
                fence, lines = "", []
            else:
                lines.append(line)
        elif mark:
            fence = mark[1]
        else:
            prose.append(line)
    if fence:
        blocks.append(_Block(text="\n".join(lines), closed=False))
    around = "\n".join(prose)
    if not blocks:
        blocks = [_Block(text=body, closed=True) for _, body in _TAG.findall(around)]
        around = _TAG.sub("", around)
    return blocks, around


def _cut_off(blocks: list[_Block]) -> bool:
    """Whether the last block ends in the middle; a forgotten fence after a whole kernel is forgiven."""
    if not blocks or blocks[-1].closed:
        return False
    text = blocks[-1].text.rstrip()
    return not text.endswith("}") or text.count("{") != text.count("}")


def _without_prose(text: str) -> str:
    """A bare source: what comes before its first code line is talk."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.lstrip().startswith(("//", "#", "/*", "extern"))), 0)
    return "\n".join(lines[start:])
