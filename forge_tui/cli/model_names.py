"""Names of models looked at before anything is profiled: LiteLLM's own tables, read as files and not imported."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Sequence

from forge_tui.core.errors import UsageError
from forge_tui.proposers.table import PRICES, PROVIDERS
from forge_tui.proposers.table import read as _read

#: names that are none of LiteLLM's
_OURS = ("templates", "inbox", "sim")


def check_form(models: Sequence[str]) -> None:
    """Refuse what can be no name at all, whoever serves it.

    Raises:
        UsageError: it is blank, or has blanks or control characters in it.
    """
    for name in models:
        if not name.strip():
            raise UsageError("--model names nothing.", "Name a model as provider/model, or leave it out.")
        # what follows those is the name of a file
        if not name.startswith(("replay:", "sim:")) and any(c.isspace() or not c.isprintable() for c in name):
            plain = "".join(c for c in name if c.isprintable() and not c.isspace())
            raise UsageError(f"--model {name!r} has blanks or control characters in it.", f"Did you mean {plain}?")


def check(models: Sequence[str], api_base: str | None, note: Callable[[str], None]) -> None:
    """Refuse a name that LiteLLM cannot send anywhere; `note` one that is nearly one of its table, and may be new.

    With an address of one's own every name is taken.

    Raises:
        UsageError: neither a model nor a provider has this name.
    """
    known = _models()
    if api_base or not known:
        return
    for name in models:
        if name in _OURS or ":" in name.partition("/")[0] or name in known:
            continue
        prefix, slash, bare = name.partition("/")
        if not slash or prefix not in _providers():
            candidates = [*known, *_OURS] if not slash else [f"{p}/{bare}" for p in _providers()]
            raise UsageError(f"There is no model {name!r} that LiteLLM knows.{_close(name, candidates)}",
                             "Name it as provider/model, or give its server with --api-base.")  # fmt: skip
        theirs = {k.removeprefix(f"{prefix}/") for k, v in known.items() if v == prefix}
        meant = "" if bare in theirs else _close(bare, sorted(theirs))
        if meant:
            note(f"{name} is not in LiteLLM's table, and is asked as it is.{meant}")


def provider(name: str) -> str:
    """The provider that LiteLLM's table names for a bare model name; empty where it has none."""
    return _models().get(name, "")


def _close(name: str, candidates: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, candidates, n=1, cutoff=0.75)
    return f" Did you mean {found[0]}?" if found else ""


@functools.cache
def _models() -> dict[str, str]:
    """Provider by model; empty where the table is not where it used to be."""
    table = _read(PRICES)
    return {name: str(row.get("litellm_provider") or "") for name, row in table.items() if isinstance(row, dict)}


@functools.cache
def _providers() -> frozenset[str]:
    listed = _read(PROVIDERS).get("providers", {})
    prefixes = {name.partition("/")[0] for name in _models() if "/" in name}
    return frozenset({*listed, *prefixes, *_models().values()} - {""})
