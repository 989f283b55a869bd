"""GPUs, or CPU and memory where there are none, as one row of text and blocks each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forge_tui.telemetry.ring import Ring, spark
from forge_tui.tui.glyphs import Glyphs
from forge_tui.tui.paint import Paint, Piece
from forge_tui.tui.panes.base import Pane
from forge_tui.tui.state import SessionView
from forge_tui.tui.text import clean, fit, one_line, size_bytes
from forge_tui.tui.widgets.linelist import LineList

_LABEL = 6
_VALUE = 15
Row = list[Piece]


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of a GPU: its label, where the value is, how it is said, and the scale of its sparkline."""

    label: str
    key: str
    say: Callable[[dict[str, Any]], str]
    top: Callable[[dict[str, Any]], float]
    low: float = 0.0


def _number(sample: dict[str, Any], key: str) -> float | None:
    value = sample.get(key)
    return float(value) if isinstance(value, int | float) else None


def _said(sample: dict[str, Any], key: str, unit: str) -> str:
    value = _number(sample, key)
    return "n/a" if value is None else f"{value:.0f}{unit}"


def _part(sample: dict[str, Any], used: str, total: str, form: Callable[[float | None], str]) -> str:
    value, top = _number(sample, used), _number(sample, total)
    return "n/a" if value is None else form(value) if not top else f"{form(value)}/{form(top)}"


def _watts(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} W"


GPU_MEASURES = (
    Measure("busy", "util_percent", lambda s: _said(s, "util_percent", "%"), lambda _: 100.0),
    Measure("memory", "memory_used", lambda s: _part(s, "memory_used", "memory_total", size_bytes),
            lambda s: _number(s, "memory_total") or 1.0),
    Measure("power", "power_w", lambda s: _part(s, "power_w", "power_limit_w", _watts),
            lambda s: _number(s, "power_limit_w") or 1000.0),
    Measure("temp", "temperature_c", lambda s: _said(s, "temperature_c", " C"), lambda _: 100.0, 20.0),
    Measure("clock", "sm_mhz", lambda s: f"{_said(s, 'sm_mhz', '')}/{_said(s, 'memory_mhz', ' MHz')}",
            lambda _: 2500.0),
)  # fmt: skip
HOST_MEASURES = (
    Measure("cpu", "cpu_percent", lambda s: _said(s, "cpu_percent", f"% of {s.get('cores', '?')} cores"),
            lambda _: 100.0),
    Measure("memory", "memory_used", lambda s: _part(s, "memory_used", "memory_total", size_bytes),
            lambda s: _number(s, "memory_total") or 1.0),
)  # fmt: skip


@dataclass(slots=True)
class Source:
    """One GPU, or the host, with the history of its measures."""

    sample: dict[str, Any] = field(default_factory=dict)
    rings: dict[str, Ring] = field(default_factory=dict)

    def push(self, sample: dict[str, Any], measures: tuple[Measure, ...]) -> None:
        """Take a new sample."""
        self.sample = sample
        for measure in measures:
            self.rings.setdefault(measure.key, Ring()).push(_number(sample, measure.key))


class TelemetryList(LineList):
    """The rows, made for the present width and height."""

    def __init__(self, paint: Paint, glyphs: Glyphs) -> None:
        super().__init__(paint, id="telemetry-list", empty="Waiting for the first sample ...")
        self.glyphs = glyphs
        self.gpus: dict[str, Source] = {}
        self.host = Source()
        self.no_gpus = ""
        self.trouble = ""
        self._rows: list[Row] = []

    def push(self, sample: dict[str, Any]) -> None:
        """Take one line of the sampler; fields it lacks are said to be n/a."""
        for gpu in sample.get("gpus") or []:
            key = str(gpu.get("uuid") or gpu.get("index"))
            self.gpus.setdefault(key, Source()).push(gpu, GPU_MEASURES)
        host = sample.get("host")
        if isinstance(host, dict):
            self.host.push(host, HOST_MEASURES)
        self.no_gpus = str(sample.get("no_gpus") or "")

    def renew(self) -> None:
        """Make the rows again and paint those that changed."""
        rows = self._build(self.room, self.size.height)
        old, self._rows = self._rows, rows
        if len(rows) != len(old):
            self.rows_changed()
            return
        for number, (before, after) in enumerate(zip(old, rows, strict=True)):
            if before != after:
                self.row_changed(number)

    def _build(self, width: int, height: int) -> list[Row]:
        rows: list[Row] = []
        if self.trouble:
            rows.append([(f" {self.trouble}", "warning")])
        gpus = list(self.gpus.values())
        tall = len(gpus) * (len(GPU_MEASURES) + 1) + len(HOST_MEASURES) <= max(height, 1)
        for gpu in gpus:
            if tall:
                rows.append(self._heading(gpu))
                rows.extend(self._row(gpu, measure, width) for measure in GPU_MEASURES)
            else:
                rows.append(self._compact(gpu, width))
        if not gpus and self.host.sample:
            why = one_line(self.no_gpus) or "no NVML"
            rows.append([(f" No GPU here, so CPU and memory of this machine. ({why})", "muted")])
        if self.host.sample:
            rows.extend(self._row(self.host, measure, width) for measure in HOST_MEASURES)
        return rows

    def _heading(self, gpu: Source) -> Row:
        name = clean(str(gpu.sample.get("name") or "GPU"))
        pieces: Row = [(f" GPU {gpu.sample.get('index', '?')} {name}", "strong")]
        throttle = [str(reason) for reason in gpu.sample.get("throttle") or [] if reason != "idle"]
        if throttle:
            pieces.append((f"  slowed by {', '.join(throttle)}", "warning"))
        return pieces

    def _row(self, source: Source, measure: Measure, width: int) -> Row:
        text = fit(measure.say(source.sample), _VALUE, self.glyphs.ellipsis)
        room = min(120, width - _LABEL - _VALUE - 4)
        return [(f" {fit(measure.label, _LABEL)} ", "muted"), (f"{text} ", "text"),
                (self._spark(source, measure, room), "fill")]  # fmt: skip

    def _compact(self, gpu: Source, width: int) -> Row:
        sample = gpu.sample
        text = (f" {sample.get('index', '?')} {_said(sample, 'util_percent', '%'):>4} "
                f"{_part(sample, 'memory_used', 'memory_total', size_bytes):>11} "
                f"{_said(sample, 'power_w', ' W'):>6} {_said(sample, 'temperature_c', ' C'):>5} "
                f"{_said(sample, 'sm_mhz', ' MHz'):>8} ")  # fmt: skip
        room = min(40, width - len(text) - 1)
        return [(text, "text"), (self._spark(gpu, GPU_MEASURES[0], room), "fill")]

    def _spark(self, source: Source, measure: Measure, width: int) -> str:
        ring = source.rings.get(measure.key)
        values = ring.tail(width) if ring is not None else []
        return spark(values, max(0, width), self.glyphs.blocks, measure.low, measure.top(source.sample))

    def row_count(self) -> int:
        """The rows made last."""
        return len(self._rows)

    def row_pieces(self, row: int, width: int) -> list[Piece]:  # noqa: ARG002 - rows are cut by the base
        """One measure."""
        return self._rows[row]

    def cursor_kind(self, row: int) -> str:  # noqa: ARG002
        """Nothing here can be chosen, so no row is marked."""
        return ""


class TelemetryPane(Pane):
    """The rows under a title that says what the GPUs do."""

    number = 4
    name_shown = "telemetry"

    def __init__(self, paint: Paint, glyphs: Glyphs, state: SessionView) -> None:
        self.rows = TelemetryList(paint, glyphs)
        super().__init__(paint, glyphs, state, self.rows)

    def height_for(self, screen_height: int) -> int:
        """Rows this pane wants beside others: all of its values where a third of the screen holds them."""
        limit = max(4, screen_height // 3)
        gpus = len(self.rows.gpus)
        full = 1 + gpus * (len(GPU_MEASURES) + 1) + len(HOST_MEASURES)
        wanted = full if gpus and full <= limit else gpus + len(HOST_MEASURES) + (1 if gpus else 2)
        return min(limit, wanted + bool(self.rows.trouble))

    def renew_width(self) -> None:
        """Sparklines are as long as there is room."""
        self.rows.renew()

    def take(self, samples: list[dict[str, Any]], trouble: str) -> None:
        """Take what the sampler said since the last time."""
        for sample in samples:
            self.rows.push(sample)
        self.rows.trouble = trouble
        self.forge.main.fit_telemetry()
        self.rows.renew()
        count = len(self.rows.gpus)
        self.show_title([(f"{count} GPU{'s' if count > 1 else ''}" if count else "CPU", "muted")])
