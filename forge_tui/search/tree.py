"""The candidates of one target with the statistics that the policy reads.

A kernel and the settings tried for it are one *chain*: the policy sees the chain once, valued by its best setting.
Every statistic is a function of the set of nodes, drops and running steps, never of the order in which verdicts
came, so that a resumed tree equals one that was never interrupted.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from forge_tui.core.records import Edge, Evaluation, Node, Record, Target, Verdict
from forge_tui.search.config import Drop, Step

#: values are summed as integers of this fineness
UNIT = 10**9
#: edges on which somebody wrote a new kernel; repairs and settings are not attempts of their parent, and what was found
#: elsewhere says nothing of the chances here
GENERATION = (Edge.DRAFT, Edge.IMPROVE, Edge.START, Edge.REWRITE, Edge.MERGE)


class NodeStats(Record, frozen=True, kw_only=True):
    """What viewers show of a node."""

    visits: int
    """1 + attempts in its subtree, running ones included."""
    value: float | None
    """ln(speedup), lower end of its interval; None where it failed or is in flight."""
    best_below: float | None
    """Highest value in its subtree, its own included."""


def value_of(evaluation: Evaluation) -> float | None:
    """The logarithm of the speedup, of the interval's lower end where there is one; None for a failed kernel."""
    if not evaluation.verdict.right:
        return None
    speedup = evaluation.speedup
    if evaluation.speedup_ci is not None and evaluation.speedup_ci[0] > 0:
        speedup = evaluation.speedup_ci[0]
    if speedup is None or not math.isfinite(speedup) or speedup <= 0:
        return None
    return math.log(speedup)


@dataclass(slots=True)
class Chain:
    """A right kernel with its settings, as the policy sees it."""

    head: int
    parent: Chain | None
    value: float
    best: int
    """The node that has `value`."""
    below: float
    """M: the highest value in the subtree."""
    attempts: int = 0
    """A: attempts made from this kernel."""
    size: int = 1
    """N: 1 + attempts in the subtree."""
    down: float = 0.0
    """The worth of going down here, kept up to date."""
    children: list[Chain] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    """Head and its settings, failed and running ones included, by id."""
    tunes: int = 0
    tuning: int = 0
    """Settings that are running."""
    duplicates: dict[str, int] = field(default_factory=dict)
    """By proposer."""


class TargetTree:
    """Nodes of one target."""

    def __init__(self, target: Target, explore: float, room: Callable[[float], float] | None = None) -> None:
        """`room` scales the bonus of few attempts by the value of the oldest right draft; 1 without it."""
        self.target = target
        self.version = 0
        """Changes whenever the tree does, running steps included."""
        self.content = 0
        """Changes with nodes, verdicts and drops only."""
        self.roots: list[Chain] = []
        self.chains: dict[int, Chain] = {}
        """By every member's id."""
        self.ranked_roots: list[tuple[float, int, Chain]] = []
        """(-down, head, chain), the most promising first."""
        self.root_sums = (0, 0)
        """Sums of the drafts' values and of their squares, in `UNIT`s: exact, whatever the order."""
        self.root_attempts = 0
        self.reserved: list[Step] = []
        self.flying: set[int] = set()
        self.drops: list[Drop] = []
        self.generation: list[int] = []
        """Ids of nodes on generation edges, ascending."""
        self.sources: dict[str, int] = {}
        """How many nodes have a source."""
        self.transfers: list[int] = []
        """Ids of nodes on transfer edges."""
        self.tunes = 0
        self.failures: list[int] = []
        """Failed nodes that a repair could mend, ascending."""
        self.mended: dict[int, int] = {}
        """By failed node: repairs of it that exist or run."""
        self.unmended: dict[int, int] = {}
        """By failed node: repairs of it that brought no source."""
        self.champion: Chain | None = None
        self.by_family: dict[str, Chain] = {}
        """The best kernel of every family that was named."""
        self.heads: list[tuple[float, int, Chain]] = []
        """Chains whose source may have settings to try: (-value, head, chain), best first."""
        self.ids: list[int] = []
        """Every node that counts, ascending."""
        self._explore = explore
        self._room = room
        self.scale = 1.0
        """What bonuses are multiplied with: a function of the oldest right draft's own value."""
        self._nodes: dict[int, Node] = {}
        self._in_order: list[Node] = []
        self._values: dict[int, float] = {}
        self._spent_ms = self._measured = 0
        self._records: list[tuple[int, float]] = []
        self._fast: tuple[float, int] | None = None
        self._right: tuple[float, int] | None = None
        self._baseline: tuple[int, float] | None = None
        self._tuple: tuple[int, tuple[Node, ...]] = (-1, ())

    # ---- what is there

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._nodes

    def node(self, node_id: int) -> Node:
        """The node; KeyError where there is none."""
        return self._nodes[node_id]

    def nodes(self) -> tuple[Node, ...]:
        """Every node that counts, oldest first."""
        if self._tuple[0] != self.content:
            self._tuple = (self.content, tuple(self._in_order))
        return self._tuple[1]

    def value(self, node_id: int) -> float | None:
        """The node's own value."""
        return self._values.get(node_id)

    @property
    def begun(self) -> int:
        """Candidates, running steps included."""
        return len(self.ids) + len(self.reserved)

    @property
    def attempts(self) -> int:
        """Everything that was or is being tried."""
        return self.begun + len(self.drops)

    @property
    def tries(self) -> int:
        """Attempts without the settings, which cost no reply."""
        return self.attempts - self.tunes

    @property
    def in_flight(self) -> int:
        """Steps whose end is not known."""
        return len(self.flying) + len(self.reserved)

    @property
    def best(self) -> Node | None:
        """The fastest node whose whole interval is above 1, else the best right one."""
        key = self._fast or self._right
        return None if key is None else self._nodes[-key[1]]

    @property
    def baseline_us(self) -> float | None:
        """The reference's time as measured beside the oldest right kernel."""
        return None if self._baseline is None else self._baseline[1]

    @property
    def candidate_s(self) -> float:
        """Mean seconds of the machine that a candidate took; 0 before any."""
        return self._spent_ms / 1000 / self._measured if self._measured else 0.0

    def lineage(self, node_id: int | None) -> tuple[Node, ...]:
        """The node, its parent, and so on to the root."""
        line: list[Node] = []
        while node_id is not None and node_id in self._nodes:
            line.append(self._nodes[node_id])
            node_id = line[-1].parent
        return tuple(line)

    def improvements(self, margin: float) -> tuple[list[float], int]:
        """Sizes of the improvements in order of ids, and the attempts since the last one: new kernels, nothing else."""
        sizes: list[float] = []
        champion: float | None = None
        last = -1
        for node_id, value in self._records:
            if champion is None:
                if value > margin:
                    sizes.append(value)
                champion, last = value, node_id
            elif value > champion + margin:
                # what lies below 1x saves nothing by itself, but it is the way up
                sizes.append(value - champion)
                champion, last = value, node_id
        since = self.newer_attempts(last) + sum(1 for d in self.drops if d.after >= last and d.step.edge in GENERATION)
        return sizes, since + sum(1 for step in self.reserved if step.edge in GENERATION)

    def repair_depth(self, failed: int) -> int:
        """Which repair in a row the next one of this failure would be, from 1."""
        depth = 1
        node_id: int | None = failed
        while node_id is not None and node_id in self._nodes:
            depth += self.unmended.get(node_id, 0)
            node_id = self._nodes[node_id].repairs
            depth += node_id is not None
        return depth

    def newer_attempts(self, node_id: int) -> int:
        """Attempts that began after a node."""
        return len(self.generation) - bisect_right(self.generation, node_id)

    def stats(self) -> dict[int, NodeStats]:
        """Numbers of every node, along the edges as they are drawn."""
        visits = dict.fromkeys(self.ids, 1)
        best = dict[int, float | None]((i, self._values.get(i)) for i in self.ids)
        for node_id in reversed(self.ids):
            node = self._nodes[node_id]
            if node.parent not in visits:
                continue
            counted = visits[node_id] - (node.edge not in GENERATION)
            visits[node.parent] += counted
            below, above = best[node_id], best[node.parent]
            if below is not None and (above is None or below > above):
                best[node.parent] = below
        return {
            i: NodeStats(visits=visits[i], value=self._values.get(i), best_below=best[i]) for i in self.ids
        }

    # ---- what happens

    def reserve(self, step: Step) -> None:
        """A step starts: it counts as an attempt from now on."""
        self.version += 1
        self.reserved.append(step)
        self._count(step, 1)

    def release(self, step: Step) -> None:
        """The step has a node, or is given up."""
        if step in self.reserved:
            self.version += 1
            self.reserved.remove(step)
            self._count(step, -1)

    def drop(self, drop: Drop) -> None:
        """An attempt without a source."""
        self._changed()
        self.drops.append(drop)
        step = drop.step
        if step.edge is Edge.REPAIR and step.failed is not None:
            self.unmended[step.failed] = self.unmended.get(step.failed, 0) + 1
        elif step.edge is not Edge.TUNE:
            self._charge(step.parent, 1)

    def add(self, node: Node) -> None:
        """A node is in flight."""
        self._changed()
        self._nodes[node.id] = node
        place = bisect_left(self.ids, node.id)
        self.ids.insert(place, node.id)
        self._in_order.insert(place, node)
        self.flying.add(node.id)
        self.sources[node.source] = self.sources.get(node.source, 0) + 1
        self._count(node, 1)

    def settle(self, node_id: int, evaluation: Evaluation) -> Node | None:
        """The node's verdict; returns the node as it is now, or None where the failure was ours."""
        if node_id not in self.flying:
            return self._nodes.get(node_id)
        self._changed()
        self.flying.discard(node_id)
        node = self._nodes[node_id]
        if evaluation.verdict is Verdict.INFRA:
            self._count(node, -1)
            place = bisect_left(self.ids, node_id)
            del self.ids[place], self._in_order[place]
            del self._nodes[node_id]
            self.sources[node.source] -= 1
            if not self.sources[node.source]:
                del self.sources[node.source]
            return None
        node = self._nodes[node_id] = _with(node, evaluation)
        self._in_order[bisect_left(self.ids, node_id)] = node
        self._measured += 1
        # in whole milliseconds, so that the sum does not depend on the order of verdicts
        self._spent_ms += round(1000 * sum(s or 0.0 for s in (
            evaluation.compile_s, evaluation.verify_s, evaluation.timing_s)))  # fmt: skip
        chain = self.chains.get(node.parent) if node.parent is not None else None
        if node.edge is Edge.TUNE and chain is not None:
            chain.tuning -= 1
        value = value_of(evaluation)
        if value is not None:
            self._right_node(node, evaluation, value, chain)
        elif evaluation.verdict is Verdict.DUPLICATE and chain is not None and node.edge is not Edge.TUNE:
            chain.duplicates[node.proposer] = chain.duplicates.get(node.proposer, 0) + 1
        elif evaluation.verdict.repairable and node.edge is not Edge.TUNE:
            insort(self.failures, node_id)
        return node

    def unlist(self, chain: Chain) -> bool:
        """Take a chain out of those with settings to try; whether it was among them."""
        place = bisect_left(self.heads, (-chain.value, chain.head), key=lambda entry: entry[:2])
        if place == len(self.heads) or self.heads[place][2] is not chain:
            return False
        del self.heads[place]
        return True

    # ---- counting

    def _changed(self) -> None:
        self.version += 1
        self.content += 1

    def _count(self, what: Step | Node, sign: int) -> None:
        """Charge a running step or a node to where it belongs."""
        chain = self.chains.get(what.parent) if what.parent is not None else None
        if what.edge is Edge.TUNE:
            self.tunes += sign
            if chain is not None:
                chain.tunes += sign
                chain.tuning += sign
                if isinstance(what, Node):
                    self._join(chain, what.id, sign)
        elif what.edge is Edge.TRANSFER:
            if isinstance(what, Node):
                (self.transfers.append if sign > 0 else self.transfers.remove)(what.id)
        elif what.edge is Edge.REPAIR:
            failed = what.repairs if isinstance(what, Node) else what.failed
            if failed is not None:
                self.mended[failed] = self.mended.get(failed, 0) + sign
        else:
            if isinstance(what, Node):
                if sign > 0:
                    insort(self.generation, what.id)
                else:
                    self.generation.remove(what.id)
            self._charge(what.parent, sign)

    def _join(self, chain: Chain, node_id: int, sign: int) -> None:
        if sign > 0:
            insort(chain.members, node_id)
            self.chains[node_id] = chain
        else:
            chain.members.remove(node_id)
            del self.chains[node_id]

    def _charge(self, parent: int | None, sign: int) -> None:
        chain = self.chains.get(parent) if parent is not None else None
        if chain is None:
            self.root_attempts += sign
            return
        chain.attempts += sign
        while chain is not None:
            chain.size += sign
            self._weigh(chain)
            chain = chain.parent

    def _weigh(self, chain: Chain) -> None:
        before = (-chain.down, chain.head)
        chain.down = chain.below + self._explore * self.scale / math.sqrt(1 + chain.size)
        if chain.parent is None and before != (-chain.down, chain.head):
            place = bisect_left(self.ranked_roots, before, key=_rank)
            if place < len(self.ranked_roots) and self.ranked_roots[place][2] is chain:
                del self.ranked_roots[place]
                insort(self.ranked_roots, (-chain.down, chain.head, chain), key=_rank)

    def _count_root(self, value: float, sign: int) -> None:
        exact = round(value * UNIT)
        total, squares = self.root_sums
        self.root_sums = total + sign * exact, squares + sign * exact * exact

    def _right_node(self, node: Node, evaluation: Evaluation, value: float, chain: Chain | None) -> None:
        self._values[node.id] = value
        if evaluation.baseline_us and (self._baseline is None or node.id < self._baseline[0]):
            self._baseline = (node.id, evaluation.baseline_us)
        self._record(node.id, value)
        self._right = max(self._right or (value, -node.id), (value, -node.id))
        low = evaluation.speedup_ci[0] if evaluation.speedup_ci else None
        if low > 1 if low is not None else evaluation.verdict is Verdict.FASTER:
            key = (evaluation.speedup or math.exp(value), -node.id)
            self._fast = max(self._fast or key, key)
        if node.edge is Edge.TUNE and chain is not None:
            if (value, -node.id) > (chain.value, -chain.best):
                listed = self.unlist(chain)
                if chain.parent is None:
                    self._count_root(chain.value, -1)
                    self._count_root(value, 1)
                chain.value, chain.best = value, node.id
                if listed:
                    insort(self.heads, (-value, chain.head, chain))
        else:
            above = chain
            chain = Chain(head=node.id, parent=above, value=value, best=node.id, below=value, members=[node.id])
            self.chains[node.id] = chain
            self._weigh(chain)
            if "@tune" in node.source:
                insort(self.heads, (-value, chain.head, chain))
            insort(self.roots if above is None else above.children, chain, key=_head)
            if above is None:
                self._count_root(value, 1)
                insort(self.ranked_roots, (-chain.down, chain.head, chain), key=_rank)
                if self._room is not None and chain is self.roots[0]:
                    self.scale = self._room(value)
                    for other in self.chains.values():
                        self._weigh(other)
        if self.champion is None or (chain.value, -chain.best) > (self.champion.value, -self.champion.best):
            self.champion = chain
        family = self._nodes[chain.head].family
        known = self.by_family.get(family)
        if family and (known is None or (chain.value, -chain.best) > (known.value, -known.best)):
            self.by_family[family] = chain
        above = chain
        while above is not None and (value > above.below or above is chain):
            above.below = max(above.below, value)
            self._weigh(above)
            above = above.parent

    def _record(self, node_id: int, value: float) -> None:
        """Keep the list of values that were the highest so far, by id."""
        place = bisect_right(self._records, node_id, key=lambda r: r[0])
        if place and self._records[place - 1][1] >= value:
            return
        end = place
        while end < len(self._records) and self._records[end][1] <= value:
            end += 1
        self._records[place:end] = [(node_id, value)]


def _rank(entry: tuple[float, int, Chain]) -> tuple[float, int]:
    return entry[:2]


def _head(chain: Chain) -> int:
    return chain.head


def _with(node: Node, evaluation: Evaluation) -> Node:
    import msgspec

    return msgspec.structs.replace(node, evaluation=evaluation)
