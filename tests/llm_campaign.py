"""Many calls through the real client to a server that fails often; its books against ours, row by row."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import store_fixture as fixture
from fault_server import FaultServer, Play, serving

from forge_tui.core.paths import Workspace
from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, LlmCall, Proposal
from forge_tui.engine.ledger import Ledger
from forge_tui.proposers import llm
from forge_tui.proposers.streaming import Patience
from forge_tui.search import simulate
from forge_tui.search.driver import Search, SearchConfig
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store

#: replies that came to their end, though some are of no use
ENDED = ("ok", "empty", "finish-filter")
#: broken in a way that may have been charged for
BROKEN = ("500", "408", "slow", "stall", "reset", "cut", "drop", "malformed", "html")
#: refused, so not charged
REFUSED = ("429", "429-after", "503", "529", "400", "401", "403", "404", "quota", "credit", "context", "filter")
FAULTS = ("empty", "finish-filter", *BROKEN, *REFUSED)
#: dollars per million tokens: input, output, cached, cache writes
PRICE = (0.35, 0.175, 0.035, 0.4375)


@dataclass
class Outcome:
    """What a campaign came to."""

    proposals: Counter[str] = field(default_factory=Counter)
    """How often a call ended with a kernel, with a fault, without a reply for lack of money."""
    rows: list[LlmCall] = field(default_factory=list)
    requests: int = 0
    played: Counter[str] = field(default_factory=Counter)
    """What the server did, by kind."""
    completed: list[Play] = field(default_factory=list)
    most_open: int = 0
    highest_usd: float = 0.0
    """Of what was spent and set aside together, at any moment."""
    seconds: float = 0.0

    def states(self) -> Counter[str]:
        """Rows by state."""
        return Counter(row.state for row in self.rows)

    @property
    def spent_usd(self) -> float:
        """Dollars booked."""
        return math.fsum(row.cost_usd or 0.0 for row in self.rows)

    def complaints(self, calls: int, budget: float) -> list[str]:
        """What does not add up; nothing where all does."""
        rows, said = self.rows, []

        def want(what: str, found: Any, wanted: Any) -> None:
            if found != wanted:
                said.append(f"{what}: {found}, not {wanted}")

        counted = [row for row in rows if row.exact and row.prompt_tokens]
        want("calls that ended in some way", self.proposals.total(), calls)
        want("rows", len(rows), self.requests)
        want("rows that are open", self.states()["open"], 0)
        want("completed calls", len(counted), len(self.completed))
        ours = Counter((row.prompt_tokens, row.cached_tokens, row.completion_tokens) for row in counted)
        theirs = Counter((play.prompt, play.cached, play.output) for play in self.completed)
        want("calls whose tokens are not the server's", (ours - theirs).total() + (theirs - ours).total(), 0)
        want("kernels", self.states()["done"], self.played["ok"])
        want("broken calls", sum(r.state == "broken" and not r.exact for r in rows),
             sum(self.played[kind] for kind in BROKEN))  # fmt: skip
        want("refused calls", self.states()["failed"], sum(self.played[kind] for kind in REFUSED))
        for row in rows:
            if row.reserved_usd is None or row.cost_usd is None or row.cost_usd > row.reserved_usd + 1e-12:
                said.append(f"a call was booked at {row.cost_usd}, with {row.reserved_usd} set aside")
            if row.state != "done" and not row.error:
                said.append("a call that failed does not say why")
        if max(self.spent_usd, self.highest_usd) > budget + 1e-9:
            said.append(f"spent {self.spent_usd}, at most {self.highest_usd} with what was set aside, of {budget}")
        return said


class _Watched(Ledger):
    """Books that note the most that was ever spent and set aside together."""

    highest_usd = 0.0

    def open(self, task: Task, call: LlmCall) -> int | None:
        number = super().open(task, call)
        assert self._max_usd is not None
        self.highest_usd = max(self.highest_usd, self._max_usd - self.left_usd)
        return number


async def run(
    folder: Path, *, calls: int, faults: float, parallel: int, budget: float, seed: int = 0, quiet_s: float = 2.0
) -> Outcome:
    """Make so many calls, in both wire formats, streamed and whole; every kind of fault gets its turn."""
    rng = random.Random(seed)
    outcome = Outcome()
    workspace = Workspace(folder)
    began = time.monotonic()
    async with serving() as server:
        store = Store.open(workspace)
        with contextlib.closing(store):
            session = store.create_session(fixture.options(workspace)).id
            search = Search(SearchConfig(proposers=("m",)), [simulate.target("t")])
            ledger = _Watched(store, session, search, max_usd=budget, spent_usd=0.0, rent_usd=lambda: 0.0,
                              log=lambda level, text: None)  # fmt: skip
            await _warm_up(server)
            server.script = _script(rng, faults, outcome)
            proposers = [_proposer(server, model, ledger, quiet_s, stream=stream)
                         for model in ("openai/made-up", "anthropic/made-up") for stream in (True, False)]  # fmt: skip
            numbers = iter(range(calls))

            async def work() -> None:
                for number in numbers:
                    proposer = proposers[number % len(proposers)]
                    # a person has mended whatever put it out
                    proposer.revive()
                    task = _task(number)
                    proposal = await proposer.propose(task)
                    step = search.start_step("t")
                    ledger.take(step, proposal, None)
                    outcome.proposals[_end(proposal)] += 1
                    outcome.most_open = max(outcome.most_open, server.open)

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(parallel):
                        group.create_task(work())
            finally:
                await proposers[0].close()
                outcome.highest_usd = ledger.highest_usd
            # connections that were hung up on are still being noticed
            await server.idle.wait()
            with contextlib.closing(Reader.open(workspace)) as reader:
                outcome.rows = [entry.call for entry in reader.llm_calls(session)]
        outcome.requests = len(server.requests)
        outcome.completed = list(server.completed)
    outcome.seconds = time.monotonic() - began
    return outcome


async def _warm_up(server: FaultServer) -> None:
    """The library's first calls import half of it, which would look like a slow server."""
    for model in ("openai/made-up", "anthropic/made-up"):
        await llm.LlmProposer(model, api_base=server.base_for(model)).propose(_task(0))
    server.requests.clear()
    server.completed.clear()


def _proposer(
    server: FaultServer, model: str, ledger: Ledger, quiet_s: float, *, stream: bool
) -> llm.LlmProposer:
    async def short(seconds: float) -> None:
        del seconds
        await asyncio.sleep(0.001)

    patience = Patience(first_s=quiet_s, reasoning_first_s=quiet_s, stall_s=quiet_s, attempt_s=2 * quiet_s)
    made = llm.LlmProposer(model, api_base=server.base_for(model), price=PRICE, patience=patience, sleep=short)
    made.keep_books(ledger)
    made.caller.stream = stream
    return made


def _script(rng: random.Random, faults: float, outcome: Outcome) -> Any:
    turn: list[str] = []

    def play(number: int, body: dict[str, Any]) -> Play:
        kind = "ok"
        if rng.random() < faults:
            if not turn:
                turn.extend(rng.sample(FAULTS, len(FAULTS)))
            kind = turn.pop()
        outcome.played[kind] += 1
        return Play(kind, uncached=rng.randint(200, 400), cached=rng.randint(0, 700), output=rng.randint(20, 4000),
                    message="busy")  # fmt: skip

    return play


def _task(number: int) -> Task:
    return Task(target=simulate.target("t"), device=simulate.DEVICE, edge=Edge.DRAFT, parent=None, failed=None,
                best=None, lineage=(), nodes=(), seed=number)  # fmt: skip


def _end(proposal: Proposal) -> str:
    if proposal.source is not None:
        return "kernel"
    return "no money" if proposal.call is None else "fault"
