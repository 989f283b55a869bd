"""Anthropic's own client, for what LiteLLM has no call for: exact counts of tokens, and the list of models.

It takes seconds to import, so it is imported in a thread at the first use and nowhere else.
"""

from __future__ import annotations

import importlib
from typing import Any

import msgspec

from forge_tui.proposers import providers

#: most bytes of an answer
MAX_BYTES = 8 << 20

_loaded: Any = None


class OversizedError(ValueError):
    """A server sent more than any answer has."""

    def __init__(self) -> None:
        super().__init__(f"it sent more than {MAX_BYTES >> 20} MiB")


def load() -> Any:
    """Import the package; slow the first time."""
    global _loaded
    if _loaded is None:
        _loaded = importlib.import_module("anthropic")
    return _loaded


def base(given: str | None = None) -> str:
    """The address that the client wants: without the path that it adds itself."""
    return providers.address("anthropic", given).rstrip("/").removesuffix("/messages").removesuffix("/v1").rstrip("/")


def client(api_base: str | None, key: str, timeout_s: float, *, token: bool = False) -> Any:
    """A client that asks once and follows no redirect, which could take the key elsewhere; to be closed.

    `token` says that the key is what the variable ANTHROPIC_AUTH_TOKEN has.
    """
    package = load()
    secret = {"auth_token": key} if token else {"api_key": key or "none"}
    return package.AsyncAnthropic(base_url=base(api_base), max_retries=0, timeout=timeout_s, **secret,
                                  http_client=package.DefaultAsyncHttpxClient(follow_redirects=False))  # fmt: skip


async def body(response: Any) -> dict[str, Any]:
    """The JSON object in a response that is still to be read.

    Raises:
        ValueError: it is none, or too large.
    """
    data = b""
    async for piece in response.iter_bytes():
        data += piece
        if len(data) > MAX_BYTES:
            raise OversizedError
    return parsed(data)


def parsed(data: bytes) -> dict[str, Any]:
    """The JSON object of an answer.

    Raises:
        ValueError: it is none.
    """
    found = msgspec.json.decode(data)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - a server's fault, not a caller's
    return found
