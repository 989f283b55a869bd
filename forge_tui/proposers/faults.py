"""What went wrong with a call to a model: whether to try again, when, and what to tell the person.

Works on names and attributes of exceptions, so that LiteLLM need not be imported for it.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import Any

from forge_tui.core import secrets
from forge_tui.core.records import Record
from forge_tui.proposers import pricing

MAX_TEXT = 300
_QUOTA = ("insufficient_quota", "exceeded your current quota", "billing", "credit balance", "insufficient balance",
          "insufficient credits", "payment required")  # fmt: skip
_FILTER = ("content_policy", "content policy", "content management policy", "content_filter", "content filter",
           "responsibleai", "safety system")  # fmt: skip
_LONG = ("maximum context length", "context_length_exceeded", "prompt is too long", "context window",
         "request_too_large", "input is too long")  # fmt: skip
_RETRY_STATUS = (408, 409, 425, 429)
_TOOLS = re.compile(r"\b(?:tools?|tool_choice|tool_calls|functions?|function.calling)\b")
_STREAM = re.compile(r"\bstream(?:s|ed|ing|_options)?\b")
#: the request was turned away before anything was made of it
_AT_THE_DOOR = (503, 529)
_NO_MODEL = ("model_not_found", "model not found", "does not exist", "unknown model", "no such model")


class EmptyReplyError(Exception):
    """The provider answered without text; `usage` is what it counted for that."""

    def __init__(self, usage: pricing.Usage) -> None:
        super().__init__("empty reply")
        self.usage = usage


class FilteredReplyError(EmptyReplyError):
    """The provider's filter took the reply."""


class SilenceError(Exception):
    """Nothing came for too long."""


class Fault(Record, frozen=True, kw_only=True):
    """One failed call."""

    text: str
    """A sentence, without secrets."""
    retry: bool
    """Whether the same call may succeed later."""
    fatal: bool = False
    """Whether no call of this model can succeed until a person changes something."""
    this_request: bool = False
    """Whether the provider refuses this request, and may take others."""
    retry_after_s: float | None = None
    """What the provider asked for."""
    maybe_paid: bool = False
    """Whether the provider may have charged for it."""
    unasked: bool = False
    """Whether it was our own doing, before anybody was asked."""
    no_tools: bool = False
    """Whether it may be the tools that are not taken."""
    no_stream: bool = False
    """Whether the server does not know how to stream with a count of tokens: to be asked plainly."""


def masked(text: str) -> str:
    """One line without anything that looks like a key, cut to a length that fits a status line."""
    text = " ".join(secrets.masked(text).split())
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 4] + " ..."


def fault_of(error: Exception, model: str, now_s: float) -> Fault:
    """What an exception of a call means; `now_s` is Unix time, for dates in Retry-After."""
    said = masked(_message(error))
    return _of_reply(error, model, said) or _of_request(error, model, said) or _passing(error, model, said, now_s)


def _of_reply(error: Exception, model: str, said: str) -> Fault | None:
    """A reply came, or began, and is of no use."""
    if isinstance(error, FilteredReplyError):
        return Fault(text=f"The provider's filter took the reply of {model}.", retry=False, this_request=True,
                     maybe_paid=True)  # fmt: skip
    if isinstance(error, EmptyReplyError):
        if error.usage.known:
            return Fault(text=f"{model} sent an empty reply.", retry=False, maybe_paid=True)
        return Fault(text=f"{model} sent a reply that cannot be read: it has no text.", retry=True, maybe_paid=True)
    if isinstance(error, SilenceError):
        return Fault(text=f"{model} {error}.", retry=True, maybe_paid=True)
    if isinstance(error, (IndexError, KeyError, TypeError, ValueError, AttributeError)) and _status(error) is None:
        return Fault(text=f"{model} sent a reply that cannot be read: {said}", retry=True, maybe_paid=True)
    if "MidStreamFallbackError" in _names(error):
        return Fault(text=f"The reply of {model} broke off: {said}", retry=True, maybe_paid=True)
    return None


def _of_request(error: Exception, model: str, said: str) -> Fault | None:
    """The provider will not take this request, whenever it comes."""
    status, names, low = _status(error), _names(error), said.lower()
    refusal = status is not None and 400 <= status < 500
    if "ContextWindowExceededError" in names or status == 413 or (refusal and _any(_LONG, low)):
        return Fault(text=f"The prompt is too long for {model}: {said}", retry=False, this_request=True)
    if "ContentPolicyViolationError" in names or (status == 400 and _any(_FILTER, low)):
        return Fault(text=f"{model} refused the prompt: {said}", retry=False, this_request=True)
    if status == 402 or (refusal and status in (400, 403, 429) and _any(_QUOTA, low)):
        return Fault(text=f"The account for {model} has no credit left: {said}", retry=False, fatal=True)
    if status == 401 or "AuthenticationError" in names:
        return Fault(text=f"{model} refused the key (401). Set the provider's key in the environment. {said}",
                     retry=False, fatal=True)  # fmt: skip
    if status == 403:
        return Fault(text=f"The key may not use {model} (403): {said}", retry=False, fatal=True)
    if status == 404 or (status == 400 and _any(_NO_MODEL, low)):
        return Fault(text=f"There is no model {model} at the provider ({status}): {said}", retry=False, fatal=True)
    if status in (400, 405, 422, 501) and _STREAM.search(low):
        return Fault(text=f"{model} does not stream: {said}", retry=True, no_stream=True)
    if status in (400, 422, 501) and _TOOLS.search(low):
        return Fault(text=f"{model} does not take tools: {said}", retry=False, fatal=True, no_tools=True)
    if refusal and status not in _RETRY_STATUS:
        return Fault(text=f"{model} does not accept the request ({status}): {said}", retry=False, fatal=True)
    return None


def _passing(error: Exception, model: str, said: str, now_s: float) -> Fault:
    """The same request may be taken later."""
    status, names = _status(error), _names(error)
    if isinstance(error, TimeoutError) or "Timeout" in names or "APITimeoutError" in names:
        return Fault(text=f"{model} did not answer in time.", retry=True, maybe_paid=True)
    if status in _RETRY_STATUS:
        what = "is rate limited (429)" if status == 429 else f"asks to try again ({status})"
        return Fault(text=f"{model} {what}: {said}", retry=True, retry_after_s=retry_after(error, now_s))
    refused = _refused(error)
    if refused or "APIConnectionError" in names or isinstance(error, OSError) or _any(_GONE, said.lower()):
        # where nobody took the connection nothing was asked, and a connection that broke may have been charged
        return Fault(text=f"{model} cannot be reached: {said}", retry=True, maybe_paid=not refused)
    if status in _AT_THE_DOOR or "overloaded" in said.lower():
        return Fault(text=f"{model} is overloaded ({status}): {said}", retry=True,
                     retry_after_s=retry_after(error, now_s))  # fmt: skip
    # 5xx, and bodies that were not what the provider's format says
    return Fault(text=f"{model} failed ({status or type(error).__name__}): {said}", retry=True,
                 retry_after_s=retry_after(error, now_s), maybe_paid=True)  # fmt: skip


_GONE = ("connection error", "server disconnected", "cannot connect", "connection reset")


def _refused(error: BaseException) -> bool:
    """Whether no connection was made at all."""
    seen: BaseException | None = error
    for _ in range(12):
        if seen is None:
            return False
        names = {cls.__name__ for cls in type(seen).__mro__}
        if isinstance(seen, ConnectionRefusedError) or names & {"ConnectError", "ClientConnectorError", "gaierror"}:
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _any(words: tuple[str, ...], text: str) -> bool:
    return any(word in text for word in words)


def _names(error: Exception) -> set[str]:
    return {cls.__name__ for cls in type(error).__mro__}


def retry_after(error: Exception, now_s: float) -> float | None:
    """Seconds that the provider asks to wait, from either place where LiteLLM keeps headers."""
    for headers in (getattr(getattr(error, "response", None), "headers", None),
                    getattr(error, "litellm_response_headers", None)):  # fmt: skip
        value = _header(headers, "retry-after")
        if value is None:
            continue
        try:
            return max(0.0, float(value))
        except ValueError:
            pass
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - now_s)
        except (TypeError, ValueError):
            continue
    return None


def _header(headers: Any, name: str) -> str | None:
    try:
        items = headers.items()
    except AttributeError:
        return None
    for key, value in items:
        if str(key).lower() in (name, f"llm_provider-{name}"):
            return str(value).strip()
    return None


def _status(error: Exception) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _message(error: Exception) -> str:
    text = str(getattr(error, "message", "") or error)
    # LiteLLM repeats its class name in front of every layer
    return re.sub(r"^(?:litellm\.)?(?:\w+(?:Error|Exception|Timeout)\s*:\s*)+", "", text)
