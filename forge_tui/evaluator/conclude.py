"""From what the runner timed to the fields of an evaluation: pure."""

from __future__ import annotations

import statistics
from typing import Any

from forge_tui.core.records import Device, Target, Under, Verdict
from forge_tui.core.timings import Noise, Ratio, SideTime, Timings
from forge_tui.evaluator import stats

#: which clock a verdict is by
DECIDES = {"cuda": "device events on the caller's stream, cold L2", "cpu": "wall time"}
#: fields of an evaluation that a timing fills beside its verdict and reason
TIMED = ("time_us", "baseline_us", "speedup", "speedup_ci", "timings", "samples")
#: below this part of the floor a time is not believed
_BELOW_FLOOR = {"cpu": 0.25, "cuda": 0.7}


def conclude(
    target: Target, reply: dict[str, Any], *, kind: str, under: Under, least_us: float, missing: dict[str, str],
    noise: Noise | None,
) -> dict[str, Any]:  # fmt: skip
    """Verdict, times and ratios. `reply` has `samples` by side; `missing` is why a baseline has none."""
    samples: dict[str, list[float]] = reply["samples"]
    candidate = samples["candidate"]
    summaries = {
        name: stats.summarise(list(zip(candidate, times, strict=True)))
        for name, times in samples.items() if name != "candidate"
    }  # fmt: skip
    baseline = under if under in summaries else "eager"
    summary = summaries[baseline]
    verdict = stats.verdict(summary)
    reason = ""
    if summary.candidate_us < least_us:
        verdict = Verdict.REJECTED
        reason = (f"Faster than the hardware allows: {summary.candidate_us:.3g} us, where moving its "
                  f"{target.bytes_moved} bytes takes {least_us:.3g} us at the very least.")  # fmt: skip
    elif verdict is Verdict.INCONCLUSIVE:
        reason = why_open(summary, noise)
    best = min(summaries, key=lambda name: summaries[name].ratio)
    costs: dict[str, dict[str, float | None]] = reply.get("costs", {})
    sides = tuple(
        SideTime(name=name, us=statistics.median(times), device_us=costs.get(name, {}).get("device_us"),
                 call_us=costs.get(name, {}).get("call_us", statistics.median(times) if kind == "cpu" else None))
        for name, times in samples.items()
    )  # fmt: skip
    timings = Timings(
        decides=DECIDES[kind], sides=sides, vs_eager=_ratio(summaries["eager"]), vs_best=_ratio(summaries[best]),
        best=best, missing=missing, noise=noise, settled=reply.get("settled", True),
        second_clock=reply.get("second", ""),
    )  # fmt: skip
    return {
        "verdict": verdict, "reason": reason, "time_us": summary.candidate_us, "baseline_us": summary.baseline_us,
        "speedup": summary.ratio, "speedup_ci": (summary.low, summary.high), "timings": timings,
        "samples": tuple(zip(candidate, samples[baseline], strict=True)),
    }  # fmt: skip


def _ratio(summary: stats.Summary) -> Ratio:
    return Ratio(speedup=summary.ratio, low=summary.low, high=summary.high)


def why_open(summary: stats.Summary, noise: Noise | None) -> str:
    """The sentence for a timing that tells neither."""
    interval = f"The interval {summary.low:.3f} to {summary.high:.3f}"
    if summary.low > 1.0 or summary.high < 1.0:
        close = abs(summary.ratio - 1.0) < stats.MIN_GAIN
        said = f"{interval} is too near to 1 to matter." if close else f"{interval} does not say it surely enough."
    else:
        said = f"{interval} does not say which is faster."
    return f"{said} It was disturbed: {', '.join(noise.marks)}." if noise is not None and noise.marks else said


def least_us(target: Target, device: Device) -> float:
    """A time below which something is amiss; on the CPU only where the caches cannot hold what is moved."""
    if device.kind == "cpu":
        cache = device.ceilings.cache_bytes if device.ceilings is not None else 0
        if not cache or target.bytes_moved <= cache:
            return 0.0
    return _BELOW_FLOOR[device.kind] * _memory_floor_us(target, device) * _cold_part(target, device)


def _memory_floor_us(target: Target, device: Device) -> float:
    """The part of the floor that no kernel goes below: work may be saved by rewriting sums, reading may not."""
    gbps = device.ceilings.copy_gbps if device.ceilings is not None else 0.0
    return min(target.floor_us, target.bytes_moved / (gbps * 1e3)) if gbps > 0 else 0.0


def _cold_part(target: Target, device: Device) -> float:
    """The part of a floor that DRAM must serve inside the timed window, 0 to 1.

    Inputs are cold in every sample, but on a GPU what L2 holds of the outputs in the end is written back later, so a
    right kernel of a small tensor can beat the floor of all its bytes.
    """
    if device.kind == "cpu" or not target.bytes_moved:
        return 1.0
    written = sum(out.spec.nbytes for out in target.signature.outputs)
    return max(0.0, 1.0 - min(written, device.l2_bytes) / target.bytes_moved)
