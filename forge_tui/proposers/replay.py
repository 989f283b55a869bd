"""Recorded replies in place of a model: for tests, demos, and to look at a session again without paying twice."""

from __future__ import annotations

import msgspec

from forge_tui.core.errors import UsageError
from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, Language, LlmCall, Proposal, Record
from forge_tui.proposers import prompt
from forge_tui.proposers.parse import parse_reply

PREFIX = "replay:"

#: edges whose replies are whole kernels of their own, so that one may stand for another
_NEW = (Edge.DRAFT, Edge.IMPROVE, Edge.REWRITE, Edge.MERGE)


class Recorded(Record, frozen=True, kw_only=True):
    """One reply, what it was asked for, and the kernel that was read from it."""

    target_id: str
    target: str = ""
    edge: Edge
    language: Language
    prompt: str = ""
    reply: str
    source: str = ""
    """Empty where the reply held none."""
    mended: str = ""
    """For a repair: the source that it mended."""
    model: str = ""
    finish: str = ""
    """The provider's word for how the reply ended."""


def to_lines(recorded: list[Recorded]) -> str:
    """A file of replies: one JSON object a line."""
    return "".join(f"{entry.to_json()}\n" for entry in recorded)


def from_lines(text: str, name: str) -> list[Recorded]:
    """What `to_lines` wrote.

    Raises:
        UsageError: it is not that.
    """
    found = []
    # other ends of lines than this one may stand in a reply as they are
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=Recorded))
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise UsageError(f"Line {number} of {name} is no recorded reply: {error}.",
                             "forge-tui replies --output FILE writes such files.") from error  # fmt: skip
    return found


class ReplayProposer:
    """Gives each recorded reply once: for the same prompt, else for the same target and edge in recorded order."""

    def __init__(self, name: str, recorded: list[Recorded]) -> None:
        self.name = name
        self._recorded = recorded
        self._given: set[int] = set()

    def can(self, task: Task) -> bool:
        """Whether a reply is left for it."""
        return self._match(task, "") is not None

    async def propose(self, task: Task) -> Proposal:
        """The next reply that fits."""
        asked = prompt.render(task).text
        number = self._match(task, asked)
        if number is None:
            return Proposal(source=None, failure="No recorded reply is left for it.")
        self._given.add(number)
        entry = self._recorded[number]
        reply = parse_reply(entry.reply, task.device.language, entry.finish, prompt.base(task), prompt.shown(task))
        source = reply.source
        if source is None and entry.source:
            # edits of another kernel than the one at hand
            source = entry.source
        call = LlmCall(model=self.name, prompt=asked, reply=entry.reply, cost_usd=0.0, priced=True, seed=task.seed,
                       finish=entry.finish)  # fmt: skip
        return Proposal(source=source, idea=reply.hypothesis, family=reply.family, call=call,
                        failure="" if source is not None else reply.failure)  # fmt: skip

    async def close(self) -> None:
        """Nothing is held open."""

    def _match(self, task: Task, asked: str) -> int | None:
        """The number of a reply that was not given yet, by this engine or, going by its kernel, by one before it."""
        there = {node.source for node in task.nodes}
        left = [
            i for i, entry in enumerate(self._recorded)
            if i not in self._given and task.target.id == entry.target_id and entry.language == task.device.language
            and not (entry.source and entry.source in there)
        ]  # fmt: skip
        exact = [i for i in left if asked and self._recorded[i].prompt == asked]
        same = [i for i in left if self._recorded[i].edge == task.edge and _mends(self._recorded[i], task)]
        # a kernel can stand for another only if it is whole; a repair mends what it was written for
        others = [i for i in left if task.edge in _NEW and self._recorded[i].edge in _NEW and self._recorded[i].source]
        return next(iter([*exact, *same, *others]), None)


def _mends(entry: Recorded, task: Task) -> bool:
    if task.edge is not Edge.REPAIR or task.failed is None:
        return task.edge is not Edge.REPAIR
    return entry.mended == task.failed.source
