"""From a flat list of timed calls to the tree of hotspots. Pure: numbers in, numbers out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from statistics import median

from forge_tui.core.profiles import HotspotKind

#: no listener costs more than this at one call; what is above it is noise of the machine
_MOST_OVERHEAD_US = 50.0


@dataclass(slots=True)
class Call:
    """One call of one pass. `parent` is an index into the pass's list, -1 for the root."""

    key: Hashable
    """Equal for the same callable in every pass."""
    parent: int
    total_us: float = 0.0
    group: str | None = None
    """The signature group that the call belongs to."""


@dataclass(slots=True)
class Row:
    """One call with what every pass says of it. Times are those of one call of its phase, in microseconds."""

    call: Call
    total_us: float
    """Device time, children included; wall time on the CPU."""
    self_us: float
    host_us: float
    launches: int = 0
    """Device kernels, children included."""
    kernels: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Launches and time of the kernels that it launched itself, by name."""
    weight: float = 1.0
    """Of its phase."""


@dataclass(slots=True)
class Node:
    """Calls of one callable under one parent node, weighted by phase."""

    id: int
    parent: int | None
    kind: HotspotKind
    name: str
    path: str
    group: str | None
    calls: float = 0.0
    total_us: float = 0.0
    self_us: float = 0.0
    host_us: float = 0.0
    launches: float = 0.0
    kernels: dict[str, tuple[float, float]] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Count one call."""
        self.calls += row.weight
        self.total_us += row.weight * row.total_us
        self.self_us += row.weight * row.self_us
        self.host_us += row.weight * row.host_us
        self.launches += row.weight * row.launches
        for name, (count, us) in row.kernels.items():
            before = self.kernels.get(name, (0.0, 0.0))
            self.kernels[name] = (before[0] + row.weight * count, before[1] + row.weight * us)


def align(
    base: Sequence[Call], passes: Sequence[tuple[Sequence[Call], Sequence[float]]]
) -> tuple[list[float], bool]:
    """Median over all passes of a value of every call of `base`, and whether all passes made the same calls.

    Where they did not, a call is matched with the call of the same callable that has the same number in its pass; one
    that no pass made has the value 0.
    """
    keys = [call.key for call in base]
    if all([call.key for call in calls] == keys for calls, _ in passes):
        return [median(values[i] for _, values in passes) for i in range(len(base))], True
    found = [dict(zip(occurrences(calls), values, strict=True)) for calls, values in passes]
    return [median([values[n] for values in found if n in values] or [0.0]) for n in occurrences(base)], False


def totals_of(parents: Sequence[int], own: Sequence[float]) -> list[float]:
    """Own values with those of all calls below."""
    totals = list(own)
    for i in range(len(own) - 1, -1, -1):  # children come behind their parents
        if parents[i] >= 0:
            totals[parents[i]] += totals[i]
    return totals


def common_top(passes: Sequence[tuple[Sequence[Call], Sequence[float]]], count: int = 10) -> float:
    """Share of the `count` longest callables, by own time, that the first and the last pass have in common."""
    tops = []
    for calls, own in (passes[0], passes[-1]):
        times: dict[Hashable, float] = defaultdict(float)
        for call, us in zip(calls, own, strict=True):
            key = call.key
            # instances of one class are one callable
            times[(*key[:2], wildcard(str(key[2])), *key[3:]) if isinstance(key, tuple) else key] += us
        tops.append(set(sorted(times, key=lambda k: -times[k])[:count]))
    return len(tops[0] & tops[1]) / max(1, min(len(tops[0]), len(tops[1])))


def occurrences(calls: Sequence[Call]) -> list[tuple[Hashable, int]]:
    """(key, n) for the n-th call of each callable."""
    seen: dict[Hashable, int] = defaultdict(int)
    numbers = []
    for call in calls:
        numbers.append((call.key, seen[call.key]))
        seen[call.key] += 1
    return numbers


def self_times(
    parents: Sequence[int], totals_us: Sequence[float], model_us: float
) -> tuple[list[float], list[float], float]:
    """Total and self time of every call, freed from the listener's cost and scaled to the unprofiled model time.

    The listener's cost falls into the parents: the difference between the profiled and the unprofiled time is taken
    off them, evenly by child. Then self times of all calls sum to `model_us`. The third value is profiled over
    unprofiled time.
    """
    count = len(parents)
    own = list(totals_us)
    children = [0] * count
    for i, parent in enumerate(parents):
        if parent >= 0:
            own[parent] -= totals_us[i]
            children[parent] += 1
    profiled = sum(totals_us[i] for i in range(count) if parents[i] < 0)
    per_child = max(0.0, profiled - model_us) / max(1, sum(children))
    per_child = min(per_child, _MOST_OVERHEAD_US)
    own = [max(0.0, t - per_child * n) for t, n in zip(own, children, strict=True)]
    scale = model_us / sum(own) if sum(own) > 0 else 0.0
    own = [t * scale for t in own]
    totals = totals_of(parents, own)
    return totals, own, profiled / model_us if model_us > 0 else 1.0


def build_tree(rows: Sequence[Row], labels: Sequence[tuple[HotspotKind, str, str]]) -> list[Node]:
    """Nodes, parents first and siblings by time.

    Calls fall together that have the same parent node, kind, name, group, and path but for the numbers in it
    (`layers.*.mlp`). `labels` has kind, name and path of every call.
    """
    nodes: dict[tuple[int | None, HotspotKind, str, str, str | None], Node] = {}
    of_call: list[Node] = []
    roots: list[Node] = []
    for row, (kind, name, path) in zip(rows, labels, strict=True):
        parent = of_call[row.call.parent] if row.call.parent >= 0 else None
        short = wildcard(path)
        key = (id(parent) if parent else None, kind, name, short, row.call.group)
        node = nodes.get(key)
        if node is None:
            node = nodes[key] = Node(-1, None, kind, name, short, row.call.group)
            (parent.children if parent else roots).append(node)
        node.add(row)
        of_call.append(node)
    ordered: list[Node] = []
    _number(roots, None, ordered)
    return ordered


def wildcard(path: str) -> str:
    """`layers.3.mlp` as `layers.*.mlp`."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", path)


def _number(nodes: list[Node], parent: int | None, ordered: list[Node]) -> None:
    for node in sorted(nodes, key=lambda n: -n.total_us):
        node.id, node.parent = len(ordered), parent
        ordered.append(node)
        _number(node.children, node.id, ordered)
