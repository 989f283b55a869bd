"""`python -m forge_tui.telemetry.sampler [--interval S]`: one JSON line a second on stdout until it is closed.

A line has `at` (Unix seconds), `host`, `gpus` (a list, empty without NVML) and `no_gpus` (why it is empty).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from typing import IO, Any

from forge_tui.telemetry.host import Host
from forge_tui.telemetry.nvml import Nvml

MIN_INTERVAL_S = 0.25
"""Asking a driver more often than this costs more than it tells."""


def sample(nvml: Nvml, host: Host, at: float) -> dict[str, Any]:
    """One line's record."""
    return {"at": at, "host": host.sample(), "gpus": nvml.sample(), "no_gpus": nvml.reason}


def run(out: IO[str], interval_s: float, parent: int) -> None:
    """Write lines until `out` is closed or the parent process is another one."""
    host = Host()
    nvml = Nvml()
    due = time.monotonic()
    while os.getppid() == parent:
        try:
            out.write(json.dumps(sample(nvml, host, time.time())) + "\n")
            out.flush()
        except (BrokenPipeError, ValueError):
            return
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m forge_tui.telemetry.sampler", description=__doc__)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between lines, at least 0.25")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run(sys.stdout, max(MIN_INTERVAL_S, options.interval), os.getppid())
    # the interpreter would flush the closed pipe once more at its end and complain
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
