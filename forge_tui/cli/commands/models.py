"""`models`: which LLMs there are to choose from, by LiteLLM's table or by the servers' own word."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Sequence
from typing import Any

from forge_tui.cli import consent, output, settings, waiting
from forge_tui.cli.commands.run import check_address, on_screen
from forge_tui.core.errors import ExitCode, ForgeError, UsageError
from forge_tui.core.paths import workspace_for
from forge_tui.proposers import catalogue, providers, table
from forge_tui.proposers import live as served_lists
from forge_tui.proposers.catalogue import Listed
from forge_tui.report.format import count, one_line
from forge_tui.report.table import Column, render

#: what such a question sends
_SENT = "the question which models it has, with the provider's key"
#: rows that a terminal is shown where nobody said how many
_ROWS = 40
#: most seconds to look for keys, which a keyring may hold up
_KEYS_S = 5.0
#: whose format a server of one's own speaks where nobody said
_DEFAULT = "openai"


def models(
    *, text: str, provider: str, live: bool, api_base: str | None, everything: bool,
    limit: int | None, workspace: str | None, allow_remote: bool, local_only: bool, as_json: bool,
) -> int:  # fmt: skip
    """Print the list; returns the exit code, that of the first server which gave none."""
    check_address(api_base)
    place = workspace_for(None, workspace)
    typed: dict[str, Any] = {"api_base": api_base, "allow_remote": allow_remote, "local_only": local_only}
    chosen = settings.load(place, {key: value for key, value in typed.items() if value})
    faults: list[ForgeError] = []
    if live:
        asked = _servers(provider, api_base, chosen)
        for whose, base in asked:
            consent.check([f"{whose}/*"], base, place, allow_remote=chosen.run.allow_remote,
                          local_only=chosen.run.local_only, ask=on_screen(headless=False, as_json=as_json),
                          only=_SENT)  # fmt: skip
        found, faults = waiting.run(_ask(asked))
        found = catalogue.matching(found, text)
    else:
        if api_base is not None:
            raise UsageError("--api-base goes with --live.", "Without it LiteLLM's table is read, and nobody asked.")
        _check_provider(provider)
        found = catalogue.merged(_own(chosen), catalogue.known(everything=everything))
        found = catalogue.matching(found, text, provider)
    found = catalogue.with_keys(found, _key_states(found))
    for fault in faults:
        output.note(f"forge-tui: {fault}")
    if as_json:
        errors = [{"what": fault.what, "hint": fault.hint, "exit_code": int(fault.exit_code)} for fault in faults]
        output.document({"models": found, "faults": errors})
    elif found:
        width = output.terminal_width()
        # what is piped is searched, not read
        most = limit if limit is not None else _ROWS if width else 0
        output.text(as_text(found[: most or None], width))
        _say_rest(found, most)
    elif not faults:
        output.note("No model has that in its name." if text else "There is no model.")
    return int(faults[0].exit_code if faults else ExitCode.OK)


def _own(chosen: settings.Chosen) -> list[Listed]:
    names = [name for name in (*chosen.run.model, *chosen.models) if "/" in name or table.row(name)]
    own = chosen.options(names)
    return catalogue.own(names, chosen.run.api_base, {name: options.api_base for name, options in own.items()},
                         chosen.prices(names))  # fmt: skip


def _check_provider(provider: str) -> None:
    known = {table.provider_of(table.name_of(key, row)) for key, row in table.rows().items()} | {*providers.KEYS}
    if provider and known and provider not in known:
        close = difflib.get_close_matches(provider, sorted(known), n=1)
        raise UsageError(f"LiteLLM has no provider {provider!r}.", f"Did you mean {close[0]}?" if close else "")


# ---- asking servers


def _servers(provider: str, api_base: str | None, chosen: settings.Chosen) -> list[tuple[str, str | None]]:
    """Whom to ask: provider and address.

    Raises:
        UsageError: nobody is named, on the command line or in the settings.
    """
    if api_base is not None:
        return [(provider or _DEFAULT, api_base)]
    own = [(table.provider_of(name), options.api_base) for name, options in chosen.models.items() if options.api_base]
    if chosen.run.api_base:
        whose = [table.provider_of(name) for name in chosen.run.model if "/" in name] or [_DEFAULT]
        own += [(name, chosen.run.api_base) for name in whose]
    own = [(whose, base) for whose, base in dict.fromkeys(own) if provider in ("", whose)]
    if own:
        return list(own)
    if provider:
        _check_provider(provider)
        return [(provider, None)]
    raise UsageError("Nobody is named to be asked.", "Say --provider NAME, such as anthropic, or --api-base URL.")


async def _ask(servers: Sequence[tuple[str, str | None]]) -> tuple[list[Listed], list[ForgeError]]:
    """What they have, all asked at the same time, and why some did not say."""
    came = await asyncio.gather(*(served_lists.models(whose, base) for whose, base in servers), return_exceptions=True)
    lists: list[list[Listed]] = []
    faults: list[ForgeError] = []
    for (whose, base), found in zip(servers, came, strict=True):
        if isinstance(found, served_lists.ServedList):
            lists.append(catalogue.served(found.models, whose, found.address, base))
            if found.more:
                output.note(f"{found.address} has more than the {len(found.models)} models that are read.")
        elif isinstance(found, ForgeError):
            faults.append(found)
        else:
            raise found
    return catalogue.merged(*lists), faults


def _key_states(found: Sequence[Listed]) -> dict[str, providers.KeyState]:
    wanted = {model.provider for model in found}
    try:
        return waiting.in_thread(lambda: providers.key_states(sorted(wanted)), _KEYS_S)
    except TimeoutError:
        output.note("The keyring does not answer; whether there are keys is not said.")
        return {}


# ---- for people


def as_text(found: Sequence[Listed], width: int) -> str:
    """A table of models, prices per million tokens, in at most so many columns; 0 is no limit."""
    columns = [
        Column("model", 80 if width else 0), Column("$ in", right=True, drop=1), Column("out", right=True, drop=2),
        Column("cached", right=True, drop=3), Column("context", right=True, drop=5),
        Column("output", right=True, drop=6), Column("does", drop=4), Column("key"), Column("retires", drop=7),
    ]  # fmt: skip
    rows = [(
        model.name, _usd(model.input_usd), _usd(model.output_usd), _usd(model.cached_usd),
        _tokens(model.capabilities.context), _tokens(model.capabilities.most_output), _does(model),
        {"needless": "-", "unknown": "?"}.get(model.key, model.key), model.retires,
    ) for model in found]  # fmt: skip
    shown = [n for n in range(len(columns)) if columns[n].head != "retires" or any(row[n] for row in rows)]
    return render([columns[n] for n in shown], [[row[n] for n in shown] for row in rows], width)


def _say_rest(found: Sequence[Listed], limit: int) -> None:
    output.note("$ per million tokens. does: t tools, c caching, r reasoning, ? not known.")
    if limit and len(found) > limit:
        output.note(f"{count(len(found) - limit, 'more model')}: name words of it, or say --limit 0.")
    if any(model.key == "no" for model in found[: limit or None]):
        from forge_tui.proposers import keys

        output.note(f"Where a key is missing: {one_line(keys.where_to_put())}")


def _usd(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value >= 0.095 or not value else f"{value:.3f}"


def _tokens(value: int | None) -> str:
    """`200k`, `1.05M`; `?` where it is not known."""
    if value is None:
        return "?"
    return str(value) if value < 1000 else f"{value / 1e3:.0f}k" if value < 999_500 else f"{value / 1e6:.3g}M"


def _does(model: Listed) -> str:
    does = model.capabilities
    caching = None if does.caching is None else does.caching != "none"
    marks = (("t", does.tools), ("c", caching), ("r", does.reasoning_effort))
    return "".join("?" if value is None else letter if value else "-" for letter, value in marks)
