"""From the store's rows to the final report; at every stage of a session, with None for what is not measured yet."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from forge_tui.core.errors import UsageError
from forge_tui.core.events import Kind
from forge_tui.core.profiles import Profile
from forge_tui.core.records import (
    DeployDecision,
    Deployment,
    Evaluation,
    Event,
    LlmCall,
    Node,
    Record,
    SessionInfo,
    Target,
    Verdict,
)
from forge_tui.core.reports import RunReport, TargetResult, summary
from forge_tui.store.reader import Reader
from forge_tui.targets.select import choose

LIVE = ("starting", "profiling", "searching", "deploying")


class Spending(Record, frozen=True, kw_only=True):
    """What one LLM was paid."""

    model: str
    calls: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_usd: float
    unpriced: int
    failed: int


class Details(Record, frozen=True, kw_only=True):
    """A report with what a document shows beside it."""

    report: RunReport
    session: SessionInfo
    profile: Profile | None
    deployment: Deployment | None
    best: dict[str, Node]
    """The best right node by target name, with its source."""
    decisions: dict[str, DeployDecision]
    """By target name."""
    verdicts: dict[str, dict[str, int]]
    """How often each verdict was given, by target name."""
    spending: tuple[Spending, ...]


def run_report(reader: Reader, session_id: str) -> RunReport:
    """What `run --json` and `report --json` print.

    Raises:
        UsageError: there is no such session.
    """
    return details(reader, session_id, sources=False).report


def details(reader: Reader, session_id: str, *, sources: bool = True) -> Details:
    """The report and everything around it.

    Raises:
        UsageError: there is no such session.
    """
    session = reader.session(session_id)
    profile = reader.profile(session.id)
    deployment = reader.deployment(session.id)
    opened, warnings, isolation = _from_events(_events(reader, session.id))
    nodes = reader.nodes(session.id, sources=False)
    by_target: dict[str, list[Node]] = {}
    for node in nodes:
        by_target.setdefault(node.target_id, []).append(node)
    decisions = {d.target_id: d for d in deployment.decisions} if deployment else {}
    targets = _targets(session, profile, opened, [*by_target, *decisions])
    best = {t.id: found for t in targets if (found := best_node(by_target.get(t.id, ())))}
    live = session.state in LIVE and session.engine_pid != 0
    results = tuple(
        _result(t, by_target.get(t.id, ()), best.get(t.id), opened.get(t.id, {}), decisions.get(t.id),
                _why_open(live=live, measured=deployment is not None))
        for t in targets
    )  # fmt: skip
    names = {t.id: t.name for t in targets}
    if sources:
        best = {target_id: reader.node(session.id, node.id) for target_id, node in best.items()}
    return Details(
        report=_report(session, profile, deployment, results, warnings, isolation), session=session, profile=profile,
        deployment=deployment, best={names[key]: node for key, node in best.items()},
        decisions={names[key]: decision for key, decision in decisions.items() if key in names},
        verdicts={t.name: _verdicts(by_target.get(t.id, ())) for t in targets},
        spending=spending(entry.call for entry in reader.llm_calls(session.id)) if sources else (),
    )  # fmt: skip


def best_node(nodes: Iterable[Node]) -> Node | None:
    """The fastest of verdict `faster`, else the fastest right one; the older of equals."""

    def rank(node: Node) -> tuple[bool, float, int]:
        assert node.evaluation is not None
        return node.evaluation.verdict is Verdict.FASTER, node.evaluation.speedup or 0.0, -node.id

    return max((n for n in nodes if n.evaluation is not None and n.evaluation.verdict.right), key=rank, default=None)


def spending(calls: Iterable[LlmCall]) -> tuple[Spending, ...]:
    """The ledger summed by model, in the order of the first calls."""
    by_model: dict[str, list[LlmCall]] = {}
    for call in calls:
        by_model.setdefault(call.model, []).append(call)
    return tuple(
        Spending(
            model=model, calls=len(made), prompt_tokens=sum(c.prompt_tokens for c in made),
            cached_tokens=sum(c.cached_tokens for c in made), completion_tokens=sum(c.completion_tokens for c in made),
            cost_usd=sum(c.cost_usd or 0.0 for c in made), unpriced=sum(not c.priced for c in made),
            failed=sum(bool(c.error) for c in made),
        )
        for model, made in by_model.items()
    )  # fmt: skip


def _report(
    session: SessionInfo, profile: Profile | None, deployment: Deployment | None, results: tuple[TargetResult, ...],
    warnings: list[str], isolation: str,
) -> RunReport:  # fmt: skip
    under = session.options.under
    baselines: dict[str, float] = {}
    if deployment is not None:
        baselines = {under: deployment.baseline_ms}
        baselines |= {name: ms for name, ms in sorted(deployment.baselines_ms.items()) if name != under}
        if not any(decision.deployed for decision in deployment.decisions):
            warnings.append("No kernel stays in the model: it is the original.")
        if not deployment.within_tolerance:
            warnings.append(f"The deployed model's outputs are outside the tolerance ({deployment.tolerance}).")
    rent_usd = session.options.gpu_usd_per_hour * session.elapsed_s / 3600
    return RunReport(
        session=session.id, model=session.options.model.text, device=session.options.device, under=under,
        baseline_ms=deployment.baseline_ms if deployment else None,
        deployed_ms=deployment.deployed_ms if deployment else None,
        speedup=deployment.speedup if deployment else None,
        speedup_ci=deployment.speedup_ci if deployment else None,
        speedup_vs_eager=_over(deployment, "eager", under, baselines),
        speedup_vs_best=_over(deployment, min(baselines, key=baselines.__getitem__, default=""), under, baselines),
        baselines_ms=baselines, baseline_failures=dict(deployment.baseline_failures) if deployment else {},
        max_abs_error=deployment.max_abs_error if deployment else None, targets=results,
        evaluations=session.evaluations, cost_usd=session.cost_usd, cost_is_lower_bound=session.unpriced_calls > 0,
        stop_reason=session.stop_reason, state=session.state, elapsed_s=session.elapsed_s,
        profile_s=session.profile_s, search_s=session.search_s,
        warnings=tuple(dict.fromkeys([*(profile.warnings if profile else ()), *warnings])),
        isolation=isolation, profile=summary(profile) if profile else None, rent_usd=rent_usd,
        repaid_after_calls=repaid_after(session.cost_usd + rent_usd, session.options.gpu_usd_per_hour, deployment),
    )  # fmt: skip


def repaid_after(spent_usd: float, usd_per_hour: float, deployment: Deployment | None) -> int | None:
    """Calls of the model whose saved machine time is worth what was spent; None where none is saved or priced."""
    if deployment is None or usd_per_hour <= 0 or deployment.deployed_ms >= deployment.baseline_ms:
        return None
    saved_usd = (deployment.baseline_ms - deployment.deployed_ms) / 3.6e6 * usd_per_hour
    return math.ceil(spent_usd / saved_usd)


def _over(deployment: Deployment | None, name: str, under: str, baselines: dict[str, float]) -> float | None:
    """Speedup over a baseline: the paired one where that is what the deployed model was interleaved with."""
    if deployment is None or name not in baselines:
        return None
    if name == under:
        return deployment.speedup
    return baselines[name] / deployment.deployed_ms if deployment.deployed_ms > 0 else None


def _events(reader: Reader, session_id: str) -> Iterator[Event]:
    after = 0
    while page := reader.events(session_id, after):
        yield from page
        after = page[-1].id


def _from_events(events: Iterable[Event]) -> tuple[dict[str, dict[str, Any]], list[str], str]:
    """What opening each target found, in the order of the search, what was warned of, and the isolation."""
    opened: dict[str, dict[str, Any]] = {}
    warnings: list[str] = []
    isolation = ""
    for event in events:
        if event.kind == Kind.TARGET_OPENED:
            opened[str(event.data["target"])] = event.data
        elif event.kind == Kind.LOG and event.data.get("level") in ("warning", "error"):
            warnings.append(str(event.data.get("text", "")))
        elif event.kind == Kind.ISOLATION:
            isolation = str(event.data.get("short", ""))
    return opened, warnings, isolation


def _targets(
    session: SessionInfo, profile: Profile | None, opened: dict[str, Any], others: Sequence[str]
) -> list[Target]:
    """What was, or will be, searched, as far as it is known; then other targets by id, such as served siblings."""
    if profile is None:
        return []
    options = session.options
    wanted = list(opened)
    if not wanted:
        # a name that is no target has ended the session, and is its stop reason
        with contextlib.suppress(UsageError):
            best = choose(
                profile, names=options.target_names, max_targets=options.max_targets, mode=options.under
            )
            wanted = [t.id for t in best]
    by_id = {t.id: t for t in profile.targets}
    return [by_id[key] for key in dict.fromkeys([*wanted, *others]) if key in by_id]


def _result(
    target: Target, nodes: Sequence[Node], best: Node | None, opened: dict[str, Any], decision: DeployDecision | None,
    why_open: str,
) -> TargetResult:  # fmt: skip
    evaluation = best.evaluation if best else None
    confirmation = evaluation.confirmation if evaluation else None
    verdicts = _verdicts(nodes)
    eager_us = opened.get("eager_us")
    deployed = decision is not None and decision.deployed
    if decision is not None:
        why_not = decision.why_not
    elif opened and not opened.get("usable", True):
        why_not = str(opened.get("reason", ""))
    elif why_open and evaluation is not None and evaluation.verdict is not Verdict.FASTER:
        why_not = "No kernel was found faster."
    elif why_open and evaluation is None:
        counts = ", ".join(f"{count} {name}" for name, count in verdicts.items())
        why_not = f"No kernel was right: {counts}." if counts else "No kernel was tried."
    else:
        why_not = why_open
    return TargetResult(
        name=target.name, signature=target.signature.describe(), calls=target.calls, share=target.share,
        headroom_ms=target.headroom_ms, verdict=evaluation.verdict if evaluation else None,
        baseline_us=evaluation.baseline_us if evaluation and evaluation.baseline_us is not None else eager_us,
        best_us=evaluation.time_us if evaluation else None, speedup=evaluation.speedup if evaluation else None,
        speedup_ci=evaluation.speedup_ci if evaluation else None, evaluations=sum(verdicts.values()),
        deployed=deployed, why_not="" if deployed else why_not, **ratios(evaluation),
        confirmed=confirmation.passed if confirmation else None,
        confirmed_speedup=confirmation.speedup if confirmation else None,
        unsanitised=confirmation.unsanitised if confirmation else "",
        resources=evaluation.resources if evaluation else {},
    )  # fmt: skip


def ratios(evaluation: Evaluation | None) -> dict[str, Any]:
    """`speedup_vs_eager`, `speedup_vs_best`, their intervals, `best_baseline` and `timings`; nothing if not timed."""
    found = evaluation.timings if evaluation is not None else None
    if found is None:
        return {}
    return {
        "speedup_vs_eager": found.vs_eager.speedup, "speedup_vs_eager_ci": (found.vs_eager.low, found.vs_eager.high),
        "speedup_vs_best": found.vs_best.speedup, "speedup_vs_best_ci": (found.vs_best.low, found.vs_best.high),
        "best_baseline": found.best, "timings": found,
    }  # fmt: skip


def _why_open(*, live: bool, measured: bool) -> str:
    """Why a faster kernel without a decision is not in the model; empty while that may still change."""
    if measured:
        return "It was not tried inside the model."
    return "" if live else "The session ended before the whole model was measured."


def _verdicts(nodes: Iterable[Node]) -> dict[str, int]:
    """How often each verdict was given, the commonest first; what counts for nothing left out."""
    counts = Counter(
        str(n.evaluation.verdict) for n in nodes if n.evaluation and n.evaluation.verdict is not Verdict.INFRA
    )
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
