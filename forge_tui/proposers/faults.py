"""What went wrong with a call to a model: whether to try again, when, and what to tell the person.

Works on names and attributes of exceptions, so that LiteLLM need not be imported for it.
"""

from __future__ import annotations

import os
import re
from email.utils import parsedate_to_datetime
from typing import Any

from forge_tui.core.records import Record

MAX_TEXT = 300
#: environment variables whose values never appear in texts
_SECRET_NAME = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|AIza|key)[-_][A-Za-z0-9_*.-]{6,}|AIza[A-Za-z0-9_-]{10,}|Bearer\s+\S{6,}", re.IGNORECASE
)
_QUOTA = ("insufficient_quota", "exceeded your current quota", "billing", "credit balance")
_RETRY_STATUS = (408, 409, 425, 429)


class EmptyReplyError(Exception):
    """The provider answered without text."""


class Fault(Record, frozen=True, kw_only=True):
    """One failed call."""

    text: str
    """A sentence, without secrets."""
    retry: bool
    """Whether the same call may succeed later."""
    fatal: bool = False
    """Whether no call of this model can succeed until a person changes something."""
    retry_after_s: float | None = None
    """What the provider asked for."""
    maybe_paid: bool = False
    """Whether the provider may have charged for it."""


def masked(text: str) -> str:
    """One line without anything that looks like a key, cut to a length that fits a status line."""
    for name, value in os.environ.items():
        if len(value) >= 8 and _SECRET_NAME.search(name):
            text = text.replace(value, "[key]")
    text = " ".join(_SECRET_TEXT.sub("[key]", text).split())
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 4] + " ..."


def fault_of(error: Exception, model: str, now_s: float) -> Fault:
    """What an exception of a call means; `now_s` is Unix time, for dates in Retry-After."""
    status = _status(error)
    names = {cls.__name__ for cls in type(error).__mro__}
    said = masked(_message(error))
    if isinstance(error, EmptyReplyError):
        return Fault(text=f"{model} sent an empty reply.", retry=False, maybe_paid=True)
    if isinstance(error, (IndexError, KeyError, TypeError, ValueError, AttributeError)) and status is None:
        return Fault(text=f"{model} sent a reply that cannot be read: {said}", retry=True, maybe_paid=True)
    if "ContextWindowExceededError" in names:
        return Fault(text=f"The prompt is too long for {model}: {said}", retry=False)
    if "ContentPolicyViolationError" in names:
        return Fault(text=f"{model} refused the prompt: {said}", retry=False)
    if status == 401 or "AuthenticationError" in names:
        return Fault(text=f"{model} refused the key (401). Set the provider's key in the environment. {said}",
                     retry=False, fatal=True)  # fmt: skip
    if status == 403:
        return Fault(text=f"The key may not use {model} (403): {said}", retry=False, fatal=True)
    if status == 404:
        return Fault(text=f"There is no model {model} at the provider (404): {said}", retry=False, fatal=True)
    if status == 429 and any(word in said.lower() for word in _QUOTA):
        return Fault(text=f"The account for {model} has no credit left: {said}", retry=False, fatal=True)
    if isinstance(error, TimeoutError) or "Timeout" in names or "APITimeoutError" in names:
        return Fault(text=f"{model} did not answer in time.", retry=True, maybe_paid=True)
    if status in _RETRY_STATUS:
        what = "is rate limited (429)" if status == 429 else f"asks to try again ({status})"
        return Fault(text=f"{model} {what}: {said}", retry=True, retry_after_s=retry_after(error, now_s))
    if "APIConnectionError" in names or isinstance(error, OSError) or "Connection error" in said:
        return Fault(text=f"{model} cannot be reached: {said}", retry=True)
    if status is not None and 400 <= status < 500:
        return Fault(text=f"{model} does not accept the request ({status}): {said}", retry=False, fatal=True)
    # 5xx, 529, and bodies that were not what the provider's format says
    return Fault(text=f"{model} failed ({status or type(error).__name__}): {said}", retry=True,
                 retry_after_s=retry_after(error, now_s), maybe_paid=True)  # fmt: skip


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
