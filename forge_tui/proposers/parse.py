"""A model's reply to a kernel source.

Replies are text from outside: nothing here raises on any of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from forge_tui.core.records import Language, Record
from forge_tui.proposers import choosing, codetext, diffs, edits, elision, fences, fields, hostside, thoughts
from forge_tui.proposers.choosing import ENTRY, HEADER, Candidate
from forge_tui.proposers.fields import MAX_LINE
from forge_tui.proposers.replytext import clean, in_json, plain_code, refusal, unquoted

__all__ = ["ENTRY", "HEADER", "TRUNCATED", "Reply", "clean", "parse_reply"]

TRUNCATED = "truncated"
CUT_THOUGH_DONE = "The kernel in the reply ends in its middle, though the model says that the reply is whole."
EDIT_CUT_THOUGH_DONE = "The last edit in the reply has no `>>>>>>> REPLACE`, though the model says that it is whole."
_REFUSED = "The model refused:"

_DIRECTIVE = re.compile(r"^([ \t]*)//[ \t]*@[ \t]*(tune|workspace|launch)\b", re.MULTILINE)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]forge_target\.h[>\"]", re.MULTILINE)
_BEGUN = re.compile(r"forge_target\.h|FORGE_PARAMS|//[ \t]*@[ \t]*(?:tune|workspace|launch)\b")
#: words of providers for how a reply ended, in small letters; any other one says nothing
_CUT = frozenset(["length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"])
_FILTERED = frozenset(["content_filter", "refusal", "safety", "recitation", "prohibited_content", "blocklist"])
_DONE = frozenset(["stop", "end_turn", "stop_sequence", "eos", "eos_token", "complete", "completed", "done",
                   "tool_calls", "tool_use", "function_call"])  # fmt: skip


class Reply(Record, frozen=True, kw_only=True):
    """What a reply holds."""

    source: str | None
    family: str = ""
    hypothesis: str = ""
    """The author's own sentence, and in brackets what was changed of the source: a node keeps it as its idea."""
    fields: dict[str, str]
    """The first of each `family:`, `hypothesis:`, `expect:` and `risk:` line."""
    failure: str = ""
    """Why there is no source: `truncated`, `empty`, or a sentence."""
    notes: tuple[str, ...] = ()
    """What was changed of the source, in words."""


class _Read(Record, frozen=True, kw_only=True):
    """A reply as one of its readings has it.

    `whole` is taken; `something` unless another reading of the answer is whole; with `nothing` the thoughts are read.
    """

    reply: Reply
    holds: Literal["nothing", "something", "whole"]


def parse_reply(
    text: str, language: Language, finish_reason: str = "", base: str = "", shown: Sequence[str] = ()
) -> Reply:  # fmt: skip
    """The source in a reply, or why there is none.

    `finish_reason` is the provider's word for how the reply ended; one that was cut off is never taken. `base` is the
    source that edits in the reply are of, `shown` are others that the prompt had: none of them is the answer while the
    reply holds a source of its own.
    """
    reader = _Reader(language, finish_reason.lower(), base, (base, *shown))
    first: _Read | None = None
    for reading in thoughts.readings(unquoted(clean(text))):
        if reading.thoughts and first is not None and first.holds != "nothing":
            break
        found = reader.read(reading.text)
        if found.holds == "whole" or (reading.thoughts and found.reply.source is not None):
            notes = ("the source was found in the reasoning",) if reading.thoughts and first is not None else ()
            return _noted(found.reply, notes)
        if first is None or (first.holds == "nothing" and found.holds == "something"):
            first = found
    assert first is not None
    return first.reply


class _Reader:
    """What is the same for every reading of one reply."""

    def __init__(self, language: Language, finish: str, base: str, shown: tuple[str, ...]) -> None:
        self.language = language
        self.finish = finish
        self.base = base
        self.shown = shown

    def read(self, text: str) -> _Read:
        """The source in one reading."""
        parts = fences.parts(text)
        said = "\n".join(part.text for part in parts if not part.code)
        heads = "\n".join(fields.parted(part.text)[0] for part in parts if part.code)
        found = fields.read(heads) | fields.read(said) | fields.of_json(in_json(text))
        if self.finish in _CUT:
            return _Read(reply=_failed(found, TRUNCATED), holds="whole")
        if self.finish in _FILTERED:
            what = refusal(said) or self.finish.replace("_", " ")
            return _Read(reply=_failed(found, f"{_REFUSED} {what}"), holds="whole")
        if not text.strip():
            return _Read(reply=_failed(found, "empty"), holds="nothing")
        best = choosing.choose(text, parts, self.language, self.shown)
        own = best is not None and codetext.normal(best.text) != codetext.normal(plain_code(self.base))
        changes = edits.find(text, self.base)
        if changes.edits or changes.open or changes.fault:
            edited = self._edited(changes, found)
            later = best is not None and best.end > changes.end
            if best is None or not (own and best.whole and (later or edited.source is None)):
                sure = edited.source is not None or edited.failure == TRUNCATED
                return _Read(reply=edited, holds="whole" if sure else "something")
        elif not (own and best is not None and best.whole):
            made = self._made_of_diff(text, parts, found)
            if made is not None:
                return _Read(reply=made, holds="whole" if made.source else "something")
        if self._last_is_cut(parts, best if own else None):
            done = own and best is not None and best.whole and self.finish in _DONE
            if not done:
                return _Read(reply=_failed(found, self._cut(CUT_THOUGH_DONE)), holds="something")
        if best is None:
            why = _why_none(parts, text, self.language)
            return _Read(reply=_failed(found, why), holds="something" if why.startswith(_REFUSED) else "nothing")
        reply = self._finished(best.text, found, best.notes)
        # a copy of the old source is no answer yet
        return _Read(reply=reply, holds="whole" if own and best.whole and reply.source is not None else "something")

    def _cut(self, sentence: str) -> str:
        """What a cut is called: a reply that its provider calls whole is not asked for at greater length."""
        return sentence if self.finish in _DONE else TRUNCATED

    def _last_is_cut(self, parts: list[fences.Part], best: Candidate | None) -> bool:
        """Whether the reply ends within a source."""
        if best is not None and not best.closed and not best.whole:
            return True
        last = parts[-1]
        if best is not None and best.end == last.end:
            return False
        if last.code:
            begun = last.text if not last.closed and last.c_like else ""
            sure = bool(last.tag and begun.strip())
        else:
            begun, sure = codetext.bare(last.text) if best is None else "", False
        if not sure and not _BEGUN.search(begun):
            return False
        return not choosing.is_whole(codetext.without_tail(begun), self.language)

    def _edited(self, changes: edits.Found, found: dict[str, str]) -> Reply:
        if changes.fault and (self.finish in _DONE or not changes.open):
            return _failed(found, changes.fault)
        if changes.open:
            return _failed(found, self._cut(EDIT_CUT_THOUGH_DONE))
        return self._applied(changes.edits, found, ())

    def _applied(self, changes: tuple[edits.Edit, ...], found: dict[str, str], notes: tuple[str, ...]) -> Reply:
        if not self.base:
            return _failed(found, "The reply edits a source, but none was shown.")
        plain = tuple(edits.Edit(search=_plain_lines(e.search), replace=_plain_lines(e.replace)) for e in changes)
        applied = edits.apply(self.base, plain)
        if applied.source is None and plain != changes:
            # the source itself may have quotes and dashes that are not ASCII
            again = edits.apply(self.base, changes)
            applied = again if again.source is not None else applied
        if applied.source is None:
            return _failed(found, applied.failure)
        if not ENTRY[self.language].search(applied.source):
            return _failed(found, "The edits leave no kernel.")
        return self._finished(applied.source, found, (*notes, *applied.notes))

    def _made_of_diff(self, text: str, parts: list[fences.Part], found: dict[str, str]) -> Reply | None:
        """What edits in another form than the one asked for make; None where there are none."""
        asked = edits.labelled(text)
        changes = asked or diffs.find(text, [part.text for part in parts if part.tag in diffs.TAGS])
        if not changes:
            return None
        new = diffs.new_source(changes)
        if new and ENTRY[self.language].search(new):
            return self._finished(plain_code(new), found, ("the source came as a diff",))
        if not self.base and not asked:
            return _failed(found, "The reply is a diff; the whole source is wanted.")
        return self._applied(changes, found, () if asked else ("the edits came as a diff",))

    def _finished(self, source: str, found: dict[str, str], notes: tuple[str, ...]) -> Reply:
        """A source with what is obvious put right."""
        source = _DIRECTIVE.sub(r"\1//@\2", source.strip("\n") + "\n")
        found = fields.read("\n".join(text for _, text in codetext.comments(source))) | found
        left_out = elision.find(source, "\n".join(self.shown))
        if left_out:
            return _failed(found, f"The reply leaves out parts of the source: `{left_out[:80]}`.")
        made = list(notes)
        if "FORGE_PARAMS" in source and not _INCLUDE.search(source):
            source = f'#include "{HEADER}"\n{source}'
            made.append("the include of forge_target.h was added")
        source, stripped = hostside.strip(source, self.language)
        if stripped:
            made.append(stripped)
        reply = Reply(source=source, family=found.get("family", ""), hypothesis=found.get("hypothesis", ""),
                      fields=found)  # fmt: skip
        return _noted(reply, tuple(made))


def _plain_lines(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(plain_code("\n".join(lines)).split("\n")) if lines else ()


def _noted(reply: Reply, notes: tuple[str, ...]) -> Reply:
    """The reply with more notes, which its idea ends with."""
    if not notes:
        return reply
    said = reply.fields.get("hypothesis", "")
    every = (*reply.notes, *notes)
    note = f"[{'; '.join(every)}]"[:MAX_LINE]
    idea = f"{said[:max(0, MAX_LINE - len(note) - 1)]} {note}".strip()
    return msgspec.structs.replace(reply, hypothesis=idea, notes=every)


def _failed(found: dict[str, str], failure: str) -> Reply:
    return Reply(source=None, family=found.get("family", ""), hypothesis=found.get("hypothesis", ""), fields=found,
                 failure=failure)  # fmt: skip


def _why_none(parts: list[fences.Part], text: str, language: Language) -> str:
    blocks = [part.text for part in parts if part.code]
    refused = refusal(text) if not blocks else ""
    if refused:
        return f"{_REFUSED} {refused}"
    if any(diffs.DIFF.search(block) for block in (*blocks, text)):
        return "The reply is a diff; the whole source, or SEARCH and REPLACE edits, are wanted."
    other: Language = "cpp" if language == "cuda" else "cuda"
    if any(ENTRY[other].search(block) for block in blocks):
        return f"The reply is a kernel for {'the CPU' if other == 'cpp' else 'CUDA'}, which is not what was asked for."
    what = "`extern \"C\" __global__`" if language == "cuda" else "`forge_launch`"
    return f"The reply has {'no code block with ' + what if blocks else 'no code block'}."
