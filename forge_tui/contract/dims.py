"""What varies at run time: the fields of `ForgeDims`, from the signatures that one kernel must serve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forge_tui.contract import facts
from forge_tui.contract.identifiers import IDENTIFIER, is_taken
from forge_tui.core.records import Signature, Target


@dataclass(frozen=True, slots=True)
class Field:
    """One 64-bit integer of `ForgeDims`."""

    name: str
    places: tuple[str, ...]
    """Header names that it stands for: they are equal in every signature."""
    values: tuple[int, ...]
    """By signature: the target's own first, then its siblings'."""


def fields(target: Target) -> tuple[Field, ...]:
    """The fields in the order of the struct, sizes first; none where the target has no siblings.

    What has the same value in every signature stays a constant; names that are equal everywhere share a field. A
    field has the name of its dynamic dimension, else that of its first place.
    """
    signatures = [target.signature, *(s.signature for s in target.siblings)]
    columns: dict[str, list[int]] = {}
    loose: dict[str, set[int]] = {}
    for number, signature in enumerate(signatures):
        for name, value in _integers(signature):
            columns.setdefault(name, []).append(value)
        for name in _loose(signature):
            loose.setdefault(name, set()).add(number)
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, column in columns.items():
        if len({value for number, value in enumerate(column) if number not in loose.get(name, ())}) > 1:
            groups.setdefault(tuple(column), []).append(name)
    taken = set(columns) | {i.name for i in target.signature.inputs} | {s.name for s in target.signature.scalars}
    found: list[Field] = []
    # sizes first, then strides and counts
    for numbers, places in sorted(groups.items(), key=lambda item: not any("_shape_" in place for place in item[1])):
        name = next((n for n in _dim_names(target, places) if n not in taken), places[0])
        taken.add(name)
        found.append(Field(name, tuple(places), numbers))
    return tuple(found)


def values(target: Target, sibling: Target | None = None) -> tuple[int, ...]:
    """The values of the fields at the target's own sizes, or at those of a sibling."""
    at = 0 if sibling is None else 1 + _position(target, sibling)
    return tuple(field.values[at] for field in fields(target))


def words(target: Target, sibling: Target) -> str:
    """The sizes of a sibling for sentences: `seq=1, batch=2`; only those that differ from the target's own."""
    at = 1 + _position(target, sibling)
    named = {dim.name for dim in target.dynamic}
    differing = [f for f in fields(target) if f.values[at] != f.values[0]]
    chosen = [f for f in differing if f.name in named] or differing
    return ", ".join(f"{f.name}={f.values[at]}" for f in chosen)


def _position(target: Target, sibling: Target) -> int:
    return [s.id for s in target.siblings].index(sibling.id)


def _integers(signature: Signature) -> Iterator[tuple[str, int]]:
    """Every integer of a signature that may vary, by its header name: sizes, strides, counts, scalars."""
    yield from ((name, value) for name, value in facts.integers(signature) if not name.endswith("_align"))
    yield from ((name, value) for name, value in facts.scalars(signature) if type(value) is int)


def _loose(signature: Signature) -> Iterator[str]:
    """Strides that nothing is reached by: those of dimensions of size 1, which may be any number."""
    for name, spec, _ in facts.parameters(signature):
        yield from (f"{name}_stride_{dim}" for dim, size in enumerate(spec.shape) if size <= 1)


def _dim_names(target: Target, places: list[str]) -> Iterator[str]:
    for dim in target.dynamic:
        own = {f"{name}_shape_{index}" for name, index in dim.places}
        if own & set(places) and IDENTIFIER.fullmatch(dim.name) and not is_taken(dim.name):
            yield dim.name
