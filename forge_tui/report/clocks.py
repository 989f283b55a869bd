"""What is said of a timing: baselines, clocks, noise; in sentences of ASCII."""

from __future__ import annotations

from forge_tui.core.timings import Noise, Ratio, SideTime, Timings
from forge_tui.report.format import time_us


def timing_lines(timings: Timings) -> list[str]:
    """Ratios to eager and to the fastest baseline, other clocks, noise, one line each; only what there is to say."""
    lines = [f"against eager {_ratio(timings.vs_eager)}"]
    if timings.best != "eager":
        lines.append(f"against the fastest baseline, {timings.best}: {_ratio(timings.vs_best)}")
    else:
        others = [side.name for side in timings.sides if side.name not in ("candidate", "eager")]
        others += [f"{name} not timed: {reason}" for name, reason in timings.missing.items()]
        lines.append("eager is the fastest baseline" + (f" (beside it: {'; '.join(others)})" if others else ""))
    on_device = [f"{side.name} {time_us(side.device_us)}" for side in timings.sides if side.device_us is not None]
    if on_device:
        lines.append(f"decided by {timings.decides}; in a replayed graph {', '.join(on_device)}")
    called = [f"{side.name} {time_us(side.call_us)}" for side in timings.sides if _own_call(side)]
    if called:
        lines.append(f"a call with the host's part: {', '.join(called)}")
    if timings.second_clock:
        lines.append(f"second clock: {timings.second_clock}")
    if timings.noise is not None:
        lines += _noise(timings.noise)
    if not timings.settled:
        lines.append("its times had not settled when the warm-up ended")
    return lines


def _own_call(side: SideTime) -> bool:
    """On the CPU both clocks are one."""
    return side.call_us is not None and side.call_us != side.us


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.speedup:.3f}x, 95% interval {ratio.low:.3f} to {ratio.high:.3f}"


def _noise(noise: Noise) -> list[str]:
    lines = []
    if noise.marks:
        lines.append(f"disturbed: {'; '.join(noise.marks)}")
    facts = []
    if noise.repeated:
        facts.append(f"{noise.repeated} disturbed {'round' if noise.repeated == 1 else 'rounds'} thrown away")
    if noise.waited_s >= 1:
        facts.append(f"waited {noise.waited_s:.0f} s for others")
    if noise.sm_mhz is not None:
        facts.append(f"clock {noise.sm_mhz[0]:.0f} to {noise.sm_mhz[1]:.0f} MHz")
    if noise.temperature_c is not None:
        facts.append(f"{noise.temperature_c:.0f} degrees C")
    return lines + ([", ".join(facts)] if facts else [])
