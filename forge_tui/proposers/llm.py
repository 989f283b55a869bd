"""Any model that LiteLLM knows, as a proposer: our own retries, every call written down before it is made.

LiteLLM takes seconds to import, so it is imported in a thread at the first call and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from forge_tui.core.records import Edge, LlmCall, Proposal, Record
from forge_tui.proposers import book, keys, longer, pricing, prompt, streaming
from forge_tui.proposers.faults import Fault, fault_of
from forge_tui.proposers.parse import TRUNCATED, Reply, parse_reply
from forge_tui.proposers.strategies import draw
from forge_tui.proposers.streaming import Answer, Patience

#: read by LiteLLM when it is imported: no look-ups on the network, no `.env` of the current folder
SETTINGS = {"LITELLM_OFFLINE_MODE": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
MAX_TRIES = 5
BACKOFF_S, BACKOFF_MAX_S = 1.0, 60.0

#: what a model can be asked for
ASKED = (Edge.DRAFT, Edge.IMPROVE, Edge.REPAIR, Edge.REWRITE, Edge.MERGE, Edge.TRANSFER)

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
        _loaded = litellm
    return _loaded


class _Request(Record, frozen=True, kw_only=True):
    """What is asked, and what it may cost."""

    arguments: dict[str, Any]
    prompt: str
    price: pricing.Price | None
    reserved_usd: float | None
    first_s: float


class _Answered(Record, frozen=True, kw_only=True):
    """A reply, still open in the books."""

    finish: str
    call: LlmCall
    number: int

    def read(self, task: Task, text: str | None = None) -> Reply:
        """What it holds; `text` is the whole of which it is the end."""
        whole = self.call.reply if text is None else text
        return parse_reply(whole, task.device.language, self.finish, prompt.base(task))


class LlmProposer:
    """Asks one model for kernels."""

    def __init__(
        self, model: str, *, api_base: str | None = None, price: Sequence[float] | None = None,
        templates: book.PromptBook | None = None, patience: Patience | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> None:  # fmt: skip
        """`price` is in dollars per million tokens: input, output, then cached input and cache writes.

        `max_tokens` is the most output of a call; a model that refuses `temperature` is asked without.
        """
        self.name = model
        self._api_base = api_base
        self._given = price
        self._most_output = max_tokens
        self._temperature = temperature
        self._templates = templates
        self._patience = patience or Patience()
        self._sleep = sleep
        self._books: Books | None = None
        self._dead = ""
        self._unfit: set[tuple[str, Edge, int | None]] = set()
        self._litellm: Any = None
        self._keys: dict[str, str] | None = None
        self._stream = True

    def can(self, task: Task) -> bool:
        """Anything that asks for a kernel, unless the model turned out to be unusable, or not to take it."""
        return not self._dead and task.edge in ASKED and _place(task) not in self._unfit

    def keep_books(self, books: Books) -> None:
        """Write calls down there from now on."""
        self._books = books

    def revive(self) -> None:
        """Try again after a person changed a key, an account or a server."""
        self._dead = ""
        self._keys = None
        self._unfit.clear()

    async def propose(self, task: Task) -> Proposal:
        """Ask the model. Faults of the provider are `infra`, with `fatal` where asking again is useless."""
        deadline = time.monotonic() + self._patience.total_s
        try:
            asked = prompt.render(task, self._templates)
        except ConfigError as error:
            return self._failed(task, Fault(text=str(error), retry=False, fatal=True), None, 0)
        litellm = await self._load()
        try:
            request = await self._request(litellm, asked)
        except _UnaskedError as error:
            return self._failed(task, error.fault, None, 0)
        came = await self._answer(litellm, request, task, deadline)
        if isinstance(came, Proposal):
            return came
        reply = came.read(task)
        if reply.failure == TRUNCATED:
            self._settle(came.number, came.call)
            request = await self._longer(litellm, request, came.call.reply)
            again = await self._answer(litellm, request, task, deadline, came.call.attempt + 1)
            if isinstance(again, Proposal):
                return again
            reply = again.read(task, longer.joined(request.arguments, came.call.reply, again.call.reply))
            came = again
        return Proposal(source=reply.source, idea=reply.hypothesis, family=reply.family, call=came.call,
                        booked=came.number, failure=reply.failure)  # fmt: skip

    async def _answer(
        self, litellm: Any, request: _Request, task: Task, deadline: float, first: int = 1
    ) -> _Answered | Proposal:
        """The answer to one request after every try that made sense, or why there is none."""
        for attempt in range(first, first + MAX_TRIES):
            call = LlmCall(
                model=self.name, prompt=request.prompt, reply="", state="open", attempt=attempt,
                reserved_usd=request.reserved_usd, price=request.price.text if request.price else "",
            )  # fmt: skip
            number = self._books.open(task, call) if self._books is not None else 0
            if number is None:
                text = f"The budget does not allow another call of {self.name}."
                return Proposal(source=None, failure=text, infra=True, this_request=True)
            came = await self._try(litellm, request, call, number, deadline)
            if isinstance(came, Answer):
                return _Answered(finish=came.finish, call=_done(call, request, came), number=number)
            fault, call = came
            last = attempt == first + MAX_TRIES - 1
            wait_s = 0.0 if fault.no_stream else self._wait_s(fault, attempt - first, task.seed)
            if fault.retry and not last and time.monotonic() + wait_s >= deadline:
                text = f"{fault.text} The next try would have to wait {wait_s:.0f} s."
                fault = msgspec.structs.replace(fault, text=text, retry=False)
            if not fault.retry or last:
                return self._failed(task, fault, call, number)
            self._settle(number, call)
            await self._sleep(wait_s)
        raise AssertionError("the last attempt returns")

    async def most_usd(self) -> float:
        """The most that one call may cost, by its price; 0 where that is not known."""
        litellm = await self._load()
        info = pricing.model_info(litellm, self.name)
        price = pricing.price_of(info, self._given)
        output = pricing.max_tokens(info, self.name, self._most_output)
        return price.most(pricing.MOST_PROMPT_TOKENS, output) if price else 0.0

    async def priced(self) -> bool:
        """Whether the price is known."""
        return pricing.price_of(pricing.model_info(await self._load(), self.name), self._given) is not None

    async def close(self) -> None:
        """Let go of connections."""
        if self._litellm is not None:
            # whatever a library raises while it closes sockets is of no use to anybody
            with contextlib.suppress(Exception):
                await self._litellm.close_litellm_async_clients()
                # it would hand out the closed ones again
                self._litellm.in_memory_llm_clients_cache.flush_cache()

    # ---- the call

    async def _load(self) -> Any:
        if self._litellm is None:
            self._litellm = await asyncio.to_thread(load_litellm)
        return self._litellm

    async def _try(
        self, litellm: Any, request: _Request, call: LlmCall, number: int, deadline: float
    ) -> Answer | tuple[Fault, LlmCall]:
        """One request: its answer, or what went wrong and what that cost."""
        began = time.monotonic()
        left_s = max(0.001, deadline - began)
        patience = msgspec.structs.replace(self._patience, attempt_s=min(self._patience.attempt_s, left_s))
        try:
            return await streaming.ask(litellm, request.arguments, patience, stream=self._stream,
                                       first_s=min(request.first_s, left_s))  # fmt: skip
        except asyncio.CancelledError:
            self._settle(number, _booked(call, "cancelled", "Stopped by request.", time.monotonic() - began))
            raise
        # providers raise plain IndexErrors too
        except Exception as error:  # noqa: BLE001
            fault = fault_of(error, self.name, time.time())
            usage = getattr(error, "usage", None)
            if fault.no_stream:
                if not self._stream:
                    fault = msgspec.structs.replace(fault, retry=False, no_stream=False, fatal=True)
                self._stream = False
            return fault, _ended(call, request, fault, usage, time.monotonic() - began)

    async def _request(self, litellm: Any, asked: prompt.Prompt) -> _Request:
        """The request, its price, and the keys that the environment lacks.

        Raises:
            _UnaskedError: there is no key.
        """
        key = await self._key_arguments(litellm)
        info = pricing.model_info(litellm, self.name)
        tokens = pricing.max_tokens(info, self.name, self._most_output)
        messages = _without_keys(asked.messages(markers=_wants_markers(self.name)))
        arguments: dict[str, Any] = {
            "model": self.name, "messages": messages, "max_tokens": tokens, "max_retries": 0, "num_retries": 0,
            "drop_params": True,
        }  # fmt: skip
        if self._temperature is not None:
            arguments["temperature"] = self._temperature
        if self._api_base:
            arguments["api_base"] = self._api_base
        arguments |= key
        price = pricing.price_of(info, self._given)
        reserved = await self._most(litellm, price, arguments)
        unseen = pricing.reasons_unseen(info, self.name)
        return _Request(
            arguments=arguments, prompt=secrets.without_values(asked.text), price=price, reserved_usd=reserved,
            first_s=self._patience.reasoning_first_s if unseen or self._api_base else self._patience.first_s,
        )  # fmt: skip

    async def _longer(self, litellm: Any, request: _Request, text: str) -> _Request:
        """The request that follows a reply that was cut off, and what that may cost."""
        info = pricing.model_info(litellm, self.name)
        arguments = longer.request(request.arguments, text, info.get("max_output_tokens"))
        reserved = await self._most(litellm, request.price, arguments)
        return msgspec.structs.replace(request, arguments=arguments, reserved_usd=reserved)

    async def _most(self, litellm: Any, price: pricing.Price | None, arguments: dict[str, Any]) -> float | None:
        if price is None:
            return None
        bound = await asyncio.to_thread(pricing.prompt_bound, litellm, self.name, arguments["messages"])
        return price.most(bound, arguments["max_tokens"])

    async def lacks(self) -> str:
        """The key that is missing, and where to put it; empty where there is one."""
        try:
            await self._key_arguments(await self._load())
        except _UnaskedError as error:
            return error.fault.text
        return ""

    async def _key_arguments(self, litellm: Any) -> dict[str, str]:
        if self._keys is not None:
            return self._keys
        missing: list[str] = []
        with contextlib.suppress(Exception):
            missing = list(litellm.validate_environment(self.name).get("missing_keys") or [])
        try:
            found, nowhere = await asyncio.to_thread(keys.arguments, missing)
        except ConfigError as error:
            raise _UnaskedError(Fault(text=str(error), retry=False, fatal=True)) from None
        if nowhere and self._api_base:
            # servers of one's own want no key, and the client libraries want a word
            found = {"api_key": "none"}
        elif nowhere:
            text = f"{self.name} needs {' and '.join(sorted(nowhere))}. {keys.where_to_put()}"
            raise _UnaskedError(Fault(text=text, retry=False, fatal=True))
        self._keys = found
        return found

    @staticmethod
    def _wait_s(fault: Fault, attempt: int, seed: int) -> float:
        backoff = min(BACKOFF_MAX_S, BACKOFF_S * float(2**attempt)) * (0.5 + draw(seed, f"retry {attempt}"))
        # a provider's own word counts, with the jitter on top so that several callers do not come back at once
        return backoff if fault.retry_after_s is None else fault.retry_after_s + min(1.0, 0.1 * backoff)

    # ---- what is written down

    def _settle(self, number: int, call: LlmCall) -> None:
        if self._books is not None:
            self._books.settle(number, call)

    def _failed(self, task: Task, fault: Fault, call: LlmCall | None, number: int) -> Proposal:
        if fault.fatal:
            self._dead = fault.text
        if fault.this_request:
            self._unfit.add(_place(task))
        return Proposal(source=None, failure=fault.text, infra=True, fatal=fault.fatal, call=call, booked=number,
                        this_request=fault.this_request, retry_after_s=fault.retry_after_s)  # fmt: skip


class _UnaskedError(Exception):
    """No request can be made."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


def _place(task: Task) -> tuple[str, Edge, int | None]:
    node = task.failed or task.parent
    return task.target.id, task.edge, node.id if node is not None else None


def _done(call: LlmCall, request: _Request, answer: Answer) -> LlmCall:
    came = msgspec.structs.replace(call, state="done", reply=secrets.without_values(answer.text),
                                   latency_s=answer.seconds)  # fmt: skip
    return _counted(came, request, answer.usage)


def _ended(
    call: LlmCall, request: _Request, fault: Fault, usage: pricing.Usage | None, latency_s: float
) -> LlmCall:
    """A call that came to nothing: free, by its own count, or at what was set aside."""
    if not fault.maybe_paid:
        return msgspec.structs.replace(call, state="failed", error=fault.text, latency_s=latency_s, cost_usd=0.0,
                                       priced=True)  # fmt: skip
    broken = _booked(call, "broken", fault.text, latency_s)
    return broken if usage is None or not usage.known else _counted(broken, request, usage)


def _counted(call: LlmCall, request: _Request, usage: pricing.Usage) -> LlmCall:
    cost = call.reserved_usd
    if request.price is not None and usage.known:
        cost = request.price.cost(usage)
    return msgspec.structs.replace(
        call, prompt_tokens=usage.prompt, cached_tokens=usage.cached, cache_write_tokens=usage.written,
        completion_tokens=usage.completion, reasoning_tokens=usage.reasoning, cost_usd=cost, priced=cost is not None,
        exact=usage.known,
    )  # fmt: skip


def _booked(call: LlmCall, state: Any, error: str, latency_s: float) -> LlmCall:
    return msgspec.structs.replace(call, state=state, error=error, latency_s=latency_s, cost_usd=call.reserved_usd,
                                   priced=call.reserved_usd is not None, exact=False)  # fmt: skip


def _without_keys(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without the values of keys, which a user's source may hold."""

    def clear(content: Any) -> Any:
        if isinstance(content, str):
            return secrets.without_values(content)
        return [part | {"text": secrets.without_values(part["text"])} for part in content]

    return [message | {"content": clear(message["content"])} for message in messages]


def _wants_markers(model: str) -> bool:
    return model.startswith("anthropic/")
