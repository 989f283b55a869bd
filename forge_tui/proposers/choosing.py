"""Which of the sources in a reply is its answer: drafts, snippets, alternatives and old ones come with it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

import msgspec

from forge_tui.core.records import Language, Record
from forge_tui.proposers import codetext, diffs, edits, elision, fences, fields
from forge_tui.proposers.fences import Part
from forge_tui.proposers.replytext import MOST_TAGS, clean, in_json, plain_code

HEADER = "forge_target.h"
#: what a source must contain to be taken for a kernel
ENTRY: dict[Language, re.Pattern[str]] = {
    "cuda": re.compile(r"\b__global__\b"),
    "cpp": re.compile(r"\bforge_launch\b"),
}
#: parts of a source that was sent in several, and fences within fences
MOST_PARTS, MOST_LEVELS = 12, 3

_DEFINITION: dict[Language, re.Pattern[str]] = {
    "cuda": re.compile(r"\b__global__\b[^;{}]{0,300}\(\s*FORGE_PARAMS\s*\)\s*\{"),
    "cpp": re.compile(r"\bforge_launch\s*\(\s*FORGE_PARAMS\s*\)\s*\{"),
}
#: with parameters of its own, which the contract's refusal explains
_ANY_DEFINITION: dict[Language, re.Pattern[str]] = {
    "cuda": re.compile(r"\b__global__\b[^;{}]{0,900}\)\s*\{"),
    "cpp": re.compile(r"\bforge_launch\s*\([^;{}]{0,900}\)\s*\{"),
}
_TAG = re.compile(r"<(kernel|source|code|answer|pre|tool_call|function_call|file)(?:\s[^<>\n]*)?>"
                  r"(?:\s*+<code(?:\s[^<>\n]*)?>)?(.*?)</\1>", re.DOTALL | re.IGNORECASE)  # fmt: skip
_TAG_START = re.compile(r"<(?:kernel|source|code|answer|pre|tool_call|function_call|file)\b", re.IGNORECASE)
#: a kernel as a text of a Python program
_TRIPLE = re.compile(r"[rR]?(\"\"\"|''')(.*?)\1", re.DOTALL)
_PYTHON = re.compile(r"^[ \t]*+(?:import|from)[ \t]++\w|\bload_inline\b", re.MULTILINE)
#: a file's name, or a language's, on a line of its own in the block
_TITLE = re.compile(r"\s*(?:cuda|cpp|c\+\+|cu|[\w./-]+\.(?:cu|cuh|cpp|cc|cxx|c|h))[ \t]*:?[ \t]*\n", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*(//[ \t]*@[ \t]*(?:tune|workspace|launch)\b[^\n]*)$", re.MULTILINE)
_OPTION = re.compile(r"\b(?:option|alternative|variant|version|approach)\s*([A-Z]|\d)\b", re.IGNORECASE)
_ADVISED = re.compile(r"\b(?:recommend|prefer|suggest|choose|go with|pick|best|use)\w*\b[^.\n]{0,60}?"
                      r"\b(?:option|alternative|variant|version|approach)\s*([A-Z]|\d)\b", re.IGNORECASE)  # fmt: skip
_ASIDE = re.compile(
    r"\balternativ|\bfor (?:comparison|reference)\b|\bthe (?:original|old|previous)\b|\bfallback\b|\bfall back\b|"
    r"\b(?:original|your|given|existing|current) (?:kernel|version|code|source)\b|"
    r"\bif you (?:prefer|need|want|would)\b|\boption\s*(?:[B-H]|[2-9])\b|\bsimpler\b|\bbefore (?:the|my) changes?\b",
    re.IGNORECASE,
)  # fmt: skip
_ANSWER = re.compile(r"\b(?:better|improved|final|optimi[sz]ed|faster|corrected|instead|new|my answer)\b",
                     re.IGNORECASE)  # fmt: skip


class Candidate(Record, frozen=True, kw_only=True):
    """A source that may be the answer."""

    text: str
    closed: bool = True
    end: int = 0
    """Number of the line behind it."""
    lead: str = ""
    notes: tuple[str, ...] = ()
    whole: bool = False
    rank: tuple[int, ...] = ()


def choose(text: str, parts: Sequence[Part], language: Language, shown: Iterable[str] = ()) -> Candidate | None:
    """The likeliest one; None where no part has a kernel. `shown` are sources that the author was given."""
    said = "\n".join(part.text for part in parts if not part.code)
    old = {codetext.normal(plain_code(source)) for source in shown if source.strip()}
    advised = _ADVISED.search(said)
    others = _Others(parts, said, old)
    ranked: list[Candidate] = []
    for part in parts:
        for one in _of_part(part, language, last=part is parts[-1]):
            made = others.complete(one, language)
            ranked.append(_ranked(one, made, len(ranked), language, old, advised[1].upper() if advised else ""))
    best = max(ranked, key=lambda one: one.rank, default=None)
    if best is None or not best.whole:
        best = _of_several(parts, language, old) or _of_all(text, language, old) or best
    return best


def is_whole(text: str, language: Language) -> bool:
    """Whether it is a source from its beginning to its end, with a kernel in it."""
    return codetext.whole(text) and _ANY_DEFINITION[language].search(codetext.hidden(text)) is not None


def has_definition(text: str, language: Language) -> bool:
    """Whether it defines a kernel in the contract's form."""
    return _DEFINITION[language].search(codetext.hidden(text)) is not None


# ---- candidates


def _of_part(part: Part, language: Language, *, last: bool, level: int = 0) -> list[Candidate]:
    """What a part holds: its code, what it wraps as JSON or in a Python program, what tags or nothing mark in talk."""
    entry = ENTRY[language]
    if part.tag in diffs.TAGS or diffs.DIFF.search(part.text):
        return []
    wrapped = [text for text in in_json(part.text).values() if entry.search(text)]
    if part.code:
        if not wrapped and _PYTHON.search(part.text):
            wrapped = [body for _, body in _TRIPLE.findall(part.text) if entry.search(body)]
        plain = (part.closed and part.tag and part.c_like) or codetext.begins_with_code(_source(part.text))
        talk = not plain or _TAG_START.match(part.text.lstrip()) is not None
        if talk and level < MOST_LEVELS and not wrapped and _FENCE.search(part.text):
            # blocks within a longer fence, or behind one that was never closed
            found = [one for inner in fences.parts(part.text) for one in _of_part(
                msgspec.structs.replace(inner, end=part.end), language, last=last, level=level + 1)]  # fmt: skip
            if found:
                return found
        texts = [clean(text) for text in wrapped] or (_untagged(part.text, language) if talk else []) or [part.text]
    else:
        texts = [clean(text) for text in wrapped] or _untagged(part.text, language)
    found = []
    for text in texts:
        source = _source(text)
        if not part.closed and not wrapped:
            source = codetext.without_tail(source)
        if entry.search(source) and not edits.find(source).edits:
            closed = part.closed and (part.code or not last or is_whole(source, language))
            found.append(Candidate(text=source, closed=closed, end=part.end, lead=part.lead))
    return found


def _untagged(talk: str, language: Language) -> list[str]:
    """Sources in talk: in tags, else from what looks like the first line of code."""
    entry = ENTRY[language]
    if len(_TAG_START.findall(talk)) <= MOST_TAGS:
        bodies = [_body(match[2]) for match in _TAG.finditer(talk)]
        in_texts = [text for body in bodies for text in in_json(body).values() if entry.search(text)]
        tagged = in_texts or [body for body in bodies if entry.search(body)]
        if tagged:
            return tagged
    if not entry.search(talk):
        return []
    bare = codetext.bare(plain_code(edits.without(talk)))
    return [bare] if has_definition(bare, language) or HEADER in bare else []


def _body(text: str) -> str:
    """What is in a tag, without the marks that may be in it, too."""
    text = text.strip().removesuffix("</code>").rstrip()
    return text.removeprefix("<![CDATA[").removesuffix("]]>").strip("\n") if text.startswith("<![CDATA[") else text


def _source(text: str) -> str:
    """A block's text without what surrounds the code in it."""
    text = plain_code(text)
    first = next((line for line in text.split("\n") if line.strip()), "")
    if first[:1] in (" ", "\t"):
        text = textwrap.dedent(text)
    title = _TITLE.match(text)
    return fields.parted(text[title.end():] if title else text)[1]


def _ranked(
    one: Candidate, made: Candidate, number: int, language: Language, old: set[str], advised: str
) -> Candidate:  # fmt: skip
    """The candidate as it was `made` of the one that is there, which says how much of an answer it is."""
    text = made.text
    whole = is_whole(text, language)
    kernel_like = 2 * (HEADER in one.text) or int("FORGE_PARAMS" in one.text)
    option = _OPTION.search(one.lead)
    if advised and option and option[1].upper() == advised:
        standing = 2
    else:
        # a heading, or a line that ends as an announcement does
        heading, _, line = one.lead.rpartition("\n")
        lead = f"{heading}\n{line}" if line.endswith((":", "**")) else heading
        standing = int(not _ASIDE.search(lead) or bool(_ANSWER.search(lead)))
    rank = (
        int(codetext.normal(text) not in old), int(whole and kernel_like > 0), kernel_like,
        int(not elision.find(text)), int(language != "cuda" or codetext.launches(one.text)), standing, number,
    )  # fmt: skip
    return msgspec.structs.replace(made, whole=whole and kernel_like > 0, rank=rank)


# ---- a source in several blocks


def _of_several(parts: Sequence[Part], language: Language, old: set[str]) -> Candidate | None:
    """A source that was cut into blocks, the next one going on where the last one ended."""
    blocks = [part for part in parts if part.c_like]
    for first in range(min(len(blocks), MOST_PARTS)):
        text = blocks[first].text
        if codetext.depth(text) <= 0 and not codetext.open_comment(text):
            continue
        for part in blocks[first + 1:first + MOST_PARTS]:
            text += "\n" + part.text
            source = _source(text if part.closed else codetext.without_tail(text))
            if is_whole(source, language) and codetext.normal(source) not in old:
                return Candidate(text=source, end=part.end, whole=True,
                                 notes=("a source in several blocks was put together",))  # fmt: skip
    return None


def _of_all(text: str, language: Language, old: set[str]) -> Candidate | None:
    """A source where the fences in the reply say nothing that holds together."""
    for source in _untagged(text, language):
        if is_whole(source, language) and has_definition(source, language) and codetext.normal(source) not in old:
            return Candidate(text=source, end=text.count("\n") + 1, whole=True)
    return None


class _Others:
    """What else a reply holds that a source may lack."""

    def __init__(self, parts: Sequence[Part], said: str, old: set[str]) -> None:
        blocks = [(part.end, _source(part.text)) for part in parts if part.c_like and part.text.strip()]
        usable = [(end, text) for end, text in blocks if codetext.normal(text) not in old and not elision.find(text)]
        self._blocks = usable if len(usable) <= MOST_PARTS else []
        outside = "\n".join([*(text for _, text in blocks[:MOST_PARTS]), said])
        self._directives = list(dict.fromkeys(" ".join(line.split()) for line in _DIRECTIVE.findall(outside)))

    def complete(self, one: Candidate, language: Language) -> Candidate:
        """The source with what other blocks define for it, and with directives that stand outside of it."""
        notes = list(one.notes)
        others = [(end < one.end, text) for end, text in self._blocks if end != one.end]
        text, count = codetext.joined(one.text, others) if others and codetext.depth(one.text) == 0 else (one.text, 0)
        if count:
            notes.append("what another block defines was put in")
        if language == "cuda" and self._directives and not codetext.launches(text):
            made = "\n".join([*self._directives, text])
            if codetext.launches(made) and not codetext.undefined_launches(made):
                text = made
                notes.append("directives stood outside of the source")
        return msgspec.structs.replace(one, text=text, notes=tuple(notes))
