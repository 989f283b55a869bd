"""A model's reply to a kernel source.

Replies are text from outside: nothing here raises on any of it.
"""

from __future__ import annotations

import re
import textwrap

from forge_tui.core.records import Language, Record
from forge_tui.proposers import edits, hostside
from forge_tui.proposers.replytext import MOST_TAGS, clean, in_json, plain_code, refusal, unquoted, without_thoughts

__all__ = ["ENTRY", "HEADER", "TRUNCATED", "Reply", "clean", "parse_reply"]

#: what a source must contain to be taken for a kernel
ENTRY: dict[Language, re.Pattern[str]] = {
    "cuda": re.compile(r"\b__global__\b"),
    "cpp": re.compile(r"\bforge_launch\b"),
}
HEADER = "forge_target.h"
TRUNCATED = "truncated"
MAX_LINE = 300

_FENCE = re.compile(r"^[ \t]{0,8}(`{3,}|~{3,})[ \t]*+([^`\n]*)$")
_TAG = re.compile(r"<(kernel|source|code|answer|pre)(?:\s[^<>\n]*)?>(?:\s*+<code(?:\s[^<>\n]*)?>)?(.*?)</\1>",
                  re.DOTALL | re.IGNORECASE)  # fmt: skip
_TAG_START = re.compile(r"<(?:kernel|source|code|answer|pre)\b", re.IGNORECASE)
_FIELD = re.compile(r"^[ \t]*+(?://)?[ \t>*_#-]*+(family|hypothesis|expect|risk)[*_]*[ \t]*[:\uff1a][*_]*[ \t]*(\S.*)$",
                    re.IGNORECASE | re.MULTILINE)  # fmt: skip
#: a kernel as a text of a Python program
_TRIPLE = re.compile(r"[rR]?(\"\"\"|''')(.*?)\1", re.DOTALL)
_DIRECTIVE = re.compile(r"^([ \t]*)//[ \t]*@[ \t]*(tune|workspace|launch)\b", re.MULTILINE)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]forge_target\.h[>\"]", re.MULTILINE)
_ELISION = re.compile(r"^[ \t]*(?://|/\*)[ \t]*(?:\.{3}|…).*?\b(?:rest|remaining|unchanged|same as|as before|omitted|"
                      r"existing)\b", re.IGNORECASE | re.MULTILINE)  # fmt: skip
_DIFF = re.compile(r"^@@ .*@@|^--- \S+\n\+\+\+ \S+", re.MULTILINE)
_NAMES = ("family", "hypothesis", "expect", "risk")
_CUT = ("length", "max_tokens")
_FILTERED = ("content_filter", "refusal", "safety")


class Reply(Record, frozen=True, kw_only=True):
    """What a reply holds."""

    source: str | None
    family: str = ""
    hypothesis: str = ""
    fields: dict[str, str]
    """The first of each `family:`, `hypothesis:`, `expect:` and `risk:` line."""
    failure: str = ""
    """Why there is no source: `truncated`, `empty`, or a sentence."""
    notes: tuple[str, ...] = ()
    """What was changed of the source, in words."""


class _Block(Record, frozen=True, kw_only=True):
    text: str
    closed: bool
    end: int = 0
    """Number of the line behind it."""


def parse_reply(text: str, language: Language, finish_reason: str = "", base: str = "") -> Reply:
    """The source in a reply, or why there is none.

    `finish_reason` is the provider's word for how the reply ended; one that was cut off is never taken. `base` is the
    source that edits in the reply are of.
    """
    text = unquoted(without_thoughts(clean(text)))
    blocks, prose = _blocks(text)
    fields = {k.lower(): v[:MAX_LINE] for k, v in in_json(text).items() if k.lower() in _NAMES} | _fields(prose)
    changes = edits.find(text)
    if finish_reason in _CUT or changes.open or (not changes.edits and _cut_off(blocks)):
        return _failed(fields, TRUNCATED)
    if finish_reason in _FILTERED:
        return _failed(fields, f"The model refused: {refusal(prose) or finish_reason.replace('_', ' ')}")
    if not text.strip():
        return _failed(fields, "empty")
    whole = _whole(blocks, text, language)
    if changes.edits and (whole is None or whole.end < changes.end):
        return _edited(changes.edits, base, fields, language)
    if whole is None:
        return _failed(fields, _why_none(blocks, text, language))
    return _finished(whole.text, fields, language)


def _edited(changes: tuple[edits.Edit, ...], base: str, fields: dict[str, str], language: Language) -> Reply:
    if not base:
        return _failed(fields, "The reply edits a source, but none was shown.")
    plain = tuple(edits.Edit(search=_plain_lines(e.search), replace=_plain_lines(e.replace)) for e in changes)
    applied = edits.apply(base, plain)
    if applied.source is None:
        return _failed(fields, applied.failure)
    if not ENTRY[language].search(applied.source):
        return _failed(fields, "The edits leave no kernel.")
    return _finished(applied.source, fields, language)


def _plain_lines(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(plain_code("\n".join(lines)).split("\n")) if lines else ()


def _finished(source: str, fields: dict[str, str], language: Language) -> Reply:
    """A source with what is obvious put right."""
    notes = []
    source = _DIRECTIVE.sub(r"\1//@\2", source.strip("\n") + "\n")
    if (left_out := _ELISION.search(source)) is not None:
        line = " ".join(source[left_out.start():].split("\n", 1)[0].split())
        return _failed(fields, f"The reply leaves out parts of the source: `{line[:80]}`.")
    if "FORGE_PARAMS" in source and not _INCLUDE.search(source):
        source = f'#include "{HEADER}"\n{source}'
        notes.append("the include of forge_target.h was added")
    source, stripped = hostside.strip(source, language)
    if stripped:
        notes.append(stripped)
    fields = _fields(source) | fields
    return Reply(source=source, family=fields.get("family", ""), hypothesis=fields.get("hypothesis", ""),
                 fields=fields, notes=tuple(notes))  # fmt: skip


def _failed(fields: dict[str, str], failure: str) -> Reply:
    return Reply(source=None, family=fields.get("family", ""), hypothesis=fields.get("hypothesis", ""), fields=fields,
                 failure=failure)  # fmt: skip


def _fields(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in _FIELD.findall(text):
        found.setdefault(name.lower(), value.strip().strip("*_`").strip()[:MAX_LINE])
    return found


# ---- where the source is


def _whole(blocks: list[_Block], text: str, language: Language) -> _Block | None:
    """The block that holds a kernel; drafts come before the final version."""
    entry = ENTRY[language]
    found = [b for block in blocks for b in _inside(block, language) if edits.find(b.text).edits == ()]
    found = [b for b in found if entry.search(b.text)]
    if found:
        return ([b for b in found if _is_kernel(b.text)] or found)[-1]
    for value in in_json(text).values():
        if entry.search(value):
            return _Block(text=plain_code(clean(value)), closed=True, end=text.count("\n"))
    if not blocks:
        bare = plain_code(_without_prose(text))
        if entry.search(bare) and HEADER in bare and edits.find(bare).edits == ():
            return _Block(text=bare, closed=True, end=text.count("\n"))
    return None


def _is_kernel(text: str) -> bool:
    return HEADER in text or "FORGE_PARAMS" in text


def _inside(block: _Block, language: Language) -> list[_Block]:
    """A block's code; what it wraps, where it is JSON or a Python program that holds the code as a text."""
    entry = ENTRY[language]
    wrapped = [value for value in in_json(block.text).values() if entry.search(value)]
    if not wrapped and re.search(r"^[ \t]*+(?:import|from)[ \t]++\w|\bload_inline\b", block.text, re.MULTILINE):
        wrapped = [body for _, body in _TRIPLE.findall(block.text) if entry.search(body)]
    texts = [clean(text) for text in wrapped] or [block.text]
    return [_Block(text=plain_code(textwrap.dedent(text)), closed=block.closed, end=block.end) for text in texts]


def _why_none(blocks: list[_Block], text: str, language: Language) -> str:
    refused = refusal(text) if not blocks else ""
    if refused:
        return f"The model refused: {refused}"
    if any(_DIFF.search(block.text) for block in blocks) or _DIFF.search(text):
        return "The reply is a diff; the whole source, or SEARCH and REPLACE edits, are wanted."
    other: Language = "cpp" if language == "cuda" else "cuda"
    if any(ENTRY[other].search(block.text) for block in blocks):
        return f"The reply is a kernel for {'the CPU' if other == 'cpp' else 'CUDA'}, which is not what was asked for."
    what = "`extern \"C\" __global__`" if language == "cuda" else "`forge_launch`"
    return f"The reply has {'no code block with ' + what if blocks else 'no code block'}."


def _blocks(text: str) -> tuple[list[_Block], str]:
    """Code blocks by fences or tags, in order, and the text around them."""
    blocks: list[_Block] = []
    prose: list[str] = []
    fence, lines = "", list[str]()
    number = 0
    for number, line in enumerate(text.split("\n")):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                blocks.append(_Block(text="\n".join(lines), closed=True, end=number))
                fence, lines = "", []
            else:
                lines.append(line)
        elif mark:
            fence = mark[1]
        else:
            prose.append(line)
    if fence:
        blocks.append(_Block(text="\n".join(lines), closed=False, end=number))
    around = "\n".join(prose)
    if not blocks and len(_TAG_START.findall(around)) <= MOST_TAGS:
        blocks = [_Block(text=_untagged(m[2]), closed=True, end=text.count("\n", 0, m.end()))
                  for m in _TAG.finditer(around)]  # fmt: skip
        around = _TAG.sub("", around)
    return blocks, around


def _untagged(text: str) -> str:
    """A tag's body without blank lines around it, and without the end of a tag inside it."""
    return text.strip().removesuffix("</code>").rstrip()


def _cut_off(blocks: list[_Block]) -> bool:
    """Whether the last block ends in the middle; a forgotten fence after a whole kernel is forgiven."""
    if not blocks or blocks[-1].closed:
        return False
    text = blocks[-1].text.rstrip()
    return not text.endswith("}") or text.count("{") != text.count("}")


def _without_prose(text: str) -> str:
    """A bare source: what comes before its first code line, and behind its last one, is talk."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.lstrip().startswith(("//", "#", "/*", "extern"))), 0)
    ends = [i for i, line in enumerate(lines) if line.rstrip().endswith("}") or line.startswith("#endif")]
    return "\n".join(lines[start: ends[-1] + 1 if ends and ends[-1] >= start else len(lines)])
