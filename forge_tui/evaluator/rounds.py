"""Rounds of a timing: held while others load the device, repeated where they were disturbed, else marked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from forge_tui.core.records import Device
from forge_tui.core.timings import Noise
from forge_tui.evaluator.watch import Round, Watch

#: seconds that a timing waits for others' load to end
PATIENCE_S = {"cpu": 10.0, "cuda": 120.0}
_POLL_S = 0.5
#: a CPU that was not quiet for all of that time is measured as it is, and asked again after so many seconds
_GIVEN_UP_S = 300.0
_MOST_REPEATS = {"cpu": 1, "cuda": 2}

Reply = dict[str, Any]


class NotQuiet(Exception):
    """Others loaded the device for longer than patience lasts; a whole sentence."""


class Rounds:
    """Runs rounds under a watch. `say` gets sentences for the log."""

    def __init__(
        self, device: Device, watch: Watch, say: Callable[[str], None], patience_s: float | None = None,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        self._device = device
        self._watch = watch
        self._say = say
        self._patience_s = PATIENCE_S[device.kind] if patience_s is None else patience_s
        self._clock = clock
        self._sleep = sleep
        self._given_up = -1e9

    async def run(self, once: Callable[[], Awaitable[Reply]], clear: Callable[[Reply], bool]) -> tuple[Reply, Noise]:
        """Run rounds until one is undisturbed, or `clear` whatever disturbed it; the reply of the last one.

        Raises:
            NotQuiet: others load a GPU for longer than patience lasts. A CPU is never alone, so there the round is run
                and marked.
        """
        waited_s, repeated = 0.0, 0
        while True:
            waited_s += await self._wait()
            await self._watch.begin()
            reply = await once()
            seen = await self._watch.end()
            if not seen.marks or repeated == _MOST_REPEATS[self._device.kind] or self._is_given_up() or clear(reply):
                return reply, _noise(seen, repeated, waited_s)
            repeated += 1

    async def _wait(self) -> float:
        """Hold until others are quiet; the seconds it took."""
        if self._is_given_up():
            return 0.0
        begun = self._clock()
        told = False
        while busy := await self._watch.busy():
            waited_s = self._clock() - begun
            if waited_s >= self._patience_s:
                self._give_up(busy, waited_s)
                return waited_s
            if not told:
                self._say(f"Timing on {self._device.name} waits: {busy}.")
                told = True
            await self._sleep(_POLL_S)
        if told:
            self._say(f"Timing on {self._device.name} goes on after {self._clock() - begun:.0f} s.")
        return self._clock() - begun if told else 0.0

    def _give_up(self, busy: str, waited_s: float) -> None:
        name = self._device.name
        if self._device.kind == "cuda":
            raise NotQuiet(f"{name} was not quiet for {waited_s:.0f} s: {busy}.")
        self._given_up = self._clock()
        if self._patience_s:
            self._say(f"Timing on {name} goes on beside others: {busy}. Close results stay inconclusive.")

    def _is_given_up(self) -> bool:
        return self._clock() - self._given_up < _GIVEN_UP_S


def _noise(seen: Round, repeated: int, waited_s: float) -> Noise:
    return Noise(
        marks=seen.marks, repeated=repeated, waited_s=waited_s, others=seen.others, sm_mhz=seen.sm_mhz,
        temperature_c=seen.temperature_c, throttle=seen.throttle,
    )  # fmt: skip
