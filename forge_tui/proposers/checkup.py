"""One model asked a tiny question or two: does it answer, stream, call tools, keep a prompt, and what does that cost.

The request goes the way of a search's requests. Nothing is tried twice: what is seen is what a search would see.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec

from forge_tui.core.errors import ConfigError
from forge_tui.core.records import Record
from forge_tui.proposers import capabilities, keys, pricing, providers, streaming, table
from forge_tui.proposers.faults import fault_of
from forge_tui.proposers.prompt import Prompt
from forge_tui.proposers.streaming import Answer, Patience
from forge_tui.proposers.timed import Timed

#: whether something works; `skipped` was not tried, `uncounted` is a stream without a count of tokens, `none` is what
#: the model is known not to have
Mark = Literal["yes", "no", "uncounted", "none", "skipped"]

TIMEOUT_S = 60.0
#: most tokens of a reply; the second for models that may reason before they write
_LIMIT, _REASONING_LIMIT = 64, 512
#: tokens from which on a prefix is kept, where that is not known: by itself, and with marks
_LEAST = {"automatic": 1024, "markers": 4096}
#: each is one token at least, whatever the tokenizer
_WORDS = ("load", "store", "row", "tile", "warp", "lane", "block", "grid")
_TOOL = {
    "type": "function",
    "function": {
        "name": "report", "description": "Report whether all is well.",
        "parameters": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    },
}  # fmt: skip


class Subject(Record, frozen=True, kw_only=True):
    """A model to be asked."""

    model: str
    host: str
    api_base: str | None = None
    price: tuple[float, ...] | None = None
    """Dollars per million tokens, as `--price` gives them."""
    temperature: float | None = None


class Checkup(Record, frozen=True, kw_only=True):
    """What came of it."""

    model: str
    host: str
    answers: Mark = "no"
    stream: Mark = "skipped"
    tools: Mark = "skipped"
    caching: Mark = "skipped"
    first_s: float | None = None
    """Seconds to the first token of the streamed reply; reasoning that is streamed counts."""
    total_s: float | None = None
    """Seconds to its end."""
    calls: int = 0
    cost_usd: float | None = 0.0
    """Of all calls; None where a price or a count is not known."""
    faults: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all that was tried works."""
        return not self.faults


async def examine_all(
    litellm: Any, subjects: Sequence[Subject], *, tools: bool, caching: bool, timeout_s: float = TIMEOUT_S,
    began: Callable[[Subject], None] = lambda _: None,
) -> list[Checkup]:  # fmt: skip
    """Ask every model: those of one host one after another, so that times are their own, hosts side by side."""
    found: dict[int, Checkup] = {}

    async def of_host(numbers: list[int]) -> None:
        for number in numbers:
            began(subjects[number])
            asked = _Examination(litellm, subjects[number], timeout_s)
            found[number] = await asked.run(tools=tools, caching=caching)

    await _warm(litellm)
    hosts: dict[str, list[int]] = {}
    for number, subject in enumerate(subjects):
        hosts.setdefault(subject.host, []).append(number)
    async with asyncio.TaskGroup() as group:
        for numbers in hosts.values():
            group.create_task(of_host(numbers))
    return [found[number] for number in range(len(subjects))]


async def _warm(litellm: Any) -> None:
    """Have LiteLLM import what it imports at its first call, which is no model's time; nothing is sent."""
    with contextlib.suppress(Exception):
        words = [{"role": "user", "content": "ready"}]
        made = await litellm.acompletion(model="openai/gpt-4o", messages=words, mock_response="ready", stream=True)
        async for _ in made:
            pass


def caching_most(subject: Subject) -> tuple[int, float | None]:
    """About how many tokens the two prompts have that try the cache, and the most dollars that they may cost."""
    words = 2 * _prefix_words(subject.model)
    price = _price(subject)
    most = 2 * price.most(math.ceil(words / 2 * 1.5) + 128, _limit(subject.model)) if price else None
    return words, most


def _price(subject: Subject) -> pricing.Price | None:
    return pricing.price_of(table.row(subject.model), subject.price)


def _limit(model: str) -> int:
    does = capabilities.of(model)
    wanted = _LIMIT if does.reasoning_effort is False else _REASONING_LIMIT
    return min(wanted, does.most_output or wanted)


def _prefix_words(model: str) -> int:
    does = capabilities.of(model)
    return math.ceil(1.2 * (does.cache_least or _LEAST.get(does.caching or "", 1024)))


class _Examination:
    """The calls to one model."""

    def __init__(self, litellm: Any, subject: Subject, timeout_s: float) -> None:
        self._litellm = litellm
        self._subject = subject
        self._does = capabilities.of(subject.model)
        self._price = _price(subject)
        self._timeout_s = timeout_s
        self._patience = Patience(first_s=timeout_s, reasoning_first_s=timeout_s, stall_s=timeout_s,
                                  attempt_s=timeout_s, total_s=timeout_s)  # fmt: skip
        self._found = Checkup(model=subject.model, host=subject.host)
        self._request: dict[str, Any] = {}

    async def run(self, *, tools: bool, caching: bool) -> Checkup:
        """Ask; faults are sentences in what is returned."""
        try:
            self._request = await self._arguments()
        except ConfigError as error:
            self._fault(str(error))
            return self._found
        if await self._guarded(self._answer()):
            if tools:
                await self._tools()
            if caching:
                await self._caching()
        return self._found

    async def _arguments(self) -> dict[str, Any]:
        """What every call has, with the keys that the environment lacks.

        Raises:
            ConfigError: there is no key.
        """
        model, base = self._subject.model, self._subject.api_base
        found, nowhere = await providers.in_time(self._keys, self._timeout_s)
        if nowhere and not base:
            raise ConfigError(f"{model} needs {' and '.join(nowhere)}.", keys.where_to_put())
        request: dict[str, Any] = {
            "model": model, "max_tokens": _limit(model), "max_retries": 0, "num_retries": 0, "drop_params": True,
        }  # fmt: skip
        if base:
            request["api_base"] = base
        temperature = self._subject.temperature
        if temperature is not None and capabilities.takes_temperature(model, temperature):
            request["temperature"] = temperature
        # servers of one's own want no key, and the client libraries want a word
        return request | ({"api_key": "none"} if nowhere else found)

    def _keys(self) -> tuple[dict[str, str], Sequence[str]]:
        provider = table.provider_of(self._subject.model)
        if provider in providers.KEYS:
            return providers.arguments(provider)
        missing: list[str] = []
        # any exception class may come from here
        with contextlib.suppress(Exception):
            missing = list(self._litellm.validate_environment(self._subject.model).get("missing_keys") or [])
        return keys.arguments(missing)

    # ---- what is tried

    async def _answer(self) -> None:
        """A reply of one word, streamed; plainly where the server does not stream."""
        messages = [{"role": "user", "content": "Reply with the single word: ready"}]
        timed = Timed(self._litellm)
        began = time.monotonic()
        try:
            answer = await self._ask(timed, messages, stream=True)
            self._note(stream="yes" if answer.usage.known else "uncounted",
                       first_s=timed.first_at - began if timed.first_at else None)  # fmt: skip
            if not answer.usage.known:
                self._fault(f"{self._subject.model} streams without a count of tokens: its calls are booked at the "
                            "most that they may cost.")  # fmt: skip
        except Exception as error:
            fault = fault_of(error, self._subject.model, time.time())
            if not fault.no_stream:
                raise
            self._note(stream="no")
            self._fault(fault.text)
            answer = await self._ask(timed, messages, stream=False)
        self._note(answers="yes", total_s=answer.seconds)

    async def _tools(self) -> None:
        if self._does.tools is False:
            self._note(tools="none")
            return
        self._note(tools="no")
        await self._guarded(self._call_tool())

    async def _call_tool(self) -> None:
        messages = [{"role": "user", "content": "Call the tool report with ok set to true. Write nothing else."}]
        answer = await self._ask(self._litellm, messages, stream=self._found.stream != "no", tools=[_TOOL])
        if any(call.name == "report" and _is_object(call.arguments) for call in answer.tools):
            self._note(tools="yes")
        else:
            self._fault(f"{self._subject.model} did not call the tool that it was offered.")

    async def _caching(self) -> None:
        if self._does.caching == "none":
            self._note(caching="none")
            return
        self._note(caching="no")
        await self._guarded(self._ask_twice())

    async def _ask_twice(self) -> None:
        """The same long prompt twice; what is read from the cache at the second time is counted."""
        words = _prefix_words(self._subject.model)
        # new at every time, so that the first call finds nothing
        prefix = secrets.token_hex(8) + " " + " ".join(_WORDS[n % len(_WORDS)] for n in range(words))
        asked = Prompt(system=prefix, card="These words mean nothing.", request="Reply with the single word: ready")
        messages = asked.messages(markers=capabilities.wants_markers(self._subject.model))
        stream = self._found.stream != "no"
        await self._ask(self._litellm, messages, stream=stream)
        usage = (await self._ask(self._litellm, messages, stream=stream)).usage
        if usage.cached:
            self._note(caching="yes")
        elif not usage.known:
            self._fault(f"Whether {self._subject.model} kept the prompt cannot be told: it does not count tokens.")
        else:
            chance = " Where providers keep prompts by themselves that is left to chance: try again." \
                if self._does.caching != "markers" else ""  # fmt: skip
            self._fault(f"{self._subject.model} read none of {usage.prompt} tokens from its cache at the second of two "
                        f"equal prompts.{chance}")  # fmt: skip

    # ---- calls and what is noted

    async def _ask(self, litellm: Any, messages: list[dict[str, Any]], *, stream: bool, **more: Any) -> Answer:
        self._note(calls=self._found.calls + 1)
        request = self._request | {"messages": messages} | more
        answer = await streaming.ask(litellm, request, self._patience, stream=stream, first_s=self._timeout_s)
        self._paid(answer.usage)
        return answer

    async def _guarded(self, work: Awaitable[None]) -> bool:
        """Whether it went without a fault of the provider."""
        try:
            await work
        # providers raise plain IndexErrors too
        except Exception as error:  # noqa: BLE001
            fault = fault_of(error, self._subject.model, time.time())
            self._fault(fault.text)
            usage = getattr(error, "usage", None)
            if fault.maybe_paid:
                self._paid(usage if isinstance(usage, pricing.Usage) else pricing.Usage())
            return False
        return True

    def _paid(self, usage: pricing.Usage) -> None:
        before, price = self._found.cost_usd, self._price
        if before is None or price is None or not usage.known:
            self._note(cost_usd=None)
        else:
            self._note(cost_usd=before + price.cost(usage))

    def _fault(self, text: str) -> None:
        self._note(faults=(*self._found.faults, text))

    def _note(self, **values: Any) -> None:
        self._found = msgspec.structs.replace(self._found, **values)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
