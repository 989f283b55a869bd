"""Which targets of some models can be judged, why the others cannot, and what it costs to find out.

Usage: python tests/benchmarks/open_targets.py [--keep FOLDER] [--slow SECONDS] MODEL ...

Profiles every model on the CPU, with every target that it has however small, opens each in a judge, and prints one line
for each target that is refused or has a remark, or took more than --slow seconds of processor time, then the number of
usable ones. A MODEL is what forge-tui takes (`example:NAME`, a file, `hf:FOLDER`). With --keep the profiles stay in the
folder and are used again, so that two versions of the judge can be compared on the same targets.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from pathlib import Path
from unittest import mock

import msgspec

from forge_tui.core.errors import ForgeError
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Ceilings, Device, ModelSpec, Target
from forge_tui.evaluator.judge import Judge
from forge_tui.evaluator.opened import Targets
from forge_tui.models.load import load_model
from forge_tui.models.spec import parse_model
from forge_tui.profiler import targets as targets_module
from forge_tui.profiler.profile import profile_model

#: ceilings far above any machine, so that everything has headroom
DEVICE = Device(name="cpu", model="any", arch="any",
                ceilings=Ceilings(copy_gbps=1e6, matmul_tflops={"float32": 1e3}, launch_us=1.0))  # fmt: skip


def profiled(spec: ModelSpec, place: Workspace) -> list[Target]:
    """Every target of a model, from the folder if it is there."""
    known = place.root / "targets.json"
    if known.exists():
        return msgspec.json.decode(known.read_bytes(), type=list[Target])
    place.prepare()
    with mock.patch.object(targets_module, "MIN_SHARE", 0.0):
        found = profile_model(load_model(spec, "cpu"), DEVICE, place.artifacts, repeats=2, timing_passes=2)
    known.write_bytes(msgspec.json.encode(found.targets))
    return list(found.targets)


def survey(text: str, keep: Path, slow_s: float, *, verbose: bool) -> tuple[int, int, float]:
    """Open the targets of one model; how many there are, how many are usable, and the seconds of all."""
    spec = parse_model(text)
    place = Workspace(keep / hashlib.sha256(text.encode()).hexdigest()[:12])
    try:
        targets = profiled(spec, place)
    except ForgeError as error:
        print(f"{text}: {error}", flush=True)
        return 0, 0, 0.0
    judge = Judge(Targets("cpu", place.artifacts, 0), 1)
    usable, total = 0, 0.0
    for target in targets:
        started = time.process_time()
        message = {"target": msgspec.to_builtins(target), "spec": msgspec.to_builtins(spec)}
        try:
            answer = judge.open(message)
        except ForgeError as error:
            answer = {"usable": False, "reason": str(error)}
        seconds = time.process_time() - started
        total += seconds
        usable += answer["usable"]
        left_out = [f"no {kind} inputs: {reason}" for kind, reason in answer.get("left_out", {}).items()]
        note = answer["reason"] or "; ".join([*answer.get("remarks", []), *(left_out if verbose else [])])
        if note or seconds > slow_s:
            mark = "" if answer["usable"] else "REFUSED "
            print(f"{Path(text).stem}: {mark}{target.name} {target.signature.describe()} {seconds:.2f} s: {note}",
                  flush=True)  # fmt: skip
    print(f"{Path(text).stem}: {usable} of {len(targets)} usable, {total:.1f} s", flush=True)
    return len(targets), usable, total


def main() -> None:
    """Survey and print the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--slow", type=float, default=1.0)
    parser.add_argument("--verbose", action="store_true", help="say which kinds of inputs were left out, and why")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [survey(text, arguments.keep or Path(folder), arguments.slow, verbose=arguments.verbose)
                 for text in arguments.models]  # fmt: skip
    print(f"in all {sum(f[1] for f in found)} of {sum(f[0] for f in found)} usable, {sum(f[2] for f in found):.1f} s")


if __name__ == "__main__":
    main()
