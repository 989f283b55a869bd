"""A model's reasoning in its reply: set apart from the answer, whatever marks are missing.

A mark within a block of code is none, unless its line begins with it. An end without a beginning can mean two things:
that a template ate the beginning, so that all before it is thought, or that it is stray. So a text has several
readings, the likeliest first; the one that holds a kernel is the right one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forge_tui.core.records import Record
from forge_tui.proposers import fences

_WORDS = ("think|thinking|thought|thoughts|reason|reasoning|reflection|scratchpad|analysis|plan|planning|"
          "inner_monologue|monologue|antthinking|seed:think")  # fmt: skip
# `table[analysis]` and `sum<reason>` are code
_MARK = re.compile(rf"(?<![\w\])>])(?:(?:<|◁|\[)(/?)(?:{_WORDS})(?:>|▷|\](?!\())|<\|(begin|end)_of_thought\|>)"
                   rf"|(?:</|◁/|\[/)(?:{_WORDS})(?:>|▷|\])", re.IGNORECASE)  # fmt: skip

#: templates of conversations that leak into the text
_FINAL = re.compile(r"<\|channel\|>\s*final\s*(?:<\|constrain\|>\w*)?<\|message\|>", re.IGNORECASE)
_USER_TURN = re.compile(r"<\|im_start\|>\s*user\b|<\|start_header_id\|>\s*user\b|<\|user\|>|<start_of_turn>\s*user\b|"
                        r"<\|start\|>user\b|\[INST\]")  # fmt: skip
_TEMPLATE = re.compile(
    r"<\|(?:end|return|im_end|im_start|eot_id|eom_id|endoftext|start|message|channel|constrain|begin_of_text|"
    r"end_of_text|start_header_id|end_header_id|end_of_turn|assistant|begin_of_solution|end_of_solution)\|>"
    r"(?:assistant\b(?:\s*<\|end_header_id\|>)?)?|<(?:start|end)_of_turn>(?:model\b)?|<\uff5c[^\uff5c\n]{1,40}\uff5c>|"
    r"\[/INST\]|</s>(?=\s*\Z)"
)  # fmt: skip

_AT_START = re.compile(rf"^[ \t]*(?:{_MARK.pattern})", re.IGNORECASE | re.MULTILINE)


#: ends without a beginning that may be where the answer begins
MOST_STRAYS = 3


class Reading(Record, frozen=True, kw_only=True):
    """What may be the answer; `thoughts` says that reasoning is part of it."""

    text: str
    thoughts: bool = False


def readings(text: str) -> Iterator[Reading]:
    """What a reply may be meant to say, the likeliest first."""
    final = list(_FINAL.finditer(text))
    said = text[final[-1].end():] if final else text
    turn = _USER_TURN.search(said)
    if turn is not None:
        # what a model makes a user say is none of its answer
        said = said[:turn.start()]
    pieces = list(_pieces(said))
    strays = [i for i, (kind, _) in enumerate(pieces) if kind == "stray"]
    found = [Reading(text=_joined(pieces[i + 1:])) for i in reversed([-1, *strays[-MOST_STRAYS:]])]
    found.append(Reading(text=_AT_START.sub("", _FINAL.sub("", text)), thoughts=True))
    seen: set[str] = set()
    for reading in found:
        plain = _TEMPLATE.sub("", reading.text)
        if plain not in seen:
            seen.add(plain)
            yield Reading(text=plain, thoughts=reading.thoughts)


def _joined(pieces: list[tuple[str, str]]) -> str:
    return "".join(part for kind, part in pieces if kind == "said")


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """What is `said` and `thought`, in order, without the marks; `stray` stands for an end without a beginning."""
    scan, thinking = fences.Scan(text), False
    for number, line in enumerate(scan.lines):
        at = 0
        for mark in _MARK.finditer(line):
            ends = "/" in mark[0][:2] or mark[2] == "end"
            if thinking and not ends:
                continue
            if not thinking and not _meant(line, mark, in_code=bool(scan.fence) or scan.kernel_like):
                continue
            yield ("thought" if thinking else "said"), line[at:mark.start()]
            at = mark.end()
            if ends and not thinking:
                yield "stray", ""
            thinking = not ends
            scan.end(number, closed=True)
        rest = line[at:]
        if not thinking:
            scan.take(number, rest)
        yield ("thought" if thinking else "said"), rest + "\n" * (number + 1 < len(scan.lines))


def _meant(line: str, mark: re.Match[str], *, in_code: bool) -> bool:
    """Whether a mark is one: no line of code begins with `<think>`, and talk about marks quotes them."""
    if in_code:
        return line.strip() == mark[0] or (not line[:mark.start()].strip() and not mark[0].startswith("["))
    return line[mark.start() - 1:mark.start()] != "`" or line[mark.end():mark.end() + 1] != "`"
