"""The landscapes of six operators, recorded in one go on one device.

Usage: python tests/benchmarks/record_landscapes.py [--device cuda:0] [--minutes 10] [--output FOLDER] [NAME ...]

Runs `forge-tui record` for softmax, RMSNorm, group norm, batch norm, pooling and a fused chain, each with a time limit
of its own, into FOLDER/NAME-DEVICE.landscape. What is there already is gone on with, so the same command continues
after an interrupt. Ends with one line a landscape: points, verdicts, best speedup, spread of the values. The packaged
ones lie in forge_tui/examples/landscapes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

from forge_tui.core import landscapes
from forge_tui.search.recorded import TargetLandscape

MODELS = Path(__file__).parent / "models" / "landscapes.py"
#: factory of the model file, and the target in it
OPERATORS = {
    "softmax": "Softmax", "rmsnorm": "RMSNorm", "groupnorm": "GroupNorm", "batchnorm": "BatchNorm2d",
    "pooling": "MaxPool2d", "chain": "Chain",
}  # fmt: skip


def summary(path: Path) -> str:
    """One line of a landscape."""
    recorded = landscapes.read(path).targets[0]
    land = TargetLandscape(recorded)
    values = [value for i in range(len(land.points)) if (value := land.value(i)) is not None]
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(p.verdict for p in land.points).items())
    spread = statistics.median(values) if values else float("nan")
    return (f"{path.name:<28} {len(land.points):>5} of {recorded.grid:<5} best ln {land.best_value:6.3f}, median "
            f"{spread:6.3f}, {path.stat().st_size / 1e3:.0f} KB: {verdicts}")  # fmt: skip


def main() -> None:
    """Record what is named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(OPERATORS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--dtype", default=None, help="by default bfloat16 on CUDA, float32 on the CPU")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each landscape")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("landscapes"))
    arguments = parser.parse_args()
    names = arguments.names or list(OPERATORS)
    if unknown := set(names) - set(OPERATORS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(OPERATORS)}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    dtype = arguments.dtype or ("bfloat16" if arguments.device.startswith("cuda") else None)
    kind = arguments.device.partition(":")[0]
    failed = []
    for name in names:
        path = arguments.output / f"{name}-{kind}.landscape"
        print(f"-- {name}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "forge_tui", "record", f"{MODELS}:{name}", "--target", OPERATORS[name],
             "--device", arguments.device, "--minutes", str(arguments.minutes), "--threads", str(arguments.threads),
             "--workspace", str(arguments.output / "workspace"), "--output", str(path),
             *(["--dtype", dtype] if dtype else [])], check=False,
        )  # fmt: skip
        failed += [name] if done.returncode else []
    for path in sorted(arguments.output.glob(f"*-{kind}.landscape")):
        print(summary(path))
    if failed:
        sys.exit(f"Not recorded: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
