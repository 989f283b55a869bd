"""The result of a session in lines: the whole model before and after, and what became of each target. Pure."""

from __future__ import annotations

from forge_tui.core.records import DeployDecision, Deployment, Verdict
from forge_tui.core.words import count
from forge_tui.tui.glyphs import Glyphs
from forge_tui.tui.paint import Piece
from forge_tui.tui.state import LIVE_STATES, SessionView, TargetView
from forge_tui.tui.text import clean, duration, fit, interval, money, one_line, speedup, time_ms, time_us, wrap

Lines = list[list[Piece]]
_LABEL = 13


def summary(state: SessionView, glyphs: Glyphs, width: int, now: float) -> Lines:
    """The lines of the result pane for a window of this width."""
    if state.info is None:
        return []
    lines: Lines = [[]]
    lines += _head(state, width, now)
    lines.append([])
    lines += _whole_model(state, width)
    if state.targets:
        lines.append([])
        lines += _targets(state, glyphs, width)
    return lines


def _pair(label: str, text: str, width: int, style: str = "text") -> Lines:
    out: Lines = []
    for number, line in enumerate(wrap(text, max(20, width - _LABEL - 2))):
        out.append([(f" {fit(label if number == 0 else '', _LABEL)}", "muted"), (line, style)])
    return out


def _head(state: SessionView, width: int, now: float) -> Lines:
    info = state.info
    assert info is not None
    style = {"done": "success", "failed": "error", "interrupted": "warning"}.get(info.state, "accent")
    lines = _pair("session", f"{info.id}  {info.state}", width, style)
    if info.error:
        lines += _pair("", one_line(str(info.error.get("what", ""))), width, "error")
        lines += _pair("what to do", one_line(str(info.error.get("hint", ""))), width) if info.error.get("hint") else []
    elif info.stop_reason:
        lines += _pair("stopped", one_line(info.stop_reason), width)
    if info.state == "interrupted":
        lines += _pair("what to do", f"R goes on where it was; so does forge-tui resume {info.id}.", width)
    device = info.device
    lines += _pair("model", one_line(info.options.model.text), width)
    known = f", {one_line(device.model)}" if device else ""
    lines += _pair("device", info.options.device + known, width)
    unpriced = count(info.unpriced_calls, "call")
    cost = f", at least {money(info.cost_usd)} ({unpriced} without a price)" if info.unpriced_calls \
        else f", {money(info.cost_usd)}" if info.cost_usd else ""  # fmt: skip
    lines += _pair("spent", f"{duration(state.elapsed_s(now))}, {count(state.evaluations, 'evaluation')}{cost}", width)
    return lines


def _whole_model(state: SessionView, width: int) -> Lines:
    info, deployment = state.info, state.deployment
    assert info is not None
    if deployment is None:
        if info.state in LIVE_STATES:
            text = "The whole model is measured before and after, once the search is done."
        else:
            text = "The whole model was not measured with the winners."
        return _pair("whole model", text, width, "muted")
    if not any(decision.deployed for decision in deployment.decisions):
        lines = _pair("whole model", f"No kernel stays: it is the original, {time_ms(deployment.baseline_ms)} a call.",
                      width)  # fmt: skip
    else:
        style = model_pieces(deployment)[-1][1]
        before, after = time_ms(deployment.baseline_ms), time_ms(deployment.deployed_ms)
        gain = f"{speedup(deployment.speedup)} {interval(deployment.speedup_ci)}"
        lines = _pair("whole model", f"{before} before, {after} after: {gain}", width, style)
    for name, value in sorted(deployment.baselines_ms.items(), key=lambda item: item[1]):
        if deployment.deployed_ms > 0 and name != "eager":
            lines += _pair(f"vs {name}", f"{time_ms(value)}: {speedup(value / deployment.deployed_ms)}", width)
    for name, reason in deployment.baseline_failures.items():
        lines += _pair(f"vs {name}", f"not measured: {one_line(reason)}", width, "muted")
    right = "within tolerance" if deployment.within_tolerance else "OUTSIDE TOLERANCE"
    tolerance = f" ({one_line(deployment.tolerance)})" if deployment.tolerance else ""
    lines += _pair("outputs", f"largest difference {deployment.max_abs_error:.2e}, {right}{tolerance}", width,
                   "text" if deployment.within_tolerance else "error")  # fmt: skip
    return lines


def _targets(state: SessionView, glyphs: Glyphs, width: int) -> Lines:
    decisions = {d.target_id: d for d in state.deployment.decisions} if state.deployment else {}
    name_width = max(12, min(32, width - 62)) if width >= 76 else 14
    wide = width >= 76
    head = f" {fit('target', name_width)} {'share':>6} {'tried':>5} {'before':>8} {'best':>8} {'speedup':>8}"
    if not wide:
        head = f" {fit('target', name_width)} {'share':>6} {'tried':>5} {'speedup':>8}"
    lines: Lines = [[(head + "  in the model", "muted")]]
    for key in state.order:
        view = state.targets[key]
        lines += _target(view, decisions.get(key), state, glyphs, name_width, width, wide=wide)
    return lines


def _target(
    view: TargetView, decision: DeployDecision | None, state: SessionView, glyphs: Glyphs, name_width: int, width: int,
    *, wide: bool,
) -> Lines:  # fmt: skip
    target, best = view.target, view.best_node
    evaluation = best.evaluation if best else None
    mark = glyphs.verdicts[evaluation.verdict] if evaluation else None
    cells = f" {fit(clean(target.name), name_width, glyphs.ellipsis)} {100 * target.share:>5.1f}% {view.evaluated:>5}"
    if wide:
        before = evaluation.baseline_us if evaluation else view.eager_us
        cells += f" {time_us(before):>8} {time_us(evaluation.time_us if evaluation else None):>8}"
    value = f" {(mark.glyph if mark else '') + speedup(evaluation.speedup if evaluation else None):>8}"
    row: list[Piece] = [(cells, "text"), (value, mark.style if mark else "muted")]
    reason = ""
    if decision is not None and decision.deployed:
        row.append((f"  {glyphs.best} yes", "best"))
        if decision.alone_speedup is not None:
            row.append((f", alone {speedup(decision.alone_speedup)}", "muted"))
        if decision.unsanitised:
            reason = f"Unsanitised: {decision.unsanitised}"
    elif decision is not None:
        row.append(("  no", "muted"))
        reason = decision.why_not
    elif not view.usable:
        row.append(("  left out", "muted"))
        reason = view.unusable_reason
    elif state.deployment is not None or (state.info and state.info.state not in LIVE_STATES):
        row.append(("  no", "muted"))
        if evaluation is None or evaluation.verdict is not Verdict.FASTER:
            reason = "No kernel was found faster." if view.nodes else "No kernel was tried."
    lines: Lines = [row]
    if reason:
        lines += [[(f"    {line}", "muted")] for line in wrap(one_line(reason), max(20, width - 6))]
    return lines


def model_pieces(deployment: Deployment) -> list[Piece]:
    """The whole model's speedup in two words, styled by what its interval allows to say."""
    if not any(decision.deployed for decision in deployment.decisions):
        return [("model unchanged", "text")]
    low, high = deployment.speedup_ci
    style = "faster" if low > 1 else "slower" if high < 1 else "inconclusive"
    return [("model ", "muted"), (speedup(deployment.speedup), style)]


def one_sentence(state: SessionView) -> str:
    """The end of a session in one sentence, for the toast."""
    info = state.info
    assert info is not None
    if info.state == "failed":
        return one_line(str((info.error or {}).get("what") or info.stop_reason or "The session failed."))
    if info.state == "interrupted":
        return "The search is stopped; R goes on where it was."
    if state.deployment is not None and not any(d.deployed for d in state.deployment.decisions):
        return "Done: no kernel stays in the model; the result says why."
    if state.deployment is not None:
        return (f"Done: {time_ms(state.deployment.baseline_ms)} before, {time_ms(state.deployment.deployed_ms)} after, "
                f"{speedup(state.deployment.speedup)}.")  # fmt: skip
    return f"Done: {one_line(info.stop_reason)}" if info.stop_reason else "Done."
