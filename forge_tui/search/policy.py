"""Where the next attempt at one target goes: tree descent, repairs, settings.

Values are logarithms of speedups, so decisions do not depend on the unit of time. Nothing here draws random numbers:
equal trees give equal options.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from forge_tui.contract import tune
from forge_tui.core.errors import ContractError
from forge_tui.core.records import Edge, Node
from forge_tui.search.config import SearchConfig
from forge_tui.search.experience import Experience
from forge_tui.search.tree import UNIT, Chain, TargetTree


@dataclass(frozen=True, slots=True)
class Option:
    """A place where a new kernel could hang."""

    edge: Edge
    parent: int | None
    chain: Chain | None = None


def newroot_score(tree: TargetTree, config: SearchConfig) -> float:
    """What a fresh draft promises, from the drafts so far; the permanent way to restart."""
    count, (total, squares) = len(tree.roots), tree.root_sums
    mean = total / count / UNIT
    if count == 1:
        spread = config.lone_root_spread * tree.scale
    else:
        # integers of any size: no rounding before the division
        spread = max(0.10 * tree.scale, math.sqrt((count * squares - total * total) / (count * (count - 1))) / UNIT)
    return mean + spread + 2 * config.explore_roots * tree.scale / math.sqrt(1 + tree.root_attempts)


def stay_score(chain: Chain, config: SearchConfig, scale: float = 1.0) -> float:
    """What one more child of this kernel promises."""
    return chain.value + config.explore * scale / math.sqrt(1 + chain.attempts)


def frozen(tree: TargetTree, chain: Chain, config: SearchConfig) -> bool:
    """Whether several attempts at this kernel led nowhere near it."""
    if chain is tree.champion or chain.attempts < config.freeze_after:
        return False
    return all(child.below < chain.value - config.freeze_margin for child in chain.children)


def options(tree: TargetTree, config: SearchConfig) -> Iterator[Option]:
    """Every place for a new kernel, best first.

    The first one is the descent: at each kernel, go down while the best child's worth exceeds another child's here.
    The rest is the order in which the descent would fall back if no proposer can do what it asked for.
    """
    draft = Option(Edge.DRAFT, None)
    if not tree.roots:
        yield draft
        return
    late: list[Option] = []
    # a draft loses ties, staying wins them, and so does the older kernel
    levels: list[Iterator[Chain | None]] = [_ranked_roots(tree, newroot_score(tree, config))]
    above: list[Chain | None] = [None]
    while levels:
        choice = next(levels[-1], levels)
        if choice is levels:
            levels.pop()
            above.pop()
            continue
        here = above[-1]
        if isinstance(choice, Chain):
            levels.append(_ranked(choice.children, stay_score(choice, config, tree.scale)))
            above.append(choice)
        elif here is None:
            yield draft
        elif len(here.children) < config.max_children:
            option = Option(Edge.IMPROVE, here.best, here)
            if frozen(tree, here, config):
                late.append(option)
            else:
                yield option
    yield from late


def anew(option: Option, seed: int, config: SearchConfig) -> bool:
    """Whether a kernel that was worked on for long is to be written anew this time."""
    if option.edge is not Edge.IMPROVE or option.chain is None or option.chain.attempts < config.rewrite_after:
        return False
    return seed % config.rewrite_every == 0


def in_a_rut(tree: TargetTree, config: SearchConfig) -> bool:
    """Whether so many attempts, most of them of one family, brought nothing; true once for so many."""
    window = config.stagnant_after
    _, fruitless = tree.improvements(config.improvement)
    if fruitless < window or len(tree.generation) < window:
        return False
    recent = [tree.node(node_id) for node_id in tree.generation[-window:]]
    if any(node.edge is Edge.REWRITE for node in recent) or any(s.edge is Edge.REWRITE for s in tree.reserved):
        return False
    families = [node.family for node in recent if node.family]
    return bool(families) and max(map(families.count, families)) >= config.one_family * window


def merge_pair(tree: TargetTree, config: SearchConfig) -> tuple[int, int] | None:
    """The best kernel and the best one of another family near it, where a merge is due."""
    champion = tree.champion
    if champion is None or len(tree.generation) < config.merge_every:
        return None
    _, fruitless = tree.improvements(config.improvement)
    if fruitless < config.merge_after:
        return None
    recent = tree.generation[-config.merge_every :]
    if any(tree.node(i).edge is Edge.MERGE for i in recent) or any(s.edge is Edge.MERGE for s in tree.reserved):
        return None
    family = tree.node(champion.head).family
    least = champion.value - config.merge_within
    near = [chain for name, chain in tree.by_family.items() if name != family and chain.value >= least]
    if not family or not near:
        return None
    return champion.best, max(near, key=lambda c: (c.value, -c.head)).best


def _ranked_roots(tree: TargetTree, own: float) -> Iterator[Chain | None]:
    """Drafts by worth, and None where it is the turn of a new one."""
    due = True
    for negative, _, chain in tree.ranked_roots:
        if due and own > -negative:
            due = False
            yield None
        yield chain
    if due:
        yield None


def _ranked(chains: list[Chain], own: float) -> Iterator[Chain | None]:
    """The chains by worth, and None where it is the turn of the place itself; there are few chains."""
    due = True
    for chain in sorted(chains, key=lambda c: (-c.down, c.head)):
        if due and own >= chain.down:
            due = False
            yield None
        yield chain
    if due:
        yield None


def repairs(tree: TargetTree, config: SearchConfig) -> Iterator[Node]:
    """Failures worth a look, newest first: not mended yet, recent, not too often tried."""
    for node_id in reversed(tree.failures):
        if tree.newer_attempts(node_id) > config.repair_window:
            # ids ascend, so every older failure has at least as many newer attempts
            return
        if not tree.mended.get(node_id) and tree.repair_depth(node_id) <= config.max_repairs:
            yield tree.node(node_id)


def repair_pays(tree: TargetTree, failed: Node, proposer: str, known: Experience, config: SearchConfig) -> bool:
    """Whether a repair's odds per dollar are near a fresh attempt's."""
    assert failed.evaluation is not None
    odds = known.repair_odds(failed.evaluation.verdict, proposer) * 0.8 ** (tree.repair_depth(failed.id) - 1)
    return odds / known.repair_price(proposer) >= config.repair_gate * known.fresh_odds(proposer)


def tune_step(tree: TargetTree, config: SearchConfig) -> tuple[int, dict[str, int]] | None:
    """The next setting to try, with the node it starts from; None where every near kernel is swept.

    Coordinate descent: one tunable after another, each from the best setting so far; the values next to it first, the
    others once no next one is left.
    """
    if tree.champion is None or not config.max_tunes:
        return None
    near = tree.champion.value - config.tune_within
    done: list[Chain] = []
    found = None
    for negative, _, chain in tree.heads:
        if -negative < near:
            break
        if chain.tuning:
            continue
        if chain.tunes >= config.max_tunes:
            # nothing runs, so the count cannot fall again
            done.append(chain)
            continue
        setting = _next_setting(tree, chain)
        if setting is not None:
            found = (chain.best, setting)
            break
        done.append(chain)
    for chain in done:
        # swept, or without a neighbour: nothing but a new setting could bring one, and none will be tried
        tree.unlist(chain)
    return found


def _next_setting(tree: TargetTree, chain: Chain) -> dict[str, int] | None:
    best = tree.node(chain.best)
    declared = _declared(best.source)
    defaults = {name: values[0] for name, values in declared.items()}
    current = defaults | best.tunables
    if current.keys() != declared.keys():
        return None
    around = neighbours(declared, current)
    tried = [defaults | tree.node(i).tunables for i in chain.members]
    names = list(dict.fromkeys(_changed(setting, current) for setting in around))
    start = 0
    if best.edge is Edge.TUNE and best.parent is not None:
        # go on with the tunable that brought us here, then the next one
        moved = _changed(current, defaults | tree.node(best.parent).tunables)
        start = names.index(moved) if moved in names else 0
    order = {name: (i - start) % len(names) for i, name in enumerate(names)}
    scales = {name: sorted(values) for name, values in declared.items()}

    def rank(setting: dict[str, int]) -> tuple[bool, int]:
        name = _changed(setting, current)
        scale = scales[name]
        far = abs(scale.index(setting[name]) - scale.index(current[name])) > 1
        return far, order[name]

    for setting in sorted(around, key=rank):
        if setting not in tried:
            return setting
    return None


def neighbours(declared: dict[str, tuple[int, ...]], current: dict[str, int]) -> list[dict[str, int]]:
    """All settings one step from the current one, in declared order."""
    return [current | {name: value} for name, values in declared.items() for value in values if value != current[name]]


@lru_cache(maxsize=256)
def _declared(source: str) -> dict[str, tuple[int, ...]]:
    """The values of every tunable, default first; reading a source costs milliseconds, and sweeps ask often."""
    try:
        defaults = tune.defaults(source)
        around = tune.neighbours(source, defaults)
    except ContractError:
        return {}
    return {
        name: (default, *(setting[name] for setting in around if setting[name] != default))
        for name, default in defaults.items()
    }


def _changed(setting: dict[str, int], current: dict[str, int]) -> str:
    """The first name whose value differs."""
    return next((name for name, value in setting.items() if current.get(name) != value), "")
