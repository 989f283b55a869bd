"""Profiles of the five published models with random weights, and how far the profiles can be believed.

    python tests/benchmarks/profile_models.py cuda:0 [NAME...]

For each model: the hotspot table by own time, the targets by headroom, the sum of own times over the device's busy time
as a plain trace without our marks sees it, and the top ten callables that two whole profiles have in common.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path

import torch

from forge_tui.core.profiles import Profile
from forge_tui.models.load import LoadedModel, load_model
from forge_tui.models.spec import ModelRequest, parse_model
from forge_tui.profiler.activity import busy_us, read_events
from forge_tui.profiler.device import describe
from forge_tui.profiler.profile import profile_model

HERE = Path(__file__).resolve().parent / "models"
MODELS = {
    "resnet50": ModelRequest(dtype="float32", batch=32),
    "gemma4-text-12": ModelRequest(dtype="bfloat16", length=1024, attention="eager"),
    "qwen3.5-text-8": ModelRequest(dtype="bfloat16", length=1024, attention="eager"),
    "sd3.5-medium-transformer": ModelRequest(dtype="bfloat16", batch=2),
    "sd3.5-vae": ModelRequest(dtype="bfloat16"),
}


def plain_busy_ms(loaded: LoadedModel) -> float:
    """Device time of one model call, weighted by phase, in a trace that nothing of ours takes part in."""
    total = 0.0
    for phase in loaded.phases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=kinds) as tracer:
                phase.run(loaded.module)
                torch.cuda.synchronize()
        assert tracer.profiler is not None
        results = tracer.profiler.kineto_results
        assert results is not None
        total += phase.weight * busy_us(read_events(results.events())[1]) / 1e3
    return total


def own_times(profile: Profile) -> dict[str, tuple[float, float, int]]:
    """(own ms, headroom ms, calls) by callable, over all nodes of it."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for spot in profile.hotspots:
        for i, value in enumerate((spot.self_ms, spot.headroom_ms, spot.calls)):
            found[spot.name][i] += value
    return {name: (own, head, int(calls)) for name, (own, head, calls) in found.items()}


def top(profile: Profile, count: int = 10) -> list[str]:
    """Callables by own time."""
    times = own_times(profile)
    return sorted(times, key=lambda name: -times[name][0])[:count]


def show(name: str, profile: Profile, again: Profile, busy_ms: float, seconds: float) -> None:
    """One model's tables."""
    print(f"\n## {name}: {profile.model_ms:.2f} ms, device busy {profile.busy_ms:.2f} ms, {profile.launches} launches, "
          f"profiled in {seconds:.0f} s, overhead {profile.overhead:.2f}x")  # fmt: skip
    for phase in profile.phases:
        if phase.name:
            print(f"   phase {phase.name} x{phase.weight:g}: {phase.ms:.3f} ms, busy {phase.busy_ms:.3f}, "
                  f"{phase.launches} launches")  # fmt: skip
    for text in profile.warnings:
        print(f"   warning: {text}")
    own = sum(spot.self_ms for spot in profile.hotspots)
    common = len(set(top(profile)) & set(top(again)))
    print(f"   own times over plain busy time: {own:.3f} / {busy_ms:.3f} = {own / busy_ms:.4f}")
    print(f"   top ten of two profiles in common: {common}; of two passes: {profile.agreement:.0%}")
    print(f"   {'callable':32} {'calls':>7} {'own ms':>9} {'of busy':>8}")
    times = own_times(profile)
    for callable_name in top(profile, 12):
        ms, _, calls = times[callable_name]
        print(f"   {callable_name[:32]:32} {calls:7} {ms:9.3f} {ms / profile.busy_ms:8.1%}")
    print(f"   {'target':32} {'kind':8} {'calls':>6} {'us':>9} {'floor':>8} {'of floor':>8} {'share':>7} "
          f"{'headroom':>9} "
          f"{'of it':>6} {'launches':>8}  signature")  # fmt: skip
    for t in sorted(profile.targets, key=lambda item: -item.headroom_ms)[:16]:
        spent = t.calls * t.time_us / 1e3
        print(f"   {t.name[:32]:32} {t.kind:8} {t.calls:6} {t.time_us:9.1f} {t.floor_us:8.1f} {t.floor_share:8.1%} "
              f"{t.share:7.1%} {t.headroom_ms:9.3f} {t.headroom_ms / max(spent, 1e-9):6.1%} {t.launches:8.0f}  "
              f"{t.signature.describe()[:60]}")  # fmt: skip
    wanted = ("norm", "Norm", "delta")
    for callable_name, (_, head, calls) in times.items():
        if any(word in callable_name for word in wanted):
            total = sum(s.total_ms for s in profile.hotspots if s.name == callable_name)
            state = {s.name for s in profile.hotspots if s.name == callable_name and s.target_id}
            print(f"   {callable_name}: {calls} calls, {total:.3f} ms = {total / profile.busy_ms:.1%} of busy, "
                  f"headroom {head / max(total, 1e-9):.1%} of it, {'target' if state else 'no target'}")  # fmt: skip


def main() -> None:
    """Profile the named models, or all."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda:0"
    names = sys.argv[2:] or list(MODELS)
    described = describe(device)
    versions = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, driver {described.driver_version}"
    print(f"{described.model}, {versions}")
    print(f"ceilings: {described.ceilings}")
    for name in names:
        loaded = load_model(parse_model(f"hf:{HERE / name}.json", MODELS[name]), device)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            first = profile_model(loaded, described, Path(folder))
            seconds = time.perf_counter() - start
            second = profile_model(loaded, described, Path(folder))
            busy = plain_busy_ms(loaded) if device.startswith("cuda") else first.busy_ms
        show(name, first, second, busy, seconds)
        del loaded
        if device.startswith("cuda"):
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
