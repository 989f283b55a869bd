"""What happened, in order: one line for each event."""

from __future__ import annotations

import time
from dataclasses import dataclass

from forge_tui.core.events import Kind
from forge_tui.core.records import Event, Verdict
from forge_tui.core.words import count
from forge_tui.tui.glyphs import Glyphs
from forge_tui.tui.paint import Paint, Piece
from forge_tui.tui.panes.base import Pane
from forge_tui.tui.state import MAX_EVENTS, SessionView
from forge_tui.tui.text import clean, one_line, speedup, time_ms, time_us
from forge_tui.tui.widgets.linelist import LineList


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event as text."""

    clock: str
    kind: str
    text: str
    style: str
    node: int | None


def describe(event: Event, names: dict[str, str], glyphs: Glyphs) -> EventLine:
    """An event in words. `names` are target names by id; unknown data is shown as it is."""
    data = event.data
    target = clean(names.get(str(data.get("target", "")), str(data.get("name") or data.get("target", ""))))
    node = data.get("node") if isinstance(data.get("node"), int) else None
    kind, style = str(event.kind).replace("_", " "), "text"
    match event.kind:
        case Kind.STATE:
            text = one_line(f"{data.get('state', '')} {data.get('text') or ''}")
            style = "accent"
        case Kind.PROFILED:
            found = [count(data.get(f"{noun}s", 0), noun) for noun in ("hotspot", "target")]
            text = f"{time_ms(_float(data.get('model_ms')))} a model call, {', '.join(found)}"
        case Kind.TARGET_OPENED:
            kind = "target"
            if data.get("usable", True):
                text = f"{target} takes {time_us(_float(data.get('eager_us')))} in PyTorch"
            else:
                text, style = f"{target} is left out: {one_line(str(data.get('reason') or ''))}", "warning"
        case Kind.NODE_ADDED:
            kind = "new"
            text = one_line(f"#{node} {target} {data.get('edge', '')} by {data.get('proposer', '')} "
                            f"{data.get('idea') or ''}")  # fmt: skip
            style = "muted"
        case Kind.NODE_EVALUATED | Kind.NODE_CONFIRMED:
            kind = "evaluated" if event.kind == Kind.NODE_EVALUATED else "once more"
            text, style = _evaluated(data, target, glyphs)
        case Kind.PROPOSAL_FAILED:
            kind, style = "no idea", "warning"
            text = one_line(f"{target} {data.get('proposer', '')}: {data.get('reason', '')}")
        case Kind.LLM_CALL:
            kind = "llm"
            cost = _float(data.get("cost_usd"))
            state = str(data.get("state") or "done")
            text = one_line(f"{data.get('model', '')} {data.get('tokens', '?')} tokens, "
                            + (f"${cost:.4f}" if cost is not None else "price unknown")
                            + ("" if state == "done" else f", {state}"))  # fmt: skip
        case Kind.DEPLOY_DECISION:
            kind = "deploy"
            if data.get("deployed"):
                text, style = f"{target} stays in the model, alone {speedup(_float(data.get('speedup')))}", "faster"
            else:
                text, style = f"{target} is taken out: {one_line(str(data.get('why_not') or ''))}", "warning"
        case Kind.DEPLOYED:
            text = (f"model {time_ms(_float(data.get('baseline_ms')))} before, "
                    f"{time_ms(_float(data.get('deployed_ms')))} after: {speedup(_float(data.get('speedup')))}")
            style = "accent"
        case Kind.FAILED:
            text, style = one_line(f"{data.get('what', '')} {data.get('hint') or ''}"), "error"
        case Kind.LOG | Kind.ISOLATION | Kind.PAUSED:
            level = str(data.get("level", "info"))
            kind = level if level != "info" else "log"
            style = {"warning": "warning", "error": "error"}.get(level, "text")
            text = one_line(str(data.get("text", "")))
        case _:
            text = one_line(str(data))
    clock = time.strftime("%H:%M:%S", time.localtime(event.at))
    return EventLine(clock, clean(kind), text, style, node)


def _evaluated(data: dict[str, object], target: str, glyphs: Glyphs) -> tuple[str, str]:
    try:
        verdict = Verdict(str(data.get("verdict")))
    except ValueError:
        return one_line(f"#{data.get('node')} {target} {data.get('verdict')}"), "text"
    mark = glyphs.verdicts[verdict]
    value = _float(data.get("speedup"))
    said = f" {speedup(value)}" if value is not None and verdict.right else ""
    reason = f": {data.get('reason')}" if data.get("reason") else ""
    if data.get("unsanitised"):
        reason += f", unsanitised: {data.get('unsanitised')}"
    word = str(verdict).replace("_", " ")
    return one_line(f"#{data.get('node')} {target} {mark.glyph}{mark.letter} {word}{said}{reason}"), mark.style


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


class EventList(LineList):
    """The newest events; the oldest fall out. The end is followed while the cursor is there."""

    def __init__(self, paint: Paint, glyphs: Glyphs) -> None:
        super().__init__(paint, id="event-list", empty="Nothing has happened yet.")
        self.glyphs = glyphs
        self.lines: list[EventLine] = []

    def take(self, lines: list[EventLine]) -> None:
        """Add new events."""
        at_end = self.cursor >= len(self.lines) - 1
        first = len(self.lines)
        self.lines.extend(lines)
        drop = len(self.lines) - MAX_EVENTS
        if drop > 0:
            del self.lines[:drop]
            self.cursor = max(0, self.cursor - drop)
            first = 0
            if not at_end:
                self.scroll_rows(round(self.scroll_y) - drop)
        self.rows_changed(first)
        if at_end and self.lines:
            self.move_to(len(self.lines) - 1, by_user=False)

    def clear(self) -> None:
        """Forget all."""
        self.lines = []
        self.cursor = 0
        self.rows_changed()

    def row_count(self) -> int:
        """The events."""
        return len(self.lines)

    def row_pieces(self, row: int, width: int) -> list[Piece]:  # noqa: ARG002 - rows are cut by the base
        """Time, kind, text."""
        line = self.lines[row]
        return [(f" {line.clock} ", "muted"), (f"{line.kind:<10} ", "edge"), (line.text, line.style)]


class EventsPane(Pane):
    """The events of the session."""

    number = 5
    name_shown = "events"

    def __init__(self, paint: Paint, glyphs: Glyphs, state: SessionView) -> None:
        self.rows = EventList(paint, glyphs)
        super().__init__(paint, glyphs, state, self.rows)
        self._taken = 0

    def renew(self) -> None:
        """Take the events that came since the last time."""
        fresh = self.state.events_seen - self._taken
        if fresh < 0:
            self.rows.clear()
            fresh = self.state.events_seen
        self._taken = self.state.events_seen
        names = {key: view.target.name for key, view in self.state.targets.items()}
        if fresh:
            events = list(self.state.events)[-fresh:]
            self.rows.take([describe(event, names, self.glyphs) for event in events])
        self.show_title([(f"{self.state.events_seen}", "muted")] if self.state.events_seen else [])

    @property
    def node(self) -> int | None:
        """The node that the event under the cursor is about."""
        return self.rows.lines[self.rows.cursor].node if self.rows.lines else None
