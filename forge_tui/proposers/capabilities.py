"""What a model takes and does, before it is asked: facts of our own, else LiteLLM's table, else not known.

Every value has its source. What is None nobody has written down: it is tried, and the provider's word counts.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Literal

import msgspec

from forge_tui.core.records import Record
from forge_tui.proposers import table

#: how a prefix that stays the same becomes cheap: marks in the request, by itself, or not at all
Caching = Literal["markers", "automatic", "none"]

UNKNOWN = "unknown"
#: when our own facts were last held against the providers' pages
CHECKED = "2026-12-03"
OURS = f"forge-tui {CHECKED}"


class Capabilities(Record, frozen=True, kw_only=True):
    """What is known of one model; None is not known."""

    model: str
    temperature: bool | None = None
    """Whether it takes a temperature other than its own."""
    completion_limit: bool | None = None
    """Whether it wants its limit as `max_completion_tokens`, which LiteLLM sees to."""
    stream_usage: bool | None = None
    """Whether it streams, with a count of tokens at the end."""
    caching: Caching | None = None
    cache_least: int | None = None
    """Tokens from which on a prefix is kept at all."""
    tools: bool | None = None
    reasoning_effort: bool | None = None
    """Whether it can be told how much to reason."""
    reasons_unseen: bool | None = None
    """Whether it may reason for minutes before its first word, and none of that is streamed."""
    context: int | None = None
    """Most tokens of a prompt."""
    most_output: int | None = None
    """Most tokens of a reply."""
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    """By field: our own with its date, LiteLLM's table with its version, `unknown`."""


#: fields that have a source
FIELDS = tuple(name for name in Capabilities.__struct_fields__ if name not in ("model", "sources"))

_OPENAI = ("openai", "azure", "azure_ai", "chatgpt", "github_copilot")
_CLAUDE = ("anthropic", "bedrock", "vertex_ai", "azure_ai", "openrouter")
#: family and version of a Claude; dates behind them are no version
_VERSION = re.compile(r"claude-(?:([a-z]+)-)?(\d+)(?:[-.](\d{1,2}))?(?![\d])")
#: from this version on `temperature` is refused, on every family
_UNSAMPLED = (4, 7)

_SEEN = {"stream_usage": True, "reasoning_effort": False, "reasons_unseen": False}
_REASONS = {"completion_limit": True, "stream_usage": True, "reasoning_effort": True, "reasons_unseen": True,
            "caching": "automatic", "cache_least": 1024}  # fmt: skip
#: providers, pattern of the whole bare name, what holds; the first pattern that fits counts
FACTS: tuple[tuple[tuple[str, ...], str, dict[str, Any]], ...] = (
    # chat variants of reasoning models, and models before reasoning
    (_OPENAI, r"gpt-5-chat.*", {"temperature": True, "stream_usage": True}),
    (_OPENAI, r"(chatgpt-)?gpt-4(o|\.1)(?!.*(audio|search)).*",
     {"temperature": True, "caching": "automatic", "cache_least": 1024, **_SEEN}),
    (_OPENAI, r"gpt-(4|3\.5)(-.*)?", {"temperature": True, "caching": "none", **_SEEN}),
    # temperature is taken while they are not told to reason
    (_OPENAI, r"gpt-5\.[124](-(mini|nano))?(-\d{4}-\d\d-\d\d)?", {**_REASONS, "temperature": True}),
    # temperature may only be 1, and max_tokens is refused
    (_OPENAI, r"(o\d|gpt-[56])(?!.*(chat|search))([.-].*)?", {**_REASONS, "temperature": False}),
    # the reasoning is streamed before the reply
    (("deepseek",), r".*", {"reasons_unseen": False, "caching": "automatic"}),
)  # fmt: skip


@functools.lru_cache(8192)
def of(model: str) -> Capabilities:
    """What is known of a model, by its LiteLLM name. No network, no import of LiteLLM."""
    row = table.row(model)
    provider = table.provider_of(model)
    values: dict[str, Any] = {}
    sources = dict.fromkeys(FIELDS, UNKNOWN)
    for source, found in ((table.source(), _of_table(row, "claude-" in model)), (OURS, _ours(model, provider))):
        known = {name: value for name, value in found.items() if value is not None}
        values |= known
        sources |= dict.fromkeys(known, source)
    return Capabilities(model=model, sources=sources, **values)


def wants_markers(model: str) -> bool:
    """Whether stable parts of a prompt are marked for the provider's cache."""
    return of(model).caching == "markers"


def takes_temperature(model: str, temperature: float) -> bool:
    """Whether a request may have it; models that refuse one take 1."""
    return temperature == 1 or of(model).temperature is not False


def _ours(model: str, provider: str) -> dict[str, Any]:
    bare = model.rpartition("/")[2].lower()
    if "claude-" in bare and provider in _CLAUDE:
        return {"caching": "markers", "stream_usage": True, "temperature": not _unsampled(bare)}
    if "/openai/" in model:
        provider = "openai"
    for providers, pattern, values in FACTS:
        if provider in providers and re.fullmatch(pattern, bare):
            return values
    return {}


def _unsampled(bare: str) -> bool:
    found = _VERSION.search(bare)
    if found is None:
        # previews without a version are of the new kind
        return True
    return (int(found[2]), int(found[3] or 0)) >= _UNSAMPLED


def _of_table(row: dict[str, Any], claude: bool) -> dict[str, Any]:
    if not row:
        return {}
    thinks = bool(row.get("thinking_always_on") or row.get("thinking_on_by_default"))
    reasons = row.get("supports_reasoning")
    return {
        "temperature": _temperature(row), "stream_usage": row.get("supports_native_streaming"),
        "caching": _caching(row), "cache_least": _count(row, "prompt_cache_min_tokens"),
        "tools": row.get("supports_function_calling"), "reasoning_effort": reasons,
        # Claude thinks only when told to, unless its row says otherwise; what it thinks by itself is not streamed
        "reasons_unseen": thinks if claude else reasons,
        "context": _count(row, "max_input_tokens"),
        "most_output": _count(row, "max_output_tokens") or _count(row, "max_tokens"),
    }  # fmt: skip


def _temperature(row: dict[str, Any]) -> bool | None:
    if row.get("supports_sampling_params") is False:
        return False
    if row.get("default_reasoning_effort") == "none" or not row.get("supports_reasoning"):
        return True
    return None


def _caching(row: dict[str, Any]) -> Caching | None:
    does = row.get("supports_prompt_caching")
    if does is None:
        return None
    marked = str(row.get("litellm_provider") or "").startswith(("anthropic", "bedrock", "vertex_ai-anthropic"))
    return "none" if not does else "markers" if marked else "automatic"


def _count(row: dict[str, Any], name: str) -> int | None:
    value = row.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
