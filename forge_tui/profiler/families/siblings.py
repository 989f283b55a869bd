"""Families: sibling signatures of one callable, which differ in sizes alone, and what varies in them. Pure.

Siblings have the same callable, structure, dtypes, numbers of dimensions and constants. What may differ is sizes,
strides that follow from them, and integers that repeat a size (`layouts`). Names of dimensions come from `names`.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forge_tui.core.records import DynamicDim, KernelInput, KernelOutput, Signature, Target, TensorSpec
from forge_tui.profiler.families.layouts import Pattern, Place, Shapes
from forge_tui.profiler.families.names import Varying, check_names, name_dims

__all__ = ["Layout", "check_names", "families", "unused_names"]


@dataclass(slots=True)
class _Member:
    """One target, taken apart."""

    target: Target
    shapes: Shapes


@dataclass(slots=True)
class _Family:
    """Targets that are siblings, and what they have in common so far."""

    pattern: Pattern
    members: list[_Member] = field(default_factory=list)
    instances: set[str] = field(default_factory=set)

    def add(self, member: _Member) -> None:
        if self.members:
            self.pattern.join(member.shapes)
        self.members.append(member)
        self.instances |= set(member.target.instances)

    def takes(self, member: _Member) -> bool:
        # equal shapes under another id: they differ in something that a signature does not hold
        return all(m.shapes != member.shapes for m in self.members) and self.pattern.fits(member.shapes)

    def likeness(self, member: _Member) -> tuple[bool, int]:
        """Orders families that could take it: modules that both call first."""
        return bool(self.instances.intersection(member.target.instances)), self.pattern.strength


def families(targets: Sequence[Target], named: Sequence[str] = ()) -> dict[str, tuple[str, tuple[DynamicDim, ...]]]:
    """Family id and dynamic dimensions of every target, by target id; the order of the targets does not matter.

    `named` holds `NAME` or `NAME=SIZE`. Plain names go to the dimensions that stand at most places of all families,
    those of parameters left out; a name with a size goes to the dimension that has this size now. Dimensions without
    a name are `d0`, `d1`, ...; one that is the product or sum of others is called so (`batch*seq`).

    Raises:
        UsageError: a name is malformed or given twice.
    """
    check_names(named)
    buckets: dict[str, list[_Member]] = defaultdict(list)
    for target in {t.id: t for t in targets}.values():
        structure, integers = _structure(target)
        buckets[structure].append(_Member(target, _shapes(target.signature, integers)))
    found: dict[str, _Family] = {}
    for structure, members in sorted(buckets.items()):
        for family in _split(members):
            text = json.dumps([structure, family.pattern.describe()])
            number = 0
            while (key := hashlib.sha256(f"{text}{number or ''}".encode()).hexdigest()[:16]) in found:
                number += 1
            found[key] = family
    names = name_dims({key: _varying(family) for key, family in found.items()}, named)
    return {m.target.id: (key, names[key]) for key, family in found.items() for m in family.members}


def unused_names(named: Sequence[str], found: dict[str, tuple[str, tuple[DynamicDim, ...]]]) -> tuple[str, ...]:
    """The names of `named` that no dimension got, to warn about."""
    given = {dim.name for _, dims in found.values() for dim in dims}
    return tuple(name for text in named if (name := text.partition("=")[0]) not in given)


class Layout:
    """What the members of a family have in common, to make signatures of other sizes from it."""

    def __init__(self, members: Sequence[Target]) -> None:
        shapes = [_shapes(m.signature, _structure(m)[1]) for m in members]
        self._pattern = Pattern(shapes[0])
        for other in shapes[1:]:
            self._pattern.join(other)
        self._places = shapes[0].places

    def at(self, member: Target, sizes: Mapping[Place, int]) -> Signature:
        """The signature of a member with other sizes at some places; strides and integers follow.

        Outputs are as those of a dense result, until the original is seen to give others.

        Raises:
            ValueError: a stride would be no whole number of elements.
        """
        signature = member.signature
        tensors: list[KernelInput | KernelOutput] = [*signature.inputs, *signature.outputs]
        specs: dict[str, TensorSpec] = {}
        for strides, tensor in zip(self._pattern.strides, tensors, strict=True):
            spec = tensor.spec
            shape = tuple(sizes.get((tensor.name, i), n) for i, n in enumerate(spec.shape))
            if shape != spec.shape:
                spec = msgspec.structs.replace(spec, shape=shape, strides=strides.at(shape))
            specs[tensor.name] = spec
        now = [n for tensor in tensors for n in specs[tensor.name].shape]
        old = iter(_structure(member)[1])
        values = iter([
            value if item.constant is not None else now[min(item.sizes)]
            for item, value in zip(self._pattern.integers, old, strict=True)
        ])  # fmt: skip
        return msgspec.structs.replace(
            signature,
            inputs=tuple(msgspec.structs.replace(i, spec=specs[i.name]) for i in signature.inputs),
            outputs=tuple(msgspec.structs.replace(o, spec=specs[o.name]) for o in signature.outputs),
            scalars=tuple(
                msgspec.structs.replace(s, value=next(values)) if type(s.value) is int else s for s in signature.scalars
            ),
            call=_with_integers(signature.call, values), result=_with_integers(signature.result, values),
        )  # fmt: skip


def _split(members: Sequence[_Member]) -> list[_Family]:
    """Members of one structure, in families; those that say most about strides come first."""
    result: list[_Family] = []
    for member in sorted(members, key=lambda m: (m.shapes.rank, m.target.instances, m.target.id)):
        fitting = [family for family in result if family.takes(member)]
        if fitting:
            max(fitting, key=lambda family: family.likeness(member)).add(member)
        else:
            result.append(_Family(Pattern(member.shapes)))
            result[-1].add(member)
    return result


def _structure(target: Target) -> tuple[str, list[int]]:
    """All but sizes, strides and integers as text, and the integers in the order of their holes."""
    signature = target.signature
    integers: list[int] = []
    tensors = [(i.name, i.source, i.path, i.spec.dtype, len(i.spec.shape)) for i in signature.inputs]
    outputs = [(o.name, o.spec.dtype, len(o.spec.shape)) for o in signature.outputs]
    scalars = [(s.name, s.source, s.path, _hole(s.value, integers)) for s in signature.scalars]
    trees = [_without_integers(signature.call, integers), _without_integers(signature.result, integers)]
    parts = [target.kind, target.qualname, target.variant, signature.device, tensors, outputs, scalars, trees]
    return json.dumps(parts), integers


def _hole(value: Any, integers: list[int]) -> Any:
    """A number as it is, but an integer taken out."""
    if type(value) is int:
        integers.append(value)
        return "int"
    return [type(value).__name__, repr(value)]


def _without_integers(tree: Any, integers: list[int]) -> Any:
    """A call or result tree with its integers taken out; numbers of inputs and outputs stay."""
    (kind, value), = tree.items()  # fmt: skip
    if kind == "value":
        return {kind: _hole(value, integers)}
    if kind == "size":
        return {kind: [_hole(size, integers) for size in value]}
    if kind in ("tuple", "list", "slice"):
        return {kind: [_without_integers(item, integers) for item in value]}
    if kind == "dict":
        return {kind: [[key, _without_integers(item, integers)] for key, item in sorted(value.items())]}
    return tree


def _with_integers(tree: Any, integers: Iterator[int]) -> Any:
    """A tree with other integers in the holes of `_without_integers`, in the same order."""
    (kind, value), = tree.items()  # fmt: skip
    if kind == "value":
        return {kind: next(integers)} if type(value) is int else tree
    if kind == "size":
        return {kind: [next(integers) if type(size) is int else size for size in value]}
    if kind in ("tuple", "list", "slice"):
        return {kind: [_with_integers(item, integers) for item in value]}
    if kind == "dict":
        made = {key: _with_integers(item, integers) for key, item in sorted(value.items())}
        return {kind: {key: made[key] for key in value}}
    return tree


def _shapes(signature: Signature, integers: Sequence[int]) -> Shapes:
    tensors: list[KernelInput | KernelOutput] = [*signature.inputs, *signature.outputs]
    return Shapes(tuple(t.name for t in tensors), tuple(t.spec for t in tensors), tuple(integers))


def _varying(family: _Family) -> Varying:
    """The sizes of a family at every place, and its integers that follow them."""
    first = family.members[0].target.signature
    fixed = {i.name for i in first.inputs if i.source in ("param", "buffer")}
    columns = list(zip(*(m.shapes.sizes for m in family.members), strict=True))
    places = family.members[0].shapes.places
    scalars: dict[str, tuple[int, ...]] = {}
    at = 0
    for scalar in first.scalars:  # they come first among the integers
        if type(scalar.value) is int:
            scalars[scalar.name] = tuple(m.shapes.integers[at] for m in family.members)
            at += 1
    return Varying(dict(zip(places, columns, strict=True)), frozenset(fixed), scalars)
