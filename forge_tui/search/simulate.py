"""A simulated proposer and evaluator, and a small engine around a search: tests and benchmarks without LLM and GPU."""

from __future__ import annotations

import heapq
import math
import random
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

from forge_tui.core.ports import Task
from forge_tui.core.records import (
    Device,
    Edge,
    Evaluation,
    KernelInput,
    KernelOutput,
    Node,
    Proposal,
    Signature,
    Target,
    TensorSpec,
    Verdict,
)
from forge_tui.search.driver import Search, Step, Stop
from forge_tui.search.landscape import (
    BREAK_ODDS,
    BREAKS,
    FAMILIES,
    FAMILY_ODDS,
    KNOBS,
    LEVELS,
    REPAIR_ODDS,
    TECHNIQUES,
    Design,
    Landscape,
)

DEVICE = Device(name="cpu", model="simulated", arch="simulated")
#: part of the changes that undo an earlier one; part of the replies that repeat their parent
REVERTS, REPEATS = 0.12, 0.06
_LINE = re.compile(r"// design family=(\d+) techniques=([\d,]*) quality=(\S+) broken=(\w*) tries=(\d+)")


def target(name: str, *, time_us: float = 100.0, floor_us: float = 25.0, share: float = 0.3) -> Target:
    """A target to search on a landscape."""
    spec = TensorSpec(shape=(64, 64), dtype="float32", strides=(64, 1))
    signature = Signature(
        inputs=(KernelInput(name="x", spec=spec, source="arg", path="x"),),
        outputs=(KernelOutput(name="out0", spec=spec),), scalars=(), call={}, result={},
    )  # fmt: skip
    return Target(
        id=name, name=name, kind="function", qualname=f"simulated:{name}", instances=(), signature=signature, calls=1,
        time_us=time_us, share=share, floor_us=floor_us, bound="memory", headroom_ms=(time_us - floor_us) / 1000,
        bytes_moved=2 * spec.nbytes, flops=spec.numel,
    )  # fmt: skip


def write(design: Design, broken: str = "", tries: int = 0) -> str:
    """A source that stands for a design; its settings are tunables like a real kernel's."""
    used = ",".join(str(i) for i in sorted(design.techniques))
    state = f"quality={design.quality!r} broken={broken} tries={tries}"
    lines = [f"// design family={design.family} techniques={used} {state}"]
    for knob, level in enumerate(design.knobs):
        others = " ".join(str(i) for i in range(LEVELS) if i != level)
        lines.append(f"//@tune K{knob} {level} {others}")
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=4096)
def _parse(source: str) -> tuple[int, frozenset[int], tuple[int, ...], float, str, int]:
    found = _LINE.match(source)
    assert found is not None, "written by write()"
    family, used, quality, broken, tries = found.groups()
    defaults = tuple(int(line.split()[2]) for line in source.splitlines() if line.startswith("//@tune"))
    techniques = frozenset(int(i) for i in used.split(",") if i)
    return int(family), techniques, defaults, float(quality), broken, int(tries)


def read(source: str, tunables: Mapping[str, int]) -> tuple[Design, str, int]:
    """The design of a source at a setting, how it is broken, and how often it was repaired."""
    family, techniques, defaults, quality, broken, tries = _parse(source)
    knobs = tuple(tunables.get(f"K{i}", level) for i, level in enumerate(defaults))
    return Design(family, techniques, knobs, quality), broken, tries


class SimulatedProposer:
    """Writes designs the way a model writes kernels: mostly small changes, partly informed, often broken.

    A draft fails with 0.48 to 0.63 by kind of operator, a change with 0.22 to 0.37 and more by how hard what it
    changes is; harder changes gain more. Failures are 45% compile errors, 33% wrong results, 14% crashes, 8% timeouts;
    a first repair works with 0.72, 0.50, 0.45, 0.30, each further one with 0.8 of that. 6% of the replies repeat their
    parent, 12% of the changes undo an earlier one, what was tried from the same kernel is chosen at a quarter of its
    weight, knobs move by one with 0.3.

    A rewrite is a draft of a family that was not tried yet (or, once all were, of any other one) with its own knobs;
    it takes over each technique of its parent with w / (1 + w), w the weight that a change would give to it in the new
    family, and fails like a draft. A merge stays in its parent's family: each technique in which the two kernels differ
    is switched with w / (1 + w), each knob is one's or the other's, and it fails like a change of all that it switches.
    What a technique gains in one family says nothing about another, so neither profits from what the two have in
    common; a real writer may do better.

    These are assumptions, placed by what was published: 58% of o3's single replies right and 16 to 27% of the
    failures mended a round (CudaForge), 32% compile failures (OpenEvolve's Metal run), 22% of the rounds without a
    valid kernel (AccelOpt on H100). Repairs are on the hopeful side of that.
    """

    def __init__(self, landscapes: Mapping[str, Landscape], name: str = "simulated", *, skill: float = 1.0,
                 cost_usd: float = 0.0) -> None:  # fmt: skip
        self.name = name
        self._landscapes = landscapes
        self._skill = skill
        self._cost_usd = cost_usd

    @property
    def cost_usd(self) -> float:
        """Price of one call."""
        return self._cost_usd

    def can(self, task: Task) -> bool:
        """Whatever is asked of one kernel alone."""
        return task.edge in (Edge.DRAFT, Edge.IMPROVE, Edge.REPAIR, Edge.REWRITE, Edge.MERGE)

    async def propose(self, task: Task) -> Proposal:
        """See `core.ports.Proposer`."""
        return self.write(task)

    async def close(self) -> None:
        """Nothing to let go of."""

    def write(self, task: Task) -> Proposal:
        """The proposal, a function of the task."""
        rng = random.Random(f"{self.name} {task.target.id} {task.seed}")  # noqa: S311 - a simulation
        land = self._landscapes[task.target.id]
        if task.edge is Edge.REPAIR:
            assert task.failed is not None
            design, broken, tries = read(task.failed.source, task.failed.tunables)
            if rng.random() < REPAIR_ODDS[Verdict(broken)] * 0.8**tries:
                broken = ""
            return Proposal(source=write(design, broken, tries + 1), family=str(design.family))
        if task.parent is None:
            design = self._draft(rng)
            risk = land.risk(design, frozenset(), draft=True)
        else:
            before, _, _ = read(task.parent.source, task.parent.tunables)
            if rng.random() < REPEATS:
                return Proposal(source=task.parent.source, tunables=task.parent.tunables)
            if task.edge is Edge.REWRITE:
                design = self._anew(rng, land, before, task)
                risk = land.risk(design, frozenset(), draft=True)
            else:
                mixed = task.edge is Edge.MERGE and task.other is not None
                design, changed = (self._mix if mixed else self._change)(rng, land, before, task)
                risk = land.risk(design, changed, draft=False)
        broken = rng.choices(BREAKS, BREAK_ODDS)[0].value if rng.random() < risk else ""
        return Proposal(source=write(design, broken), family=str(design.family))

    def _weights(self, land: Landscape, before: Design, task: Task) -> list[float]:
        """How much the writer is drawn to switching each technique; 1 where it expects nothing of it."""
        opinion = random.Random(f"{self.name} opinion {task.target.id} {before.family}")  # noqa: S311 - a simulation
        beliefs = [land.promise(before, technique) + opinion.gauss(0, 0.25) for technique in range(TECHNIQUES)]
        return [math.exp(4 * self._skill * belief) for belief in beliefs]

    def _draft(self, rng: random.Random, besides: Collection[int] = ()) -> Design:
        families = [family for family in range(FAMILIES) if family not in besides]
        return Design(
            rng.choices(families, [FAMILY_ODDS[family] for family in families])[0],
            knobs=tuple(rng.randrange(LEVELS) for _ in range(KNOBS)), quality=rng.gauss(0, 0.02),
        )  # fmt: skip

    def _anew(self, rng: random.Random, land: Landscape, before: Design, task: Task) -> Design:
        taken = {read(node.source, {})[0].family for node in task.nodes} | {before.family}
        bare = self._draft(rng, taken if len(taken) < FAMILIES else {before.family})
        weights = self._weights(land, bare, task)
        kept = frozenset(i for i in sorted(before.techniques) if rng.random() < weights[i] / (1 + weights[i]))
        return Design(bare.family, kept, bare.knobs, bare.quality)

    def _mix(self, rng: random.Random, land: Landscape, before: Design, task: Task) -> tuple[Design, frozenset[int]]:
        assert task.other is not None
        other, _, _ = read(task.other.source, task.other.tunables)
        weights = self._weights(land, before, task)
        differ = sorted(before.techniques ^ other.techniques)
        changed = frozenset(i for i in differ if rng.random() < weights[i] / (1 + weights[i]))
        knobs = tuple(rng.choice(pair) for pair in zip(before.knobs, other.knobs, strict=True))
        quality = 0.92 * before.quality + rng.gauss(0, 0.02)
        return Design(before.family, before.techniques ^ changed, knobs, quality), changed

    def _change(self, rng: random.Random, land: Landscape, before: Design, task: Task) -> tuple[Design, frozenset[int]]:
        tried: set[int] = set()
        if task.parent is not None:
            # settings of one source are one kernel to a writer
            same = {node.id for node in task.nodes if node.source == task.parent.source} | {task.parent.id}
            for node in task.nodes:
                if node.parent in same and node.id not in same:
                    tried |= read(node.source, {})[0].techniques ^ before.techniques
        weights = [
            weight * (0.25 if technique in tried else 1.0)
            for technique, weight in enumerate(self._weights(land, before, task))
        ]
        changed: frozenset[int] = frozenset()
        for _ in range(rng.choices((1, 2, 3), (0.6, 0.3, 0.1))[0]):
            # some changes take a technique back, the others add one
            back = bool(before.techniques) and rng.random() < REVERTS
            choice = [i for i in range(TECHNIQUES) if (i in before.techniques) is back] or range(TECHNIQUES)
            changed |= set(rng.choices(choice, [weights[i] for i in choice]))
        knobs = tuple(
            min(LEVELS - 1, max(0, level + rng.choice((-1, 1)))) if rng.random() < 0.3 else level
            for level in before.knobs
        )
        quality = 0.92 * before.quality + rng.gauss(0, 0.02)
        return Design(before.family, before.techniques ^ changed, knobs, quality), changed


class SimulatedEvaluator:
    """Verdicts and noisy times of designs."""

    def __init__(self, landscapes: Mapping[str, Landscape], *, noise: float = 0.015, scale: float = 1.0) -> None:
        self._landscapes = landscapes
        self._noise = noise
        self._scale = scale
        self._seen: dict[tuple[str, str], int] = {}

    def judge(self, node: Node, baseline_us: float) -> Evaluation:
        """The verdict on a node; `baseline_us` is the reference's time before the clock's scale."""
        design, broken, _ = read(node.source, node.tunables)
        key = (node.target_id, f"{design}{broken}{node.source.splitlines()[0]}")
        first = self._seen.setdefault(key, node.id)
        if first != node.id:
            return Evaluation(verdict=Verdict.DUPLICATE, reason=f"The same source as node {first}.")
        if broken:
            return Evaluation(verdict=Verdict(broken), reason="simulated")
        rng = random.Random(f"noise {key}")  # noqa: S311 - a simulation
        measured = self._landscapes[node.target_id].value(design) + rng.gauss(0, self._noise)
        low, high = math.exp(measured - 2 * self._noise), math.exp(measured + 2 * self._noise)
        verdict = Verdict.FASTER if low > 1 else Verdict.SLOWER if high < 1 else Verdict.INCONCLUSIVE
        baseline = baseline_us * self._scale
        return Evaluation(verdict=verdict, speedup=math.exp(measured), speedup_ci=(low, high), baseline_us=baseline,
                          time_us=baseline / math.exp(measured))  # fmt: skip


def run(
    search: Search, proposers: Mapping[str, SimulatedProposer], evaluator: SimulatedEvaluator, *, width: int = 1,
    limit: int = 10**9, on_node: Callable[[Step, Node], None] | None = None,
) -> str:  # fmt: skip
    """Drive a search until it stops; returns its reason.

    `width` candidates are in flight; each takes a simulated time of its own, so verdicts come out of order.
    `on_node` sees every finished node. After `limit` nodes the run ends with an empty reason.
    """
    clock, next_id, begun = 0.0, 0, 0
    queue: list[tuple[float, int, Step, Node, Evaluation]] = []
    while True:
        step = search.next_step(lambda s: proposers[s.proposer].can(search.task(s, DEVICE))) if begun < limit else None
        if isinstance(step, Stop):
            return step.reason
        if step is not None:
            node = _begin(search, proposers, step, next_id)
            next_id, begun = next_id + 1, begun + 1
            search.begin(step, node)
            took = 1 + random.Random(f"duration {node.id}").random()  # noqa: S311 - a simulation
            baseline = search.tree(node.target_id).target.time_us
            heapq.heappush(queue, (clock + took, node.id, step, node, evaluator.judge(node, baseline)))
        if not queue:
            return ""
        if step is None or len(queue) >= width:
            clock, node_id, step, node, evaluation = heapq.heappop(queue)
            search.finish(node_id, evaluation)
            if on_node is not None:
                on_node(step, search.tree(node.target_id).node(node_id))


def _begin(search: Search, proposers: Mapping[str, SimulatedProposer], step: Step, node_id: int) -> Node:
    task = search.task(step, DEVICE)
    cost_usd = 0.0
    if step.edge is Edge.TUNE:
        assert task.parent is not None
        proposal = Proposal(source=task.parent.source, tunables=step.tunables, family=task.parent.family)
    else:
        proposal = proposers[step.proposer].write(task)
        cost_usd = proposers[step.proposer].cost_usd
    assert proposal.source is not None
    return Node(
        id=node_id, target_id=step.target_id, parent=step.parent, edge=step.edge, proposer=step.proposer,
        source=proposal.source, language="cpp", family=proposal.family, tunables=proposal.tunables,
        repairs=step.failed, cost_usd=cost_usd,
    )  # fmt: skip
