"""One reply, read as it is written, so that silence is noticed long before a whole reply would be late."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from forge_tui.core.records import Record
from forge_tui.proposers import pricing
from forge_tui.proposers.faults import EmptyReplyError, FilteredReplyError, SilenceError
from forge_tui.proposers.parse import clean
from forge_tui.proposers.tools import ToolCall

#: what the library may take longer than our own limit, so that ours is the one that ends a wait
_SPARE_S = 5.0


class Patience(Record, frozen=True, kw_only=True):
    """How long to wait, in seconds."""

    first_s: float = 120.0
    """For the first word: queues, long prompts on slow servers."""
    reasoning_first_s: float = 600.0
    """The same of a model that thinks unseen before it says anything."""
    stall_s: float = 45.0
    """Between words once there was one."""
    attempt_s: float = 900.0
    """For one whole reply."""
    total_s: float = 1500.0
    """For a proposal with all its tries."""


class Answer(Record, frozen=True, kw_only=True):
    """A reply that came to its end."""

    text: str
    tools: tuple[ToolCall, ...] = ()
    """What it wants to try before it answers."""
    finish: str
    """The provider's word for how it ended: `stop`, `length`."""
    usage: pricing.Usage
    seconds: float = 0.0


async def ask(litellm: Any, request: dict[str, Any], patience: Patience, *, stream: bool, first_s: float) -> Answer:
    """Make one request and read its reply to the end.

    Raises:
        SilenceError: nothing came for too long.
        EmptyReplyError: it ended without a word.
        FilteredReplyError: the provider's filter took it.
        Exception: whatever LiteLLM makes of the provider's answer.
    """
    began = time.monotonic()
    async with _limit(patience.attempt_s, "did not end its reply"):
        found = await _read(litellm, request, patience, first_s) if stream else \
            await _whole(litellm, request, patience)  # fmt: skip
    return msgspec.structs.replace(found, seconds=time.monotonic() - began)


async def _whole(litellm: Any, request: dict[str, Any], patience: Patience) -> Answer:
    response = await litellm.acompletion(**request, timeout=patience.attempt_s)
    choice = response.choices[0]
    text = choice.message.content
    wanted = [ToolCall(id=str(call.id or ""), name=str(call.function.name or ""),
                       arguments=str(call.function.arguments or ""))
              for call in getattr(choice.message, "tool_calls", None) or ()]  # fmt: skip
    return _checked(text if isinstance(text, str) else "", str(choice.finish_reason or ""),
                    pricing.usage_of(response), wanted)  # fmt: skip


async def _read(litellm: Any, request: dict[str, Any], patience: Patience, first_s: float) -> Answer:
    parts: list[str] = []
    wanted: dict[int, ToolCall] = {}
    finish = ""
    usage = pricing.Usage()
    chunks: Any = None
    begun = False
    try:
        async with _limit(first_s, "did not begin its reply"):
            chunks = await litellm.acompletion(
                **request, timeout=max(first_s, patience.stall_s) + _SPARE_S, stream=True,
                stream_options={"include_usage": True},
            )  # fmt: skip
        wait = chunks.__aiter__()
        while True:
            try:
                limit = _limit(patience.stall_s, "fell silent in the middle of its reply") if begun else \
                    _limit(first_s, "did not begin its reply")  # fmt: skip
                async with limit:
                    chunk = await wait.__anext__()
            except StopAsyncIteration:
                break
            counted = pricing.usage_of(chunk)
            usage = counted if counted.known else usage
            for choice in chunk.choices:
                delta = choice.delta
                text = getattr(delta, "content", None)
                if isinstance(text, str) and text:
                    parts.append(text)
                pieces = getattr(delta, "tool_calls", None) or ()
                for piece in pieces:
                    _add(wanted, piece)
                begun = begun or bool(text) or bool(pieces) or bool(getattr(delta, "reasoning_content", None))
                finish = str(choice.finish_reason or finish)
        if not _by_the_provider(chunks):
            usage = pricing.Usage()
    finally:
        if chunks is not None:
            # a stream that is left in the middle must be closed, or the provider goes on writing it
            with contextlib.suppress(Exception):
                await _close(chunks)
    return _checked("".join(parts), finish, usage, [wanted[place] for place in sorted(wanted)])


def _add(wanted: dict[int, ToolCall], piece: Any) -> None:
    """One piece of a call that comes in pieces: the first has id and name, the others text."""
    place = piece.index if isinstance(piece.index, int) else len(wanted)
    before = wanted.get(place, ToolCall(id="", name="", arguments=""))
    wanted[place] = ToolCall(id=before.id or str(piece.id or ""), name=before.name or str(piece.function.name or ""),
                             arguments=before.arguments + str(piece.function.arguments or ""))  # fmt: skip


def _by_the_provider(chunks: Any) -> bool:
    """Whether the count came over the wire: where a stream has none LiteLLM makes one up."""
    raw = getattr(chunks, "chunks", None)
    return not isinstance(raw, list) or any(pricing.usage_of(chunk).known for chunk in raw)


async def _close(chunks: Any) -> None:
    close = getattr(chunks, "aclose", None) or getattr(getattr(chunks, "completion_stream", None), "aclose", None)
    if close is not None:
        async with asyncio.timeout(0.5):
            await close()


def _checked(text: str, finish: str, usage: pricing.Usage, tools: Sequence[ToolCall]) -> Answer:
    if not clean(text).strip() and not tools:
        if finish == "content_filter":
            raise FilteredReplyError(usage)
        # all of the allowance may have gone into hidden reasoning: the model's doing, not the provider's
        if finish != "length":
            raise EmptyReplyError(usage)
    return Answer(text=text, tools=tuple(tools), finish=finish, usage=usage)


@contextlib.asynccontextmanager
async def _limit(seconds: float, what: str) -> AsyncIterator[None]:
    """A timeout that says what was waited for."""
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            yield
    except TimeoutError:
        if timer.expired():
            raise SilenceError(f"{what} within {seconds:.3g} s") from None
        raise
