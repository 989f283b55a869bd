"""What a model may try before it answers: tools by the OpenAI schema, which LiteLLM translates for other providers."""

from __future__ import annotations

import json
from typing import Any

from forge_tui.core.records import Record

_WHAT = {
    "compile_kernel": "Compile a kernel. Says what the compiler refused, or registers, spills and shared memory.",
    "check_kernel": "Compile a kernel and compare it with the original on hidden inputs. Says where it is wrong.",
    "time_kernel": "Check a kernel and time it against the original. Says times, speed-up and its interval.",
    "read_machine_code": "Compile a kernel and show its instructions (SASS on a GPU): counts, and the largest loop.",
    "roofline": "Time a kernel and compare what it moves and computes a second with the ceilings of this device.",
}
NAMES = tuple(_WHAT)
_SOURCE = ("The whole source of the kernel. Leave it out to mean the fenced block of the same message, or else the "
           "kernel that was tried last.")  # fmt: skip
DEFINITIONS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": text, "parameters": {
        "type": "object", "properties": {"source": {"type": "string", "description": _SOURCE}}, "required": [],
    }}}
    for name, text in _WHAT.items()
]  # fmt: skip

#: between a reply's text and the tools that it asked for, in the ledger
_MARK = "\n--- tools asked for ---\n"


class ToolCall(Record, frozen=True, kw_only=True):
    """One use that a model asks for."""

    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it."""

    @property
    def source(self) -> str | None:
        """The kernel in the arguments; None where there is none, or they cannot be read."""
        try:
            found = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return None
        source = found.get("source") if isinstance(found, dict) else None
        return source if isinstance(source, str) and source.strip() else None


def offer(steps: int) -> str:
    """What the prompt says of the tools."""
    times = "once" if steps == 1 else f"up to {steps} times"
    return (f"# Tools\nBefore you answer you may use tools {times}: write a kernel as a fenced block, and call a tool "
            "without arguments in the same message. Use them to be right and to compare variants; the answer itself is "
            "a reply in the form above, without a tool.\n")  # fmt: skip


def written(text: str, asked: tuple[ToolCall, ...]) -> str:
    """A reply for the ledger, with the tools that it asked for."""
    if not asked:
        return text
    calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in asked]
    return text + _MARK + json.dumps(calls, ensure_ascii=False)


def read(reply: str) -> tuple[str, tuple[ToolCall, ...]]:
    """The text and the tools of a reply that `written` made."""
    text, mark, rest = reply.rpartition(_MARK)
    if not mark:
        return reply, ()
    try:
        calls = tuple(ToolCall(id=c["id"], name=c["name"], arguments=c["arguments"]) for c in json.loads(rest))
    except (ValueError, KeyError, TypeError, RecursionError):
        return reply, ()
    return text, calls


def said(text: str, asked: tuple[ToolCall, ...]) -> dict[str, Any]:
    """The model's message, to be sent back to it."""
    return {"role": "assistant", "content": text or None, "tool_calls": [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}
        for call in asked
    ]}  # fmt: skip


def answered(call: ToolCall, text: str) -> dict[str, Any]:
    """What a tool said, as a message."""
    return {"role": "tool", "tool_call_id": call.id, "content": text}

