"""One target's recorded landscape as a search sees it: points, moves between neighbours, values with their noise."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence

from forge_tui.core import landscapes
from forge_tui.core.landscapes import BLOCKS, Point, RecordedTarget
from forge_tui.core.records import Evaluation, Verdict

Block = tuple[tuple[float, float], tuple[float, float]]


class TargetLandscape:
    """What was recorded of one target. Points are known by their index; nothing is made up between them."""

    def __init__(self, recorded: RecordedTarget) -> None:
        self.target = recorded.target
        self.sources = recorded.sources
        self.points = recorded.points
        self._texts = {source.text: index for index, source in enumerate(recorded.sources)}
        self._places = {(p.source, p.setting): index for index, p in enumerate(recorded.points)}
        self._first = {p.code: i for i, p in reversed(list(enumerate(recorded.points)))
                       if p.verdict is not Verdict.DUPLICATE and p.code}  # fmt: skip
        self._lines: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
        for index, point in enumerate(recorded.points):
            for knob in range(len(point.setting)):
                self._lines.setdefault(_line(point, knob), []).append(index)
        for (_, knob, _), line in self._lines.items():
            line.sort(key=lambda i: self.points[i].setting[knob])
        self._values = [self._value(index) for index in range(len(self.points))]
        right = [index for index, value in enumerate(self._values) if value is not None]
        self.best = max(right, key=lambda i: self._values[i] or 0.0, default=None)
        """The point with the highest value; None where none is right."""

    # ---- looking up

    def find(self, source: str, tunables: Mapping[str, int]) -> int | None:
        """The point of a source at a setting, missing tunables at their defaults; None where it was not recorded."""
        index = self._texts.get(source)
        if index is None or not set(tunables) <= set(self.sources[index].tunables):
            return None
        declared = self.sources[index].tunables
        setting = tuple(tunables.get(name, values[0]) for name, values in declared.items())
        return self._places.get((index, setting))

    def defaults(self, source: str) -> dict[str, int]:
        """The default of each of a source's tunables; nothing for a source that was not recorded."""
        index = self._texts.get(source)
        return {} if index is None else {name: values[0] for name, values in self.sources[index].tunables.items()}

    def original(self, index: int) -> int:
        """The point that was verified and timed: itself, or the one with the same machine code."""
        point = self.points[index]
        return self._first[point.code] if point.verdict is Verdict.DUPLICATE else index

    def by_code(self, code: str) -> int | None:
        """The point that was verified and timed with this machine code."""
        return self._first.get(code)

    def source_of(self, index: int) -> str:
        """The text of a point's source."""
        return self.sources[self.points[index].source].text

    def tunables_of(self, index: int) -> dict[str, int]:
        """A point's setting by name."""
        point = self.points[index]
        return dict(zip(self.sources[point.source].tunables, point.setting, strict=True))

    # ---- moving

    def draft(self, source: int) -> int | None:
        """Where a source begins: its defaults, or else the first of its points."""
        defaults = tuple(values[0] for values in self.sources[source].tunables.values())
        found = self._places.get((source, defaults))
        return found if found is not None else next((i for i, p in enumerate(self.points) if p.source == source), None)

    def neighbours(self, index: int) -> tuple[int, ...]:
        """Points one switch away: the next recorded values of one tunable, and the other sources at the same values."""
        point = self.points[index]
        found: list[int] = []
        for knob in range(len(point.setting)):
            line = self._lines[_line(point, knob)]
            at = line.index(index)
            found += line[max(0, at - 1) : at] + line[at + 1 : at + 2]
        others = (self.across(index, source) for source in range(len(self.sources)) if source != point.source)
        return tuple(found + [other for other in others if other is not None])

    def across(self, index: int, source: int) -> int | None:
        """The same values in another source; its own defaults where it has other tunables or the point is missing."""
        here = self.tunables_of(index)
        declared = self.sources[source].tunables
        setting = tuple(
            here[name] if here.get(name) in values else values[0] for name, values in declared.items()
        )
        found = self._places.get((source, setting))
        return found if found is not None else self.draft(source)

    # ---- values

    @property
    def best_value(self) -> float:
        """The logarithm of the best point; minus infinity where none is right."""
        value = self._values[self.best] if self.best is not None else None
        return value if value is not None else -math.inf

    def value(self, index: int) -> float | None:
        """The logarithm of the median speedup over the recorded blocks; None where the kernel failed."""
        return self._values[index]

    def blocks(self, index: int) -> list[Block]:
        """The recorded blocks of the point that was timed."""
        return self.points[self.original(index)].blocks

    def resampled(self, index: int, count: int, rng: random.Random) -> list[Block]:
        """So many blocks, drawn with replacement from those that were recorded."""
        return rng.choices(self.blocks(index), k=count)

    def measure(self, index: int, rng: random.Random, count: int = BLOCKS) -> Evaluation:
        """A verdict as one short timing would give it; a failure is the recorded one.

        The interval is two standard errors of the median, from the blocks' median deviation.
        """
        point = self.points[self.original(index)]
        if not point.verdict.right:
            return Evaluation(verdict=point.verdict, reason=point.reason, sha256=point.code)
        drawn = self.resampled(index, count, rng)
        logs = [math.log(landscapes.block_speedup(block)) for block in drawn]
        middle = statistics.median(logs)
        error = 1.25 * 1.4826 * statistics.median(abs(x - middle) for x in logs) / math.sqrt(count)
        low, high = math.exp(middle - 2 * error), math.exp(middle + 2 * error)
        verdict = Verdict.FASTER if low > 1 else Verdict.SLOWER if high < 1 else Verdict.INCONCLUSIVE
        candidate, baseline = _medians(drawn)
        return Evaluation(verdict=verdict, speedup=math.exp(middle), speedup_ci=(low, high), time_us=candidate,
                          baseline_us=baseline, sha256=point.code)  # fmt: skip

    def _value(self, index: int) -> float | None:
        point = self.points[self.original(index)]
        return math.log(landscapes.speedup(point)) if point.verdict.right else None


def _line(point: Point, knob: int) -> tuple[int, int, tuple[int, ...]]:
    return point.source, knob, point.setting[:knob] + point.setting[knob + 1 :]


def _medians(blocks: Sequence[Block]) -> tuple[float, float]:
    pairs = [pair for block in blocks for pair in block]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)
