"""The settings of a source's tunables."""

from __future__ import annotations

from forge_tui.contract import directives


def defaults(source: str) -> dict[str, int]:
    """Every tunable of a source with its default.

    Raises:
        ContractError: the directives cannot be read.
    """
    return directives.parse(source).defaults


def neighbours(source: str, tunables: dict[str, int]) -> list[dict[str, int]]:
    """All settings one step away: one tunable changed to another declared value, in declared order.

    Raises:
        ContractError: the directives cannot be read, or `tunables` holds what the source does not declare.
    """
    read = directives.parse(source)
    here = read.chosen(tunables)
    return [
        here | {tune.name: value} for tune in read.tunes for value in tune.values if value != here[tune.name]
    ]
