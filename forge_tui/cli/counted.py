"""`prompt --count`: how many tokens a prompt has for the models that a session asks."""

from __future__ import annotations

import asyncio
import warnings

from forge_tui.cli import consent, output, settings, waiting
from forge_tui.cli.commands.run import on_screen
from forge_tui.core.paths import Workspace
from forge_tui.core.records import RunOptions
from forge_tui.proposers import calling, capabilities, counting, table
from forge_tui.proposers.counting import Count
from forge_tui.proposers.prompt import Prompt
from forge_tui.report.format import one_line

#: proposers that are no models
_NO_LLM = ("templates", "inbox", "sim")


def counts(
    made: Prompt, options: RunOptions, place: Workspace, *, allow_remote: bool, local_only: bool, as_json: bool
) -> dict[str, Count]:
    """By model, counted by its provider where that is free, after consent to what that sends: the prompt.

    Says them on stderr as well.

    Raises:
        UsageError: nobody agreed to a host.
    """
    names = [name for name in options.proposers if name not in _NO_LLM and not name.startswith("replay:")]
    typed = {"allow_remote": allow_remote, "local_only": local_only}
    chosen = settings.load(place, {key: True for key in typed if typed[key]})
    counted = [name for name in names if table.provider_of(name) == "anthropic"]
    consent.check(counted, options.api_base, place, allow_remote=chosen.run.allow_remote,
                  local_only=chosen.run.local_only, own=options.model_options,
                  ask=on_screen(headless=False, as_json=as_json))  # fmt: skip
    found = waiting.run(_count(made, names, options))
    _say(found)
    return found


async def _count(made: Prompt, names: list[str], options: RunOptions) -> dict[str, Count]:
    # LiteLLM has OpenAI's encodings, and is not needed for any other model
    wanted = any(table.provider_of(name) == "openai" for name in names)
    found: dict[str, Count] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        litellm = await asyncio.to_thread(calling.load_litellm) if wanted else None
        for name in names:
            own = options.model_options.get(name)
            counter = counting.Counter(name, timeout_s=15.0)
            found[name] = await counter.count(litellm, {
                "messages": made.messages(markers=capabilities.wants_markers(name)),
                "api_base": (own.api_base if own else None) or options.api_base,
            })  # fmt: skip
            await counter.close()
    return found


def _say(found: dict[str, Count]) -> None:
    """A line for each model."""
    if not found:
        output.note("The session asks no model whose tokens could be counted.")
    for name, count in found.items():
        how = "counted by its provider" if count.exact else f"at most. {count.why}".rstrip()
        output.note(f"{one_line(name)}: {count.tokens} tokens, {one_line(how)}")
