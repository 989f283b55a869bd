"""Any model that LiteLLM knows, as a proposer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from forge_tui.core.errors import ConfigError
from forge_tui.core.ports import Books, Task, Workbench
from forge_tui.core.records import Edge, LlmCall, Proposal
from forge_tui.proposers import book, capabilities, longer, prompt, tools
from forge_tui.proposers.agent import Agent, Talk
from forge_tui.proposers.calling import Answered, Caller, Failed, UnaskedError
from forge_tui.proposers.faults import Fault
from forge_tui.proposers.parse import TRUNCATED, Reply, parse_reply
from forge_tui.proposers.streaming import Patience
from forge_tui.proposers.tokens import count

#: what a model can be asked for
ASKED = (Edge.DRAFT, Edge.IMPROVE, Edge.REPAIR, Edge.REWRITE, Edge.MERGE)


class LlmProposer:
    """Asks one model for kernels."""

    def __init__(
        self, model: str, *, api_base: str | None = None, price: Sequence[float] | None = None,
        templates: book.PromptBook | None = None, patience: Patience | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, max_tokens: int | None = None,
        temperature: float | None = None, tool_uses: int = 0,
    ) -> None:  # fmt: skip
        """See `calling.Caller`; before an answer the model may use a workbench `tool_uses` times."""
        self.name = model
        self.caller = Caller(model, api_base=api_base, price=price, patience=patience, sleep=sleep,
                             max_tokens=max_tokens, temperature=temperature)  # fmt: skip
        self._agent = Agent(self.caller, tool_uses)
        self._templates = templates
        self._dead = ""
        self._unfit: set[tuple[str, Edge, int | None]] = set()

    def can(self, task: Task) -> bool:
        """Anything that asks for a kernel, unless the model turned out to be unusable, or not to take it."""
        return not self._dead and task.edge in ASKED and _place(task) not in self._unfit

    def keep_books(self, books: Books) -> None:
        """Write calls down there from now on."""
        self.caller.books = books

    def equip(self, workbench: Workbench) -> None:
        """Offer it to the model, where tools are on."""
        self._agent.bench = workbench

    def revive(self) -> None:
        """Try again after a person changed a key, an account or a server."""
        self._dead = ""
        self._agent.refused = False
        self.caller.forget_keys()
        self._unfit.clear()

    async def most_usd(self) -> float:
        """The most that one call may cost, by its price; 0 where that is not known."""
        return await self.caller.most_usd()

    async def priced(self) -> bool:
        """Whether the price is known."""
        return await self.caller.priced()

    async def about_usd(self, task: Task) -> float | None:
        """Dollars of a usual reply to this task; None where the price is not known."""
        try:
            return await self.caller.about_usd(count(prompt.render(task, self._templates).text))
        except ConfigError:
            return None

    async def lacks(self) -> str:
        """The key that is missing, and where to put it; empty where there is one."""
        return await self.caller.lacks()

    async def close(self) -> None:
        """Let go of connections."""
        await self.caller.close()

    async def propose(self, task: Task) -> Proposal:
        """Ask the model. Faults of the provider are `infra`, with `fatal` where asking again is useless."""
        deadline = time.monotonic() + self.caller.patience.total_s
        kept = self.caller.kept(task)
        try:
            asked = prompt.render(task, self._templates)
            if self._agent.ready:
                asked = msgspec.structs.replace(asked, request=f"{asked.request}\n{tools.offer(self._agent.steps)}")
            messages = asked.messages(markers=capabilities.wants_markers(self.name))
            request = await self.caller.request(messages, asked.text)
        except ConfigError as error:
            return self._failed(task, Failed(fault=Fault(text=str(error), retry=False, fatal=True)))
        except UnaskedError as error:
            return self._failed(task, Failed(fault=error.fault))
        if self._agent.ready:
            talk = await self._agent.talk(request, task, deadline, kept)
        else:
            first = kept[0] if kept else await self.caller.answer(request, task, deadline)
            talk = Talk(request=request, came=first, kept=tuple(kept[1:]))
        came = talk.came
        if isinstance(came, Failed):
            return self._failed(task, came)
        reply = _read(task, came.call.reply, came.call.finish)
        if reply.source is None and talk.tried and not longer.cut(came.call.finish):
            # "the kernel above is the answer": the one that it tried last is meant
            reply = msgspec.structs.replace(reply, source=talk.tried, failure="")
        if reply.failure != TRUNCATED or not longer.cut(came.call.finish):
            return _proposal(reply, came.call, came.number)
        return await self._longer(task, talk, came, deadline)

    async def _longer(self, task: Task, talk: Talk, cut: Answered, deadline: float) -> Proposal:
        """A reply that was cut off is the model's failure, unless a second one ends it."""
        request = talk.request
        arguments = longer.request(request.arguments, cut.call.reply, await self.caller.room())
        if arguments == request.arguments:
            return _proposal(_read(task, cut.call.reply, cut.call.finish), cut.call, cut.number)
        again: Answered | Failed = talk.kept[0] if talk.kept else await self.caller.answer(
            await self.caller.changed(request, arguments), task, deadline, cut.call.attempt + 1)  # fmt: skip
        if isinstance(again, Failed):
            # the first reply was an answer: a server that refuses the longer one may well take the next prompt
            text = f"{TRUNCATED}, and it could not be made longer: {again.fault.text}"
            return Proposal(source=None, failure=text, call=again.call or cut.call, booked=again.number or cut.number)
        whole = longer.joined(arguments, cut.call.reply, again.call.reply)
        return _proposal(_read(task, whole, again.call.finish), again.call, again.number)

    def _failed(self, task: Task, failed: Failed) -> Proposal:
        fault = failed.fault
        if fault.fatal:
            self._dead = fault.text
        if fault.this_request and not fault.unasked:
            self._unfit.add(_place(task))
        return Proposal(source=None, failure=fault.text, infra=True, fatal=fault.fatal, call=failed.call,
                        booked=failed.number, this_request=fault.this_request, retry_after_s=fault.retry_after_s)


def _read(task: Task, text: str, finish: str) -> Reply:
    text, _ = tools.read(text)
    return parse_reply(text, task.device.language, finish, prompt.base(task), prompt.shown(task))


def _proposal(reply: Reply, call: LlmCall, number: int) -> Proposal:
    return Proposal(source=reply.source, idea=reply.hypothesis, family=reply.family, call=call, booked=number,
                    failure=reply.failure)  # fmt: skip


def _place(task: Task) -> tuple[str, Edge, int | None]:
    node = task.failed or task.parent
    return task.target.id, task.edge, node.id if node is not None else None

