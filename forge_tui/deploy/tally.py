"""Counts kept per thread without a lock, so that eight threads lose none and the fast path stays fast."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any


class ThreadTally:
    """What one thread counted, and the workspaces it uses by stream."""

    __slots__ = ("__weakref__", "_ended", "fallbacks", "served", "workspaces")

    def __init__(self, ended: deque[tuple[int, dict[str, int]]]) -> None:
        self._ended = ended
        self.served = 0
        self.fallbacks: dict[str, int] = {}
        self.workspaces: dict[int, Any] = {}

    def __del__(self) -> None:
        # the thread is over: its counts live on (append is atomic and takes no lock)
        if self.served or self.fallbacks:
            self._ended.append((self.served, self.fallbacks))


class Tally(threading.local):
    """One `ThreadTally` for each thread that asks, and their sum.

    `threading.local` runs `__init__` again in each thread with the same arguments; `Totals` is what they share.
    """

    def __init__(self, totals: Totals) -> None:
        self.mine = totals.join()


class Totals:
    """The sum over threads, those that ended included."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: deque[tuple[int, dict[str, int]]] = deque()
        self._living: list[Any] = []
        self._served = 0
        self._fallbacks: dict[str, int] = {}

    def join(self) -> ThreadTally:
        """A tally for the calling thread."""
        tally = ThreadTally(self._ended)
        with self._lock:
            self._drain()
            self._living = [ref for ref in self._living if ref() is not None]
            self._living.append(weakref.ref(tally))
        return tally

    def read(self) -> tuple[int, dict[str, int]]:
        """Calls served, and calls given back by reason."""
        with self._lock:
            living = [tally for ref in self._living if (tally := ref()) is not None]
            self._drain()
            served = self._served + sum(tally.served for tally in living)
            fallbacks = dict(self._fallbacks)
            for tally in living:
                for reason, count in dict(tally.fallbacks).items():
                    fallbacks[reason] = fallbacks.get(reason, 0) + count
            return served, fallbacks

    def reset(self) -> None:
        """Forget all counts; not while calls run."""
        with self._lock:
            self._drain()
            self._served, self._fallbacks = 0, {}
            for ref in self._living:
                tally = ref()
                if tally is not None:
                    tally.served, tally.fallbacks = 0, {}

    def release(self) -> None:
        """Drop the workspaces of every thread; not while calls run."""
        with self._lock:
            for ref in self._living:
                tally = ref()
                if tally is not None:
                    tally.workspaces = {}

    def _drain(self) -> None:
        while self._ended:
            served, fallbacks = self._ended.popleft()
            self._served += served
            for reason, count in fallbacks.items():
                self._fallbacks[reason] = self._fallbacks.get(reason, 0) + count
