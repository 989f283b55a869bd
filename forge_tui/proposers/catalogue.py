"""Which models there are to choose from: LiteLLM's table, a person's own settings, and what servers say they have.

Data alone, for the command and for a picker on the screen: no network, no import of LiteLLM.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from forge_tui.core.records import Record
from forge_tui.proposers import capabilities, pricing, table
from forge_tui.proposers.capabilities import Capabilities
from forge_tui.proposers.providers import PROVIDERS, KeyState

#: who lists a person's own models
SETTINGS = "settings"


class Listed(Record, frozen=True, kw_only=True):
    """One model to choose."""

    name: str
    """As `--model` takes it."""
    provider: str
    input_usd: float | None = None
    """Dollars per million tokens, as are the next two; None is not known."""
    output_usd: float | None = None
    cached_usd: float | None = None
    """Of input that the provider's cache has; None too where that is no cheaper."""
    capabilities: Capabilities
    key: KeyState = "unknown"
    api_base: str | None = None
    """Of a person's own settings, or of the server that was asked."""
    retires: str = ""
    """The day from which on it is not served any more; empty where none is known."""
    successor: str = ""
    listed_by: str
    """`litellm` with its version, `settings`, or the address that was asked."""


class Served(Record, frozen=True, kw_only=True):
    """One model in a server's own list."""

    id: str
    context: int | None = None
    most_output: int | None = None


def known(*, everything: bool = False, today: dt.date | None = None) -> list[Listed]:
    """Every chat model of LiteLLM's table; those that are retired only with `everything`."""
    day = (today or dt.datetime.now(dt.UTC).date()).isoformat()
    found: dict[str, Listed] = {}
    for key, row in table.rows().items():
        retires = str(row.get("deprecation_date") or "")
        if row.get("max_input_tokens") is None and row.get("input_cost_per_token") is None:
            # no model, though it stands among them
            continue
        if row.get("mode") in table.CHAT and (everything or not retires or retires > day):
            name = table.name_of(key, row)
            found[name] = _with_price(Listed(
                name=name, provider=table.provider_of(name), capabilities=capabilities.of(name), retires=retires,
                successor=str(row.get("successor_model") or ""), listed_by=table.source(),
            ), pricing.price_of(row))  # fmt: skip
    return list(found.values())


def own(
    models: Iterable[str], api_base: str | None, bases: Mapping[str, str | None],
    prices: Mapping[str, Sequence[float] | None],
) -> list[Listed]:  # fmt: skip
    """The models that a person has in settings, with their own addresses and prices (dollars per million tokens)."""
    return [
        _with_price(Listed(name=name, provider=table.provider_of(name), capabilities=capabilities.of(name),
                           api_base=bases.get(name) or api_base, listed_by=SETTINGS),
                    pricing.price_of(table.row(name), prices.get(name)))
        for name in dict.fromkeys(models)
    ]  # fmt: skip


def served(models: Sequence[Served], provider: str, address: str, api_base: str | None) -> list[Listed]:
    """What a server has, with what the table knows about it; `provider` is what their names begin with."""
    found = []
    for model in models:
        name = f"{provider}/{model.id}"
        does = capabilities.of(name)
        said = {"context": model.context, "most_output": model.most_output}
        said = {field: value for field, value in said.items() if value}
        does = msgspec.structs.replace(does, **said, sources=does.sources | dict.fromkeys(said, address))
        row = table.row(name)
        found.append(_with_price(Listed(
            name=name, provider=provider, capabilities=does, api_base=api_base, listed_by=address,
            retires=str(row.get("deprecation_date") or ""), successor=str(row.get("successor_model") or ""),
        ), pricing.price_of(row)))  # fmt: skip
    return found


def merged(*lists: Sequence[Listed]) -> list[Listed]:
    """One list in which the first to name a model counts."""
    found: dict[str, Listed] = {}
    for models in lists:
        for model in models:
            found.setdefault(model.name, model)
    return list(found.values())


def matching(models: Iterable[Listed], text: str = "", provider: str = "") -> list[Listed]:
    """Those whose names have every word of a text in them, in any case, and are of a provider."""
    words = text.lower().split()
    return [model for model in models if all(word in model.name.lower() for word in words)
            and provider in ("", model.provider)]  # fmt: skip


def with_keys(models: Iterable[Listed], states: Mapping[str, KeyState]) -> list[Listed]:
    """With what is known of their keys; a person's own and those with a key first, then by provider and name."""
    marked = [msgspec.structs.replace(model, key=_key(model, states)) for model in models]
    return sorted(marked, key=_order)


def _order(model: Listed) -> tuple[bool, bool, int, str, str]:
    first = list(PROVIDERS)
    rank = first.index(model.provider) if model.provider in PROVIDERS else len(first)
    return model.listed_by != SETTINGS, model.key != "yes", rank, model.provider, model.name


def _key(model: Listed, states: Mapping[str, KeyState]) -> KeyState:
    state = states.get(model.provider, "unknown")
    # a server of one's own is asked without a key where there is none
    return "needless" if model.api_base and state != "yes" else state


def _with_price(model: Listed, price: pricing.Price | None) -> Listed:
    if price is None:
        return model
    cached = price.cached * 1e6 if price.cached != price.input else None
    return msgspec.structs.replace(model, input_usd=price.input * 1e6, output_usd=price.output * 1e6,
                                   cached_usd=cached)  # fmt: skip
