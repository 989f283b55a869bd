"""No request of LiteLLM goes on to another address because a server says so.

LiteLLM's clients follow redirects: the prompt, and in Anthropic's format the key, would go to a host that nobody agreed
to. A redirect becomes a refusal instead, with a sentence that says so.
"""

from __future__ import annotations

import functools
import importlib
import urllib.parse
from typing import Any

#: "Misdirected Request": not to be tried again
STATUS = 421

_done = False


def forbid() -> None:
    """Have the HTTP library that LiteLLM uses follow none, in this process, from now on."""
    global _done
    if _done:
        return
    httpx: Any = importlib.import_module("httpx")
    httpx.Client.send = _refusing(httpx, httpx.Client.send)
    httpx.AsyncClient.send = _refusing_async(httpx, httpx.AsyncClient.send)
    _done = True


def _refusing(httpx: Any, send: Any) -> Any:
    @functools.wraps(send)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        response = send(*args, **kwargs | {"follow_redirects": False})
        if not response.has_redirect_location:
            return response
        response.close()
        return _refusal(httpx, response)

    return wrapped


def _refusing_async(httpx: Any, send: Any) -> Any:
    @functools.wraps(send)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        response = await send(*args, **kwargs | {"follow_redirects": False})
        if not response.has_redirect_location:
            return response
        await response.aclose()
        return _refusal(httpx, response)

    return wrapped


def _refusal(httpx: Any, response: Any) -> Any:
    try:
        where = urllib.parse.urlsplit(urllib.parse.urljoin(str(response.request.url), response.headers["location"]))
        named = f" ({where.hostname})"
    except ValueError:
        named = ""
    said = f"The server sends to another address{named}, which is not followed."
    error = {"type": "redirect", "code": "redirect", "message": said}
    return httpx.Response(STATUS, json={"type": "error", "error": error}, request=response.request)
