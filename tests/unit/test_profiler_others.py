"""What other processes took of the cores."""

import os
import time

from forge_tui.profiler import others
from forge_tui.profiler.others import Others


def stat(user: int, steal: int = 0) -> str:
    """`/proc/stat` with the same on every core of this process, and a foreign one that is always busy."""
    cores = [*os.sched_getaffinity(0), 99999]
    return "cpu 1 2 3\n" + "".join(f"cpu{n} {user} 0 0 500 0 0 0 {steal} 0 0\n" for n in cores) + "intr 5\n"


def test_others_are_what_this_process_did_not_use(tmp_path, monkeypatch):
    """Busy and stolen time less our own, over the span."""
    monkeypatch.setattr(others, "_SHORTEST_S", 0.0)
    file = tmp_path / "stat"
    file.write_text(stat(1000))
    monkeypatch.setattr(os, "times", lambda: (1.0, 0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(time, "monotonic", lambda: 10.0)
    seen = Others(file)
    file.write_text(stat(1000 + os.sysconf("SC_CLK_TCK"), steal=os.sysconf("SC_CLK_TCK")))
    monkeypatch.setattr(os, "times", lambda: (1.5, 0.5, 0.0, 0.0, 0.0))
    monkeypatch.setattr(time, "monotonic", lambda: 12.0)
    assert seen.cores() == (2 * len(os.sched_getaffinity(0)) - 1) / 2


def test_what_cannot_be_known_is_nothing(tmp_path):
    """No file, another form of it, or too short a span."""
    assert Others(tmp_path / "none").cores() == 0.0
    (tmp_path / "stat").write_text("cpu0 what\n")
    assert Others(tmp_path / "stat").cores() == 0.0
    assert Others().cores() == 0.0
