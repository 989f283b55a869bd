"""One lease for the stages of several evaluations of one process: while one is judged the next one may run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

#: after so long the lease is handed back once, so that other sessions get their turn
_TURN_S = 5.0


class SharedLease:
    """Holds a machine-wide lease while at least one evaluation of ours needs it."""

    def __init__(self, lease: Callable[[], AbstractAsyncContextManager[None]], turn_s: float = _TURN_S) -> None:
        self._lease = lease
        self._turn_s = turn_s
        self._gate = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._users = 0
        self._since = 0.0
        self._held = contextlib.AsyncExitStack()

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold the lease, together with others of this process; waits behind those that came before.

        Raises:
            EnvironmentFault: as the lease does.
        """
        async with self._gate:
            if self._users and time.monotonic() - self._since > self._turn_s:
                await self._idle.wait()
            if not self._users:
                await self._held.enter_async_context(self._lease())
                self._since = time.monotonic()
            self._users += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                held, self._held = self._held, contextlib.AsyncExitStack()
                await held.aclose()
                self._idle.set()
