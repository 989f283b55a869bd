"""What other processes took of the cores while a model was timed on them."""

from __future__ import annotations

import os
import time
from pathlib import Path

#: shorter spans are a few ticks of the system's clock
_SHORTEST_S = 0.2


class Others:
    """CPU time of other processes on this one's cores, from its making on; what a hypervisor took counts as theirs."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        self._since, self._before = time.monotonic(), self._look()

    def cores(self) -> float:
        """How many cores they kept busy; 0 where that is not known."""
        span, after = time.monotonic() - self._since, self._look()
        if self._before is None or after is None or span < _SHORTEST_S:
            return 0.0
        return max(0.0, after - self._before) / span

    def _look(self) -> float | None:
        ticks = 0
        try:
            for line in self._stat.read_text().splitlines():
                name, *fields = line.split()
                if name in self._cores:
                    user, nice, system, _, _, irq, soft, stolen = map(int, fields[:8])
                    ticks += user + nice + system + irq + soft + stolen
        except (OSError, ValueError):
            return None
        return ticks / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])
