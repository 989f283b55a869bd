"""Recorded landscapes: every kernel that the templates can write for a target, with its verdict and raw times.

A file is one line, `forge-landscape VERSION`, and behind it a `RecordedLandscape` as JSON, compressed by zlib. Times
are microseconds with four digits.
"""

from __future__ import annotations

import math
import statistics
import zlib
from pathlib import Path

import msgspec

from forge_tui.core import secrets
from forge_tui.core.errors import UsageError
from forge_tui.core.ports import TargetCheck
from forge_tui.core.records import Device, Evaluation, Record, Target, Verdict

VERSION = 1
#: blocks of a recorded timing, four samples each
BLOCKS = 7
#: in place of a device's name on the command line
PREFIX = "sim:"

_MAGIC = b"forge-landscape "
_MOST_BYTES = 64 << 20
#: two samples of one side that differ by more were interrupted, as in `evaluator.stats`
_INTERRUPTED = 1.3
#: sentences of verdicts are kept up to here
_MOST_REASON = 160


class RecordedSource(Record, frozen=True, kw_only=True):
    """One kernel source with its tunables."""

    family: str
    idea: str
    text: str
    tunables: dict[str, tuple[int, ...]]
    """Declared values by name in the source's order, the default first."""


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One source at one setting, as it was verified and timed."""

    source: int
    """Index of the source."""
    setting: tuple[int, ...]
    """A value for each tunable, in the source's order."""
    verdict: Verdict
    """`duplicate` where its machine code is that of another point, which has the same `code`."""
    code: str
    """Equal for equal machine code; empty where it did not compile."""
    seconds: tuple[float, float, float]
    """To compile, verify and time it."""
    samples: tuple[float, ...] = ()
    """Candidate, baseline, candidate, baseline for each block; empty where it was not timed."""
    reason: str = ""
    errors: tuple[float, float] | None = None
    """Largest absolute error, and that over eager's own."""
    resources: dict[str, dict[str, int]] = {}

    @property
    def blocks(self) -> list[tuple[tuple[float, float], tuple[float, float]]]:
        """Both (candidate, baseline) pairs of each block."""
        s = self.samples
        return [((s[i], s[i + 1]), (s[i + 2], s[i + 3])) for i in range(0, len(s), 4)]


class RecordedTarget(Record, frozen=True, kw_only=True):
    """One target with every point that was recorded for it."""

    target: Target
    check: TargetCheck
    sources: tuple[RecordedSource, ...]
    points: tuple[Point, ...]
    grid: int
    """Number of points that the sources have; fewer were recorded where the recording was cut short."""


class RecordedLandscape(Record, frozen=True, kw_only=True):
    """Landscapes of one or several targets of one model, recorded on one device."""

    model: str
    """The model as it was named, without folders."""
    model_ms: float
    device: Device
    program: str
    """Version of the program that recorded it."""
    recorded: str
    """Day, `2026-12-31`."""
    key: str
    """Equal only where a recording can be gone on with: model, device, targets and sources."""
    targets: tuple[RecordedTarget, ...]


def speedup(point: Point) -> float:
    """Median over the blocks of baseline over candidate; 0 without times."""
    return statistics.median(map(block_speedup, point.blocks)) if point.samples else 0.0


def block_speedup(block: tuple[tuple[float, float], tuple[float, float]]) -> float:
    """Baseline over candidate of one block; of a side that was interrupted the shorter sample counts."""
    (one, base), (other, base_too) = block
    return _side(base, base_too) / _side(one, other)


def _side(one: float, other: float) -> float:
    low, high = min(one, other), max(one, other)
    return low if high > _INTERRUPTED * low else (low + high) / 2


def point_of(source: int, setting: tuple[int, ...], found: Evaluation, code: str) -> Point:
    """An evaluation as a point; `code` tells its machine code from others'."""
    worst = None
    if found.max_abs_error is not None and found.error_vs_eager is not None:
        worst = _rounded(found.max_abs_error), _rounded(found.error_vs_eager)
    return Point(
        source=source, setting=setting, verdict=found.verdict, code=code,
        seconds=(round(found.compile_s, 2), round(found.verify_s, 2), round(found.timing_s, 2)),
        samples=tuple(_rounded(us) for pair in found.samples[: 2 * BLOCKS] for us in pair if found.verdict.right),
        reason="" if found.verdict.right else found.reason[:_MOST_REASON], errors=worst, resources=found.resources,
    )  # fmt: skip


def encode(landscape: RecordedLandscape) -> bytes:
    """The file's content, without keys that a model's source may hold."""
    text = secrets.without_values(msgspec.json.encode(landscape).decode())
    return _MAGIC + b"%d\n" % VERSION + zlib.compress(text.encode(), 9)


def read(path: Path) -> RecordedLandscape:
    """Read and check a file.

    Raises:
        UsageError: it cannot be read, is empty, damaged, of a newer version, or no landscape at all.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"The landscape {path} cannot be read: {error.strerror or error}.",
                         "Name a file that forge-tui record wrote.") from error  # fmt: skip
    return decode(content, str(path))


def decode(content: bytes, name: str) -> RecordedLandscape:
    """See `read`; `name` is for messages."""
    if not content:
        raise UsageError(f"The landscape {name} is empty.", "Record it anew with forge-tui record.")
    head, newline, packed = content.partition(b"\n")
    digits = head.removeprefix(_MAGIC)
    if not head.startswith(_MAGIC) or not newline or not digits.isdigit():
        raise UsageError(f"{name} is not a recorded landscape.", "Name a file that forge-tui record wrote.")
    if int(digits[:9]) > VERSION:
        raise UsageError(f"The landscape {name} was written by a newer Forge TUI (format {digits[:9].decode()}, this "
                         f"one knows {VERSION}).", "Upgrade forge-tui, or record it anew.")  # fmt: skip
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, _MOST_BYTES)
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError("it is cut short" if not unpacker.eof else "something stands behind its end")
        found = msgspec.json.decode(text, type=RecordedLandscape)
        _check(found)
    except (zlib.error, ValueError, RecursionError) as error:
        # msgspec's faults are ValueErrors
        raise UsageError(f"The landscape {name} is damaged: {str(error).rstrip('.')}.",
                         "Record it anew with forge-tui record, or take another copy.") from error  # fmt: skip
    return found


def _check(landscape: RecordedLandscape) -> None:
    if not any(recorded.points for recorded in landscape.targets):
        raise ValueError("it has no points")
    ids = [recorded.target.id for recorded in landscape.targets]
    if len(set(ids)) < len(ids):
        raise ValueError("a target is in it twice")
    for recorded in landscape.targets:
        known = {point.code for point in recorded.points if point.verdict is not Verdict.DUPLICATE}
        seen: set[tuple[int, tuple[int, ...]]] = set()
        for point in recorded.points:
            _check_point(recorded, point, known)
            if (point.source, point.setting) in seen:
                raise ValueError("a point is in it twice")
            seen.add((point.source, point.setting))


def _check_point(recorded: RecordedTarget, point: Point, known: set[str]) -> None:
    if not 0 <= point.source < len(recorded.sources):
        raise ValueError("a point has no source")
    declared = recorded.sources[point.source].tunables.values()
    if len(point.setting) != len(declared) or any(
        value not in values for value, values in zip(point.setting, declared, strict=True)
    ):
        raise ValueError("a point has a setting that its source does not declare")
    if point.verdict is Verdict.INFRA or (point.verdict is Verdict.DUPLICATE and point.code not in known):
        raise ValueError("a point has no verdict")
    if point.verdict.right == (not point.samples) or len(point.samples) % 4:
        raise ValueError("a point lacks its times")
    if not all(us > 0 and math.isfinite(us) for us in point.samples):
        raise ValueError("a time is no positive number")


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
