"""`check`: one kernel file on one target, for people who write their own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from forge_tui.cli import output
from forge_tui.cli.commands.run import check_numbers, gibibytes, locate, read_start
from forge_tui.core.errors import ExitCode, UsageError
from forge_tui.core.records import RunOptions, Verdict
from forge_tui.engine.check import Checked, check_kernel, parse_tunables, pick_target
from forge_tui.engine.profiles import profile_cached
from forge_tui.engine.rooms import WorkerRooms
from forge_tui.models.spec import ModelRequest
from forge_tui.report.build import ratios
from forge_tui.report.clocks import timing_lines
from forge_tui.report.format import confirmation_lines, resource_lines


def check(
    *, model: str, kernel: Path | None, target: str | None, device: str, workspace: str | None, threads: int, seed: int,
    request: ModelRequest, capture_gb: float, tune: list[str], print_header: bool, as_json: bool, confirm: bool = True,
    ncu: bool = False,
) -> int:  # fmt: skip
    """Evaluate a kernel as the search would, or print what a kernel starts from; returns the exit code."""
    check_numbers(threads, seed)
    spec, resolved, place = locate(model, device, request, workspace)
    options = RunOptions(model=spec, device=resolved, workspace=str(place.root), threads=threads, seed=seed,
                         capture_bytes=gibibytes(capture_gb))  # fmt: skip
    rooms = WorkerRooms(options, place, "check", on_note=lambda text: print(text, file=sys.stderr))
    if print_header:
        return _print_header(rooms, options, target, as_json=as_json)
    if ncu and not resolved.startswith("cuda"):
        raise UsageError("--ncu reads hardware counters of CUDA kernels; on the CPU there are none.",
                         "Leave it out, or name --device cuda.")  # fmt: skip
    if kernel is None:
        raise UsageError("No kernel file is named.", "Say forge-tui check MODEL KERNEL, or --print-header for a start.")
    start = read_start(kernel, resolved)
    checked = asyncio.run(check_kernel(
        rooms, options, place, start.source, target, parse_tunables(tune), confirm=confirm, ncu=ncu,
    ))  # fmt: skip
    evaluation = checked.evaluation
    if as_json:
        output.document(_as_document(checked))
    else:
        output.text(_as_text(checked))
    if evaluation.verdict is Verdict.INFRA:
        return int(ExitCode.ENVIRONMENT)
    return int(ExitCode.OK if evaluation.verdict.right else ExitCode.KERNEL_NOT_RIGHT)


def _print_header(rooms: WorkerRooms, options: RunOptions, name: str | None, *, as_json: bool) -> int:
    from forge_tui.contract import header

    profile = asyncio.run(profile_cached(rooms, options, rooms.workspace))
    target = pick_target(profile, name)
    texts = header.render(target, profile.device), header.empty_candidate(target, profile.device)
    if as_json:
        output.document({"target": target.name, "forge_target.h": texts[0], "candidate": texts[1]})
    else:
        output.text(f"// ---- forge_target.h for {target.name}\n{texts[0]}\n// ---- an empty candidate\n{texts[1]}")
    return int(ExitCode.OK)


def _as_document(checked: Checked) -> dict[str, object]:
    evaluation = checked.evaluation
    return {
        "target": checked.target.name, "verdict": evaluation.verdict, "reason": evaluation.reason,
        "compile_s": evaluation.compile_s, "verify_s": evaluation.verify_s, "timing_s": evaluation.timing_s,
        "time_us": evaluation.time_us, "baseline_us": evaluation.baseline_us, "speedup": evaluation.speedup,
        "speedup_ci": evaluation.speedup_ci, "max_abs_error": evaluation.max_abs_error,
        **{name: value for name, value in ratios(evaluation).items() if name != "timings"},
        "timings": None if evaluation.timings is None else msgspec.to_builtins(evaluation.timings),
        "error_vs_eager": evaluation.error_vs_eager, "sha256": evaluation.sha256, "resources": evaluation.resources,
        "log": evaluation.log, "confirmation": evaluation.confirmation, "counters": checked.counters,
        "no_counters": checked.no_counters,
    }  # fmt: skip


def _as_text(checked: Checked) -> str:
    evaluation = checked.evaluation
    lines = [f"{checked.target.name}: {evaluation.verdict}"]
    if evaluation.reason:
        lines.append(f"  {evaluation.reason}")
    if evaluation.time_us is not None and evaluation.baseline_us is not None and evaluation.speedup is not None:
        interval = evaluation.speedup_ci or (float("nan"), float("nan"))
        lines.append(
            f"  {evaluation.time_us:.1f} us against {evaluation.baseline_us:.1f} us in PyTorch: "
            f"{evaluation.speedup:.3f}x, 95% interval {interval[0]:.3f} to {interval[1]:.3f}"
        )
    if evaluation.timings is not None:
        lines += [f"  {line}" for line in timing_lines(evaluation.timings)]
    if evaluation.max_abs_error is not None:
        ratio = "" if evaluation.error_vs_eager is None else f", {evaluation.error_vs_eager:.2f} of PyTorch's own"
        lines.append(f"  largest error {evaluation.max_abs_error:.3g}{ratio}")
    seconds = evaluation.compile_s, evaluation.verify_s, evaluation.timing_s
    lines.append("  compile {:.2f} s, verify {:.2f} s, time {:.2f} s".format(*seconds))
    lines += [f"  {line}" for line in resource_lines(evaluation.resources)]
    lines += [f"  {line}" for line in confirmation_lines(evaluation.confirmation)]
    if checked.counters or checked.no_counters:
        lines += ["", *(checked.counters or f"No hardware counters: {checked.no_counters}").splitlines()]
    if evaluation.log:
        lines += ["", evaluation.log]
    return "\n".join(lines)
