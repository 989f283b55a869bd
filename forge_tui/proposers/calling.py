"""Calls of one model through LiteLLM: written down before they are made, tried again where that makes sense.

LiteLLM takes seconds to import, so it is imported in a thread at the first call and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from forge_tui.core import secrets
from forge_tui.core.errors import ConfigError
from forge_tui.core.ports import Books, Task
from forge_tui.core.records import LlmCall, Record
from forge_tui.proposers import (
    capabilities,
    counting,
    keys,
    pricing,
    providers,
    redirects,
    streaming,
    table,
    tools,
)
from forge_tui.proposers.faults import Fault, fault_of
from forge_tui.proposers.strategies import draw
from forge_tui.proposers.streaming import Answer, Patience

#: read by LiteLLM when it is imported: no look-ups on the network, no `.env` of the current folder
SETTINGS = {"LITELLM_OFFLINE_MODE": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
MAX_TRIES = 5
BACKOFF_S, BACKOFF_MAX_S = 1.0, 60.0
#: for a keyring to answer
KEYS_S = 60.0

_loaded: Any = None


def load_litellm() -> Any:
    """Import LiteLLM, quiet and offline; slow the first time."""
    global _loaded
    if _loaded is None:
        os.environ.update(SETTINGS)
        for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "httpx", "openai"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        litellm: Any = importlib.import_module("litellm")
        litellm.suppress_debug_info = True
        litellm.set_verbose = False
        litellm.telemetry = False
        litellm.drop_params = True
        litellm.turn_off_message_logging = True
        redirects.forbid()
        _loaded = litellm
    return _loaded


class Request(Record, frozen=True, kw_only=True):
    """What is asked, and what it may cost."""

    arguments: dict[str, Any]
    prompt: str
    """For the ledger, without keys."""
    price: pricing.Price | None
    reserved_usd: float | None
    first_s: float

    def saying(self, prompt: str) -> Request:
        """The same with another text for the ledger."""
        return msgspec.structs.replace(self, prompt=secrets.without_values(prompt))


class Answered(Record, frozen=True, kw_only=True):
    """A reply that is in the books."""

    call: LlmCall
    number: int
    answer: Answer | None = None
    """None where it came to an earlier engine."""


class Failed(Record, frozen=True, kw_only=True):
    """No reply: why, and the last call in the books, where one was made."""

    fault: Fault
    call: LlmCall | None = None
    number: int = 0


class UnaskedError(Exception):
    """No request can be made."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


class Caller:
    """One model, its keys, its price and its books."""

    def __init__(
        self, model: str, *, api_base: str | None = None, price: Sequence[float] | None = None,
        patience: Patience | None = None, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        max_tokens: int | None = None, temperature: float | None = None,
    ) -> None:  # fmt: skip
        """`price` is in dollars per million tokens: input, output, then cached input and cache writes.

        `max_tokens` is the most output of a call; a model that refuses `temperature` is asked without.
        """
        self.model = model
        self.patience = patience or Patience()
        self.books: Books | None = None
        self.stream = True
        self._api_base = api_base
        self._given = price
        self._most_output = max_tokens
        self._temperature = temperature
        self._sleep = sleep
        self._litellm: Any = None
        self._keys: dict[str, str] | None = None
        self._counter = counting.Counter(model)

    async def load(self) -> Any:
        """LiteLLM."""
        if self._litellm is None:
            self._litellm = await asyncio.to_thread(load_litellm)
        return self._litellm

    def forget_keys(self) -> None:
        """Look for keys anew at the next call."""
        self._keys = None

    async def most_usd(self) -> float:
        """The most that one call may cost, by its price; 0 where that is not known."""
        info = table.row(self.model)
        price = pricing.price_of(info, self._given)
        output = pricing.max_tokens(info, self.model, self._most_output)
        return price.most(pricing.MOST_PROMPT_TOKENS, output) if price else 0.0

    async def about_usd(self, prompt_tokens: int) -> float | None:
        """What a usual reply to a prompt of so many tokens costs; None where the price is not known."""
        info = table.row(self.model)
        price = pricing.price_of(info, self._given)
        if price is None:
            return None
        unseen = capabilities.of(self.model).reasons_unseen
        usual = pricing.USUAL_THOUGHTFUL_OUTPUT if unseen else pricing.USUAL_OUTPUT
        output = min(usual, pricing.max_tokens(info, self.model, self._most_output))
        return price.cost(pricing.Usage(prompt=prompt_tokens, completion=output))

    async def priced(self) -> bool:
        """Whether the price is known."""
        return pricing.price_of(table.row(self.model), self._given) is not None

    async def close(self) -> None:
        """Let go of connections."""
        await self._counter.close()
        if self._litellm is not None:
            # whatever a library raises while it closes sockets is of no use to anybody
            with contextlib.suppress(Exception):
                await self._litellm.close_litellm_async_clients()
                # it would hand out the closed ones again
                self._litellm.in_memory_llm_clients_cache.flush_cache()

    # ---- requests

    async def request(self, messages: list[dict[str, Any]], prompt: str, **more: Any) -> Request:
        """A request with its price; `more` are arguments such as tools.

        Raises:
            UnaskedError: there is no key.
        """
        await self.load()
        key = await self._key_arguments()
        info = table.row(self.model)
        tokens = pricing.max_tokens(info, self.model, self._most_output)
        arguments: dict[str, Any] = {
            "model": self.model, "messages": _without_keys(messages), "max_tokens": tokens, "max_retries": 0,
            "num_retries": 0, "drop_params": True,
        } | more  # fmt: skip
        if self._temperature is not None and capabilities.takes_temperature(self.model, self._temperature):
            arguments["temperature"] = self._temperature
        arguments |= key
        if self._api_base:
            # what was said for this run is nearer than the file of keys
            arguments["api_base"] = self._api_base
        price = pricing.price_of(info, self._given)
        unseen = capabilities.of(self.model).reasons_unseen
        return Request(
            arguments=arguments, prompt=secrets.without_values(prompt), price=price,
            reserved_usd=await self._most(price, arguments),
            first_s=self.patience.reasoning_first_s if unseen or self._api_base else self.patience.first_s,
        )  # fmt: skip

    async def changed(self, request: Request, arguments: dict[str, Any]) -> Request:
        """The request with other arguments, and what that may cost."""
        cleared = arguments | {"messages": _without_keys(arguments["messages"])}
        return msgspec.structs.replace(request, arguments=cleared,
                                       reserved_usd=await self._most(request.price, cleared))  # fmt: skip

    async def room(self) -> int | None:
        """The most output tokens of the model at all; None where that is not known."""
        most = table.row(self.model).get("max_output_tokens")
        return most if isinstance(most, int) and most > 0 else None

    async def _most(self, price: pricing.Price | None, arguments: dict[str, Any]) -> float | None:
        if price is None:
            return None
        counted = await self._counter.count(self._litellm, arguments)
        return price.most(counted.most, arguments["max_tokens"])

    async def lacks(self) -> str:
        """The key that is missing, and where to put it; empty where there is one."""
        try:
            await self._key_arguments()
        except UnaskedError as error:
            return error.fault.text
        return ""

    async def _key_arguments(self) -> dict[str, str]:
        if self._keys is not None:
            return self._keys
        try:
            look = await self._where_keys_are()
            # keys that are not used must be known, too: they are neither sent nor kept
            await asyncio.to_thread(keys.learn)
            found, nowhere = await providers.in_time(look, KEYS_S)
        except ConfigError as error:
            raise UnaskedError(Fault(text=str(error), retry=False, fatal=True)) from None
        if nowhere and self._api_base:
            # servers of one's own want no key, and the client libraries want a word
            found = {"api_key": "none"} | found
        elif nowhere:
            text = f"{self.model} needs {' and '.join(sorted(nowhere))}. {keys.where_to_put()}"
            raise UnaskedError(Fault(text=text, retry=False, fatal=True))
        self._keys = found
        return found

    async def _where_keys_are(self) -> Callable[[], tuple[dict[str, str], Sequence[str]]]:
        provider = table.provider_of(self.model)
        if provider in providers.KEYS:
            return functools.partial(providers.arguments, provider)
        litellm = await self.load()
        missing: list[str] = []
        with contextlib.suppress(Exception):
            missing = list(litellm.validate_environment(self.model).get("missing_keys") or [])
        return functools.partial(keys.arguments, missing)

    # ---- calls

    def kept(self, task: Task) -> list[Answered]:
        """Replies to this step that came to an engine which ended before it could use them, oldest first."""
        found = self.books.came(task, self.model) if self.books is not None else []
        return [Answered(call=call, number=number) for number, call in found]

    async def answer(self, request: Request, task: Task, deadline: float, first: int = 1) -> Answered | Failed:
        """The answer to one request after every try that made sense, or why there is none; in the books either way.

        `first` is the number of the first try among those of one proposal; `deadline` is of `time.monotonic`.
        """
        stream, refused = self.stream, False
        ended: Failed | None = None
        for attempt in range(first, first + MAX_TRIES):
            if time.monotonic() >= deadline:
                text = f"{self.model} was not asked in time: other tries took {self.patience.total_s:.0f} s."
                return ended or Failed(fault=Fault(text=text, retry=False))
            call = LlmCall(
                model=self.model, prompt=request.prompt, reply="", state="open", attempt=attempt, seed=task.seed,
                reserved_usd=request.reserved_usd, price=request.price.text if request.price else "",
            )  # fmt: skip
            number = self.books.open(task, call) if self.books is not None else 0
            if number is None:
                text = f"The budget does not allow another call of {self.model}."
                return Failed(fault=Fault(text=text, retry=False, this_request=True, unasked=True))
            came = await self._try(request, call, number, deadline, stream=stream)
            if isinstance(came, Answer):
                # a word about streams may be about anything: only a plain answer proves it
                self.stream = self.stream and not refused
                done = _done(call, request, came)
                self._settle(number, done)
                return Answered(answer=came, call=done, number=number)
            fault, call = came
            self._settle(number, call)
            ended = Failed(fault=fault, call=call, number=number)
            if fault.no_stream:
                if not stream:
                    return Failed(fault=msgspec.structs.replace(fault, retry=False, fatal=True), call=call,
                                  number=number)  # fmt: skip
                stream, refused = False, True
                continue
            if not fault.retry or attempt == first + MAX_TRIES - 1:
                return ended
            wait_s = self._wait_s(fault, attempt - first, task.seed)
            if time.monotonic() + wait_s >= deadline:
                text = f"{fault.text} The next try would have to wait {wait_s:.0f} s."
                return Failed(fault=msgspec.structs.replace(fault, text=text, retry=False), call=call, number=number)
            await self._sleep(wait_s)
        assert ended is not None
        return ended

    async def _try(
        self, request: Request, call: LlmCall, number: int, deadline: float, *, stream: bool
    ) -> Answer | tuple[Fault, LlmCall]:
        """One request: its answer, or what went wrong and what that cost."""
        began = time.monotonic()
        left_s = max(0.001, deadline - began)
        patience = msgspec.structs.replace(self.patience, attempt_s=min(self.patience.attempt_s, left_s))
        try:
            return await streaming.ask(self._litellm, request.arguments, patience, stream=stream,
                                       first_s=min(request.first_s, left_s))  # fmt: skip
        except asyncio.CancelledError:
            self._settle(number, call.unanswered("cancelled", "Stopped by request.", time.monotonic() - began))
            raise
        # providers raise plain IndexErrors too
        except Exception as error:  # noqa: BLE001
            fault = fault_of(error, self.model, time.time())
            usage = getattr(error, "usage", None)
            return fault, _ended(call, request, fault, usage, time.monotonic() - began)

    def _settle(self, number: int, call: LlmCall) -> None:
        if self.books is not None:
            self.books.settle(number, call)

    @staticmethod
    def _wait_s(fault: Fault, attempt: int, seed: int) -> float:
        backoff = min(BACKOFF_MAX_S, BACKOFF_S * float(2**attempt)) * (0.5 + draw(seed, f"retry {attempt}"))
        # a provider's own word counts, with the jitter on top so that several callers do not come back at once
        return backoff if fault.retry_after_s is None else fault.retry_after_s + min(1.0, 0.1 * backoff)


def _done(call: LlmCall, request: Request, answer: Answer) -> LlmCall:
    reply = secrets.without_values(tools.written(answer.text, answer.tools))
    came = msgspec.structs.replace(call, state="done", reply=reply, finish=answer.finish, latency_s=answer.seconds)
    return _counted(came, request, answer.usage)


def _ended(
    call: LlmCall, request: Request, fault: Fault, usage: pricing.Usage | None, latency_s: float
) -> LlmCall:
    """A call that came to nothing: free, by its own count, or at what was set aside."""
    if not fault.maybe_paid:
        return msgspec.structs.replace(call, state="failed", error=fault.text, latency_s=latency_s, cost_usd=0.0,
                                       priced=True)  # fmt: skip
    broken = call.unanswered("broken", fault.text, latency_s)
    return broken if usage is None or not usage.known else _counted(broken, request, usage)


def _counted(call: LlmCall, request: Request, usage: pricing.Usage) -> LlmCall:
    cost = call.reserved_usd
    if request.price is not None and usage.known:
        cost = request.price.cost(usage)
    return msgspec.structs.replace(
        call, prompt_tokens=usage.prompt, cached_tokens=usage.cached, cache_write_tokens=usage.written,
        completion_tokens=usage.completion, reasoning_tokens=usage.reasoning, cost_usd=cost, priced=cost is not None,
        exact=usage.known,
    )  # fmt: skip


def _without_keys(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without the values of keys, which a user's source may hold."""

    def clear(content: Any) -> Any:
        if isinstance(content, str):
            return secrets.without_values(content)
        if not isinstance(content, list):
            return content
        return [part | {"text": secrets.without_values(part["text"])} if "text" in part else part for part in content]

    return [message | {"content": clear(message.get("content"))} for message in messages]
