"""LiteLLM's streams with the time at which their first token came."""

from __future__ import annotations

import time
from typing import Any


class Timed:
    """LiteLLM, with the time at which the first token of its stream came."""

    def __init__(self, litellm: Any) -> None:
        self._litellm = litellm
        self.first_at: float | None = None

    async def acompletion(self, **request: Any) -> Any:
        """As LiteLLM's."""
        made = await self._litellm.acompletion(**request)
        return _Noted(made, self) if request.get("stream") else made


class _Noted:
    """A stream that is passed on; everything else of it is its own."""

    def __init__(self, stream: Any, timed: Timed) -> None:
        self._stream, self._timed, self._items = stream, timed, stream.__aiter__()

    def __aiter__(self) -> _Noted:
        return self

    async def __anext__(self) -> Any:
        chunk = await self._items.__anext__()
        for choice in chunk.choices:
            if self._timed.first_at is None and any(
                getattr(choice.delta, name, None) for name in ("content", "reasoning_content")
            ):
                self._timed.first_at = time.monotonic()
        return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
