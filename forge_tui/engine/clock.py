"""The time of a session: all of it, profiling apart, and what counts for the limit of minutes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator


class Clock:
    """Goes on from where the engines before it were.

    `elapsed_s` is every second of an engine, which is what a rented machine is paid for. `search_s` goes on while
    `searching`, but for `waiting`; it is what `--minutes` limits.
    """

    def __init__(self, elapsed_s: float, search_s: float, now: Callable[[], float] = time.monotonic) -> None:
        """Take the seconds of earlier engines."""
        self._now = now
        self._last = now()
        self._searching = self._profiling = self._waiting = False
        self._elapsed_s, self._search_s, self._profile_s = elapsed_s, search_s, 0.0
        self._saved = self._elapsed_s, self._search_s, self._profile_s

    @property
    def elapsed_s(self) -> float:
        """Seconds of every engine of the session."""
        self._tick()
        return self._elapsed_s

    @property
    def search_s(self) -> float:
        """Seconds of search."""
        self._tick()
        return self._search_s

    def unsaved(self) -> tuple[float, float, float]:
        """What came since the last call: all seconds, those of profiling, those of search."""
        self._tick()
        now = self._elapsed_s, self._search_s, self._profile_s
        elapsed, search, profile = (a - b for a, b in zip(now, self._saved, strict=True))
        self._saved = now
        return elapsed, profile, search

    @contextlib.contextmanager
    def searching(self) -> Iterator[None]:
        """The search goes on."""
        self._tick()
        self._searching = True
        try:
            yield
        finally:
            self._tick()
            self._searching = False

    @contextlib.contextmanager
    def profiling(self) -> Iterator[None]:
        """The model is profiled."""
        self._tick()
        self._profiling = True
        try:
            yield
        finally:
            self._tick()
            self._profiling = False

    @contextlib.contextmanager
    def waiting(self, for_a_person: bool = True) -> Iterator[None]:
        """The search waits, for nothing but a person or, with False, for something else too."""
        self._tick()
        self._waiting = for_a_person
        try:
            yield
        finally:
            self._tick()
            self._waiting = False

    def _tick(self) -> None:
        """Put the time since the last tick where it belongs."""
        now = self._now()
        past, self._last = now - self._last, now
        self._elapsed_s += past
        if self._profiling:
            self._profile_s += past
        if self._searching and not self._waiting:
            self._search_s += past
