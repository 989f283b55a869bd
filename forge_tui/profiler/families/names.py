"""Names for the dimensions that vary: the user's own, `d0`, `d1`, ..., or what they are made of (`batch*seq`). Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from forge_tui.contract.identifiers import IDENTIFIER, is_taken
from forge_tui.core.errors import UsageError
from forge_tui.core.records import DynamicDim
from forge_tui.profiler.families.layouts import Place

#: products and sums are looked for among so many dimensions of a family
_MOST_PARTS = 12
_SIZE = re.compile(r"[0-9]{1,18}", re.ASCII)
#: (sizes, how many dimensions of the family with the same sizes came before): the same dimension in all families
_Key = tuple[tuple[int, ...], int]


@dataclass(frozen=True, slots=True)
class Varying:
    """The sizes of one family: per place and per integer of the call, one number for every sibling."""

    sizes: Mapping[Place, tuple[int, ...]]
    fixed: frozenset[str]
    """Tensors that no call can bring in another size: parameters and buffers."""
    scalars: Mapping[str, tuple[int, ...]]


@dataclass(slots=True)
class _Dim:
    """Places whose sizes are equal in every sibling."""

    column: tuple[int, ...]
    places: list[Place]
    called: bool
    """Whether calls bring it: it stands in no parameter or buffer."""
    name: str = ""
    parts: list[_Dim] = field(default_factory=list)
    """What it is made of."""
    joiner: str = ""
    factor: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Distinct sizes, ascending."""
        return tuple(sorted(set(self.column)))

    @property
    def label(self) -> str:
        """Its own name, else what it is made of."""
        if self.name:
            return self.name
        return self.joiner.join([*([str(self.factor)] if self.factor != 1 else []), *(p.label for p in self.parts)])


def check_names(named: Sequence[str]) -> None:
    """Check the names of dynamic dimensions, each `NAME` or `NAME=SIZE`.

    Raises:
        UsageError: a name is no identifier or reserved, a size is no whole number from 1, or one is given twice.
    """
    wanted = "Write --dynamic seq, or --dynamic seq=1024 for the dimension that has the size 1024 now."
    names: set[str] = set()
    sizes: dict[int, str] = {}
    for text in named:
        name, equals, size = text.partition("=")
        if not IDENTIFIER.fullmatch(name):
            raise UsageError(f"{name!r} cannot name a dimension.", wanted)
        if is_taken(name):
            raise UsageError(f"{name!r} has a meaning in kernels.", "Choose another name for the dimension.")
        if name in names:
            raise UsageError(f"The dimension {name} is named twice.", "Give each dimension one name.")
        names.add(name)
        if not equals:
            continue
        if not _SIZE.fullmatch(size) or int(size) == 0:
            raise UsageError(f"{size!r} is not a size of the dimension {name}.", wanted)
        if int(size) in sizes:
            raise UsageError(f"{sizes[int(size)]} and {name} both name the dimension of size {int(size)}.",
                             "Give inputs in which the two differ.")  # fmt: skip
        sizes[int(size)] = name


def name_dims(found: Mapping[str, Varying], named: Sequence[str]) -> dict[str, tuple[DynamicDim, ...]]:
    """The dynamic dimensions of every family: those that calls bring first, then by number of places."""
    bound = {int(size): name for name, equals, size in (n.partition("=") for n in named) if equals}
    plain = [name for name in named if "=" not in name]
    varied = {key: {c for c in found[key].sizes.values() if len(set(c)) > 1} for key in sorted(found)}
    dims = {key: _collect(found[key], columns) for key, columns in varied.items()}
    for key, varying in found.items():
        _explain(dims[key], varying)
        _bind(dims[key], varying, bound)
    _spread(list(dims.values()), plain)
    return {key: _finished(dims[key], varying, {*bound.values(), *plain}) for key, varying in found.items()}


def _collect(varying: Varying, wanted: Collection[tuple[int, ...]]) -> list[_Dim]:
    """Dimensions with these columns."""
    columns: dict[tuple[int, ...], list[Place]] = defaultdict(list)
    for place, column in varying.sizes.items():
        if column in wanted:
            columns[column].append(place)
    dims = [_Dim(c, places, not any(name in varying.fixed for name, _ in places)) for c, places in columns.items()]
    return sorted(dims, key=lambda dim: (not dim.called, -len(dim.places)))


def _explain(dims: Sequence[_Dim], varying: Varying) -> None:
    """Find what is a product or sum of other dimensions, or a constant size of the signature times one."""
    constants = sorted({column[0] for column in varying.sizes.values() if len(set(column)) == 1 and column[0] > 1})
    simple: list[_Dim] = []
    for dim in sorted(dims, key=lambda d: (sum(d.column), dims.index(d))):
        # what a call brings does not depend on the sizes of parameters
        others = [other for other in dims if other in simple and other.called >= dim.called][:_MOST_PARTS]
        for joiner, parts in _combinations(others):
            join = math.prod if joiner == "*" else sum
            if tuple(map(join, zip(*(part.column for part in parts), strict=True))) == dim.column:
                dim.parts, dim.joiner = parts, joiner
                break
        else:
            for other, factor in itertools.product(others if dim.called else (), constants):
                if tuple(factor * size for size in other.column) == dim.column:
                    dim.parts, dim.joiner, dim.factor = [other], "*", factor
                    break
        if not dim.parts:
            simple.append(dim)


def _combinations(dims: Sequence[_Dim]) -> Iterator[tuple[str, list[_Dim]]]:
    for count in (2, 3):
        yield from (("*", list(parts)) for parts in itertools.combinations_with_replacement(dims, count))
    for count in (2, 3):
        yield from (("+", list(parts)) for parts in itertools.combinations(dims, count))


def _bind(dims: list[_Dim], varying: Varying, bound: Mapping[int, str]) -> None:
    """Give names with a size to the dimension that has it; where none varies so, to all places of that size."""
    for size, name in bound.items():
        varied = [dim for dim in dims if size in dim.column]
        free = [dim for dim in varied if not dim.name]
        if free:
            min(free, key=lambda dim: bool(dim.parts)).name = name
        elif not varied:
            for dim in _collect(varying, {c for c in varying.sizes.values() if set(c) == {size}}):
                dim.name = name
                dims.append(dim)


def _spread(families: Sequence[Sequence[_Dim]], plain: Sequence[str]) -> None:
    """Give plain names to the dimensions that stand at most places; the same one in all families where it can be told.

    It is told by its sizes; a family that saw only some of the sizes counts too.
    """
    keyed = [_keyed(dims) for dims in families]
    weights: dict[_Key, int] = defaultdict(int)
    first: dict[_Key, int] = {}
    for keys in keyed:
        for at, (key, dim) in enumerate(keys.items()):
            weights[key] += len(dim.places)
            first[key] = min(first.get(key, at), at)
    holders: dict[str, list[_Key]] = {}
    for key in sorted(weights, key=lambda k: (-weights[k], first[k], k)):
        same = [name for name, keys in holders.items() if any(_related(key, other) for other in keys)
                and not any(key in found and other in found for found in keyed for other in keys)]  # fmt: skip
        if same:
            holders[same[0]].append(key)
        elif len(holders) < len(plain):
            holders[plain[len(holders)]] = [key]
    names = {key: name for name, keys in holders.items() for key in keys}
    for keys in keyed:
        for key, dim in keys.items():
            dim.name = names.get(key, "")


def _keyed(dims: Sequence[_Dim]) -> dict[_Key, _Dim]:
    """The dimensions of a family that a plain name can go to."""
    found: dict[_Key, _Dim] = {}
    for dim in dims:
        if dim.called and not dim.name and not dim.parts:
            number = sum(sizes == dim.sizes for sizes, _ in found)
            found[dim.sizes, number] = dim
    return found


def _related(one: _Key, other: _Key) -> bool:
    common = set(one[0]) & set(other[0])
    return len(common) > 1 and len(common) == min(len(one[0]), len(other[0]))


def _finished(dims: Sequence[_Dim], varying: Varying, taken: set[str]) -> tuple[DynamicDim, ...]:
    """The records, with `d0`, `d1`, ... for dimensions without a name."""
    numbers = itertools.count()
    for dim in dims:
        if not dim.name and not dim.parts:
            dim.name = next(name for name in (f"d{i}" for i in numbers) if name not in taken)
    return tuple(
        DynamicDim(name=dim.label, sizes=dim.sizes, places=tuple(dim.places),
                   scalars=tuple(name for name, column in varying.scalars.items() if column == dim.column))
        for dim in dims
    )  # fmt: skip
