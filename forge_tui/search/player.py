"""Proposers on recorded landscapes: the templates as they were recorded, and one that plays a model.

The player's rates are those of the generated landscapes, see `search.landscape`. They follow published runs: 57.6% of
one-shot CUDA kernels by o3 right (CudaForge, KernelBench), 32% of candidates not compiling (OpenEvolve on Metal), a
round of repair mending 16 to 27% of what is left without and with a critic (CudaForge), 22% of rounds without any right
kernel (AccelOpt on H100). Kernels that fail by nature fail as they did when they were recorded.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping

from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, LlmCall, Node, Proposal, Target, Verdict
from forge_tui.search.landscape import BREAK_ODDS, BREAKS, FAMILY_ODDS, REPAIR_ODDS, SHAPES, Kind
from forge_tui.search.recorded import TargetLandscape

#: the player's name on the command line
PLAYER = "sim"

_SWITCHES = (1, 2, 3), (0.6, 0.3, 0.1)
_JUMP, _DUPLICATE = 0.05, 0.06
#: a draft is broken more often, a small change less often
_DRAFT, _EDIT, _SWITCH, _DIFFICULTY = 0.18, -0.08, 0.08, 1.1
_OPINION = 0.25
#: what a failed neighbour looks like to a model that does not know it
_FAILED = -0.3
#: tokens in and out of one call, their spread and limits, dollars a million
_TOKENS, _SPREAD, _MOST_TOKENS, _PRICES = (9000, 5000), 0.35, (30_000, 16_000), (5.0, 25.0)

_FAULT = re.compile(r"#define SIMULATED_FAULT (\w+) (\d+) (\d+)\n\Z")


def broken(source: str, verdict: Verdict, tries: int, salt: int) -> str:
    """A source with a mistake in it."""
    return f"{source}#define SIMULATED_FAULT {verdict} {tries} {salt}\n"


def taken_apart(source: str) -> tuple[str, Verdict | None, int]:
    """The recorded source, how it is broken, and how often that was to be repaired."""
    found = _FAULT.search(source)
    if found is None:
        return source, None, 0
    return source[: found.start()], Verdict(found[1]), int(found[2])


def kind_of(target: Target, family: str) -> Kind:
    """The class of operator whose failure rates hold."""
    if family.startswith("template:rows"):
        return "reduction"
    if family.startswith("template:pooling"):
        return "pooling"
    return "fused" if target.graph is not None and len(target.graph.nodes) > 3 else "elementwise"


class RecordedTemplates:
    """Proposes each recorded source once, at its defaults; the settings are left to the search."""

    name = "templates"

    def __init__(self, lands: Mapping[str, TargetLandscape]) -> None:
        self._lands = lands

    def can(self, task: Task) -> bool:
        """Whether a source is left."""
        return task.edge in (Edge.DRAFT, Edge.IMPROVE) and self._next(task) is not None

    async def propose(self, task: Task) -> Proposal:
        """The next source that has not been tried."""
        point = self._next(task)
        if point is None:
            return Proposal(source=None, failure="Every recorded source has been tried.")
        land = self._lands[task.target.id]
        source = land.sources[land.points[point].source]
        return Proposal(source=source.text, idea=source.idea, family=source.family, tunables=land.tunables_of(point))

    async def close(self) -> None:
        """Nothing is held open."""

    def _next(self, task: Task) -> int | None:
        land = self._lands[task.target.id]
        tried = {node.family for node in task.nodes}
        for number, source in enumerate(land.sources):
            point = land.draft(number)
            if source.family not in tried and point is not None:
                return point
        return None


class RecordedPlayer:
    """Moves over recorded points the way a model writes kernels: small changes, partly informed, often broken."""

    def __init__(self, lands: Mapping[str, TargetLandscape], name: str = PLAYER, *, skill: float = 1.0) -> None:
        self.name = name
        self._lands = lands
        self._skill = skill

    def can(self, task: Task) -> bool:
        """Whether the kernel to start from is a recorded one."""
        if task.edge not in (Edge.DRAFT, Edge.IMPROVE, Edge.REPAIR, Edge.REWRITE, Edge.MERGE):
            return False
        start = task.failed if task.edge is Edge.REPAIR else task.parent
        return start is None or self._point(task, start) is not None

    async def propose(self, task: Task) -> Proposal:
        """See `core.ports.Proposer`."""
        return self.write(task)

    async def most_usd(self) -> float:
        """See `core.ports.Priced`."""
        return _price(_MOST_TOKENS)

    async def close(self) -> None:
        """Nothing is held open."""

    def write(self, task: Task) -> Proposal:
        """The proposal, a function of the task."""
        land = self._lands[task.target.id]
        rng = random.Random(f"{self.name} {task.target.id} {task.seed}")  # noqa: S311 - a simulation
        if task.edge is Edge.REPAIR:
            assert task.failed is not None
            point, fault, tries = self._repair(rng, land, task, task.failed)
        else:
            point, risk = self._move(rng, land, task)
            fault, tries = (rng.choices(BREAKS, BREAK_ODDS)[0] if rng.random() < risk else None), 0
        source = land.sources[land.points[point].source]
        text = source.text if fault is None else broken(source.text, fault, tries, rng.randrange(10**6))
        tunables = land.tunables_of(point)
        return Proposal(source=text, family=source.family, tunables=tunables, call=self._call(rng, task),
                        idea=", ".join(f"{name} {value}" for name, value in tunables.items()))  # fmt: skip

    # ---- moves

    def _move(self, rng: random.Random, land: TargetLandscape, task: Task) -> tuple[int, float]:
        """Where to, and the chance that writing it goes wrong."""
        start = self._point(task, task.parent) if task.parent is not None else None
        if start is None:
            point = self._draft(rng, land)
            return point, self._failure(land, point) + _DRAFT
        if task.edge is Edge.MERGE and task.other is not None:
            other = self._point(task, task.other)
            mixed = land.across(start, land.points[other].source) if other is not None else None
            return (start if mixed is None else mixed), self._failure(land, start)
        if rng.random() < _DUPLICATE:
            return start, 0.0
        if task.edge is Edge.REWRITE or rng.random() < _JUMP:
            point = self._draft(rng, land, besides=land.points[start].source)
            return point, self._failure(land, point) + _DRAFT
        here, risk = start, self._failure(land, start) + _EDIT
        for _ in range(rng.choices(*_SWITCHES)[0]):
            there = self._step(rng, land, here)
            gain = (land.value(there) or 0.0) - (land.value(here) or 0.0)
            risk += min(0.75, _SWITCH + _DIFFICULTY * max(0.0, gain))
            here = there
        return here, risk

    def _step(self, rng: random.Random, land: TargetLandscape, here: int) -> int:
        near = land.neighbours(here)
        if not near:
            return here
        value = land.value(here) or 0.0
        opinion = random.Random(f"{self.name} opinion {land.target.id} {here}")  # noqa: S311 - a simulation
        weights = []
        for there in near:
            known = land.value(there)
            gain = _FAILED if known is None else known - value
            weights.append(math.exp(4 * self._skill * (gain + opinion.gauss(0, _OPINION))))
        return rng.choices(near, weights)[0]

    def _draft(self, rng: random.Random, land: TargetLandscape, besides: int | None = None) -> int:
        """Any point of a source, the first ones rather than the last."""
        found = {p.source for p in land.points}
        sources = sorted(found - {besides} or found)
        odds = [FAMILY_ODDS[min(place, len(FAMILY_ODDS) - 1)] for place in range(len(sources))]
        source = rng.choices(sources, odds)[0]
        return rng.choice([i for i, p in enumerate(land.points) if p.source == source])

    def _repair(
        self, rng: random.Random, land: TargetLandscape, task: Task, failed: Node
    ) -> tuple[int, Verdict | None, int]:
        point = self._point(task, failed)
        assert point is not None, "asked in can()"
        _, fault, tries = taken_apart(failed.source)
        if fault is not None:
            mended = rng.random() < REPAIR_ODDS.get(fault, 0.0) * 0.8**tries
            return point, None if mended else fault, tries + 1
        # a point that fails by nature is left for a neighbour, mostly for one that is right
        near = land.neighbours(point) or (point,)
        right = [i for i in near if land.value(i) is not None]
        found = land.points[land.original(point)].verdict
        return rng.choice(right if right and rng.random() < REPAIR_ODDS.get(found, 0.5) else near), None, 0

    # ---- helpers

    def _point(self, task: Task, node: Node) -> int | None:
        return self._lands[task.target.id].find(taken_apart(node.source)[0], node.tunables)

    def _failure(self, land: TargetLandscape, point: int) -> float:
        family = land.sources[land.points[point].source].family
        return SHAPES[kind_of(land.target, family)].failure

    def _call(self, rng: random.Random, task: Task) -> LlmCall:
        tokens = [min(most, round(usual * math.exp(rng.gauss(0, _SPREAD))))
                  for usual, most in zip(_TOKENS, _MOST_TOKENS, strict=True)]  # fmt: skip
        if task.edge is Edge.REPAIR:
            tokens = [round(0.8 * count) for count in tokens]
        return LlmCall(model=self.name, prompt="", reply="", prompt_tokens=tokens[0], completion_tokens=tokens[1],
                       cost_usd=_price(tokens), priced=True)  # fmt: skip


def _price(tokens: list[int] | tuple[int, ...]) -> float:
    return sum(count * price for count, price in zip(tokens, _PRICES, strict=True)) / 1e6
