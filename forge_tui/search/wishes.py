"""What could be done next at one target, best first, whoever can do it and whatever it costs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from forge_tui.core.records import Edge, Target
from forge_tui.search import policy
from forge_tui.search.config import Found, SearchConfig, Step
from forge_tui.search.experience import TEMPLATES, Experience
from forge_tui.search.tree import GENERATION, TargetTree

#: the proposer's name on nodes that only try another setting, and on kernels that were found elsewhere
TUNER, ELSEWHERE = "tune", "elsewhere"


class Wishes:
    """Steps in order of preference."""

    def __init__(
        self, config: SearchConfig, trees: Mapping[str, TargetTree], experience: Experience,
        found: Mapping[str, Sequence[Found]],
    ) -> None:  # fmt: skip
        """`found` has kernels of earlier sessions by target, the most promising first."""
        self._config = config
        self._trees = trees
        self._experience = experience
        self._found = dict(found)
        targets = [tree.target for tree in trees.values()]
        self._relatives = {
            t.id: [other.id for other in targets if other.id != t.id and _related(t, other)] for t in targets
        }

    def of(self, tree: TargetTree) -> Iterator[Step]:
        """What was found elsewhere, repairs that pay, a fair share of settings, new kernels, other settings."""
        config, known = self._config, self._experience
        yield from self._transfers(tree)
        for failed in policy.repairs(tree, config):
            for name in known.order(config.proposers, Edge.REPAIR):
                if policy.repair_pays(tree, failed, name, known, config):
                    yield self.step(tree, Edge.REPAIR, failed.parent, name, failed=failed.id)
        attempts = len(tree.generation) + sum(d.step.edge in GENERATION for d in tree.drops)
        if tree.tunes < config.tune_share * (attempts - config.tune_after):
            yield from self._tune(tree)
        orders = {edge: known.order(config.proposers, edge) for edge in (Edge.DRAFT, Edge.IMPROVE)}
        yield from self._other_ways(tree, [name for name in orders[Edge.IMPROVE] if name != TEMPLATES])
        for option in policy.options(tree, config):
            for name in orders[option.edge]:
                if option.chain is None or option.chain.duplicates.get(name, 0) < config.max_duplicates:
                    step = self.step(tree, option.edge, option.parent, name)
                    if name != TEMPLATES and policy.anew(option, step.seed, config):
                        yield msgspec.structs.replace(step, edge=Edge.REWRITE)
                    yield step
        yield from self._tune(tree)

    def step(
        self, tree: TargetTree, edge: Edge, parent: int | None, proposer: str, *, failed: int | None = None,
        tunables: dict[str, int] | None = None,
    ) -> Step:  # fmt: skip
        """A step with a seed of its own."""
        taken = {step.seed for step in tree.reserved}
        ordinal = tree.attempts
        while (seed := self._draw(tree.target.id, ordinal)) in taken:
            ordinal += 1
        return Step(target_id=tree.target.id, edge=edge, parent=parent, failed=failed, proposer=proposer,
                    tunables=tunables or {}, seed=seed)  # fmt: skip

    def _draw(self, target_id: str, ordinal: int) -> int:
        text = f"{self._config.seed}|{target_id}|{ordinal}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest()) >> 1

    def _other_ways(self, tree: TargetTree, names: list[str]) -> Iterator[Step]:
        """What is due now and then: a merge of two approaches, a way out of one that leads no further."""
        pair = policy.merge_pair(tree, self._config)
        if pair is not None:
            for name in names:
                yield msgspec.structs.replace(self.step(tree, Edge.MERGE, pair[0], name), other=pair[1])
        if tree.champion is not None and policy.in_a_rut(tree, self._config):
            for name in names:
                yield self.step(tree, Edge.REWRITE, tree.champion.best, name)

    def _transfers(self, tree: TargetTree) -> Iterator[Step]:
        """Kernels of earlier sessions, then the best ones of the same callable at other sizes, if not here yet."""
        tried = [step.found.source for step in tree.reserved if step.found is not None]
        if len(tried) + len(tree.transfers) >= self._config.max_transfers:
            return
        mine = tree.champion.value if tree.champion is not None else 0.0
        for found in (*self._found.get(tree.target.id, ()), *self._siblings(tree, mine)):
            if found.source not in tree.sources and found.source not in tried:
                step = self.step(tree, Edge.TRANSFER, None, ELSEWHERE, tunables=found.tunables)
                yield msgspec.structs.replace(step, found=found)

    def _siblings(self, tree: TargetTree, least: float) -> Iterator[Found]:
        for other_id in self._relatives[tree.target.id]:
            other = self._trees[other_id]
            if other.champion is not None and other.champion.value > least + self._config.transfer_margin:
                node = other.node(other.champion.best)
                origin = f"{other.target.name} at another size, where it was {math.exp(other.champion.value):.2f}x"
                yield Found(source=node.source, tunables=node.tunables, family=node.family, origin=origin)

    def _tune(self, tree: TargetTree) -> Iterator[Step]:
        found = policy.tune_step(tree, self._config)
        if found is not None:
            parent, setting = found
            yield self.step(tree, Edge.TUNE, parent, TUNER, tunables=setting)


def _related(one: Target, other: Target) -> bool:
    """Whether two targets are one callable at different sizes, so that a kernel of one may fit the other."""

    def form(target: Target) -> tuple[object, ...]:
        specs = [i.spec for i in target.signature.inputs], [o.spec for o in target.signature.outputs]
        return target.qualname, *([(s.dtype, len(s.shape)) for s in side] for side in specs)

    return form(one) == form(other)
