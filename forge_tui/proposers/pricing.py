"""What a model can take, and what a call cost: LiteLLM's tables, read with care. No key and no network is used."""

from __future__ import annotations

import contextlib
import math
from typing import Any

from forge_tui.core.records import Record

#: output tokens asked for where nothing better is known
DEFAULT_MAX_TOKENS = 8192
#: models whose hidden reasoning counts as output get room for it
REASONING_MAX_TOKENS = 32768

#: more than any prompt of ours has
MOST_PROMPT_TOKENS = 32768


class Usage(Record, frozen=True, kw_only=True):
    """Tokens of one call; `cached` of the prompt's were read from the provider's cache."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


def model_info(litellm: Any, model: str) -> dict[str, Any]:
    """The table's row of a model; empty where there is none."""
    # any exception class may come from here: the table is looked up through provider code
    with contextlib.suppress(Exception):
        info = litellm.get_model_info(model)
        return dict(info) if info else {}
    return {}


def max_tokens(info: dict[str, Any], model: str) -> int:
    """How many output tokens to ask for."""
    limit = info.get("max_output_tokens") or info.get("max_tokens")
    hidden = bool(info.get("supports_reasoning")) and not model.startswith(("anthropic/", "claude"))
    wanted = REASONING_MAX_TOKENS if hidden else DEFAULT_MAX_TOKENS
    return min(wanted, int(limit)) if isinstance(limit, int) and limit > 0 else wanted


def usage_of(response: Any) -> Usage:
    """The tokens of a response, zeros where it does not say."""
    usage = getattr(response, "usage", None)
    details = getattr(usage, "prompt_tokens_details", None)
    cached = _count(getattr(details, "cached_tokens", None)) or _count(getattr(usage, "cache_read_input_tokens", None))
    return Usage(prompt=_count(getattr(usage, "prompt_tokens", None)), cached=cached,
                 completion=_count(getattr(usage, "completion_tokens", None)))  # fmt: skip


def cost_of(litellm: Any, response: Any, model: str) -> float | None:
    """Dollars of a call, or None where the price or the number of tokens is unknown; never a made-up 0."""
    if usage_of(response).prompt == 0:
        return None
    info = model_info(litellm, model)
    if info.get("input_cost_per_token") is None or info.get("output_cost_per_token") is None:
        return None
    with contextlib.suppress(Exception):
        cost = float(litellm.completion_cost(completion_response=response, model=model))
        if math.isfinite(cost) and cost >= 0:
            return cost
    return None


def most_usd(litellm: Any, model: str) -> float:
    """Dollars of the longest prompt that is sent and the longest reply that is asked for; 0 for an unknown price."""
    info = model_info(litellm, model)
    paid, got = info.get("input_cost_per_token"), info.get("output_cost_per_token")
    if paid is None or got is None:
        return 0.0
    return float(paid) * MOST_PROMPT_TOKENS + float(got) * max_tokens(info, model)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
