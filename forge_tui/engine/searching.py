"""The search phase: steps of the tree, several in flight, one folded in at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from forge_tui.core.events import Kind
from forge_tui.core.landscapes import PREFIX
from forge_tui.core.records import (
    Device,
    Edge,
    Evaluation,
    Node,
    Proposal,
    RunOptions,
    StartKernel,
    Target,
    Verdict,
)
from forge_tui.engine.clock import Clock
from forge_tui.engine.ledger import Ledger
from forge_tui.engine.line import Line, Place
from forge_tui.engine.pipeline import Pipeline, candidate_key, steps_at_once
from forge_tui.engine.roster import Roster, place_of
from forge_tui.search.driver import Search, Step, Stop
from forge_tui.store.writer import Store

#: a candidate whose evaluation failed through us is tried this often
INFRA_TRIES = 2
#: after so many evaluations in a row that are nobody's verdict, the search stops and says so
INFRA_LIMIT = 6
#: of a step whose proposer was put out by another step's fault since, or by an earlier engine
_NOT_ASKED = Proposal(source=None, infra=True, failure="It is not asked now.")


class SearchPhase:
    """Runs the search of one session until it stops by itself or is asked to."""

    def __init__(
        self, *, store: Store, session: str, options: RunOptions, device: Device, search: Search, pipeline: Pipeline,
        roster: Roster, ledger: Ledger, targets: dict[str, Target], clock: Clock,
    ) -> None:  # fmt: skip
        self._store = store
        self._session = session
        self._options = options
        self._device = device
        self._search = search
        self._pipeline = pipeline
        self._roster = roster
        self._ledger = ledger
        self._targets = targets
        self._clock = clock
        self._next_id = store.next_node_id(session)
        #: evaluations in a row that failed through us
        self._infra_in_a_row = 0
        self._reasons = ""
        #: somebody would have been asked, but rests or waits for a person
        self._turned_away: set[str] = set()
        self._held = ""
        # a recorded landscape stands for the machine: what comes of it must not depend on how long anything took
        self._line = Line(in_order=options.device.startswith(PREFIX))
        self._running: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        #: steps that wait for a person, and those of them that nobody looks at while no evaluation is left for a reply
        self._asked: dict[Place, asyncio.Task[None]] = {}
        self._asleep: list[Place] = []
        #: steps of an earlier engine that a limit keeps from being gone on with
        self._put_off: tuple[Step, ...] = ()
        self._stop_asked = False
        self._paused = False
        self._failure: BaseException | None = None

    # ---- commands

    def ask_stop(self) -> None:
        """Finish as soon as possible; what is in flight is evaluated again by a resume."""
        self._stop_asked = True
        self._wake.set()

    def pause(self, paused: bool) -> None:
        """Start no new steps while paused; going on asks again whom a fault of a provider had put out."""
        self._paused = paused
        if not paused:
            self._roster.revive()
            self._search.ask_again()
        self._wake.set()

    # ---- the loop

    async def run(
        self, unfinished: list[Node], starts: tuple[StartKernel, ...], undone: Sequence[Step] = (),
    ) -> str:  # fmt: skip
        """Search until done; returns the reason in words.

        `unfinished` are nodes of an earlier engine that have a source but no verdict, `undone` its steps that had no
        source yet; the search knows of both.
        """
        with self._clock.searching():
            return await self._run(unfinished, starts, undone)

    async def _run(self, unfinished: list[Node], starts: tuple[StartKernel, ...], undone: Sequence[Step]) -> str:
        for node in unfinished:
            self._spawn(self._evaluate(node, self._line.enter(None)))
        if self._limit_reached():
            self._put_off = tuple(undone)
        else:
            for earlier in self._within_budget(undone):
                self._begin(earlier)
        for start in starts:
            self._begin_start(start)
        if not self._line.in_order:
            # so that whoever waits for a person is known as such
            await asyncio.sleep(0)
        # LLM calls wait on the network, not on this machine
        width = max(steps_at_once(self._device), 0 if set(self._options.proposers) <= {"templates"} else 4)
        reason = ""
        try:
            while not self._stop_asked and self._failure is None:
                reason = self._limit_reached()
                if reason:
                    break
                self._wake.clear()
                self._ask_people()
                if len(self._line) - self._roster.waiting - len(self._asleep) < width and not self._paused:
                    step = self._next_step()
                    if step is not None and not isinstance(step, Stop):
                        self._hold("")
                        self._begin(step)
                        self._save_steps()
                        if not self._line.in_order:
                            # whoever is asked knows of it before the next step is decided; nothing is folded in between
                            # where the order of decisions is all that counts
                            await asyncio.sleep(0)
                        continue
                    over = isinstance(step, Stop) and not self._busy
                    if (over or not self._running) and not self._waits():
                        reason = step.reason if step is not None else "Nothing is left to try."
                        break
                self._line.call_next()
                await self._settled()
            if not self._stop_asked and self._failure is None:
                await self._drain()
                self._say_open()
        finally:
            await self._cancel()
        if self._failure is not None:
            raise self._failure
        return "Stopped by request." if self._stop_asked else reason

    def _within_budget(self, undone: Sequence[Step]) -> list[Step]:
        """Those of an earlier engine's steps for which there are evaluations, which may be fewer by now.

        Of dollars, the ledger decides when they are asked for.
        """
        kept = list(undone)
        for step in reversed(undone):
            if self._search.overfull and step.proposer not in self._roster.people:
                self._search.withdraw(step)
                kept.remove(step)
        return kept

    def _limit_reached(self) -> str:
        options = self._options
        if self._clock.search_s >= options.max_minutes * 60:
            unit = "minute" if options.max_minutes == 1 else "minutes"
            return f"The limit of {options.max_minutes:g} {unit} of search is reached."
        if self._roster.nobody:
            why = self._roster.reasons(mended_by_time=False)
            if not (why and self._options.attended):
                return why or "No proposer is left."
        if self._infra_in_a_row >= INFRA_LIMIT:
            return f"The last {INFRA_LIMIT} attempts failed for reasons outside the kernels: {self._reasons}"
        return ""

    def _next_step(self) -> Step | Stop | None:
        self._search.rent(self._options.gpu_usd_per_hour * self._clock.elapsed_s / 3600)
        if self._turned_away:
            # a no is remembered, and who is behind it may be back by now
            self._search.ask_again()
            self._turned_away = set()
        return self._search.next_step(self._can)

    def _waits(self) -> bool:
        """Whether there would be something to do if a provider, or what a person can mend, were back; says so."""
        by_itself = any(not self._roster.is_out(name) for name in self._turned_away)
        if not by_itself and not (self._turned_away and self._options.attended):
            return False
        reason = self._roster.reasons(mended_by_time=by_itself)
        if reason:
            # none where the rest ended this very moment
            self._hold(reason, by_itself=by_itself)
        return True

    def _hold(self, reason: str, *, by_itself: bool = False) -> None:
        """Note that the search waits, and why, or that it goes on."""
        if reason == self._held:
            return
        self._held = reason
        text = "Going on." if not reason else f"Waiting for a provider. {reason}" if by_itself else \
            f"Paused until somebody says to go on. {reason}"  # fmt: skip
        self._store.event(self._session, Kind.PAUSED, {
            "paused": bool(reason), "reason": reason, "level": "warning" if reason else "info", "text": text,
        })  # fmt: skip

    async def _settled(self) -> None:
        """Wait until a step ends, a command comes, a provider's rest is over, or a second has passed (time limits)."""
        with contextlib.suppress(TimeoutError), self._clock.waiting(self._only_people):
            async with asyncio.timeout(max(0.01, min(1.0, self._roster.soonest_s))):
                await self._wake.wait()

    @property
    def _busy(self) -> bool:
        """Whether a step is on its way that does not wait for a person."""
        return len(self._running) > self._roster.waiting

    @property
    def _only_people(self) -> bool:
        """Whether nothing goes on until a person does something."""
        by_itself = not self._paused and any(not self._roster.is_out(name) for name in self._turned_away)
        return not self._busy and not by_itself

    def _say_open(self) -> None:
        """What becomes of the questions that nobody has answered."""
        count = len(self._asleep)
        if count:
            prompts = "1 prompt stays open" if count == 1 else f"{count} prompts stay open"
            text = f"{prompts}: a resume with evaluations, minutes and dollars left reads what is answered."
            self._store.event(self._session, Kind.LOG, {"level": "info", "text": text})

    async def _drain(self) -> None:
        """Let what is in flight end, unless a stop is asked for."""
        self._let_sleep()
        while self._busy and not self._stop_asked and self._failure is None:
            self._wake.clear()
            self._line.call_next()
            await self._settled()

    async def _cancel(self) -> None:
        """End everything at once: a call on its way is booked at what was set aside for it."""
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(set(self._running))

    def _begin(self, step: Step, place: Place | None = None) -> None:
        """Start a step, or go on with one."""
        place = place or self._line.enter(step)
        task = self._spawn(self._step(step, place))
        if step.proposer in self._roster.people:
            self._asked[place] = task

    def _ask_people(self) -> None:
        """Look for replies while there are evaluations left for them."""
        if self._search.full:
            self._let_sleep()
            return
        woken, self._asleep = self._asleep, []
        for place in woken:
            if place.step is not None:
                self._begin(place.step, place)

    def _let_sleep(self) -> None:
        """Look for no reply: the prompts stay, and what is answered is found again."""
        for place, task in self._asked.items():
            self._asleep.append(place)
            task.cancel()
        self._asked.clear()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None and self._failure is None:
            self._failure = task.exception()
        self._wake.set()

    def _can(self, step: Step) -> bool:
        proposer = self._roster.available(step.proposer)
        if proposer is None:
            self._turned_away.add(step.proposer)
            return False
        if self._roster.refuses(step):
            return False
        return proposer.can(self._search.task(step, self._device))

    # ---- one step

    async def _step(self, step: Step, place: Place) -> None:
        await self._line.turn_of(place)
        if step.edge is Edge.TUNE:
            parent = self._parent(step)
            proposal = Proposal(source=parent.source, tunables=step.tunables, family=parent.family,
                                idea=self._tune_idea(parent, step.tunables))  # fmt: skip
        elif step.found is not None:
            proposal = Proposal(source=step.found.source, tunables=step.tunables, family=step.found.family,
                                idea=f"found in {step.found.origin}")  # fmt: skip
        else:
            proposal = await self._propose(step, place)
            if self._no_room_for(step):
                self._let_sleep()
                return
            self._asked.pop(place, None)
        node = self._fold_proposal(step, proposal, place)
        if node is not None:
            await self._evaluate(node, place)

    async def _propose(self, step: Step, place: Place) -> Proposal:
        proposer = self._roster.available(step.proposer)
        if proposer is None:
            return _NOT_ASKED
        called = asyncio.create_task(proposer.propose(self._search.task(step, self._device)))
        try:
            return await called
        except asyncio.CancelledError:
            come = called.done() and not called.cancelled() and called.exception() is None
            if come and step.proposer not in self._roster.people:
                # it came back in the moment of the stop: paid for, so it is kept; what a person wrote is found again
                self._fold_proposal(step, called.result(), place)
            raise

    def _no_room_for(self, step: Step) -> bool:
        """Whether a person's reply came when the last evaluation was given away."""
        return step.proposer in self._roster.people and self._search.full

    def _fold_proposal(self, step: Step, proposal: Proposal, place: Place) -> Node | None:
        if proposal.source is None:
            self._line.leave(place)
            # a call that is paid for is never without what became of its step
            cost_usd, needed_usd = self._ledger.cost(step, proposal), self._ledger.refused(step)
            with self._store.together():
                self._ledger.take(step, proposal, None)
                self._failed_proposal(step, proposal, cost_usd, needed_usd)
                self._save_steps()
            return None
        self._line.has_node(place)
        self._roster.answered(step.proposer)
        node = Node(
            id=self._next_id, target_id=step.target_id, parent=step.parent, edge=step.edge, proposer=step.proposer,
            source=proposal.source, language=self._device.language, idea=proposal.idea, family=proposal.family,
            tunables=proposal.tunables, key=candidate_key(proposal.source, proposal.tunables),
            cost_usd=self._ledger.cost(step, proposal), repairs=step.failed,
        )  # fmt: skip
        # one transaction: a reply that is paid for is never without its node
        with self._store.together():
            self._ledger.take(step, proposal, node.id)
            self._store.add_node(self._session, node)
            self._save_steps()
        self._next_id += 1
        self._search.begin(step, node)
        # with a source there, the next step of this target may be decided
        self._wake.set()
        return node

    def _save_steps(self) -> None:
        steps = (*self._put_off, *self._line.steps)
        self._store.save_steps(self._session, [msgspec.to_builtins(step) for step in steps])

    def _failed_proposal(
        self, step: Step, proposal: Proposal, cost_usd: float, needed_usd: float | None
    ) -> None:  # fmt: skip
        """Note a step without a source; what its provider did not fail is not held against it."""
        drop = self._search.drop(step, proposal.failure, infra=proposal.infra, cost_usd=cost_usd)
        unasked = proposal is _NOT_ASKED or (proposal.call is None and needed_usd is not None)
        turned_down = proposal.infra and proposal.this_request and not unasked
        self._store.event(self._session, Kind.PROPOSAL_FAILED, {
            "target": step.target_id, "edge": step.edge, "proposer": step.proposer, "reason": proposal.failure,
            "drop": msgspec.to_builtins(drop), "needed_usd": needed_usd,
            "refused": place_of(step) if turned_down else None,
        })  # fmt: skip
        if not proposal.infra:
            self._roster.answered(step.proposer)
            return
        if turned_down:
            self._roster.refused(place_of(step))
        if unasked or turned_down:
            return
        said = self._roster.failed(step.proposer, proposal)
        if said:
            level = "error" if proposal.fatal else "warning"
            self._store.event(self._session, Kind.LOG, {"level": level, "text": said})

    async def _evaluate(self, node: Node, place: Place) -> None:
        target = self._targets[node.target_id]
        for attempt in range(INFRA_TRIES):
            # the seed is drawn from the session's and the node's, so that a resume repeats it
            seed = (self._options.seed * 1_000_003 + node.id * 101 + attempt) % 2**31
            evaluation = await self._pipeline.run(target, node.id, node.source, node.tunables, seed)
            if evaluation.verdict is not Verdict.INFRA:
                break
            text = f"Node {node.id}: {evaluation.reason}"
            self._store.event(self._session, Kind.LOG, {"level": "warning", "text": text})
        await self._line.turn_of(place)
        if evaluation.verdict is Verdict.INFRA:
            self._infra_in_a_row += 1
            self._reasons = evaluation.reason
        else:
            self._infra_in_a_row = 0
        self._line.leave(place)
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
        place = self._line.enter(step)
        own = Proposal(source=start.source, idea=f"own kernel {start.path}".strip())
        node = self._fold_proposal(step, own, place)
        if node is not None:
            self._spawn(self._evaluate(node, place))
