"""Any model that LiteLLM knows, as a proposer: one request, our own retries, every paid call written down.

LiteLLM takes seconds to import, so it is imported in a thread at the first call and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from forge_tui.core.errors import ConfigError
from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, LlmCall, Proposal
from forge_tui.proposers import book, longer, pricing, prompt
from forge_tui.proposers.faults import EmptyReplyError, Fault, fault_of
from forge_tui.proposers.parse import TRUNCATED, clean, parse_reply
from forge_tui.proposers.strategies import draw

#: read by LiteLLM when it is imported: no look-ups on the network, no `.env` of the current folder
SETTINGS = {"LITELLM_OFFLINE_MODE": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
MAX_TRIES = 5
ATTEMPT_S = 300.0
TOTAL_S = 900.0
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


class LlmProposer:
    """Asks one model for kernels."""

    def __init__(
        self, model: str, *, api_base: str | None = None, templates: book.PromptBook | None = None,
        attempt_s: float = ATTEMPT_S, total_s: float = TOTAL_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        self.name = model
        self._api_base = api_base
        self._templates = templates
        self._attempt_s = attempt_s
        self._total_s = total_s
        self._sleep = sleep
        self._dead = ""
        self._litellm: Any = None

    def can(self, task: Task) -> bool:
        """Anything that asks for a kernel, unless the model turned out to be unusable."""
        return not self._dead and task.edge in ASKED

    async def propose(self, task: Task) -> Proposal:
        """Ask the model. Faults of the provider are `infra`, with `fatal` where asking again is useless."""
        try:
            asked = prompt.render(task, self._templates)
        except ConfigError as error:
            self._dead = str(error)
            return Proposal(source=None, failure=str(error), infra=True, fatal=True)
        started = time.monotonic()
        earlier: tuple[LlmCall, ...] = ()
        try:
            async with asyncio.timeout(self._total_s):
                litellm = await self._load()
                request = self._request(litellm, asked)
                response, text, reason = await self._ask(litellm, request, task.seed)
                call = self._call(asked, response, text, time.monotonic() - started)
                reply = parse_reply(text, task.device.language, reason, prompt.base(task))
                if reply.failure == TRUNCATED:
                    earlier, first, started = (call,), text, time.monotonic()
                    info = pricing.model_info(litellm, self.name)
                    request = longer.request(request, text, info.get("max_output_tokens"))
                    response, text, reason = await self._ask(litellm, request, task.seed)
                    call = self._call(asked, response, text, time.monotonic() - started)
                    reply = parse_reply(longer.joined(request, first, text), task.device.language, reason,
                                        prompt.base(task))  # fmt: skip
        except _GaveUp as end:
            failed = self._failed(end.fault, asked, time.monotonic() - started, end.response)
            return msgspec.structs.replace(failed, earlier=earlier)
        except TimeoutError:
            fault = Fault(text=f"{self.name} did not answer in {self._total_s:g} s.", retry=False, maybe_paid=True)
            failed = self._failed(fault, asked, time.monotonic() - started, None)
            return msgspec.structs.replace(failed, earlier=earlier)
        return Proposal(source=reply.source, idea=reply.hypothesis, family=reply.family, failure=reply.failure,
                        call=call, earlier=earlier)  # fmt: skip

    async def most_usd(self) -> float:
        """The most that one call may cost, by LiteLLM's table; 0 where the model is not in it."""
        return pricing.most_usd(await self._load(), self.name)

    async def close(self) -> None:
        """Let go of connections."""
        if self._litellm is not None:
            # whatever a library raises while it closes sockets is of no use to anybody
            with contextlib.suppress(Exception):
                await self._litellm.close_litellm_async_clients()

    # ---- the call

    async def _load(self) -> Any:
        if self._litellm is None:
            self._litellm = await asyncio.to_thread(load_litellm)
        return self._litellm

    async def _ask(self, litellm: Any, request: dict[str, Any], seed: int) -> tuple[Any, str, str]:
        """The response with its text and how it ended.

        Raises:
            _GaveUp: no answer, after every retry that made sense.
        """
        deadline = time.monotonic() + self._total_s
        for attempt in range(MAX_TRIES):
            response = None
            try:
                async with asyncio.timeout(self._attempt_s + 5):
                    response = await litellm.acompletion(**request)
                return (response, *_text_of(response))
            # providers raise plain IndexErrors too; cancellation is no Exception
            except Exception as error:  # noqa: BLE001
                fault = fault_of(error, self.name, time.time())
            wait_s = self._wait_s(fault, attempt, seed)
            if not fault.retry or attempt == MAX_TRIES - 1:
                raise _GaveUp(fault, response)
            if time.monotonic() + wait_s >= deadline:
                text = f"{fault.text} The next try would have to wait {wait_s:.0f} s."
                raise _GaveUp(Fault(text=text, retry=False, maybe_paid=fault.maybe_paid), response)
            await self._sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    def _request(self, litellm: Any, asked: prompt.Prompt) -> dict[str, Any]:
        info = pricing.model_info(litellm, self.name)
        request = {
            "model": self.name,
            "messages": asked.messages(markers=_wants_markers(self.name)),
            "max_tokens": pricing.max_tokens(info, self.name),
            "timeout": self._attempt_s,
            "max_retries": 0,
            "num_retries": 0,
            "drop_params": True,
        }
        if self._api_base:
            request["api_base"] = self._api_base
        missing: list[str] = []
        with contextlib.suppress(Exception):
            missing = list(litellm.validate_environment(self.name).get("missing_keys") or [])
        if missing and self._api_base:
            # servers of one's own want no key, and the client libraries want a word
            request["api_key"] = "none"
        elif missing:
            text = f"{self.name} needs {' and '.join(sorted(missing))} in the environment."
            raise _GaveUp(Fault(text=text, retry=False, fatal=True), None)
        return request

    @staticmethod
    def _wait_s(fault: Fault, attempt: int, seed: int) -> float:
        backoff = min(BACKOFF_MAX_S, BACKOFF_S * float(2**attempt)) * (0.5 + draw(seed, f"retry {attempt}"))
        # a provider's own word counts, with the jitter on top so that several callers do not come back at once
        return backoff if fault.retry_after_s is None else fault.retry_after_s + min(1.0, 0.1 * backoff)

    # ---- what is written down

    def _failed(self, fault: Fault, asked: prompt.Prompt, latency_s: float, response: Any) -> Proposal:
        if fault.fatal:
            self._dead = fault.text
        call = None
        if response is not None:
            call = self._call(asked, response, "", latency_s, error=fault.text)
        elif fault.maybe_paid:
            call = LlmCall(model=self.name, prompt=asked.text, reply="", latency_s=latency_s, error=fault.text)
        return Proposal(source=None, failure=fault.text, infra=True, fatal=fault.fatal, call=call)

    def _call(self, asked: prompt.Prompt, response: Any, reply: str, latency_s: float, error: str = "") -> LlmCall:
        usage = pricing.usage_of(response)
        cost = pricing.cost_of(self._litellm, response, self.name)
        return LlmCall(
            model=self.name, prompt=asked.text, reply=reply, prompt_tokens=usage.prompt, cached_tokens=usage.cached,
            completion_tokens=usage.completion, cost_usd=cost, priced=cost is not None, latency_s=latency_s,
            error=error,
        )  # fmt: skip


class _GaveUp(Exception):
    """No answer; `response` is what came, if anything did."""

    def __init__(self, fault: Fault, response: Any) -> None:
        super().__init__(fault.text)
        self.fault = fault
        self.response = response


def _wants_markers(model: str) -> bool:
    return model.startswith("anthropic/")


def _text_of(response: Any) -> tuple[str, str]:
    """Text and finish reason.

    Raises:
        EmptyReplyError: there is no text.
    """
    choice = response.choices[0]
    text, reason = choice.message.content, str(choice.finish_reason or "")
    if not isinstance(text, str) or not clean(text).strip():
        if reason == "length":
            # all of the allowance went into hidden reasoning: the model's doing, not the provider's
            return "", reason
        raise EmptyReplyError
    return text, reason
