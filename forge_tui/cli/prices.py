"""`--price`: what a model costs where LiteLLM's tables do not say, or a contract says otherwise."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from forge_tui.core.errors import UsageError

_FORM = ("Give dollars per million tokens, input then output: --price MODEL=0.5,2, and where they differ cached input "
         "and cache writes: --price MODEL=0.5,2,0.05,0.6.")  # fmt: skip


def parse_prices(texts: Sequence[str], models: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """By model; a text without a name means the only model.

    Raises:
        UsageError: it is no price, or of a model that is not asked.
    """
    found: dict[str, tuple[float, ...]] = {}
    for text in texts:
        name, equals, numbers = text.rpartition("=")
        if equals and not name.strip():
            raise UsageError(f"--price {text} names no model before its =.", _FORM)
        rates = _rates(numbers)
        if rates is None:
            raise UsageError(f"--price {shlex.quote(text)} is no price.", _FORM)
        if not name:
            if len(models) != 1:
                raise UsageError(f"--price {text} does not say of which model.", _FORM)
            name = models[0]
        if name not in models:
            named = f"The models are {', '.join(models)}." if models else "No --model is named."
            raise UsageError(f"--price {text} is of a model that is not asked.", named)
        if found.get(name, rates) != rates:
            raise UsageError(f"--price gives {name} two prices.", "Leave one of them out.")
        found[name] = rates
    return found


def _rates(text: str) -> tuple[float, ...] | None:
    """Two to four numbers of dollars; None where they are not that."""
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        return None
    return rates if 2 <= len(rates) <= 4 and all(math.isfinite(rate) and rate >= 0 for rate in rates) else None


def of_models(texts: Sequence[str], models: Sequence[str]) -> list[str]:
    """Those of these models, those without a name where one model is asked, and those that lack their name."""
    return [text for text in texts if (text.rpartition("=")[0].strip() in ("", *models) if "=" in text
                                       else len(models) == 1)]  # fmt: skip
