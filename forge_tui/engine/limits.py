"""Which limit ended a session, and what a resume must give it to go on."""

from __future__ import annotations

import re
from collections.abc import Mapping

from forge_tui.core.errors import UsageError
from forge_tui.core.records import Record, SessionInfo

#: by option: what the sentence of its limit says
_SAID = {
    "evaluations": re.compile(r"\bevaluations? (?:is|are) used up"),
    "minutes": re.compile(r"\blimit of \S+ minutes? of search\b|\btime limit of\b"),
    "usd": re.compile(r"\bof the budget of\b"),
}  # fmt: skip


class Limit(Record, frozen=True, kw_only=True):
    """A limit of a session."""

    option: str
    """`evaluations`, `minutes` or `usd`."""
    value: float

    @property
    def words(self) -> str:
        """`--minutes (it had 60)`."""
        return f"--{self.option} (it had {self.value:g})"


def ended_by(session: SessionInfo) -> Limit | None:
    """The limit that ended the search; None where nothing was left to try."""
    values = _values(session)
    return next((Limit(option=option, value=value) for option, said in _SAID.items()
                 if (value := values[option]) is not None and said.search(session.stop_reason)), None)  # fmt: skip


def how_to_go_on(session: SessionInfo) -> str:
    """What to type where the search is over, up to the options."""
    limit = ended_by(session)
    more = limit.words if limit is not None else "--evaluations, --minutes or --usd, if anything is worth trying then"
    return f"forge-tui resume {session.id} goes on with more {more}"


def check_resumable(session: SessionInfo, given: Mapping[str, float]) -> None:
    """Refuse to resume a session that would end at once; `given` are the limits that were named, as in `RunOptions`.

    Raises:
        UsageError: it is over, and nothing that was given lets it go on.
    """
    if session.state != "done":
        return
    limit, values = ended_by(session), _values(session)
    wanted = [limit.option] if limit is not None else list(values)
    wider = [option for option in wanted if (had := values[option]) is not None and given.get(_name(option), 0.0) > had]
    if wider:
        return
    look = "or look at it with forge-tui report"
    if not given:
        hint = f"Give it more with {limit.words}, {look}." if limit is not None else \
            f"With more --evaluations, --minutes or --usd it looks again, {look}."  # fmt: skip
    elif limit is not None:
        hint = f"What it needs is more {limit.words}, {look}."
    else:
        hint = f"What was given is no more than it had, {look}."
    raise UsageError(f"Session {session.id} is done: {session.stop_reason}", hint)


def _name(option: str) -> str:
    return f"max_{option}"


def _values(session: SessionInfo) -> dict[str, float | None]:
    options = session.options
    return {"evaluations": options.max_evaluations, "minutes": options.max_minutes, "usd": options.max_usd}
