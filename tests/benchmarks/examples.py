"""The main job on the packaged examples, one table.

Usage: python tests/benchmarks/examples.py [--device cuda:0] [--out FOLDER] [EXAMPLE ...] [-- MORE FORGE-TUI OPTIONS]

Runs `forge-tui run example:NAME --json` for each example in a workspace of its own, prints one line for each target and
model, and the median seconds that a candidate cost (compile, verify, time). With --out the JSON documents and the
workspaces' databases are kept there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from forge_tui.core.paths import Workspace
from forge_tui.store.reader import Reader

EXAMPLES = ("tiny-llm", "resnet", "vae-decoder")


def run(name: str, device: str, folder: Path, more: list[str]) -> dict[str, object] | None:
    """One example; returns the report, or None after printing what went wrong."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "forge_tui", "run", f"example:{name}", "--device", device, "--json",
               "--workspace", str(folder), *more]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    (folder / "progress.txt").write_text(done.stderr)
    try:
        report: dict[str, object] = json.loads(done.stdout)
    except ValueError:
        report = {"error": done.stdout[-500:]}
    if "error" in report:
        print(f"{name}: exit {done.returncode}: {report['error']}\n{done.stderr[-2000:]}")
        return None
    print(f"\n{name} on {report['device']}: {report['baseline_ms']} ms to {report['deployed_ms']} ms, "
          f"{report['speedup']}x (best baseline {report['speedup_vs_best']}x), "
          f"max abs error {report['max_abs_error']}, "
          f"{report['evaluations']} evaluations in {seconds:.0f} s; {report['stop_reason']}")  # fmt: skip
    print(f"  baselines {report['baselines_ms']} {report['baseline_failures']}")
    return report


def table(report: dict[str, object], folder: Path) -> None:
    """Targets, and what a candidate cost."""
    for t in report["targets"]:  # type: ignore[attr-defined]
        print(f"  {t['name']:<24} calls {t['calls']:>4} share {t['share']:.3f} {t['verdict']!s:<12} "
              f"{t['baseline_us'] or 0:9.1f} -> {t['best_us'] or 0:9.1f} us  "
              f"{t['speedup'] or 0:6.2f}x {t['speedup_ci']} "
              f"n={t['evaluations']} {'in' if t['deployed'] else t['why_not']}")  # fmt: skip
    reader = Reader.open(Workspace(folder))
    done = [n.evaluation for n in reader.nodes(str(report["session"])) if n.evaluation and n.evaluation.verdict.right]
    if done:
        medians = [
            statistics.median(getattr(e, field) for e in done) for field in ("compile_s", "verify_s", "timing_s")
        ]
        print("  median seconds a candidate: compile {:.2f}, verify {:.2f}, time {:.2f}".format(*medians))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="*", default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    arguments, more = parser.parse_known_args()
    for name in arguments.examples or EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            report = run(name, arguments.device, Path(folder), [m for m in more if m != "--"])
            if report is not None:
                table(report, Path(folder))
            if arguments.out:
                arguments.out.mkdir(parents=True, exist_ok=True)
                (arguments.out / f"{name}.json").write_text(json.dumps(report, indent=1))
                shutil.copy(Path(folder) / "progress.txt", arguments.out / f"{name}.progress.txt")


if __name__ == "__main__":
    main()
