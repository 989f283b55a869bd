"""A conversation in which a model may try kernels by tools before it answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from forge_tui.core.ports import Task, Workbench
from forge_tui.core.records import LlmCall, Record
from forge_tui.proposers import prompt, tools
from forge_tui.proposers.calling import Answered, Caller, Failed, Request
from forge_tui.proposers.parse import parse_reply
from forge_tui.proposers.tools import ToolCall

#: a model that goes on calling tools after the last one is told so this often
_WARNINGS = 2
_NONE_LEFT = "No tool calls are left. Reply with the kernel now, in the form that was asked for."


class Talk(Record, frozen=True, kw_only=True):
    """How a conversation ended."""

    request: Request
    """The last one, with everything that was said before."""
    came: Answered | Failed
    before: tuple[LlmCall, ...]
    """Calls that led there."""
    kept: tuple[Answered, ...]
    """What is left of the replies of an ended engine."""
    tried: str = ""
    """The kernel that a tool was last used on."""


class Agent:
    """One model with tools."""

    def __init__(self, caller: Caller, steps: int) -> None:
        """At most `steps` tools may be used before an answer."""
        self._caller = caller
        self.steps = steps
        self.bench: Workbench | None = None
        #: a model that refused tools is asked without
        self.refused = False

    @property
    def ready(self) -> bool:
        """Whether there is something to offer."""
        return self.steps > 0 and self.bench is not None and not self.refused

    async def talk(self, request: Request, task: Task, deadline: float, kept: Sequence[Answered]) -> Talk:
        """Ask, let the model use tools as often as it may, and return its answer. The time of tools does not count."""
        plain = request
        request = await self._caller.changed(request, request.arguments | {"tools": tools.DEFINITIONS})
        before: list[LlmCall] = []
        left, warnings, source = self.steps, 0, ""
        replies = list(kept)
        while True:
            came: Answered | Failed = replies.pop(0) if replies else await self._caller.answer(
                request, task, deadline, before[-1].attempt + 1 if before else 1)  # fmt: skip
            if isinstance(came, Failed):
                if came.fault.no_tools and not before:
                    return await self._without(plain, task, deadline, came)
                return Talk(request=request, came=came, before=tuple(before), kept=())
            text, wanted = tools.read(came.call.reply)
            if not wanted or (not left and warnings >= _WARNINGS):
                return Talk(request=request, came=came, before=tuple(before), kept=tuple(replies), tried=source)
            warnings += not left
            messages = [tools.said(text, wanted)]
            for call in wanted:
                began = time.monotonic()
                if left:
                    source = _meant(call, text, source, task)
                    answer = await self._use(task, came.number, call, source)
                    left -= 1
                    answer += f"\n{_left(left)}"
                else:
                    answer = _NONE_LEFT
                deadline += time.monotonic() - began
                messages.append(tools.answered(call, answer))
            before.append(came.call)
            request = await self._next(request, messages)

    async def _next(self, request: Request, messages: list[dict[str, Any]]) -> Request:
        arguments = request.arguments | {"messages": [*request.arguments["messages"], *messages]}
        made = await self._caller.changed(request, arguments)
        said = "\n".join(str(message["content"]) for message in messages[1:])
        # the ledger has the rest with the calls before
        return made.saying(f"(after the calls before)\n{said}")

    async def _use(self, task: Task, number: int, call: ToolCall, source: str) -> str:
        if call.name not in tools.NAMES:
            return f"There is no tool {call.name[:60]!r}; there are {', '.join(tools.NAMES)}."
        if not source:
            return "There is no kernel yet: write it as a fenced block in the same message."
        assert self.bench is not None
        return await self.bench.use(task, number, call.name, source)

    async def _without(self, plain: Request, task: Task, deadline: float, refusal: Failed) -> Talk:
        """The same without tools; only an answer proves that they were what was refused."""
        before = (refusal.call,) if refusal.call is not None else ()
        came = await self._caller.answer(plain, task, deadline, len(before) + 1)
        self.refused = isinstance(came, Answered)
        return Talk(request=plain, came=came, before=before, kept=())


def _meant(call: ToolCall, text: str, before: str, task: Task) -> str:
    """The kernel that a call is about, edits of the one that was shown included; empty where there is none."""
    for said in (call.source, text):
        if said:
            found = parse_reply(said, task.device.language, "stop", before or prompt.base(task)).source
            if found:
                return found
    return before


def _left(count: int) -> str:
    return _NONE_LEFT if not count else "1 tool call is left." if count == 1 else f"{count} tool calls are left."
