"""Which calls of one callable are kept, decided as they come: the first ones and a fair choice of the rest."""

from __future__ import annotations

from random import Random


class Reservoir:
    """Numbers of the calls to keep.

    The first `first` calls are kept, one of each module instance rather than two of one, since instances differ in
    their weights; of the others `later`, each with the same chance (reservoir sampling).
    """

    def __init__(self, first: int, later: int, rng: Random) -> None:
        self._room = max(1, first), max(0, later)
        self._rng = rng
        self._first: list[tuple[int, str]] = []
        self._later: list[int] = []
        self._offered = 0
        self._next = 0

    @property
    def kept(self) -> list[int]:
        """Numbers of the kept calls, ascending; calls count from 0."""
        return sorted([number for number, _ in self._first] + self._later)

    def offer(self, instance: str) -> tuple[int, bool, int | None]:
        """The next call: its number, whether it is kept, and the number of the call that is given up for it."""
        number = self._next
        self._next += 1
        if len(self._first) < self._room[0]:
            self._first.append((number, instance))
            return number, True, None
        known = [name for _, name in self._first]
        double = next((i for i in reversed(range(len(known))) if known[i] in known[:i]), None)
        if double is None or instance in known:
            given_up = self._draw(number)
            return number, given_up != number, given_up if given_up != number else None
        moved, _ = self._first.pop(double)
        self._first.append((number, instance))
        return number, True, self._draw(moved)

    def withdraw(self, number: int) -> None:
        """A call that was kept has come to nothing (it raised)."""
        self._first = [pair for pair in self._first if pair[0] != number]
        if number in self._later:
            self._later.remove(number)
            self._offered -= 1

    def shrink(self) -> int | None:
        """Keep one call fewer from now on: the number of the one given up, or None if it would be the last one."""
        if len(self._first) + len(self._later) <= 1:
            return None
        if self._later:
            self._room = self._room[0], len(self._later) - 1
            return self._later.pop(self._rng.randrange(len(self._later)))
        self._room = len(self._first) - 1, 0
        return self._first.pop()[0]

    def _draw(self, number: int) -> int | None:
        """Put a call into the reservoir; the number of the one that is out for it, which may be itself."""
        self._offered += 1
        if len(self._later) < self._room[1]:
            self._later.append(number)
            return None
        at = self._rng.randrange(self._offered)
        if at >= self._room[1]:
            return number
        self._later[at], given_up = number, self._later[at]
        return given_up
