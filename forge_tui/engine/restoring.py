"""What earlier engines of a session left, for the search of the next one: it decides as they would have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from forge_tui.core.events import Kind
from forge_tui.core.money import dollars
from forge_tui.core.ports import Priced, Proposer, Quoted
from forge_tui.core.records import Device, Target
from forge_tui.engine.ledger import Ledger
from forge_tui.engine.roster import Place, Roster
from forge_tui.search.driver import Drop, Found, Search, Step
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store


def ledger(
    store: Store, reader: Reader, session: str, search: Search, *, max_usd: float | None,
    rent_usd: Callable[[], float], log: Callable[[str, str], None],
) -> Ledger:  # fmt: skip
    """The session's books, with what an engine that was killed had left on its way."""
    lost = store.settle_lost_calls(session)
    if lost:
        booked = dollars(sum(call.cost_usd or 0.0 for call in lost))
        calls = "1 model call was" if len(lost) == 1 else f"{len(lost)} model calls were"
        log("warning", f"{calls} on the way when the engine ended; what was set aside for it, {booked}, "
                       "counts as spent.")  # fmt: skip
    books = Ledger(store, session, search, max_usd=max_usd, spent_usd=reader.session(session).cost_usd,
                   dearest_usd=reader.dearest_calls(session), rent_usd=rent_usd, log=log)  # fmt: skip
    books.remember(reader.llm_calls(session))
    return books


def found(
    store: Store, reader: Reader, session: str, targets: Sequence[Target], device: Device, most: int
) -> dict[str, list[Found]]:
    """At most so many kernels by target that were faster in earlier sessions: those of the first look, ever after."""
    known = reader.found(session) if most else {}
    for target in targets if most else ():
        if target.id in known:
            continue
        kernels = reader.faster_elsewhere(session, target.id, device.identity, most)
        known[target.id] = [msgspec.to_builtins(
            Found(source=node.source, tunables=node.tunables, family=node.family,
                  origin=f"session {other}, where it was {node.evaluation.speedup:.2f}x")
        ) for other, node in kernels if node.evaluation and node.evaluation.speedup]  # fmt: skip
        store.save_found(session, target.id, known[target.id])
    return msgspec.convert(known, dict[str, list[Found]])


def steps(reader: Reader, session: str, targets: Mapping[str, Target]) -> list[Step]:
    """Steps at these targets that were decided and have no source."""
    return [step for step in msgspec.convert(reader.steps(session), list[Step]) if step.target_id in targets]


def failed_proposals(reader: Reader, session: str, search: Search, roster: Roster) -> list[Drop]:
    """Attempts that ended without a source; what else they told goes to who needs to know."""
    drops: list[Drop] = []
    after = 0
    while events := reader.events(session, after):
        after = events[-1].id
        for data in (event.data for event in events if event.kind == Kind.PROPOSAL_FAILED):
            if data.get("drop"):
                drops.append(msgspec.convert(data["drop"], Drop))
            if data.get("needed_usd"):
                search.expect(data["proposer"], data["needed_usd"])
            if data.get("refused"):
                roster.refused(msgspec.convert(data["refused"], Place))
    return drops


async def holds(proposers: Mapping[str, Proposer]) -> dict[str, float]:
    """The most that one call of each proposer may cost, in dollars; 0 where nobody knows it, none where it is free."""
    most = {name: await p.most_usd() for name, p in proposers.items() if isinstance(p, Priced)}
    free = [name for name, usd in most.items() if not usd and await _is_priced(proposers[name])]
    return {name: usd for name, usd in most.items() if name not in free}


async def _is_priced(proposer: Proposer) -> bool:
    return isinstance(proposer, Quoted) and await proposer.priced()
