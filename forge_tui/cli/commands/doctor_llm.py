"""`doctor --llm`: whether the models that a search would ask answer, and how."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import warnings
from collections.abc import Sequence
from typing import Any

from forge_tui.cli import consent, model_names, output, settings, waiting
from forge_tui.cli.commands.run import check_address, on_screen
from forge_tui.core.errors import ExitCode, UsageError
from forge_tui.core.money import dollars
from forge_tui.core.paths import workspace_for
from forge_tui.proposers import calling, checkup, redirects
from forge_tui.proposers.checkup import Checkup, Subject
from forge_tui.report.format import one_line
from forge_tui.report.table import Column, render

#: what such a call sends
_SENT = "your key and a sentence or two of no content"
#: names in `--model` that nobody elsewhere answers
_NO_LLM = ("templates", "inbox", "sim")


def doctor(
    *, models: Sequence[str], api_base: str | None, workspace: str | None, caching: bool, tools: bool,
    allow_remote: bool, local_only: bool, as_json: bool,
) -> int:  # fmt: skip
    """Ask each model; returns 0 if everything that was tried works with all of them, else 4."""
    check_address(api_base)
    place = workspace_for(None, workspace)
    typed: dict[str, Any] = {"model": list(models), "api_base": api_base, "allow_remote": allow_remote,
                             "local_only": local_only}  # fmt: skip
    chosen = settings.load(place, {key: value for key, value in typed.items() if value})
    say, base = chosen.run, chosen.run.api_base
    names = list(dict.fromkeys(name for name in say.model if name not in _NO_LLM and not name.startswith("replay:")))
    if not names:
        raise UsageError("No model is named.", "Say --model NAME, set FORGE_MODEL, or put model = [...] into "
                         f"{settings.files(place)[0]}.")  # fmt: skip
    own = chosen.options(names)
    model_names.check([name for name in names if name not in own or not own[name].api_base], base, output.note)
    consent.check(names, base, place, allow_remote=say.allow_remote, local_only=say.local_only, own=own, only=_SENT,
                  ask=on_screen(headless=False, as_json=as_json))  # fmt: skip
    prices = chosen.prices(names)
    subjects = []
    for name in names:
        given = own.get(name)
        address = (given.api_base if given else None) or base
        subjects.append(Subject(model=name, api_base=address, price=prices.get(name),
                                host=consent.host_of(name, address),
                                temperature=given.temperature if given else None))  # fmt: skip
    if caching:
        _say_cost(subjects)
    found = waiting.run(_examine(subjects, tools=tools, caching=caching))
    ok = all(one.ok for one in found)
    if as_json:
        output.document({"ok": ok, "models": [{"ok": one.ok} | _fields(one) for one in found]})
    else:
        output.text(as_text(found, output.terminal_width()))
    return int(ExitCode.OK if ok else ExitCode.ENVIRONMENT)


async def _examine(subjects: Sequence[Subject], *, tools: bool, caching: bool) -> list[Checkup]:
    with warnings.catch_warnings():
        # LiteLLM's own, about pydantic, at whatever it imports late
        warnings.simplefilter("ignore")
        # Python would spend most of a second on freeing what LiteLLM made, also after Ctrl-C
        atexit.register(gc.freeze)
        litellm = await asyncio.to_thread(calling.load_litellm)
        redirects.forbid()
        try:
            return await checkup.examine_all(litellm, subjects, tools=tools, caching=caching, began=_began,
                                             timeout_s=checkup.TIMEOUT_S)  # fmt: skip
        finally:
            # whatever a library raises while it closes sockets is of no use to anybody
            with contextlib.suppress(Exception):
                await litellm.close_litellm_async_clients()
                # it would hand out the closed ones again
                litellm.in_memory_llm_clients_cache.flush_cache()
                # sockets are closed in the loop's next rounds
                await asyncio.sleep(0.01)


def _began(subject: Subject) -> None:
    output.note(f"Asking {one_line(subject.model)} at {one_line(subject.host)} ...")


def _say_cost(subjects: Sequence[Subject]) -> None:
    """What trying the cache may cost, before it is tried."""
    for subject in subjects:
        tokens, most = checkup.caching_most(subject)
        price = f"at most {dollars(most)}" if most is not None else "its price is not known"
        output.note(f"Trying the cache of {one_line(subject.model)} takes two prompts, {tokens} tokens or more "
                    f"together: {price}.")  # fmt: skip


def _fields(one: Checkup) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def as_text(found: Sequence[Checkup], width: int) -> str:
    """A table of at most 80 columns, a sentence for every fault, and what all of it cost."""
    columns = [Column("model", 40, least=26), Column("first", right=True, drop=1),
               Column("total", right=True, drop=2), Column("cost", right=True), Column("stream"), Column("tools"),
               Column("cache")]  # fmt: skip
    rows: list[tuple[str, ...]] = [
        (one.model, _seconds(one.first_s), _seconds(one.total_s) if one.answers == "yes" else "failed", _cost(one),
         _mark(one.stream), _mark(one.tools), _mark(one.caching)) for one in found
    ]  # fmt: skip
    if all(one.caching == "skipped" for one in found):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    faults = [one_line(text) for one in found for text in one.faults]
    works = sum(one.ok for one in found)
    end = "Everything works." if works == len(found) else f"Without a fault: {works} of {len(found)}."
    return "\n".join([render(columns, rows, min(width or 80, 80)), "", *faults, end])


def _mark(mark: str) -> str:
    return {"skipped": "-", "uncounted": "no count"}.get(mark, mark)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _cost(one: Checkup) -> str:
    if one.cost_usd is None or not one.calls:
        return "?" if one.calls else "-"
    return f"${one.cost_usd:.6f}" if 0 < one.cost_usd < 0.001 else dollars(one.cost_usd)
