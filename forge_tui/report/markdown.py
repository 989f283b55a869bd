"""The report as a Markdown document: the same session always gives the same text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from forge_tui.core.records import Device, Node
from forge_tui.core.reports import RunReport, TargetResult
from forge_tui.report.build import Details
from forge_tui.report.clocks import timing_lines
from forge_tui.report.format import (
    confirmation_lines,
    count,
    duration,
    interval,
    money,
    one_line,
    percent,
    resource_lines,
    time_ms,
    time_us,
    times,
)
from forge_tui.report.profile import profile_tables


def render(report: RunReport, details: Details) -> str:
    """Summary, machine, baselines, targets, decisions, best kernels, cost of LLMs, warnings."""
    parts = [
        [f"# {_text(report.model)} on {_text(report.device)}: {_headline(report)}"],
        _summary(report, details),
        _machine(details),
        _profile(report),
        _baselines(report),
        _targets(report),
        _decisions(report, details),
        _kernels(report, details),
        _spending(report, details),
        ["## Warnings", "", *(f"- {_text(w)}" for w in report.warnings)] if report.warnings else [],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _headline(report: RunReport) -> str:
    return "not measured" if report.speedup is None else times(report.speedup, 3)


def _summary(report: RunReport, details: Details) -> list[str]:
    begun = datetime.fromtimestamp(details.session.created_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    rows = [
        ("session", report.session),
        ("state", report.state),
        ("begun", begun),
        ("stop reason", report.stop_reason or "-"),
        ("under", report.under),
        ("whole model before", time_ms(report.baseline_ms)),
        ("whole model after", time_ms(report.deployed_ms)),
        ("speedup", f"{times(report.speedup, 3)}, 95% {interval(report.speedup_ci, 3)}" if report.speedup else "-"),
        ("speedup over eager", times(report.speedup_vs_eager, 3)),
        ("speedup over the fastest baseline", times(report.speedup_vs_best, 3)),
        ("largest difference of outputs", "-" if report.max_abs_error is None else f"{report.max_abs_error:.2e}"),
        ("evaluations", str(report.evaluations)),
        ("time spent", _time(report)),
        ("cost", money(report.cost_usd, lower_bound=report.cost_is_lower_bound)),
    ]
    if report.rent_usd:
        rows.append(("rent of the machine", money(report.rent_usd)))
    if report.repaid_after_calls is not None:
        rows.append(("paid for itself after", f"{count(report.repaid_after_calls, 'call')} of the model"))
    if details.deployment is not None and details.deployment.tolerance:
        within = "within" if details.deployment.within_tolerance else "OUTSIDE"
        rows.insert(11, ("tolerance", f"{details.deployment.tolerance}: {within}"))
    return ["## Summary", "", *_table(("what", "value"), rows)]


def _machine(details: Details) -> list[str]:
    device = details.session.device or (details.profile.device if details.profile else None)
    if device is None:
        return []
    return ["## Machine", "", *_table(("what", "value"), _device_rows(device))]


def _device_rows(device: Device) -> list[tuple[str, str]]:
    rows = [("device", device.name), ("model", device.model), ("architecture", device.arch)]
    if device.kind == "cuda":
        rows += [("multiprocessors", str(device.sms)), ("driver", device.driver_version),
                 ("CUDA runtime", device.runtime_version)]  # fmt: skip
    else:
        rows += [("cores", str(device.cores)), ("threads", str(device.threads)), ("g++", device.runtime_version)]
    rows.append(("torch", device.torch_version))
    if device.ceilings is not None:
        rates = ", ".join(f"{rate:.3g} TFLOP/s {name}" for name, rate in sorted(device.ceilings.matmul_tflops.items()))
        rows += [("copy bandwidth", f"{device.ceilings.copy_gbps:.4g} GB/s"), ("matrix rate", rates or "-")]
    return [(name, value) for name, value in rows if value]


def _profile(report: RunReport) -> list[str]:
    found = report.profile
    cuda = report.device.startswith("cuda")
    parts = profile_tables(found, cuda=cuda)
    if found is None or not (parts or found.launches):
        return []
    lines = ["## Profile"]
    if found.launches:
        lines += ["", *_table(("what", "value"), [
            ("a model call", time_ms(found.model_ms)), ("of it the GPU is busy", time_ms(found.busy_ms)),
            ("idle", percent(found.idle_share)), ("launches", str(found.launches)),
            ("time while profiled", times(found.overhead)), ("agreement of two passes", percent(found.agreement)),
        ])]  # fmt: skip
    for part in parts:
        lines += ["", f"### {part.title}", "", *_table(part.heads, part.rows)]
        lines += ["", *(f"- {_text(_sentence(note))}" for note in part.notes)] if part.notes else []
    return lines


def _baselines(report: RunReport) -> list[str]:
    if not report.baselines_ms and not report.baseline_failures:
        return []
    rows = [(name, time_ms(ms), times(ms / report.deployed_ms, 3) if report.deployed_ms else "-")
            for name, ms in report.baselines_ms.items()]  # fmt: skip
    rows += [(name, f"not measured: {reason}", "-") for name, reason in sorted(report.baseline_failures.items())]
    return ["## Baselines", "", *_table(("original model, run by", "time", "deployed is faster by"), rows)]


def _targets(report: RunReport) -> list[str]:
    if not report.targets:
        return []
    head = ("target", "signature", "calls", "share", "headroom", "before", "best", "speedup", "95%", "verdict", "tried",
            "in the model")  # fmt: skip
    return ["## Targets", "", *_table(head, map(_target_row, report.targets))]


def _target_row(target: TargetResult) -> tuple[str, ...]:
    return (
        target.name, target.signature, str(target.calls), f"{100 * target.share:.1f}%", time_ms(target.headroom_ms),
        time_us(target.baseline_us), time_us(target.best_us), times(target.speedup), interval(target.speedup_ci),
        str(target.verdict or "-"), str(target.evaluations), "yes" if target.deployed else "no",
    )  # fmt: skip


def _decisions(report: RunReport, details: Details) -> list[str]:
    lines: list[str] = []
    for target in report.targets:
        decision = details.decisions.get(target.name)
        alone = ""
        if decision is not None and decision.alone_speedup is not None:
            span = interval(decision.alone_ci, 3)
            alone = f" The model with this kernel alone: {times(decision.alone_speedup, 3)}, 95% {span}."
        if target.deployed and decision is not None:
            calls = f"{count(decision.calls, 'call')} of the model served, {decision.fallbacks} given back"
            lines.append(f"- **{_text(target.name)}**: in the model, node {decision.node_id}, {calls}.{alone}")
        elif target.why_not:
            lines.append(f"- **{_text(target.name)}**: not in the model. {_text(_sentence(target.why_not))}{alone}")
    return ["## Decisions", "", *lines] if lines else []


def _kernels(report: RunReport, details: Details) -> list[str]:
    lines: list[str] = []
    for target in report.targets:
        node = details.best.get(target.name)
        if node is not None:
            lines += ["", *_kernel(target, node)]
    return ["## Best kernels", *lines] if lines else []


def _kernel(target: TargetResult, node: Node) -> list[str]:
    evaluation = node.evaluation
    assert evaluation is not None
    facts = [f"Node {node.id} by {_text(node.proposer)}: {evaluation.verdict}, {times(evaluation.speedup)}."]
    if evaluation.timings is not None:
        facts += [_text(_sentence(line)) for line in timing_lines(evaluation.timings)]
    if node.idea:
        facts.append(_text(_sentence(node.idea)))
    if node.tunables:
        facts.append("Settings: " + ", ".join(f"`{name}={value}`" for name, value in node.tunables.items()) + ".")
    if evaluation.sha256:
        facts.append(f"Built file: sha256 `{evaluation.sha256}`.")
    facts += [_text(_sentence(line)) for line in confirmation_lines(evaluation.confirmation)]
    facts += [_text(_sentence(f"resources of {line}")) for line in resource_lines(evaluation.resources)]
    # a fence must be longer than any that the source may hold
    longest = max((len(run) for run in re.findall(r"`+", node.source)), default=0)
    fence = "`" * max(3, longest + 1)
    language = "cuda" if node.language == "cuda" else "cpp"
    return [f"### {_text(target.name)}", "", " ".join(facts), "", fence + language, node.source.rstrip("\n"), fence]


def _spending(report: RunReport, details: Details) -> list[str]:
    if not details.spending:
        return []
    rows = [
        (s.model, str(s.calls), str(s.failed), str(s.prompt_tokens), str(s.cached_tokens), str(s.completion_tokens),
         money(s.cost_usd, lower_bound=s.unpriced > 0))
        for s in details.spending
    ]  # fmt: skip
    head = ("model", "calls", "failed", "prompt tokens", "of them cached", "reply tokens", "cost")
    total = f"Together {money(report.cost_usd, lower_bound=report.cost_is_lower_bound)}."
    return ["## LLM calls", "", *_table(head, rows), "", total]


def _time(report: RunReport) -> str:
    parts = f"{duration(report.profile_s)} of profiling, {duration(report.search_s)} of search"
    return duration(report.elapsed_s) + (f" ({parts})" if report.profile_s or report.search_s else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *([_text(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = one_line(text)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _text(text: str) -> str:
    """Foreign text that Markdown must not read as marks."""
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", one_line(text))
