"""A server on 127.0.0.1 that speaks OpenAI's and Anthropic's wire format, streamed or not, and plays faults on demand.

It keeps its own books: what was asked, and the tokens of every reply that it sent to its last byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

KERNEL = '#include "forge_target.h"\nextern "C" int forge_launch(FORGE_PARAMS) {\n    return 0;\n}\n'
REPLY = f"family: one pass\nhypothesis: reads once\n```cpp\n{KERNEL}```\n"

#: clients that hang up are what is tested
_QUIET = logging.getLogger("fault_server")
_QUIET.setLevel(logging.CRITICAL)
_QUIET.propagate = False

#: faults after which a provider may have charged for what it did
PAID = ("500", "slow", "stall", "reset", "cut", "malformed", "drop")
#: faults that are refusals at the door
UNPAID = ("429", "429-after", "529", "503")


@dataclass(frozen=True)
class Play:
    """How one request is answered."""

    kind: str = "ok"
    text: str = REPLY
    uncached: int = 300
    cached: int = 600
    written: int = 0
    output: int = 50
    reasoning: int = 0
    retry_after: str = "0"
    wait_s: float = 30.0
    usage: bool = True
    finish: str = "stop"
    message: str = "no"
    tools: tuple[tuple[str, str], ...] = ()
    """Tools that the reply asks for: names, and arguments as JSON."""

    @property
    def prompt(self) -> int:
        """All tokens of the prompt."""
        return self.uncached + self.cached + self.written


@dataclass
class FaultServer:
    """Answers request number n, from 0, by `script(n, body)`."""

    script: Callable[[int, dict[str, Any]], Play] = lambda number, body: Play()
    base: str = ""
    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "m"}])
    """What there is, as its list says it."""
    page: int = 1000
    """Most models of one page in Anthropic's format."""
    count: Callable[[int, dict[str, Any]], Play] = lambda number, body: Play(kind="404")
    """How requests to count tokens are answered, which are not among the others: as most servers of one's own do."""
    counted: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    completed: list[Play] = field(default_factory=list)
    """Replies sent to the last byte."""
    broken: list[Play] = field(default_factory=list)
    """Everything else."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    open: int = 0
    """Requests that are being answered."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there are none."""

    def base_for(self, model: str) -> str:
        """The `api_base` that a model's format wants."""
        return self.base if model.startswith("anthropic/") else f"{self.base}/v1"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        body = await request.json() if request.method == "POST" else {}
        counts = request.path.endswith("/count_tokens")
        into, script = (self.counted, self.count) if counts else (self.requests, self.script)
        number = len(into)
        into.append({"path": request.path, "body": body, "headers": dict(request.headers)})
        self.asked.set()
        play = script(number, body)
        self.open += 1
        self.idle.clear()
        try:
            answer = await self._play(request, body, play)
            if isinstance(answer, web.Response) and play.kind != "drop":
                # written here, so that a reply counts only if it went out
                await answer.prepare(request)
                await answer.write_eof()
        except BaseException:
            if not counts:
                self.broken.append(play)
            raise
        finally:
            self.open -= 1
            if not self.open:
                self.idle.set()
        if not counts:
            (self.completed if play.kind in ("ok", "empty", "finish-filter") else self.broken).append(play)
        return answer

    async def _play(self, request: web.Request, body: dict[str, Any], play: Play) -> web.StreamResponse:
        kind = play.kind
        if kind == "slow":
            await asyncio.sleep(play.wait_s)
        if kind == "drop":
            _abort(request)
            return web.Response(text="")
        if kind in _STATUS:
            return _refusal(request, play, *_STATUS[kind])
        if kind == "redirect":
            return web.Response(status=307, headers={"Location": play.text})
        if kind == "html":
            return web.Response(text="<html>hello</html>", content_type="text/html")
        if request.method == "GET" or request.path.endswith("/count_tokens"):
            return await self._fact(request, play)
        messages = request.path.endswith("/messages")
        if body.get("stream"):
            return await _stream(request, play, _messages(play) if messages else _chunks(play))
        if kind == "malformed":
            return web.Response(text="{not json", content_type="application/json")
        text = json.dumps(_message(play) if messages else _completion(play))
        if kind in ("stall", "reset", "cut"):
            response = web.StreamResponse(headers={"Content-Type": "application/json",
                                                   "Content-Length": str(len(text.encode()))})  # fmt: skip
            await response.prepare(request)
            await response.write(text.encode()[: len(text) // 2])
            if kind == "stall":
                await asyncio.sleep(play.wait_s)
            _abort(request)
            return response
        return web.Response(text=text, content_type="application/json")

    async def _fact(self, request: web.Request, play: Play) -> web.StreamResponse:
        """The list of models, or a count of tokens."""
        if play.kind == "malformed":
            return web.Response(text="{not json", content_type="application/json")
        if play.kind in ("drip", "flood"):
            response = web.StreamResponse()
            await response.prepare(request)
            for _ in range(100_000):
                await response.write(b" " if play.kind == "drip" else b" " * (1 << 20))
                await asyncio.sleep(0.05 if play.kind == "drip" else 0)
        if request.method == "POST":
            return web.json_response({"input_tokens": play.prompt})
        if "anthropic-version" not in request.headers:
            return web.json_response({"object": "list", "data": self.models})
        ids = [model.get("id") for model in self.models]
        start = ids.index(request.query["after_id"]) + 1 if "after_id" in request.query else 0
        shown = self.models[start : start + self.page]
        more = start + self.page < len(ids)
        return web.json_response({"data": shown, "has_more": more, "first_id": ids[start] if shown else None,
                                  "last_id": ids[start + len(shown) - 1] if shown else None})  # fmt: skip


def _abort(request: web.Request) -> None:
    # the other side may have gone first
    if request.transport is not None:
        request.transport.abort()


#: kind to status, type of the error, and what it says
_STATUS = {
    "429": (429, "rate_limit_error", ""), "429-after": (429, "rate_limit_error", ""),
    "500": (500, "api_error", ""), "503": (503, "api_error", ""), "529": (529, "overloaded_error", "Overloaded"),
    "400": (400, "invalid_request_error", ""), "401": (401, "authentication_error", ""),
    "403": (403, "permission_error", ""), "404": (404, "not_found_error", ""), "408": (408, "timeout_error", ""),
    "quota": (429, "insufficient_quota",
              "You exceeded your current quota, please check your plan and billing details."),
    "credit": (400, "invalid_request_error", "Your credit balance is too low to access the API."),
    "context": (400, "context_length_exceeded",
                "This model's maximum context length is 10 tokens. prompt is too long: 99 tokens > 10 maximum"),
    "filter": (400, "content_policy_violation",
               "The response was filtered due to the prompt triggering our content management policy."),
    "no-stream": (400, "invalid_request_error", "Unknown parameter: stream_options"),
}  # fmt: skip


def _refusal(request: web.Request, play: Play, status: int, kind: str, said: str) -> web.Response:
    message = said or play.message
    if "{key}" in message:
        key = request.headers.get("Authorization", "") or request.headers.get("x-api-key", "")
        message = message.replace("{key}", key)
    error = {"type": kind, "code": kind, "message": message}
    headers = {"Retry-After": play.retry_after} if play.kind == "429-after" else None
    return web.json_response({"type": "error", "error": error}, status=status, headers=headers)


def _text(play: Play) -> str | None:
    return None if play.kind == "empty" else "" if play.kind == "finish-filter" else play.text


def _finish(play: Play) -> str:
    return "content_filter" if play.kind == "finish-filter" else play.finish


def _openai_usage(play: Play) -> dict[str, Any]:
    return {"prompt_tokens": play.prompt, "completion_tokens": play.output, "total_tokens": play.prompt + play.output,
            "prompt_tokens_details": {"cached_tokens": play.cached},
            "completion_tokens_details": {"reasoning_tokens": play.reasoning}}  # fmt: skip


def _anthropic_usage(play: Play) -> dict[str, Any]:
    return {"input_tokens": play.uncached, "cache_read_input_tokens": play.cached,
            "cache_creation_input_tokens": play.written, "output_tokens": play.output}  # fmt: skip


def _openai_tools(play: Play) -> list[dict[str, Any]]:
    return [{"id": f"call_{at}", "type": "function", "index": at, "function": {"name": name, "arguments": arguments}}
            for at, (name, arguments) in enumerate(play.tools)]  # fmt: skip


def _blocks(play: Play) -> list[dict[str, Any]]:
    text = _text(play)
    tools = [{"type": "tool_use", "id": f"toolu_{at}", "name": name, "input": json.loads(arguments)}
             for at, (name, arguments) in enumerate(play.tools)]  # fmt: skip
    return ([{"type": "text", "text": text}] if text else []) + tools


def _completion(play: Play) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _text(play)}
    if play.tools:
        message["tool_calls"] = [{key: call[key] for key in ("id", "type", "function")} for call in _openai_tools(play)]
    choice = {"index": 0, "finish_reason": "tool_calls" if play.tools else _finish(play), "message": message}
    body: dict[str, Any] = {"id": "1", "object": "chat.completion", "created": 1, "model": "m",
                            "choices": [] if play.kind == "no-choices" else [choice]}  # fmt: skip
    return body | ({"usage": _openai_usage(play)} if play.usage else {})


def _message(play: Play) -> dict[str, Any]:
    stop = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}[_finish(play)]
    stop = "tool_use" if play.tools else stop
    return {"id": "1", "type": "message", "role": "assistant", "model": "m",
            "content": _blocks(play), "stop_reason": stop, "stop_sequence": None,
            "usage": _anthropic_usage(play)}  # fmt: skip


def _chunks(play: Play) -> list[str]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return json.dumps({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m",
                           "choices": [choice]})  # fmt: skip

    text = _text(play) or ""
    lines = [chunk({"role": "assistant", "content": ""})]
    lines += [chunk({"content": text[at : at + 40]}) for at in range(0, len(text), 40)]
    for call in _openai_tools(play):
        arguments = call["function"]["arguments"]
        first = call | {"function": {"name": call["function"]["name"], "arguments": ""}}
        lines.append(chunk({"tool_calls": [first]}))
        lines += [chunk({"tool_calls": [{"index": call["index"], "function": {"arguments": arguments[at : at + 30]}}]})
                  for at in range(0, len(arguments), 30)]  # fmt: skip
    lines.append(chunk({}, "tool_calls" if play.tools else _finish(play)))
    if play.usage:
        lines.append(json.dumps({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m",
                                 "choices": [], "usage": _openai_usage(play)}))  # fmt: skip
    return [f"data: {line}\n\n" for line in lines] + ["data: [DONE]\n\n"]


def _messages(play: Play) -> list[str]:
    whole = _message(play)
    start = whole | {"content": [], "stop_reason": None, "usage": _anthropic_usage(play) | {"output_tokens": 1}}
    text = _text(play) or ""
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text[at : at + 40]}}
          for at in range(0, len(text), 40)),
        {"type": "content_block_stop", "index": 0},
        *(event for at, (name, arguments) in enumerate(play.tools, 1) for event in (
            {"type": "content_block_start", "index": at, "content_block": {
                "type": "tool_use", "id": f"toolu_{at}", "name": name, "input": {}}},
            *({"type": "content_block_delta", "index": at, "delta": {
                "type": "input_json_delta", "partial_json": arguments[part : part + 30]}}
              for part in range(0, len(arguments), 30)),
            {"type": "content_block_stop", "index": at},
        )),
        {"type": "message_delta", "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
         "usage": {"output_tokens": play.output}},
        {"type": "message_stop"},
    ]  # fmt: skip
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


async def _stream(request: web.Request, play: Play, pieces: list[str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    broken = play.kind in ("stall", "reset", "cut")
    if play.kind == "malformed":
        pieces = ["data: {not json\n\n"]
    if play.kind == "no-choices":
        pieces = pieces[-1:]
    for piece in pieces[: len(pieces) // 2] if broken else pieces:
        await response.write(piece.encode())
    if play.kind == "stall":
        await asyncio.sleep(play.wait_s)
    if play.kind in ("stall", "reset"):
        _abort(request)
        return response
    await response.write_eof()
    return response


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[FaultServer]:
    """A running server."""
    made = FaultServer()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/{tail:.*}", made.handle)
    app.router.add_get("/{tail:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None, logger=_QUIET,
                           handler_cancellation=True)  # fmt: skip
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def in_background() -> Iterator[FaultServer]:
    """A running server with a thread of its own, for what blocks."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    context = serving()
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(10)
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def always(play: Play) -> Callable[[int, dict[str, Any]], Play]:
    """Every request is answered like this."""
    return lambda number, body: play


def in_turn(*plays: Play) -> Callable[[int, dict[str, Any]], Play]:
    """One after another; the last one repeats."""
    return lambda number, body: plays[min(number, len(plays) - 1)]
