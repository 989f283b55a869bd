"""How long the command line takes to answer: `python tests/benchmarks/startup.py [RUNS]`.

The promise is 300 ms for `--help` on an idle machine; medians and minima are printed, nothing is asserted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time

PROMISE_MS = 300.0
COMMANDS = (["--help"], ["--version"], ["run", "--help"], ["sessions"], ["nosuch"])


def milliseconds(arguments: list[str], folder: str) -> float:
    """Wall time of one call, Python's own start included."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "forge_tui", *arguments], cwd=folder, capture_output=True, check=False)
    return 1e3 * (time.perf_counter() - begun)


def main() -> None:
    """Print a line for each command."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with tempfile.TemporaryDirectory() as folder:
        bare = statistics.median(
            _python(folder) for _ in range(runs)
        )
        print(f"{'python -c pass':<24} median {bare:6.0f} ms")
        for arguments in COMMANDS:
            times = sorted(milliseconds(arguments, folder) for _ in range(runs))
            median = statistics.median(times)
            kept = f"  promise {PROMISE_MS:.0f} ms: {'kept' if median < PROMISE_MS else 'BROKEN'}" \
                if arguments == ["--help"] else ""  # fmt: skip
            print(f"{'forge-tui ' + ' '.join(arguments):<24} median {median:6.0f} ms  least {times[0]:6.0f} ms{kept}")


def _python(folder: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], cwd=folder, check=True)
    return 1e3 * (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
