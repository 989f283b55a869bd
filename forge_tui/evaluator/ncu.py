"""Hardware counters of a kernel through Nsight Compute, on request: occupancy, bandwidth, what warps wait for.

Counters are often forbidden, on rented GPUs above all; then one sentence says so.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import Record
from forge_tui.evaluator import alone
from forge_tui.evaluator.job import Job
from forge_tui.processes import command, cuda_tools

#: lines that a prompt has room for
MOST_LINES = 15
_RUN_S = 180.0
_STALL = "smsp__average_warps_issue_stalled_"
_STALL_ENDS = ("_per_issue_active.ratio", "_per_issue_active")
_STALLS = (
    "long_scoreboard", "short_scoreboard", "barrier", "mio_throttle", "lg_throttle", "tex_throttle",
    "math_pipe_throttle", "wait", "not_selected", "no_instruction", "membar", "branch_resolving", "dispatch_stall",
    "drain", "imc_miss", "sleeping",
)  # fmt: skip
_STALL_WORDS = {
    "long_scoreboard": "global or local memory", "short_scoreboard": "shared memory or special functions",
    "barrier": "a barrier of the block", "mio_throttle": "the queue of shared memory and special functions",
    "lg_throttle": "the queue of global memory", "tex_throttle": "the texture queue",
    "math_pipe_throttle": "a full arithmetic pipe", "wait": "a fixed latency", "not_selected": "another warp's turn",
    "no_instruction": "instructions", "membar": "a memory fence", "branch_resolving": "a branch",
    "dispatch_stall": "the dispatcher", "drain": "stores at the end", "imc_miss": "constants", "sleeping": "a sleep",
}  # fmt: skip
_TIME, _SM, _DRAM, _L2 = (
    "gpu__time_duration.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed", "lts__throughput.avg.pct_of_peak_sustained_elapsed",
)  # fmt: skip
_ACHIEVED, _POSSIBLE = "sm__warps_active.avg.pct_of_peak_sustained_active", "sm__maximum_warps_per_active_cycle_pct"
_READ, _WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
_REGISTERS, _STATIC, _DYNAMIC = (
    "launch__registers_per_thread", "launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic",
)  # fmt: skip
_WAVES, _L2_HITS = "launch__waves_per_multiprocessor", "lts__t_sector_hit_rate.pct"
_LIMITS = {"launch__occupancy_limit_registers": "registers", "launch__occupancy_limit_shared_mem": "shared memory",
           "launch__occupancy_limit_warps": "warps a block", "launch__occupancy_limit_blocks": "blocks"}  # fmt: skip
#: without these a capture says nothing
_NEEDED = (_TIME, _SM, _DRAM, _ACHIEVED)
METRICS = (_TIME, _SM, _DRAM, _L2, _ACHIEVED, _POSSIBLE, _READ, _WRITTEN, _REGISTERS, _STATIC, _DYNAMIC, _WAVES,
           _L2_HITS, *_LIMITS, *(f"{_STALL}{name}_per_issue_active.ratio" for name in _STALLS))  # fmt: skip


class Counters(Record, frozen=True, kw_only=True):
    """What was counted of one launch; `values` by metric, in base units (ns, bytes, percent)."""

    kernel: str
    values: dict[str, float]


def find() -> str:
    """The path of ncu, empty where there is none."""
    return cuda_tools.find("ncu")


async def why_not(device_index: int, path: str | None = None) -> str:
    """Why counters cannot be read here, as a sentence; tried on a small kernel. Empty where they can."""
    path = find() if path is None else path
    if not path:
        return "ncu was not found: it comes with the CUDA toolkit, as Nsight Compute."
    try:
        done = await _call(path, (_TIME,), (alone.PROBE_KERNEL,), "--probe", str(device_index))
        parse(done.stdout, [alone.PROBE_KERNEL], (_TIME,), done.stderr)
    except EnvironmentFault as error:
        return error.what
    return ""


async def measure(job: Job, folder: Path, path: str | None = None) -> list[Counters]:
    """Count one call of a job's kernel; one entry a launch.

    Raises:
        EnvironmentFault: there is no ncu, counters may not be read here, or a launch was not captured.
    """
    path = find() if path is None else path
    if not path:
        raise EnvironmentFault("ncu was not found: it comes with the CUDA toolkit, as Nsight Compute.")
    file = folder / "job.json"
    job.write(file)
    kernels = [launch.kernel for launch in job.plan.launches if 0 not in launch.grid]
    done = await _call(path, METRICS, kernels, str(file), "1")
    return parse(done.stdout, kernels, _NEEDED, done.stderr)


async def _call(path: str, metrics: Sequence[str], kernels: Iterable[str], *arguments: str) -> command.Finished:
    names = "|".join(dict.fromkeys(kernels))
    argv = [
        path, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--target-processes",
        "application-only", "--kernel-name", f"regex:^({names})$", "--metrics", ",".join(metrics),
        sys.executable, "-m", alone.__name__, *arguments,
    ]  # fmt: skip
    try:
        done = await command.run(argv, timeout_s=_RUN_S, env={"LC_ALL": "C"})
    except OSError as error:
        raise EnvironmentFault(f"ncu cannot be started: {error.strerror or error}.") from error
    if done.timed_out:
        raise EnvironmentFault(f"ncu did not end within {_RUN_S:.0f} s.")
    return done


def parse(
    stdout: str, kernels: Sequence[str], needed: Sequence[str] = _NEEDED, stderr: str = ""
) -> list[Counters]:
    """The counters of each launch out of `--csv --page raw`, whose second row holds the units.

    Raises:
        EnvironmentFault: the counters are forbidden, a kernel was not captured, or a needed value is no number.
    """
    lines = stdout.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise EnvironmentFault(_failure(f"{stdout}\n{stderr}"))
    table = list(csv.reader(line for line in lines[begin:] if line.startswith('"')))
    heads = table[0]
    found = []
    for row in table[2:]:
        fields = dict(zip(heads, row, strict=False))
        name = fields.get("Kernel Name", "").partition("(")[0].strip()
        values = {key: number for key, text in fields.items() if "__" in key and (number := _number(text)) is not None}
        found.append(Counters(kernel=name, values=values))
    missed = [name for name in kernels if name not in {c.kernel for c in found}]
    if missed:
        raise EnvironmentFault(f"ncu did not capture the kernel {missed[0]}.")
    for counters in found:
        without = [metric for metric in needed if metric not in counters.values]
        if without:
            raise EnvironmentFault(
                f"ncu gave no number for {without[0]} of {counters.kernel}: this version may not know the GPU.",
                "Try another version of Nsight Compute.",
            )
    return found


def _number(text: str) -> float | None:
    """A finite number, thousands marked or not."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _failure(text: str) -> str:
    if "ERR_NVGPUCTRPERM" in text:
        return ("The GPU's counters may not be read by this user (ERR_NVGPUCTRPERM): an administrator has to allow it "
                "in the driver's settings.")  # fmt: skip
    said = [line for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    lines = said or [line for line in text.splitlines() if line.strip() and not line.startswith("==PROF==")]
    detail = lines[0].replace("==ERROR==", "").replace("==WARNING==", "").strip().rstrip(".")[:200] if lines else ""
    return f"ncu counted nothing{f': {detail}' if detail else ''}."


def summary(counters: Sequence[Counters]) -> str:
    """At most 15 lines for a prompt; of several launches those that take longest, in the order of their time."""
    ranked = sorted(counters, key=lambda c: -c.values.get(_TIME, 0.0))
    total = sum(c.values.get(_TIME, 0.0) for c in ranked) or 1.0
    blocks = [_lines(c, c.values.get(_TIME, 0.0) / total if len(ranked) > 1 else None) for c in ranked]
    lines: list[str] = []
    for number, block in enumerate(blocks):
        rest = len(blocks) - number
        room = MOST_LINES - len(lines) - (rest > 1)
        if len(block) > room:
            lines.append(f"{rest} more launches." if rest > 1 else "1 more launch.")
            break
        lines += block
    return "\n".join(lines[:MOST_LINES])


def _lines(counters: Counters, share: float | None) -> list[str]:
    v = counters.values
    part = "" if share is None else f", {share:.0%} of the time"
    lines = [f"{counters.kernel}: {v[_TIME] / 1e3:.1f} us under the profiler (caches flushed before it){part}"]
    rates = [("SM", _SM), ("DRAM", _DRAM), ("L2", _L2)]
    lines.append("  of peak: " + ", ".join(f"{name} {v[key]:.0f}%" for name, key in rates if key in v))
    if _READ in v and _WRITTEN in v:
        hits = f", {v[_L2_HITS]:.0f}% L2 hits" if _L2_HITS in v else ""
        lines.append(f"  DRAM: {v[_READ] / 1e6:.2f} MB read, {v[_WRITTEN] / 1e6:.2f} MB written{hits}")
    limited = {words: v[key] for key, words in _LIMITS.items() if v.get(key, 0) > 0}
    by = f", limited by {min(limited, key=lambda name: limited[name])}" if limited else ""
    possible = f" of {v[_POSSIBLE]:.0f}% possible{by}" if _POSSIBLE in v else ""
    lines.append(f"  occupancy: {v[_ACHIEVED]:.0f}%{possible}")
    shared = v.get(_STATIC, 0.0) + v.get(_DYNAMIC, 0.0)
    waves = f", {v[_WAVES]:.2f} waves" if _WAVES in v else ""
    if _REGISTERS in v:
        lines.append(f"  {v[_REGISTERS]:.0f} registers a thread, {shared:.0f} bytes of shared memory a block{waves}")
    stalls = sorted(((v[key], name) for name in _STALLS if (key := _stall_key(v, name))), reverse=True)
    top = [f"{_STALL_WORDS[name]} ({name}) {ratio:.1f}" for ratio, name in stalls[:3] if ratio > 0]
    if top:
        lines.append("  warps wait, in cycles an instruction, for: " + "; ".join(top))
    return lines


def _stall_key(values: dict[str, float], name: str) -> str:
    return next((key for end in _STALL_ENDS if (key := f"{_STALL}{name}{end}") in values), "")
