"""What a CPU candidate must leave as it was in the process that timed it: floating-point mode and threads.

Either would change what the original takes beside it, or let work go on after the call returned.
"""

from __future__ import annotations

import os
import time

import torch
from torch import Tensor

from forge_tui.evaluator.verify import Dishonest

#: elements that torch gives to one thread
_PER_THREAD = 1 << 15
#: OpenMP ends the threads that it no longer needs a little later
_WAIT_S = 0.05


class Afterwards:
    """Taken before a candidate is loaded, checked when it was called for the last time."""

    def __init__(self) -> None:
        count = _PER_THREAD * torch.get_num_threads()
        self._tiny = torch.full((count,), 1e-40)
        self._one = torch.ones(count)
        self._answers = self._compute()
        # no file can be opened later
        self._status = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._threads = self._count_threads()

    def check(self) -> None:
        """Compute on every thread of OpenMP's and compare; count the threads there are.

        Raises:
            Dishonest: something is not as it was.
        """
        if not all(torch.equal(a, b) for a, b in zip(self._compute(), self._answers, strict=True)):
            raise Dishonest("It leaves the floating-point mode changed (rounding, or denormals flushed to zero), which "
                            "the original then has to live with.")  # fmt: skip
        deadline = time.monotonic() + _WAIT_S
        while (extra := self._count_threads() - self._threads) > 0:
            if time.monotonic() > deadline:
                what = "a thread" if extra == 1 else f"{extra} threads"
                raise Dishonest(f"It leaves {what} of its own behind, still at work when the call has returned.")
            time.sleep(_WAIT_S / 20)
            self._compute()

    def _compute(self) -> list[Tensor]:
        """Bits that depend on flushing and on the direction of rounding, by all threads."""
        found = (self._tiny * 1.0, self._one + 2.0**-30, self._one - 2.0**-30, -self._one - 2.0**-30)
        return [values.view(torch.int32) for values in found]

    def _count_threads(self) -> int:
        # the name in parentheses may hold blanks; num_threads is the 18th field behind it
        return int(os.pread(self._status, 4096, 0).rpartition(b")")[2].split()[17])
