"""The search phase: steps of the tree, several in flight, one folded in at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from forge_tui.core.events import Kind
from forge_tui.core.ports import Proposer, Waiting
from forge_tui.core.records import (
    Device,
    Edge,
    Evaluation,
    LlmCall,
    Node,
    Proposal,
    RunOptions,
    StartKernel,
    Target,
    Verdict,
)
from forge_tui.engine.pipeline import Pipeline, candidate_key, steps_at_once
from forge_tui.search.driver import Search, Step, Stop
from forge_tui.store.writer import Store

#: how long a paid call may still come back after a stop was asked for
LANDING_S = 10.0
#: a candidate whose evaluation failed through us is tried this often
INFRA_TRIES = 2
#: after so many failures in a row that are nobody's verdict, the search stops and says so
INFRA_LIMIT = 6


class SearchPhase:
    """Runs the search of one session until it stops by itself or is asked to."""

    def __init__(
        self, *, store: Store, session: str, options: RunOptions, device: Device, search: Search, pipeline: Pipeline,
        proposers: dict[str, Proposer], targets: dict[str, Target], elapsed_s: Callable[[], float],
        reasons_not_searched: str = "",
    ) -> None:  # fmt: skip
        self._store = store
        self._session = session
        self._options = options
        self._device = device
        self._search = search
        self._pipeline = pipeline
        self._proposers = proposers
        self._targets = targets
        self._elapsed_s = elapsed_s
        self._next_id = store.next_node_id(session)
        self._calling: set[asyncio.Task[Any]] = set()
        #: failures in a row that are nobody's verdict: of providers, of evaluations
        self._infra_in_a_row = {"proposal": 0, "evaluation": 0}
        self._reasons = reasons_not_searched
        self._running: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._stop_asked = False
        self._paused = False
        self._failure: BaseException | None = None

    # ---- commands

    def ask_stop(self) -> None:
        """Finish as soon as possible; what is in flight is evaluated again by a resume."""
        self._stop_asked = True
        self._wake.set()

    def pause(self, paused: bool) -> None:
        """Start no new steps while paused."""
        self._paused = paused
        self._wake.set()

    @property
    def stop_asked(self) -> bool:
        """Whether a person ended the search."""
        return self._stop_asked

    # ---- the loop

    async def run(self, unfinished: list[Node], starts: tuple[StartKernel, ...]) -> str:
        """Search until done; returns the reason in words.

        `unfinished` are nodes of an earlier engine that have a source but no verdict.
        """
        for node in unfinished:
            self._spawn(self._evaluate(node))
        for start in starts:
            self._begin_start(start)
        # LLM calls wait on the network, not on this machine
        width = max(steps_at_once(self._device), 0 if set(self._proposers) <= {"templates"} else 4)
        reason = ""
        try:
            while not self._stop_asked and self._failure is None:
                reason = self._limit_reached()
                if reason:
                    break
                self._wake.clear()
                if len(self._running) - self._waiting() < width and not self._paused:
                    self._search.rent(self._options.gpu_usd_per_hour * self._elapsed_s() / 3600)
                    step = self._search.next_step(self._can)
                    if isinstance(step, Stop):
                        if not self._running:
                            reason = step.reason
                            break
                    elif step is not None:
                        self._spawn(self._step(step))
                        # whoever is asked knows of it before the next step is decided
                        await asyncio.sleep(0)
                        continue
                    elif not self._running:
                        reason = "Nothing is left to try."
                        break
                await self._settled()
            if not self._stop_asked and self._failure is None:
                await self._drain()
        finally:
            await self._cancel()
        if self._failure is not None:
            raise self._failure
        return "Stopped by request." if self._stop_asked else reason

    def _limit_reached(self) -> str:
        options = self._options
        if self._elapsed_s() >= options.max_minutes * 60:
            unit = "minute" if options.max_minutes == 1 else "minutes"
            return f"The time limit of {options.max_minutes:g} {unit} is reached."
        if not self._proposers:
            return self._reasons or "No proposer is left."
        if max(self._infra_in_a_row.values()) >= INFRA_LIMIT:
            return f"The last {INFRA_LIMIT} attempts failed for reasons outside the kernels: {self._reasons}"
        return ""

    async def _settled(self) -> None:
        """Wait until a step ends, a command comes, or a second has passed (limits of time)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._wake.wait()

    async def _drain(self) -> None:
        """Let what is in flight end, unless a stop is asked for."""
        while len(self._running) > self._waiting() and not self._stop_asked and self._failure is None:
            self._wake.clear()
            await self._settled()

    def _waiting(self) -> int:
        """Steps that wait for a person: they keep nothing of this machine busy, and no end waits for them."""
        return sum(p.waiting for p in self._proposers.values() if isinstance(p, Waiting))

    async def _cancel(self) -> None:
        """Let paid calls land, then end the rest."""
        if self._calling:
            await asyncio.wait(set(self._calling), timeout=LANDING_S)
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(set(self._running))

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None and self._failure is None:
            self._failure = task.exception()
        self._wake.set()

    def _can(self, step: Step) -> bool:
        proposer = self._proposers.get(step.proposer)
        return proposer is not None and proposer.can(self._search.task(step, self._device))

    # ---- one step

    async def _step(self, step: Step) -> None:
        if step.edge is Edge.TUNE:
            parent = self._parent(step)
            proposal = Proposal(source=parent.source, tunables=step.tunables, family=parent.family,
                                idea=self._tune_idea(parent, step.tunables))  # fmt: skip
        elif step.found is not None:
            proposal = Proposal(source=step.found.source, tunables=step.tunables, family=step.found.family,
                                idea=f"found in {step.found.origin}")  # fmt: skip
        else:
            if step.proposer not in self._proposers:
                # it was put out by another step's fault since this one was decided
                self._search.drop(step, self._reasons, infra=True)
                return
            proposal = await self._ask(step)
        node = self._fold_proposal(step, proposal)
        if node is not None:
            await self._evaluate(node)

    async def _ask(self, step: Step) -> Proposal:
        proposer = self._proposers[step.proposer]
        called = asyncio.create_task(proposer.propose(self._search.task(step, self._device)))
        if isinstance(proposer, Waiting):
            return await called
        self._calling.add(called)
        try:
            # a stop waits for a paid call, so the call is shielded from the step's own cancellation
            return await asyncio.shield(called)
        finally:
            self._calling.discard(called)

    def _fold_proposal(self, step: Step, proposal: Proposal) -> Node | None:
        if proposal.source is None:
            self._pay(step, proposal, None)
            self._failed_proposal(step, proposal)
            return None
        self._infra_in_a_row["proposal"] = 0
        node = Node(
            id=self._next_id, target_id=step.target_id, parent=step.parent, edge=step.edge, proposer=step.proposer,
            source=proposal.source, language=self._device.language, idea=proposal.idea, family=proposal.family,
            tunables=proposal.tunables, key=candidate_key(proposal.source, proposal.tunables),
            cost_usd=sum(call.cost_usd or 0.0 for call in calls_of(proposal)), repairs=step.failed,
        )  # fmt: skip
        # one transaction: a reply that is paid for is never without its node
        with self._store.together():
            self._pay(step, proposal, node.id)
            self._store.add_node(self._session, node)
        self._next_id += 1
        self._search.begin(step, node)
        # with a source there, the next step of this target may be decided
        self._wake.set()
        return node

    def _pay(self, step: Step, proposal: Proposal, node_id: int | None) -> None:
        for call in calls_of(proposal):
            mine = node_id if call is proposal.call else None
            self._store.add_llm_call(self._session, call, target_id=step.target_id, edge=step.edge, node_id=mine)
            self._search.pay(call.cost_usd or 0.0)

    def _failed_proposal(self, step: Step, proposal: Proposal) -> None:
        drop = self._search.drop(step, proposal.failure, infra=proposal.infra)
        self._store.event(self._session, Kind.PROPOSAL_FAILED, {
            "target": step.target_id, "edge": step.edge, "proposer": step.proposer, "reason": proposal.failure,
            "drop": msgspec.to_builtins(drop),
        })  # fmt: skip
        if proposal.infra:
            self._infra_in_a_row["proposal"] += 1
            self._reasons = f"{step.proposer}: {proposal.failure}"
        if proposal.fatal:
            self._proposers.pop(step.proposer, None)
            self._reasons = f"{step.proposer}: {proposal.failure}"
            self._store.event(self._session, Kind.LOG, {"level": "error", "text": self._reasons})

    async def _evaluate(self, node: Node) -> None:
        target = self._targets[node.target_id]
        for attempt in range(INFRA_TRIES):
            # the seed is drawn from the session's and the node's, so that a resume repeats it
            seed = (self._options.seed * 1_000_003 + node.id * 101 + attempt) % 2**31
            evaluation = await self._pipeline.run(target, node.id, node.source, node.tunables, seed)
            if evaluation.verdict is not Verdict.INFRA:
                break
            text = f"Node {node.id}: {evaluation.reason}"
            self._store.event(self._session, Kind.LOG, {"level": "warning", "text": text})
        if evaluation.verdict is Verdict.INFRA:
            self._infra_in_a_row["evaluation"] += 1
            self._reasons = evaluation.reason
        else:
            self._infra_in_a_row["evaluation"] = 0
        self._fold_evaluation(node.id, evaluation)

    def _fold_evaluation(self, node_id: int, evaluation: Evaluation) -> None:
        self._store.set_evaluation(self._session, node_id, evaluation)
        self._search.finish(node_id, evaluation)

    # ---- helpers

    def _parent(self, step: Step) -> Node:
        parent = self._search.task(step, self._device).parent
        assert parent is not None, "a tune edge has a parent"
        return parent

    @staticmethod
    def _tune_idea(parent: Node, tunables: dict[str, int]) -> str:
        from forge_tui.contract import tune

        before = tune.defaults(parent.source) | parent.tunables
        changed = {name: value for name, value in tunables.items() if before.get(name) != value}
        return ", ".join(f"{name} {before.get(name)} to {value}" for name, value in changed.items())

    def _begin_start(self, start: StartKernel) -> None:
        """A person's kernel becomes a root of the target it names, or of the first in rank."""
        named = [t for t in self._targets.values() if start.target is None or t.called(start.target)]
        if not named:
            text = f"No target is called {start.target!r}; {start.path} is left out."
            self._store.event(self._session, Kind.LOG, {"level": "error", "text": text})
            return
        step = self._search.start_step(named[0].id)
        node = self._fold_proposal(step, Proposal(source=start.source, idea=f"own kernel {start.path}".strip()))
        if node is not None:
            self._spawn(self._evaluate(node))


def calls_of(proposal: Proposal) -> tuple[LlmCall, ...]:
    """Every paid call of a proposal, in order."""
    return proposal.earlier if proposal.call is None else (*proposal.earlier, proposal.call)
