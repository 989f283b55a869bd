"""Tokens of a prompt by the provider's own count, before the call is paid: a free request to Anthropic.

Where there is no such count, or it does not come in time, the upper bound of `pricing` serves. Nothing is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from forge_tui.core.errors import ConfigError
from forge_tui.core.records import Record
from forge_tui.proposers import anthropics, faults, pricing, providers, table

#: the provider calls its count an estimate that may be off a little
_SLACK, _AROUND = 1.02, 32
#: counts kept, by content
_KEPT = 256
#: seconds without another attempt after one that failed; refusals do not pass
_PAUSE_S, _REFUSED_S = 60.0, 600.0


class Count(Record, frozen=True, kw_only=True):
    """How many tokens a prompt has."""

    tokens: int
    """The provider's count, or the most that it can be."""
    exact: bool
    why: str = ""
    """Why it is not exact, as a sentence."""

    @property
    def most(self) -> int:
        """What to set money aside for."""
        return math.ceil(self.tokens * _SLACK) + _AROUND if self.exact else self.tokens


class Counter:
    """Counts the prompts of one model; one for each model, closed at the end."""

    def __init__(self, model: str, *, timeout_s: float = 4.0) -> None:
        """`timeout_s` is what a call waits at most for its count; importing the package is not in it."""
        self._model = model
        self._timeout_s = timeout_s
        self._kept: OrderedDict[bytes, int] = OrderedDict()
        self._client: Any = None
        self._made_for: tuple[str, str, bool] | None = None
        self._rest_until = 0.0
        self._why = ""

    async def count(self, litellm: Any, request: Mapping[str, Any]) -> Count:
        """The tokens of a request to LiteLLM: its `messages`, `tools`, `api_base` and `api_key`. Never raises."""
        messages, tools = request["messages"], request.get("tools") or ()
        sent = [*messages]
        if tools:
            sent.append({"role": "system", "content": msgspec.json.encode(tools).decode()})
        bound = await asyncio.to_thread(pricing.prompt_bound, litellm, self._model, sent)
        if table.provider_of(self._model) != "anthropic":
            return Count(tokens=bound, exact=False, why=f"Nobody counts the tokens of {self._model} for free.")
        try:
            asked = _converted(messages, tools) | {"model": self._model.removeprefix("anthropic/")}
        # messages of a form that is not known here
        except (KeyError, TypeError, ValueError, AttributeError):
            return Count(tokens=bound, exact=False, why="The prompt has a form that cannot be counted.")
        content = hashlib.sha256(msgspec.json.encode(asked, order="sorted")).digest()
        if content in self._kept:
            self._kept.move_to_end(content)
            return self._bounded(self._kept[content], bound)
        if time.monotonic() < self._rest_until:
            return Count(tokens=bound, exact=False, why=self._why)
        try:
            counted = await self._ask(asked, request)
        # whatever goes wrong, the bound is there
        except Exception as error:  # noqa: BLE001
            self._rest(error)
            return Count(tokens=bound, exact=False, why=self._why)
        self._kept[content] = counted
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return self._bounded(counted, bound)

    async def close(self) -> None:
        """Let go of the connection."""
        client, self._client, self._made_for = self._client, None, None
        await _closed(client)

    @staticmethod
    def _bounded(counted: int, bound: int) -> Count:
        # no tokenizer makes more tokens than bytes: a count above that is of something else
        return Count(tokens=min(counted, bound), exact=True)

    async def _ask(self, asked: dict[str, Any], request: Mapping[str, Any]) -> int:
        client = await self._open(request)
        async with asyncio.timeout(self._timeout_s):
            async with client.messages.with_streaming_response.count_tokens(**asked) as response:
                found = (await anthropics.body(response)).get("input_tokens")
        if not isinstance(found, int) or isinstance(found, bool) or found <= 0:
            raise ValueError("it has no count of tokens")
        return found

    async def _open(self, request: Mapping[str, Any]) -> Any:
        """The client for this address and key; another one where they changed.

        Raises:
            ConfigError: there is no key.
        """
        name, key, nowhere = ("", str(request["api_key"]), ()) if request.get("api_key") else \
            await providers.in_time(lambda: providers.key("anthropic"), self._timeout_s)  # fmt: skip
        if nowhere and not request.get("api_base"):
            raise ConfigError(f"{self._model} needs {' and '.join(nowhere)}.")
        wanted = (anthropics.base(request.get("api_base")), key, name.endswith("_TOKEN"))
        await asyncio.to_thread(anthropics.load)
        if self._client is None or wanted != self._made_for:
            # nothing is awaited between the question and its answer: several calls share one client
            old, (base, key, token) = self._client, wanted
            self._client, self._made_for = anthropics.client(base, key, self._timeout_s, token=token), wanted
            await _closed(old)
        return self._client

    def _rest(self, error: Exception) -> None:
        status = getattr(error, "status_code", None)
        lasting = isinstance(error, (ValueError, ConfigError))
        if isinstance(status, int):
            lasting = 300 <= status < 500 and status != 429
        self._rest_until = time.monotonic() + (_REFUSED_S if lasting else _PAUSE_S)
        said = error.what if isinstance(error, ConfigError) else faults.fault_of(error, self._model, time.time()).text
        self._why = f"The count of tokens did not come: {said}"


async def _closed(client: Any) -> None:
    if client is not None:
        # what a library raises while it closes sockets is of no use to anybody
        with contextlib.suppress(Exception):
            await client.close()


def _converted(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A request of OpenAI's form in Anthropic's, in which what the system says and tools say are no messages."""
    system: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    for message in messages:
        role = message["role"]
        parts = _parts(message.get("content"))
        if role == "system":
            system += parts
        elif role == "tool":
            said = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": parts}
            rest.append({"role": "user", "content": [said]})
        else:
            parts += [{"type": "tool_use", "id": call["id"], "name": call["function"]["name"],
                       "input": msgspec.json.decode(call["function"]["arguments"] or "{}")}
                      for call in message.get("tool_calls") or ()]  # fmt: skip
            rest.append({"role": role, "content": parts})
    offered = [{"name": tool["function"]["name"], "description": tool["function"].get("description", ""),
                "input_schema": tool["function"]["parameters"]} for tool in tools]  # fmt: skip
    return {"messages": rest} | ({"system": system} if system else {}) | ({"tools": offered} if offered else {})


def _parts(content: Any) -> list[dict[str, Any]]:
    if not content:
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else [dict(part) for part in content]
