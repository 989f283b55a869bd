"""What a search is likely to cost, by target, said before it costs anything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from forge_tui.core.money import dollars
from forge_tui.core.ports import Estimated, Proposer, Task
from forge_tui.core.records import Device, Edge, Record, Target

#: targets that the sentence names
_NAMED = 6


class TargetCost(Record, frozen=True, kw_only=True):
    """One target's part of a session."""

    target_id: str
    name: str
    calls: int
    usd: float


async def by_target(
    targets: Sequence[Target], weights: Mapping[str, float], proposers: Mapping[str, Proposer], device: Device,
    calls: int, seed: int,
) -> list[TargetCost]:  # fmt: skip
    """Calls as the search would spread them by `weights`, at the mean price of the models; none where none has a price.

    Prompts are rendered for drafts; later ones are longer, and are cheaper where the provider caches what they share.
    """
    whole = math.fsum(weights.values())
    found = []
    for target in targets:
        task = Task(target=target, device=device, edge=Edge.DRAFT, parent=None, failed=None, best=None, lineage=(),
                    nodes=(), seed=seed)  # fmt: skip
        prices = [price for p in proposers.values() if isinstance(p, Estimated)
                  and (price := await p.about_usd(task)) is not None]  # fmt: skip
        if not prices:
            continue
        share = weights.get(target.id, 0.0) / whole if whole else 1 / len(targets)
        count = round(calls * share)
        found.append(TargetCost(target_id=target.id, name=target.name, calls=count,
                                usd=count * math.fsum(prices) / len(prices)))  # fmt: skip
    return found


def sentence(found: Sequence[TargetCost], max_usd: float | None) -> str:
    """For the log; empty where nothing is paid."""
    total, calls = math.fsum(one.usd for one in found), sum(one.calls for one in found)
    if not calls:
        return ""
    dear = sorted((one for one in found if one.calls), key=lambda one: -one.usd)
    parts = [f"{one.name} about {dollars(one.usd)} for {_calls(one.calls)}" for one in dear[:_NAMED]]
    if len(dear) > _NAMED:
        parts.append(f"{len(dear) - _NAMED} more about {dollars(math.fsum(one.usd for one in dear[_NAMED:]))}")
    end = "" if max_usd is None else f" It ends at {dollars(max_usd)} at the latest."
    return (f"If models write every candidate that is left, this search costs about {dollars(total)}: "
            f"{', '.join(parts)}.{end}")  # fmt: skip


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"
