"""Providers: where each is asked and which variables move that, which keys it wants, and whether they are here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeVar

from forge_tui.core.errors import ConfigError
from forge_tui.core.records import Record
from forge_tui.proposers import keys

T = TypeVar("T")
#: whether a key of a provider is here: `yes`, `no`, none is `needed`, or nobody knows which it wants (`unknown`)
KeyState = Literal["yes", "no", "needless", "unknown"]


class Provider(Record, frozen=True, kw_only=True):
    """Where a provider is asked."""

    address: str
    """Below which its list of models is, in OpenAI's way: `/models`."""
    variables: tuple[str, ...] = ()
    """Of the environment, that LiteLLM reads for another address, in its order."""
    lists: bool = True
    """Whether its list of models is known to be there."""


_OPENAI = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
#: a variable that LiteLLM does not read must not make a host elsewhere look like this machine
PROVIDERS: dict[str, Provider] = {
    "anthropic": Provider(address="https://api.anthropic.com", variables=("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL")),
    "openai": Provider(address="https://api.openai.com/v1", variables=_OPENAI),
    "gemini": Provider(address="https://generativelanguage.googleapis.com/v1beta/openai",
                       variables=("GEMINI_API_BASE",)),
    "mistral": Provider(address="https://api.mistral.ai/v1", variables=("MISTRAL_AZURE_API_BASE",)),
    "deepseek": Provider(address="https://api.deepseek.com/v1", variables=("DEEPSEEK_API_BASE",)),
    "groq": Provider(address="https://api.groq.com/openai/v1", variables=("GROQ_API_BASE",)),
    "xai": Provider(address="https://api.x.ai/v1", variables=("XAI_API_BASE",)),
    "openrouter": Provider(address="https://openrouter.ai/api/v1", variables=("OPENROUTER_API_BASE",)),
    "together_ai": Provider(address="https://api.together.ai/v1", variables=("TOGETHER_AI_API_BASE",)),
    "azure": Provider(address="", variables=("AZURE_API_BASE",), lists=False),
    "cohere": Provider(address="https://api.cohere.com", variables=("COHERE_API_BASE",), lists=False),
    "ollama": Provider(address="http://localhost:11434", variables=("OLLAMA_API_BASE",)),
    "ollama_chat": Provider(address="http://localhost:11434", variables=("OLLAMA_API_BASE",)),
    # without an address of their own these two end at OpenAI
    "lm_studio": Provider(address="https://api.openai.com/v1", variables=("LM_STUDIO_API_BASE", *_OPENAI), lists=False),
    "hosted_vllm": Provider(address="https://api.openai.com/v1", variables=("HOSTED_VLLM_API_BASE",), lists=False),
}  # fmt: skip

#: the keys that each wants, as LiteLLM looks for them: ways to have one, each of all its variables
KEYS: dict[str, tuple[tuple[str, ...], ...]] = {
    "anthropic": (("ANTHROPIC_API_KEY",), ("ANTHROPIC_AUTH_TOKEN",)),
    "azure": (("AZURE_API_BASE", "AZURE_API_VERSION", "AZURE_API_KEY"),),
    "bedrock": (("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ("AWS_PROFILE",), ("AWS_ROLE_ARN",),
                ("AWS_WEB_IDENTITY_TOKEN_FILE",)),
    "gemini": (("GEMINI_API_KEY",), ("GOOGLE_API_KEY",)),
    "together_ai": (("TOGETHERAI_API_KEY",),), "perplexity": (("PERPLEXITYAI_API_KEY",),),
    "vertex_ai": (("VERTEXAI_PROJECT", "VERTEXAI_LOCATION"),),
    "ollama": (), "ollama_chat": (), "hosted_vllm": (), "lm_studio": (), "lemonade": (), "custom_openai": (),
    **{name: ((f"{name.upper()}_API_KEY",),) for name in (
        "baseten", "cerebras", "clf_ai_gateway", "codestral", "dashscope", "deepinfra", "deepseek", "featherless_ai",
        "fireworks_ai", "groq", "inception", "mistral", "moonshot", "nebius", "novita", "nvidia_nim", "openai",
        "openrouter", "replicate", "tencent", "vercel_ai_gateway", "volcengine", "wandb", "xai")},
}  # fmt: skip
#: of these LiteLLM reads the environment alone
_ENVIRONMENT = ("ANTHROPIC_AUTH_TOKEN", "AWS_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE")


def address(provider: str, given: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Where a provider is asked: what was given, else its variables, else its own; empty where that is not known.

    Variables are those of the environment, and addresses in the file of keys.
    """
    known = PROVIDERS.get(provider)
    if given or known is None:
        return given or ""
    there = os.environ if environment is None else environment
    found = keys.addresses(there) | dict(there)
    moved = next((found[name] for name in known.variables if found.get(name)), "")
    if not moved:
        return known.address
    return moved if "://" in moved else f"http://{moved}"


def arguments(provider: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """What to hand LiteLLM for keys that the environment lacks, and the variables that are nowhere.

    One way to have a key is enough. May block on a keyring.

    Raises:
        ConfigError: the file of keys may not be used, or what is there can be no key.
    """
    ways = KEYS.get(provider, ())
    if not ways and provider in PROVIDERS:
        # no key, but its address may be in the file
        file = keys.addresses()
        moved = next((file[name] for name in PROVIDERS[provider].variables if name in file), "")
        return ({"api_base": moved} if moved else {}), ()
    for way in ways:
        if all(map(os.environ.get, way)):
            for name in way:
                _check(name, os.environ[name])
            return {}, ()
    lacking: tuple[str, ...] = ()
    for way in ways:
        missing = [name for name in way if not os.environ.get(name)]
        found, nowhere = ({}, missing) if set(missing) & {*_ENVIRONMENT} else keys.arguments(missing)
        if not nowhere:
            for value in found.values():
                _check(" and ".join(missing), value)
            return found, ()
        lacking = lacking or tuple(nowhere)
    return {}, lacking


def key(provider: str) -> tuple[str, str, tuple[str, ...]]:
    """The one key of a provider: the variable that it is in, if it is there, the key, and what is nowhere.

    Raises:
        ConfigError: the file of keys may not be used.
    """
    found, nowhere = arguments(provider)
    for way in KEYS.get(provider, ()):
        if not found and os.environ.get(way[-1]):
            return way[-1], os.environ[way[-1]], nowhere
    return "", found.get("api_key", ""), nowhere


async def in_time(work: Callable[[], T], limit_s: float) -> T:
    """What looks for keys, in a thread and with a limit: a keyring may wait for a person to unlock it.

    Raises:
        ConfigError: the keyring does not answer in time, or whatever `work` raises.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await asyncio.to_thread(work)
    except TimeoutError:
        raise ConfigError("The system's keyring does not answer.", "Unlock it, or set the key in the environment.") \
            from None  # fmt: skip


def _check(name: str, value: str) -> None:
    """Raise ConfigError for what no request can carry: a line break behind it, a quotation mark of a text editor."""
    if not (value.isascii() and value.isprintable() and value == value.strip()):
        raise ConfigError(f"{name} holds a blank, a line break or a letter that no key has.",
                          "Copy the key once more, without anything around it.")  # fmt: skip


def key_states(providers: Iterable[str]) -> dict[str, KeyState]:
    """Whether a key is here, by provider. May block on a keyring."""
    found: dict[str, KeyState] = {}
    for provider in dict.fromkeys(providers):
        if provider not in KEYS:
            found[provider] = "unknown"
        elif not KEYS[provider]:
            found[provider] = "needless"
        else:
            try:
                found[provider] = "no" if arguments(provider)[1] else "yes"
            except ConfigError:
                # the file of keys may not be used; what needs a key says why
                found[provider] = "no"
    return found
