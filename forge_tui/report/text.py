"""The report as a table for a terminal of 80 columns, in ASCII but for foreign names."""

from __future__ import annotations

import textwrap

from forge_tui.core.reports import RunReport, TargetResult
from forge_tui.report.clocks import timing_lines
from forge_tui.report.format import count, duration, interval, money, one_line, percent, time_ms, time_us, times
from forge_tui.report.profile import profile_tables
from forge_tui.report.table import render as render_table

WIDTH = 80
_NAME = 21
_HEAD = (f"{'target':<{_NAME}} {'share':>6} {'before':>9} {'best':>9} {'speedup':>7} {'95%':>11} {'tried':>5} "
         f"{'in':>3}")  # fmt: skip


def render(report: RunReport) -> str:
    """The report in lines of at most 80 columns."""
    lines = _pair("session", f"{report.session}: {report.state}")
    if report.stop_reason:
        lines += _pair("", report.stop_reason)
    lines += _pair("model", f"{report.model} on {report.device}, under {report.under}")
    lines += _whole_model(report)
    lines += _profile(report)
    cost = f", {money(report.cost_usd, lower_bound=report.cost_is_lower_bound)}" \
        if report.cost_usd or report.cost_is_lower_bound else ""  # fmt: skip
    if report.rent_usd:
        cost += f", {money(report.rent_usd)} for the machine"
    lines += _pair("spent", f"{count(report.evaluations, 'evaluation')}, {duration(report.elapsed_s)}{cost}")
    if report.profile_s or report.search_s:
        lines += _pair("", f"of it {duration(report.profile_s)} of profiling and {duration(report.search_s)} of search")
    if report.repaid_after_calls is not None:
        lines += _pair("", f"paid for itself after {count(report.repaid_after_calls, 'call')} of the model")
    if report.targets:
        lines += ["", _HEAD, "-" * len(_HEAD)]
        for target in report.targets:
            lines += _target(target)
    for table in profile_tables(report.profile, cuda=report.device.startswith("cuda")):
        lines += ["", table.title, "", *render_table(table.columns, table.rows, WIDTH).splitlines()]
        for note in table.notes:
            lines += textwrap.wrap(one_line(note), WIDTH, initial_indent="    ", subsequent_indent="    ")
    if report.warnings:
        lines.append("")
        for warning in report.warnings:
            lines += _pair("warning", warning)
    return "\n".join(lines)


def _whole_model(report: RunReport) -> list[str]:
    if report.baseline_ms is None:
        return _pair("whole model", "not measured with the winners yet")
    between = "" if report.speedup_ci is None else f" (95% {interval(report.speedup_ci, 3)})"
    both = f"{time_ms(report.baseline_ms)} before, {time_ms(report.deployed_ms)} after"
    if any(target.deployed for target in report.targets):
        lines = _pair("whole model", f"{both}: {times(report.speedup, 3)}{between}")
    else:
        lines = _pair("whole model", f"{time_ms(report.baseline_ms)} a call, with no kernel in it")
    for name, ms in report.baselines_ms.items():
        if name != report.under and report.deployed_ms:
            lines += _pair(f"vs {name}", f"{time_ms(ms)}: {times(ms / report.deployed_ms, 3)}")
    for name, reason in report.baseline_failures.items():
        lines += _pair(f"vs {name}", f"not measured: {reason}")
    if report.max_abs_error is not None:
        lines += _pair("outputs", f"largest difference to the original {report.max_abs_error:.2e}")
    return lines


def _profile(report: RunReport) -> list[str]:
    """How busy the device is; on the CPU there is nothing to say of it."""
    found = report.profile
    if found is None or not found.launches:
        return []
    busy = f"{time_ms(found.busy_ms)} of {time_ms(found.model_ms)} a call, idle {percent(found.idle_share)}"
    return _pair("GPU busy", f"{busy}, {count(found.launches, 'launch', 'launches')}")


def _target(target: TargetResult) -> list[str]:
    name = one_line(target.name)
    if len(name) > _NAME:
        name = name[: _NAME - 2] + ".."
    before, best = time_us(target.baseline_us), time_us(target.best_us)
    row = f"{name:<{_NAME}} {100 * target.share:>5.1f}% {before:>9} {best:>9} {times(target.speedup):>7} "
    row += f"{interval(target.speedup_ci):>11} {target.evaluations:>5} {'yes' if target.deployed else 'no':>3}"
    lines = [row]
    facts = timing_lines(target.timings) if target.timings is not None else []
    if target.confirmed and target.confirmed_speedup is not None:
        facts.append(f"confirmed in fresh processes: {times(target.confirmed_speedup, 3)}")
    for text in facts:
        lines += textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="      ")
    notes = [target.why_not] if target.why_not else []
    if target.unsanitised:
        notes.append(f"Unsanitised: {target.unsanitised}")
    for note in notes:
        lines += textwrap.wrap(one_line(note), WIDTH, initial_indent="    ", subsequent_indent="    ")
    return lines


def _pair(label: str, text: str) -> list[str]:
    return textwrap.wrap(one_line(text), WIDTH, initial_indent=f"{one_line(label):<12} ", subsequent_indent=" " * 13)
