"""The list of models that a server has, asked of the server itself: Anthropic's, and OpenAI's format.

One request to the address that was named and to no other: redirects are refused, for they would take the key along.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from forge_tui.core.errors import ConfigError, EnvironmentFault, ForgeError
from forge_tui.core.records import Record
from forge_tui.proposers import anthropics, faults, keys, providers
from forge_tui.proposers.catalogue import Served

#: most models of a list, and most requests for its pages
MAX_MODELS, MAX_PAGES = 10_000, 20
#: most characters of a name
_LONGEST = 200
_CHUNK = 1 << 16
#: what servers call the most tokens of a prompt, and of a reply
_CONTEXT = ("max_model_len", "context_length", "context_window", "max_input_tokens", "max_context_length")
_OUTPUT = ("max_completion_tokens", "max_output_tokens", "max_tokens")


class ServedList(Record, frozen=True, kw_only=True):
    """A server's models, sorted; `more` says that there are others beyond what is read."""

    address: str
    models: tuple[Served, ...]
    more: bool = False


class _StatusError(Exception):
    """A server refused; attributes as of the libraries' own."""

    def __init__(self, status: int, message: str, headers: Any) -> None:
        super().__init__(message)
        self.status_code, self.message, self.litellm_response_headers = status, message, headers


async def models(provider: str, api_base: str | None = None, *, timeout_s: float = 20.0) -> ServedList:
    """Ask a provider, or a server of one's own, for its models.

    Raises:
        ConfigError: the key is missing, or is refused.
        EnvironmentFault: it cannot be reached, does not answer in time, or has no such list.
    """
    if not api_base and not (provider in providers.PROVIDERS and providers.PROVIDERS[provider].lists):
        raise EnvironmentFault(f"It is not known where {provider} lists its models.",
                               "Name the address with --api-base.")  # fmt: skip
    name, key, nowhere = await providers.in_time(lambda: providers.key(provider), timeout_s)
    if nowhere and not api_base:
        raise ConfigError(f"{provider} needs {' and '.join(nowhere)}.", keys.where_to_put())
    address = providers.address(provider, api_base)
    who = f"{'The server' if api_base else provider} at {urllib.parse.urlsplit(address).netloc}"
    if provider == "anthropic":
        # takes a second or two, which is not the server's doing
        await asyncio.to_thread(anthropics.load)
    try:
        async with asyncio.timeout(timeout_s):
            if provider == "anthropic":
                return await _of_anthropic(anthropics.base(api_base), key, timeout_s, token=name.endswith("_TOKEN"))
            return await _of_server(list_address(address), key, time.monotonic() + timeout_s, own=bool(api_base))
    # servers send what they like
    except Exception as error:  # noqa: BLE001
        raise _fault(error, who) from None


def list_address(base: str) -> str:
    """Where the list is below an address: `http://host:8000` and `http://host:8000/v1` are the same."""
    parts = urllib.parse.urlsplit(base.rstrip("/"))
    path = parts.path.removesuffix("/chat/completions") or "/v1"
    return urllib.parse.urlunsplit(parts._replace(path=f"{path}/models"))


def _fault(error: Exception, who: str) -> ForgeError:
    if type(error).__name__ == "APIConnectionError" and isinstance(error.__cause__, Exception):
        # the package says that there was no connection, its cause says why
        error = error.__cause__
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and 300 <= status < 400:
        return EnvironmentFault(f"{who} sends to another address ({status}), which is not followed.",
                                "Name the address that it sends to.")  # fmt: skip
    if status in (404, 405, 501):
        return EnvironmentFault(f"{who} has no list of models ({status}).", "Look at its address: most end in /v1.")
    if isinstance(error, ValueError) and status is None:
        return EnvironmentFault(f"{who} sent something that is no list of models: {faults.masked(str(error))}.",
                                "Look at its address: most end in /v1.")  # fmt: skip
    fault = faults.fault_of(error, who, time.time())
    kind = ConfigError if status in (401, 403) else EnvironmentFault
    return kind(fault.text if fault.text.endswith(".") else f"{fault.text}.")


# ---- Anthropic


async def _of_anthropic(base: str, key: str, timeout_s: float, *, token: bool) -> ServedList:
    found: list[Any] = []
    after: dict[str, str] = {}
    async with anthropics.client(base, key, timeout_s, token=token) as client:
        for _ in range(MAX_PAGES):
            async with client.models.with_streaming_response.list(limit=1000, **after) as response:
                page = await anthropics.body(response)
            found += _data(page)
            last = page.get("last_id")
            if not page.get("has_more") or not isinstance(last, str) or last == after.get("after_id") \
                    or len(found) > MAX_MODELS:  # fmt: skip
                break
            after = {"after_id": last}
    return _list(base, found, more=bool(page.get("has_more")))


# ---- OpenAI's format


async def _of_server(address: str, key: str, deadline: float, *, own: bool) -> ServedList:
    """A server of one's own is given a provider's key only where it asks for one."""
    if own:
        try:
            return await asyncio.to_thread(_of_openai, address, "", deadline)
        except _StatusError as error:
            if error.status_code not in (401, 403) or not key:
                raise
    return await asyncio.to_thread(_of_openai, address, key, deadline)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Never."""


def _of_openai(address: str, key: str, deadline: float) -> ServedList:
    """Blocks, at most until the deadline, a time of `time.monotonic`."""
    headers = {"Accept": "application/json", "User-Agent": "forge-tui"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    # the address was checked to be http or https where it was given
    request = urllib.request.Request(address, headers=headers)  # noqa: S310
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=_certificates()))
    data = b""
    try:
        with opener.open(request, timeout=max(0.1, deadline - time.monotonic())) as response:
            while piece := response.read1(_CHUNK):
                data += piece
                if len(data) > anthropics.MAX_BYTES:
                    raise anthropics.OversizedError
                if time.monotonic() > deadline:
                    raise TimeoutError
    except urllib.error.HTTPError as error:
        with error:
            raise _StatusError(error.code, _said(error), error.headers) from None
    except urllib.error.URLError as error:
        # what is wrapped says more: a refused connection, a name that is not known, a certificate
        raise error.reason if isinstance(error.reason, Exception) else error from None
    return _list(address, _data(anthropics.parsed(data)))


def _certificates() -> ssl.SSLContext:
    """The system's, and those of the package that LiteLLM's client brings: containers often have none."""
    context = ssl.create_default_context()
    if importlib.util.find_spec("certifi") is not None:
        certifi: Any = importlib.import_module("certifi")
        context.load_verify_locations(certifi.where())
    return context


def _said(error: urllib.error.HTTPError) -> str:
    text = error.read1(_CHUNK).decode("utf-8", "replace")
    try:
        said = anthropics.parsed(text.encode()).get("error")
        return str(said.get("message") or error.reason) if isinstance(said, Mapping) else str(said or error.reason)
    except ValueError:
        return str(error.reason)


# ---- what they sent


def _data(page: Mapping[str, Any]) -> list[Any]:
    data = page.get("data")
    if not isinstance(data, list):
        raise ValueError("it has no list in `data`")  # noqa: TRY004 - a server's fault, not a caller's
    return data


def _list(address: str, data: list[Any], *, more: bool = False) -> ServedList:
    found: dict[str, Served] = {}
    for item in data:
        name = item.get("id") if isinstance(item, Mapping) else None
        if isinstance(name, str) and 0 < len(name) <= _LONGEST and name.isprintable():
            found[name] = Served(id=name, context=_first(item, _CONTEXT), most_output=_first(item, _OUTPUT))
    kept = sorted(found.values(), key=lambda model: model.id)[:MAX_MODELS]
    return ServedList(address=address, models=tuple(kept), more=more or len(found) > MAX_MODELS)


def _first(item: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = item.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40:
            return value
    return None
