"""Proposers by name."""

from __future__ import annotations

from forge_tui.core.errors import UsageError
from forge_tui.core.ports import Proposer
from forge_tui.core.records import RunOptions

TEMPLATES = "templates"


def make(name: str, options: RunOptions) -> Proposer:
    """The proposer of this name: `templates`, or any model name that LiteLLM knows.

    Raises:
        UsageError: the name is empty.
    """
    if not name.strip():
        raise UsageError("A proposer has no name.", "Name templates, or a model such as anthropic/claude-sonnet-4-5.")
    if name == TEMPLATES:
        from forge_tui.proposers.templates import TemplateProposer

        return TemplateProposer()
    from forge_tui.proposers.llm import LlmProposer

    return LlmProposer(name, api_base=options.api_base, price=options.prices.get(name))
