"""LiteLLM's table of models, read as the file that it is: no import of seconds, no question to any host.

LiteLLM's own look-up asks an Ollama server or the Hugging Face hub for some names, and puts 0 where a price is missing.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import msgspec

PRICES, PROVIDERS = "model_prices_and_context_window_backup.json", "provider_endpoints_support_backup.json"
#: kinds of models that answer a chat; LiteLLM asks those of `responses` at another address by itself
CHAT = ("chat", "responses")
#: entries that are no models
_NOTES = ("sample_spec", "fallback_generalizations")


def read(name: str) -> dict[str, Any]:
    """One of LiteLLM's files; empty where it is not where it used to be."""
    spec = importlib.util.find_spec("litellm")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        try:
            found = msgspec.json.decode((Path(folder) / name).read_bytes())
        except (OSError, ValueError):
            continue
        return found if isinstance(found, dict) else {}
    return {}


@functools.cache
def rows() -> dict[str, dict[str, Any]]:
    """Every model's row by its key, other names of a model included."""
    found = {key: row for key, row in read(PRICES).items() if isinstance(row, dict) and key not in _NOTES}
    named = {key: found[row["alias_of"]] for key, row in found.items() if row.get("alias_of") in found}
    return {key: row for key, row in found.items() if "alias_of" not in row} | named


def row(model: str) -> dict[str, Any]:
    """The row of a name as LiteLLM takes it, with or without its provider; empty where there is none."""
    table = rows()
    if model in table:
        return table[model]
    prefix, slash, bare = model.partition("/")
    names = [bare, bare.rpartition("/")[2]] if slash else [model]
    # fine-tuned models are priced as what they were made of: ft:gpt-4o-2024-08-06:org::id
    names += [":".join(name.split(":")[:2]) for name in names if name.startswith("ft:")]
    for name in names:
        found = table.get(name, {})
        if found and (not slash or of_provider(found, prefix)):
            return found
    return {}


def of_provider(found: dict[str, Any], provider: str) -> bool:
    """Whether a row is of a provider; `bedrock_converse` and `vertex_ai-anthropic_models` are ways to one."""
    whose = str(found.get("litellm_provider") or "")
    return whose == provider or whose.startswith((f"{provider}_converse", f"{provider}_chat", f"{provider}-"))


def provider_of(model: str) -> str:
    """The provider that a model is asked at: what its name begins with, else what the table says; may be empty."""
    prefix, slash, _ = model.partition("/")
    return prefix if slash else way(str(row(model).get("litellm_provider") or ""))


def way(provider: str) -> str:
    """What names of a provider begin with: `vertex_ai` for `vertex_ai-anthropic_models`."""
    return provider.partition("-")[0] if provider.startswith("vertex_ai-") else \
        provider.removesuffix("_converse").removesuffix("_chat")  # fmt: skip


def name_of(key: str, found: dict[str, Any]) -> str:
    """The whole name by which LiteLLM takes a row."""
    provider = way(str(found.get("litellm_provider") or ""))
    return key if not provider or key.startswith(f"{provider}/") else f"{provider}/{key}"


@functools.cache
def source() -> str:
    """Where the table is from."""
    return f"litellm {importlib.metadata.version('litellm')}"
