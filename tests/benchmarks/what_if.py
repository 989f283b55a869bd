"""Baselines and what-if ceilings of one model, as tables.

Usage: python tests/benchmarks/what_if.py MODEL [--device cuda:0] [--top 5] [--modes eager,compile,graph]
       [--no-baselines] [--tf32] [--dtype bfloat16] [--length N] [--batch N] [--layers N] [--attention eager]
       [--phase decode=0] [--target NAME ...] [--out FILE] [--workspace FOLDER] [--minutes 30]

MODEL is what forge-tui takes: a file, example:NAME, hf:FOLDER. The profile is made anew; with --out the whole profile,
baselines and what-ifs included, is written as JSON. Also prints what a stand-in itself costs on the host.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from forge_tui.core.paths import Workspace
from forge_tui.core.profiles import Baseline, Profile
from forge_tui.core.records import TensorSpec
from forge_tui.models.spec import ModelRequest, parse_model
from forge_tui.profiler import client
from forge_tui.profiler.experiments.costs import Counter, make_produce, opaque
from forge_tui.profiler.experiments.names import best
from forge_tui.targets.select import choose


def say(text: str) -> None:
    """One line as it comes."""
    print(f"  [{time.strftime('%H:%M:%S')}] {text}", flush=True)


def one(row: Baseline, eager_ms: float | None) -> str:
    """A baseline as a line."""
    if row.ms is None:
        return f"  {row.name:<44} failed: {row.failure}"
    times = f"{eager_ms / row.ms:6.2f}x" if eager_ms else ""
    error = "" if row.max_abs_error is None else f"max abs error {row.max_abs_error:.3g}"
    return f"  {row.name:<44} {row.ms:10.4f} ms {times}  set-up {row.setup_s:6.1f} s  {error}"


def tables(profile: Profile) -> None:
    """All that was measured beside the profile."""
    names = {t.id: t.name for t in profile.targets}
    print(f"\nmodel {profile.model_ms:.4g} ms, busy {profile.busy_ms:.4g} ms, launches {profile.launches}")
    for title, rows in [("model", profile.baselines),
                        *((names[t.target_id], t.baselines) for t in profile.target_baselines)]:  # fmt: skip
        print(f"\nbaselines of {title}")
        eager = next((row.ms for row in rows if row.name == "eager"), None)
        for row in rows:
            print(one(row, eager))
        fastest = best(rows)
        print(f"  best: {fastest.name if fastest else 'none'}")
    print("\nwhat if")
    for row in profile.what_ifs:
        of = " + ".join(names.get(i, i) for i in row.target_ids) or "as it is"
        if row.ms is None or row.base_ms is None:
            print(f"  {row.mode:<8} {of:<60} failed: {row.failure}")
        else:
            gain = row.base_ms - row.ms
            print(f"  {row.mode:<8} {of:<60} {row.base_ms:10.4f} -> {row.ms:10.4f} ms  gain {gain:9.4f} ms  "
                  f"{row.base_ms / row.ms:6.3f}x  calls {row.calls:g}")  # fmt: skip


def host_cost(device: torch.device) -> None:
    """Host microseconds of one stand-in with a floor of 0, plain and behind its operator."""
    spec = TensorSpec(shape=(4, 8), dtype="float32", strides=(8, 1))
    x = torch.empty(4, 8, device=device)
    plain = make_produce([spec], 0.0, device, Counter())
    settle = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
    operator = opaque(plain, [spec], device)
    for name, call in (("plain", plain), ("operator", operator), ("torch.neg", lambda inputs, _: -inputs[0])):
        for _ in range(2):
            settle()
            start = time.perf_counter()
            for _ in range(1000):
                call([x], 0)
            spent = (time.perf_counter() - start) * 1e3
            settle()
        print(f"host microseconds of one call, {name}: {spent:.2f}")


async def measure(arguments: argparse.Namespace, place: Workspace) -> Profile:
    """Profile, baselines, what-ifs."""
    place.prepare()
    request = ModelRequest(dtype=arguments.dtype, batch=arguments.batch, length=arguments.length,
                           layers=arguments.layers, attention=arguments.attention,
                           phases=tuple(arguments.phase))  # fmt: skip
    spec = parse_model(arguments.model, request)
    log = place.logs / "what_if.log"
    common: dict[str, Any] = {"device_name": arguments.device, "log": log, "on_progress": say}
    profile = await client.profile(spec, arguments.device, place, log=log, timeout_s=1200)
    ids = [t.id for t in choose(profile, names=arguments.target, max_targets=arguments.top)]
    left = arguments.minutes * 60
    modes = tuple(arguments.modes.split(",")) if arguments.modes else ()
    started = time.monotonic()
    if ids:
        profile = await client.what_if(spec, profile, place, target_ids=ids, modes=modes, timeout_s=left, **common)
    if not arguments.no_baselines:
        left = max(60.0, left - (time.monotonic() - started))
        profile = await client.baselines(spec, profile, place, target_ids=ids, allow_tf32=arguments.tf32,
                                         timeout_s=left, **common)  # fmt: skip
    return profile


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--modes", default="")
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--dtype")
    parser.add_argument("--attention")
    parser.add_argument("--phase", action="append", default=[])
    parser.add_argument("--target", action="append", default=[])
    for name in ("--batch", "--length", "--layers"):
        parser.add_argument(name, type=int)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workspace", type=Path)
    arguments = parser.parse_args()
    host_cost(torch.device(arguments.device))
    with tempfile.TemporaryDirectory() as folder:
        profile = asyncio.run(measure(arguments, Workspace((arguments.workspace or Path(folder)).resolve())))
    tables(profile)
    if arguments.out:
        arguments.out.write_text(profile.to_json())


if __name__ == "__main__":
    main()
