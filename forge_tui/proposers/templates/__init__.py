"""An honest autotuner: parameterised kernels of known families, written from the traced graph. No LLM, no cost."""

from forge_tui.proposers.templates.proposer import TemplateProposer

__all__ = ["TemplateProposer"]
