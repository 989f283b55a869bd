"""Proposers by name."""

from __future__ import annotations

from pathlib import Path

from forge_tui.core.errors import UsageError
from forge_tui.core.ports import Proposer
from forge_tui.core.records import ModelOptions, RunOptions

TEMPLATES = "templates"


def make(name: str, options: RunOptions, session: str = "") -> Proposer:
    """The proposer of this name: `templates`, `inbox`, or any model name that LiteLLM knows.

    Raises:
        UsageError: the name is empty.
        ConfigError: a prompt template of the person's own does not work.
    """
    if not name.strip():
        raise UsageError("A proposer has no name.", "Name templates, or a model such as anthropic/claude-sonnet-4-5.")
    if name == TEMPLATES:
        from forge_tui.proposers.templates import TemplateProposer

        return TemplateProposer()
    from forge_tui.proposers import inbox, trial

    if name == inbox.NAME:
        from forge_tui.proposers.templates import TemplateProposer

        first = TemplateProposer() if TEMPLATES in options.proposers else None
        return inbox.InboxProposer(Path(options.workspace), session, templates=trial.checked_book(options), first=first)
    from forge_tui.proposers.llm import LlmProposer

    own = options.model_options.get(name, ModelOptions())
    return LlmProposer(name, api_base=own.api_base or options.api_base, price=options.prices.get(name),
                       templates=trial.checked_book(options), max_tokens=own.max_tokens,
                       temperature=own.temperature, tool_uses=options.tools)  # fmt: skip
