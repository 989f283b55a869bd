"""What a model can take, and what a call costs: LiteLLM's tables, read with care. No key and no network is used."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from forge_tui.core.records import Record
from forge_tui.proposers import capabilities, table

#: output tokens asked for where nothing better is known
DEFAULT_MAX_TOKENS = 8192
#: models whose hidden reasoning counts as output get room for it
REASONING_MAX_TOKENS = 32768

#: output tokens of a usual reply, and of one with hidden thoughts
USUAL_OUTPUT, USUAL_THOUGHTFUL_OUTPUT = 2500, 10_000

#: more than any prompt of ours has
MOST_PROMPT_TOKENS = 32768
#: tokens that a provider puts around a message, and around the whole
_AROUND = 64
#: encodings count a little differently from their providers
_SLACK = 1.05


class Usage(Record, frozen=True, kw_only=True):
    """Tokens of one call, by the provider's count; `known` is False where it did not say."""

    prompt: int = 0
    cached: int = 0
    """Of the prompt, read from the provider's cache."""
    written: int = 0
    """Of the prompt, written to the provider's cache."""
    completion: int = 0
    reasoning: int = 0
    """Of the completion, hidden reasoning."""

    @property
    def known(self) -> bool:
        """Whether there is a count at all."""
        return self.prompt > 0


class Price(Record, frozen=True, kw_only=True):
    """Dollars per token."""

    input: float
    output: float
    cached: float
    written: float
    reasoning: float
    source: str

    @property
    def text(self) -> str:
        """For the ledger: per million tokens, with the source."""
        return (f"${_million(self.input)} in, ${_million(self.output)} out, ${_million(self.cached)} cached, "
                f"${_million(self.written)} cache writes a million tokens ({self.source})")  # fmt: skip

    def cost(self, usage: Usage) -> float:
        """Dollars of a call."""
        cached = min(usage.cached, usage.prompt)
        written = min(usage.written, usage.prompt - cached)
        reasoning = min(usage.reasoning, usage.completion)
        return (
            (usage.prompt - cached - written) * self.input + cached * self.cached + written * self.written
            + (usage.completion - reasoning) * self.output + reasoning * self.reasoning
        )  # fmt: skip

    def most(self, prompt_tokens: int, output_tokens: int) -> float:
        """Dollars of a call whose prompt and reply have at most so many tokens."""
        return (prompt_tokens * max(self.input, self.cached, self.written)
                + output_tokens * max(self.output, self.reasoning))  # fmt: skip


def _million(per_token: float) -> str:
    return f"{per_token * 1e6:.6g}"


def price_of(info: dict[str, Any], given: Sequence[float] | None = None) -> Price | None:
    """A model's price: what a person gave, else LiteLLM's row; None where neither says."""
    if given is not None:
        paid, got = given[0] / 1e6, given[1] / 1e6
        cached = given[2] / 1e6 if len(given) > 2 else paid
        written = given[3] / 1e6 if len(given) > 3 else paid
        return Price(input=paid, output=got, cached=cached, written=written, reasoning=got, source="given by --price")
    paid_, got_ = _rate(info, "input_cost_per_token"), _rate(info, "output_cost_per_token")
    if paid_ is None or got_ is None:
        return None

    def rate(name: str, otherwise: float) -> float:
        found = _rate(info, name)
        return otherwise if found is None else found

    return Price(
        input=paid_, output=got_, cached=rate("cache_read_input_token_cost", paid_),
        written=rate("cache_creation_input_token_cost", paid_),
        reasoning=rate("output_cost_per_reasoning_token", got_),
        source=_table(),
    )  # fmt: skip


@functools.cache
def _table() -> str:
    return f"litellm {importlib.metadata.version('litellm')}"


def _rate(info: dict[str, Any], name: str) -> float | None:
    value = info.get(name)
    if isinstance(value, int | float) and math.isfinite(value) and value >= 0:
        return float(value)
    return None


def max_tokens(info: dict[str, Any], model: str, wanted: int | None = None) -> int:
    """How many output tokens to ask for: those `wanted`, else ours, and never more than the model's most."""
    limit = info.get("max_output_tokens") or info.get("max_tokens")
    wanted = wanted or (REASONING_MAX_TOKENS if capabilities.of(model).reasons_unseen else DEFAULT_MAX_TOKENS)
    return min(wanted, int(limit)) if isinstance(limit, int) and limit > 0 else wanted


def prompt_bound(litellm: Any, model: str, messages: Sequence[dict[str, Any]]) -> int:
    """The most tokens that a prompt may have: a count where the encoding is known, else its bytes.

    No tokenizer in use makes more tokens than bytes. The first count takes a second, so this is called in a thread.
    """
    text = "".join(_texts(messages))
    most = len(text.encode()) + _AROUND
    if model.partition("/")[0] == "openai" or model.startswith(("gpt-", "o1", "o3", "o4")):
        # LiteLLM has the encodings with it; a name that it does not know has another one
        with contextlib.suppress(Exception):
            if table.row(model).get("litellm_provider") == "openai":
                counted = int(litellm.token_counter(model=model, text=text))
                return min(most, math.ceil(counted * _SLACK) + _AROUND)
    return most


def _texts(messages: Sequence[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    for message in messages:
        content = message.get("content") or ""
        found += [content] if isinstance(content, str) else [str(part.get("text", "")) for part in content]
        if message.get("tool_calls"):
            found.append(msgspec.json.encode(message["tool_calls"]).decode())
    return found


def usage_of(response: Any) -> Usage:
    """The tokens of a response or of a stream's chunk, zeros where it does not say."""
    usage = getattr(response, "usage", None)
    details = getattr(usage, "prompt_tokens_details", None)
    cached = _count(getattr(details, "cached_tokens", None)) or _count(getattr(usage, "cache_read_input_tokens", None))
    written = _count(getattr(usage, "cache_creation_input_tokens", None)) or _count(
        getattr(details, "cache_creation_tokens", None)
    )
    completion = getattr(usage, "completion_tokens_details", None)
    return Usage(prompt=_count(getattr(usage, "prompt_tokens", None)), cached=cached, written=written,
                 completion=_count(getattr(usage, "completion_tokens", None)),
                 reasoning=_count(getattr(completion, "reasoning_tokens", None)))  # fmt: skip


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
