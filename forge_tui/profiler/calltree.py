"""From a flat list of timed calls to the tree of hotspots. Pure: numbers in, numbers out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

Kind = Literal["model", "module", "function", "torch"]
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
class Node:
    """Calls of one callable under one parent node."""

    id: int
    parent: int | None
    kind: Kind
    name: str
    path: str
    group: str | None
    calls: int = 0
    total_us: float = 0.0
    self_us: float = 0.0
    children: list[Node] = field(default_factory=list)


def merge_passes(passes: Sequence[Sequence[Call]]) -> tuple[list[float], bool]:
    """Median total time of every call of the first pass over all passes, and whether the passes made the same calls.

    Where they did not, a call is matched with the call of the same callable that has the same number in its pass.
    """
    first = passes[0]
    same = all([c.key for c in one] == [c.key for c in first] for one in passes[1:])
    if same:
        return [median(one[i].total_us for one in passes) for i in range(len(first))], True
    times = [
        {number: call.total_us for number, call in zip(occurrences(one), one, strict=True)} for one in passes
    ]
    return [median(t[n] for t in times if n in t) for n in occurrences(first)], False


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
    totals = list(own)
    for i in range(count - 1, -1, -1):  # children come behind their parents
        if parents[i] >= 0:
            totals[parents[i]] += totals[i]
    return totals, own, profiled / model_us if model_us > 0 else 1.0


def build_tree(
    calls: Sequence[Call],
    labels: Sequence[tuple[Kind, str, str]],
    totals_us: Sequence[float],
    selfs_us: Sequence[float],
) -> list[Node]:
    """Nodes, parents first and siblings by time.

    Calls fall together that have the same parent node, kind, name, group, and path but for the numbers in it
    (`layers.*.mlp`). `labels` has kind, name and path of every call.
    """
    nodes: dict[tuple[int | None, Kind, str, str, str | None], Node] = {}
    of_call: list[Node] = []
    roots: list[Node] = []
    for call, (kind, name, path), total, own in zip(calls, labels, totals_us, selfs_us, strict=True):
        parent = of_call[call.parent] if call.parent >= 0 else None
        short = wildcard(path)
        key = (id(parent) if parent else None, kind, name, short, call.group)
        node = nodes.get(key)
        if node is None:
            node = nodes[key] = Node(-1, None, kind, name, short, call.group)
            (parent.children if parent else roots).append(node)
        node.calls += 1
        node.total_us += total
        node.self_us += own
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
