"""The status line: the one-second answer. Pure."""

from __future__ import annotations

import shlex

from forge_tui.tui.glyphs import Glyphs
from forge_tui.tui.paint import Piece
from forge_tui.tui.state import SessionView
from forge_tui.tui.summary import model_pieces
from forge_tui.tui.text import clean, duration, money, one_line, speedup

_STATE_STYLE = {"done": "success", "failed": "error", "interrupted": "warning"}


def status_pieces(state: SessionView, glyphs: Glyphs, width: int, now: float) -> list[Piece]:
    """What the line shows at this width: parts of lower rank are left out until the rest fits."""
    if state.trouble:
        return [(f" {one_line(state.trouble)}", "error")]
    info = state.info
    if info is None:
        if state.session is not None:
            return [(f" reading {clean(state.session)} ...", "muted")]
        return [(" no session yet", "muted")] if not state.sessions else [(" choose a session", "muted")]
    parts: list[tuple[int, list[Piece]]] = []

    def add(rank: int, *pieces: Piece) -> None:
        parts.append((rank, list(pieces)))

    gone = state.engine_gone(now)
    shown = "paused" if state.paused and not gone else info.state
    style = "warning" if gone or state.paused else _STATE_STYLE.get(info.state, "accent")
    add(0, (f"{glyphs.live} {shown}", style))
    if state.paused and state.pause_reason and not gone:
        add(1, ("p goes on: ", "warning"), (one_line(state.pause_reason)[: max(20, width // 2)], "warning"))
    if gone:
        add(0, ("engine gone: R resumes", "warning"))
    add(1, (f"{state.evaluations}/{info.options.max_evaluations}", "strong"), (" tried", "muted"))
    if state.deployment is not None:
        add(0, *model_pieces(state.deployment))
    best = state.best
    if best is not None and best[1].evaluation is not None:
        name = clean(best[0].target.name)
        add(2, ("best ", "muted"), (speedup(best[1].evaluation.speedup), "faster"), (f" {name[:24]}", "text"))
    if info.cost_usd or info.unpriced_calls or info.options.max_usd is not None:
        limit = f"/{money(info.options.max_usd)}" if info.options.max_usd is not None else ""
        least = "at least " if info.unpriced_calls else ""
        add(3, (f"{least}{money(info.cost_usd)}{limit}", "text"))
    add(4, (duration(state.elapsed_s(now)), "text"))
    if info.state == "failed":
        add(2, (one_line(str((info.error or {}).get("what") or info.stop_reason)), "error"))
    elif info.stop_reason and not state.live:
        add(5, (one_line(info.stop_reason), "muted"))
    if state.isolation:
        # what is amiss outlasts the names on a narrow screen
        add(9 if state.isolated else 5, (one_line(state.isolation), "muted" if state.isolated else "warning"))
    add(6, (one_line(info.options.model.text), "muted"))
    add(7, (f"{info.options.device}", "muted"))
    add(8, (f"session {clean(info.id)}", "muted"))
    return _fitted(parts, width, glyphs)


def _fitted(parts: list[tuple[int, list[Piece]]], width: int, glyphs: Glyphs) -> list[Piece]:
    gap = f" {glyphs.separator} "
    kept = list(parts)
    while len(kept) > 1 and _width(kept, len(gap)) > width - 2:
        worst = max(kept, key=lambda part: part[0])
        if worst[0] <= 1:
            break
        kept.remove(worst)
    out: list[Piece] = [(" ", "text")]
    for number, (_, pieces) in enumerate(kept):
        if number:
            out.append((gap, "guide"))
        out += pieces
    return out


def _width(parts: list[tuple[int, list[Piece]]], gap: int) -> int:
    return sum(len(text) for _, pieces in parts for text, _ in pieces) + gap * (len(parts) - 1)


def first_run(state: SessionView, workspace: str) -> str:
    """What an empty workspace says, or nothing."""
    if state.session is not None or state.sessions:
        return ""
    where = clean(workspace)
    return (
        f"There is no session in {where} yet. Start one in another terminal, with your model's file or a packaged "
        f"example, and it shows up here as soon as it begins. q leaves.\n\n"
        f"forge-tui run example:tiny-llm --workspace {clean(shlex.quote(workspace))}"
    )
