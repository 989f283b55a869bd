"""A person with a chat window as proposer: the prompt goes into a file, the reply comes from the one beside it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from forge_tui.core.errors import ConfigError, EnvironmentFault, UsageError
from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, LlmCall, Proposal
from forge_tui.proposers import book, prompt, strategies
from forge_tui.proposers.desk import Desk, Entry, read
from forge_tui.proposers.deskfiles import without_keys
from forge_tui.proposers.parse import Reply
from forge_tui.proposers.templates import TemplateProposer

NAME = "inbox"
POLL_S = 0.5
#: looks after which a reply without a kernel is taken for all that comes
SETTLED = 10
#: prompts of one target that wait at a time; beside templates one, so that their settings are tuned meanwhile
MOST_ALONE, MOST_BESIDE = 2, 1

_BESIDE = """
Another kernel for this target is being written at the same time. So that the two differ, begin with this move: \
{name}. {text} If it cannot apply here, take the next best one and say so.
"""

ASKED = (Edge.DRAFT, Edge.IMPROVE, Edge.REPAIR, Edge.REWRITE, Edge.MERGE)


class InboxProposer:
    """Waits for replies; several prompts may be open at once. A stop leaves them, and a resume finds the replies."""

    name = NAME

    def __init__(
        self, workspace: Path, session: str, *, templates: book.PromptBook | None = None,
        first: TemplateProposer | None = None, poll_s: float = POLL_S,
    ) -> None:  # fmt: skip
        """`first` writes what it can for a target before a person is asked about it."""
        self.desk = Desk(workspace)
        self._session = session
        self._templates = templates
        self._first = first
        self._poll_s = poll_s
        #: what waits: its target and what was asked
        self._open: dict[object, tuple[str, str]] = {}
        self._numbers: set[int] = set()

    @property
    def waiting(self) -> int:
        """Prompts that wait for a reply now."""
        return len(self._open)

    def can(self, task: Task) -> bool:
        """What a model could be asked, once the templates have had their turn and few prompts of the target wait."""
        most = MOST_ALONE if self._first is None else MOST_BESIDE
        if task.edge not in ASKED or len(self._texts(task)) >= most:
            return False
        if self._first is None:
            return True
        if self._first.can(_draft(task)):
            return False
        if any(node.proposer == NAME for node in task.nodes):
            return True
        # the first word about a target is asked on top of the templates' winner, once that is known
        known = all(node.evaluation is not None for node in task.nodes)
        return known and (task.best is None or task.edge is not Edge.DRAFT)

    def propose(self, task: Task) -> Coroutine[Any, Any, Proposal]:
        """Write the prompt, or find it again, and wait for its reply."""
        place, asked, fault = object(), "", ""
        try:
            asked = self._differing(task, prompt.render(task, self._templates).text)
        except ConfigError as error:
            fault = str(error)
        # counted at once, so that the next `can` knows of it
        self._open[place] = task.target.id, asked
        return self._propose(task, place, asked, fault)

    async def _propose(self, task: Task, place: object, asked: str, fault: str) -> Proposal:
        entry: Entry | None = None
        try:
            if fault:
                return Proposal(source=None, failure=fault, infra=True, fatal=True)
            entry = self._find(task) or self.desk.ask(self._entry(task), asked)
            self._numbers.add(entry.number)
            with contextlib.suppress(UsageError):
                # a person may have changed it; one that was removed is written again
                asked = self.desk.prompt(entry)
            self._open[place] = task.target.id, asked
            text, reply = await self._reply(entry, asked)
        except EnvironmentFault as error:
            return Proposal(source=None, failure=str(error), infra=True)
        finally:
            del self._open[place]
            if entry is not None:
                self._numbers.discard(entry.number)
        call = LlmCall(model=NAME, prompt=without_keys(asked), reply=text, cost_usd=0.0, priced=True, seed=task.seed,
                       latency_s=max(0.0, time.time() - entry.at))  # fmt: skip
        return Proposal(source=reply.source, idea=reply.hypothesis, family=reply.family, failure=reply.failure,
                        call=call)  # fmt: skip

    async def close(self) -> None:
        """Open prompts stay: a resumed search finds their replies."""

    # ---- the reply

    async def _reply(self, entry: Entry, asked: str) -> tuple[str, Reply]:
        """The reply and what it holds, once it is there and no longer growing; what is no text is waited on.

        One without a kernel may be on its way over a slow line, and is waited on for some more time.
        """
        before, polls = None, 0
        found: tuple[str, Reply] | None = None
        while True:
            now = self.desk.stamp(entry)
            polls = polls + 1 if now is not None and now == before else 0
            if polls == 1:
                # a long one takes seconds
                found = await asyncio.to_thread(self._read, entry)
            if polls and found is not None and (found[1].source is not None or polls >= SETTLED):
                text = self.desk.collect(entry)
                if text is not None:
                    return found if text == found[0] else (text, read(entry, text))
            before = now
            self.desk.restore(entry, asked)
            await asyncio.sleep(self._poll_s)

    def _read(self, entry: Entry) -> tuple[str, Reply] | None:
        try:
            text = self.desk.reply(entry)
        except UsageError:
            return None
        return text, read(entry, text)

    # ---- what is asked

    def _texts(self, task: Task) -> list[str]:
        """What waits about the target of a task."""
        return [asked for target_id, asked in self._open.values() if target_id == task.target.id]

    def _differing(self, task: Task, asked: str) -> str:
        """The prompt; where the same one waits already, with a move that makes the two kernels differ."""
        bound, language = task.target.bound, task.device.language
        moves = [move for move in strategies.CATALOGUE if bound in move.bounds and language in move.languages]
        first = int(strategies.draw(task.seed, "beside") * len(moves))
        ways = [asked + _BESIDE.format(name=move.name, text=move.text) for move in moves[first:] + moves[:first]]
        waiting = self._texts(task)
        return next((way for way in [asked, *ways] if way not in waiting), asked)

    # ---- which prompt a task is

    def _entry(self, task: Task) -> Entry:
        base = prompt.base(task)
        return Entry(number=0, name="", session=self._session, target_id=task.target.id, target=task.target.name,
                     edge=task.edge, language=task.device.language, place=place_of(base), seed=task.seed,
                     base=base, shown=tuple(prompt.shown(task)))  # fmt: skip

    def _find(self, task: Task) -> Entry | None:
        """A prompt of an engine that was killed: the same step, else the same question.

        A reply that was read belongs to its own step alone, whose kernel was not kept if it comes again.
        """
        wanted = self._entry(task)
        same = [e for e in self.desk.entries() if e.session == self._session and e.number not in self._numbers
                and (e.target_id, e.edge, e.place) == (wanted.target_id, wanted.edge, wanted.place)]  # fmt: skip
        for entry in same:
            # a reply that was read and removed would be waited for in vain
            if entry.seed == wanted.seed and not (entry.taken and self.desk.stamp(entry) is None):
                return entry
        unread = [entry for entry in same if not entry.taken]
        return next((e for e in unread if self.desk.state(e) == "answered"), unread[0] if unread else None)


def place_of(base: str) -> str:
    """A short hash of the source that a prompt is about."""
    return hashlib.sha256(base.encode("utf-8", "replace")).hexdigest()[:16] if base else ""


def _draft(task: Task) -> Task:
    """The same target as a question for a first kernel."""
    return Task(target=task.target, device=task.device, edge=Edge.DRAFT, parent=None, failed=None, best=task.best,
                lineage=(), nodes=task.nodes, seed=task.seed)  # fmt: skip
