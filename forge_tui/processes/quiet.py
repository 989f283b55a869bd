"""Who may work beside a timing: nobody on the timed device, and no compiler on the cores that are timed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Quiet:
    """A readers-writer lock: compiles, verifications and comparisons side by side, or one timing alone.

    With `exclusive=False` (a GPU is timed, compilers run on the CPU) compilers are let through at any time.
    """

    def __init__(self, *, exclusive: bool) -> None:
        self._exclusive = exclusive
        self._changed = asyncio.Condition()
        self._working = 0
        self._timing = False
        self._waiting: list[object] = []
        """Timings, in the order in which they came."""

    @asynccontextmanager
    async def compiling(self) -> AsyncIterator[None]:
        """Hold while a compiler runs. Waits for a timing that runs or already waits, so that none starves."""
        if not self._exclusive:
            yield
            return
        async with self.working():
            yield

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Hold while the timed device does something else; others may do so too, a timing waits."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._timing and not self._waiting)
            self._working += 1
        try:
            yield
        finally:
            async with self._changed:
                self._working -= 1
                self._changed.notify_all()

    @asynccontextmanager
    async def timing(self) -> AsyncIterator[None]:
        """Hold while a candidate is timed; waits for what runs."""
        async with self._changed:
            ticket = object()
            self._waiting.append(ticket)
            try:
                await self._changed.wait_for(
                    lambda: not self._timing and not self._working and self._waiting[0] is ticket
                )
                self._timing = True
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            async with self._changed:
                self._timing = False
                self._changed.notify_all()
