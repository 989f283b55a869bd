"""Integer index expressions over loop variables, kept simple enough that loops stay free of division.

An `Index` is `const + sum(coefficient * atom)`; an atom is a loop variable, or a floor division, remainder or clamp
that could not be worked out. All values are non-negative where they are divided.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Var:
    """A loop variable that runs from 0 to `extent` - 1."""

    name: str
    extent: int


@dataclass(frozen=True, slots=True)
class Div:
    """Floor division of a non-negative expression."""

    base: Index
    by: int


@dataclass(frozen=True, slots=True)
class Mod:
    """Remainder of a non-negative expression."""

    base: Index
    by: int


@dataclass(frozen=True, slots=True)
class Clamp:
    """An expression held within `low` and `high`, both inclusive."""

    base: Index
    low: int
    high: int


Atom = Var | Div | Mod | Clamp


@dataclass(frozen=True, slots=True)
class Index:
    """`const + sum(coefficient * atom)`, in a normal form: equal expressions compare equal most of the time."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.const + other)
        return _make(itertools.chain(self.terms, other.terms), self.const + other.const)

    def __sub__(self, other: Index) -> Index:
        return self + other * -1

    def __mul__(self, factor: int) -> Index:
        if factor == 0:
            return ZERO
        return Index(tuple((atom, coef * factor) for atom, coef in self.terms), self.const * factor)

    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value, both inclusive."""
        low = high = self.const
        for atom, coef in self.terms:
            a, b = _atom_bounds(atom)
            low += coef * (a if coef > 0 else b)
            high += coef * (b if coef > 0 else a)
        return low, high

    def variables(self) -> frozenset[Var]:
        """Loop variables it depends on."""
        found: set[Var] = set()
        for atom, _ in self.terms:
            if isinstance(atom, Var):
                found.add(atom)
            else:
                found |= atom.base.variables()
        return frozenset(found)

    def coefficient(self, var: Var) -> int | None:
        """Factor of a variable: 0 if it does not occur, None if it occurs in a division, remainder or clamp."""
        total = 0
        for atom, coef in self.terms:
            if atom == var:
                total += coef
            elif not isinstance(atom, Var) and var in atom.base.variables():
                return None
        return total

    def edges(self, var: Var) -> set[int]:
        """Values of `var` at which a clamp in it begins or ceases to hold, where only `var` decides that."""
        found: set[int] = set()
        for atom, _ in self.terms:
            if isinstance(atom, Var):
                continue
            found |= atom.base.edges(var)
            if not isinstance(atom, Clamp) or atom.base.variables() != {var}:
                continue
            step, offset = atom.base.coefficient(var), atom.base.const
            if step is not None and step > 0:
                # first value not below `low`, first value above `high`
                found |= {-((offset - atom.low) // step), (atom.high - offset) // step + 1}
        return found

    def floordiv(self, by: int) -> Index:
        """Floor division by a positive number; the expression must not be negative."""
        quotient, rest = self._parts(by)
        low, high = rest.bounds()
        if low >= 0 and high < by:
            return quotient
        g = math.gcd(by, *(abs(coef) for _, coef in rest.terms))
        if g > 1:
            rest = Index(tuple((atom, coef // g) for atom, coef in rest.terms), rest.const // g)
            by //= g
        if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
            atom = rest.terms[0][0]
            if isinstance(atom, Div):
                return quotient + atom.base.floordiv(atom.by * by)
        return quotient + Index(((Div(rest, by), 1),))

    def modulo(self, by: int) -> Index:
        """Remainder of division by a positive number; the expression must not be negative."""
        _, rest = self._parts(by)
        low, high = rest.bounds()
        if low >= 0 and high < by:
            return rest
        g = math.gcd(by, *(abs(coef) for _, coef in rest.terms))
        offset = rest.const % g
        if g > 1:
            rest = Index(tuple((atom, coef // g) for atom, coef in rest.terms), rest.const // g)
            by //= g
        if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
            atom = rest.terms[0][0]
            if isinstance(atom, Mod) and atom.by % by == 0:
                return atom.base.modulo(by) * g + offset
        return Index(((Mod(rest, by), g),), offset)

    def clamp(self, low: int, high: int) -> Index:
        """Held within `low` and `high`."""
        a, b = self.bounds()
        if low <= a and b <= high:
            return self
        if b <= low:
            return constant(low)
        if a >= high:
            return constant(high)
        return Index(((Clamp(self, low, high), 1),))

    def substitute(self, mapping: Mapping[Var, Index]) -> Index:
        """With variables replaced."""
        if not self.variables() & mapping.keys():
            return self
        total = constant(self.const)
        for atom, coef in self.terms:
            match atom:
                case Var():
                    part = mapping.get(atom, of(atom))
                case Div(base, by):
                    part = base.substitute(mapping).floordiv(by)
                case Mod(base, by):
                    part = base.substitute(mapping).modulo(by)
                case Clamp(base, low, high):
                    part = base.substitute(mapping).clamp(low, high)
            total = total + part * coef
        return total

    def text(self, names: Mapping[Var, str]) -> str:
        """As a C expression."""
        parts = []
        for atom, coef in self.terms:
            inner = _atom_text(atom, names)
            parts.append(inner if coef == 1 else f"{coef} * {inner}" if coef >= 0 else f"({coef}) * {inner}")
        if self.const or not parts:
            parts.append(str(self.const) if self.const >= 0 else f"({self.const})")
        return " + ".join(parts)

    def _parts(self, by: int) -> tuple[Index, Index]:
        """Quotient and rest with self == quotient * by + rest, rest's coefficients in [0, by)."""
        quotient: list[tuple[Atom, int]] = []
        rest: list[tuple[Atom, int]] = []
        for atom, coef in self.terms:
            q, r = divmod(coef, by)
            if q and (r == 0 or coef > 0):
                quotient.append((atom, q))
                if r:
                    rest.append((atom, r))
            else:
                rest.append((atom, coef))
        q, r = divmod(self.const, by)
        remainder = _make(rest, r)
        if remainder.bounds()[0] < 0:
            # C divides towards zero: what may be negative is divided whole, for the whole is not negative
            return ZERO, self
        return _make(quotient, q), remainder


def _make(terms: Iterable[tuple[Atom, int]], const: int) -> Index:
    merged: dict[Atom, int] = {}
    for atom, coef in terms:
        merged[atom] = merged.get(atom, 0) + coef
    # by * (e / by) + e % by is e again: what a view took apart, the address puts together
    for atom in [atom for atom in merged if isinstance(atom, Mod)]:
        coef = merged.get(atom, 0)
        assert isinstance(atom, Mod)
        whole = Div(atom.base, atom.by)
        if coef and merged.get(whole) == coef * atom.by:
            del merged[whole], merged[atom]
            joined = atom.base * coef
            return _make(itertools.chain(merged.items(), joined.terms), const + joined.const)
    kept = [(atom, coef) for atom, coef in merged.items() if coef]
    kept.sort(key=lambda item: _sort_key(item[0]))
    return Index(tuple(kept), const)


def _sort_key(atom: Atom) -> tuple[int, str]:
    return (0, atom.name) if isinstance(atom, Var) else (1, repr(atom))


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    match atom:
        case Var(_, extent):
            return 0, max(extent - 1, 0)
        case Div(base, by):
            low, high = base.bounds()
            return low // by, high // by
        case Mod(base, by):
            return 0, min(by - 1, base.bounds()[1])
        case Clamp(base, low, high):
            a, b = base.bounds()
            return max(a, low), min(b, high)


def _atom_text(atom: Atom, names: Mapping[Var, str]) -> str:
    match atom:
        case Var():
            return names[atom]
        case Div(base, by):
            return f"(({base.text(names)}) / {by})"
        case Mod(base, by):
            return f"(({base.text(names)}) % {by})"
        case Clamp(base, low, high):
            text = base.text(names)
            a, b = base.bounds()
            if a < low:
                text = f"max_of({text}, {low})"
            return f"min_of({text}, {high})" if b > high else text


def constant(value: int) -> Index:
    """A number."""
    return Index((), value)


def of(var: Var) -> Index:
    """A variable; the number 0 if it can only be 0."""
    return Index(((var, 1),)) if var.extent > 1 else ZERO


ZERO = Index()


def linear(indices: Sequence[Index], strides: Sequence[int], offset: int = 0) -> Index:
    """The element offset that a position has under strides."""
    total = constant(offset)
    for index, stride in zip(indices, strides, strict=True):
        total = total + index * stride
    return total


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor without gaps."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def unravel(position: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The row-major position in `shape` of a linear one."""
    out = []
    for size, stride in zip(shape, row_major(shape), strict=True):
        out.append(ZERO if size == 1 else position.floordiv(stride).modulo(size))
    return tuple(out)


def wanted_split(index: Index) -> tuple[Var, int] | None:
    """A variable and an inner extent that, split so, would resolve a division or remainder in `index`."""
    for atom, _ in index.terms:
        if isinstance(atom, Var):
            continue
        inner = wanted_split(atom.base)
        if inner is not None:
            return inner
        if isinstance(atom, Clamp):
            continue
        for part, coef in atom.base.terms:
            if isinstance(part, Var) and 0 < coef < atom.by and atom.by % coef == 0 and part.extent * coef > atom.by:
                extent = atom.by // coef
                if part.extent % extent == 0:
                    return part, extent
    return None


class Space:
    """The loop variables of an index set, row-major, with the position in `shape` that they stand for."""

    def __init__(self, shape: Sequence[int], prefix: str) -> None:
        self._prefix = prefix
        self._made = 0
        self.vars: list[Var] = []
        self.indices: list[Index] = []
        self.shape = tuple(shape)
        for size in shape:
            if size == 1:
                self.indices.append(ZERO)
            else:
                var = self._new(size)
                self.vars.append(var)
                self.indices.append(of(var))

    def _new(self, extent: int) -> Var:
        var = Var(f"{self._prefix}{self._made}", extent)
        self._made += 1
        return var

    def split(self, var: Var, inner: int) -> None:
        """Replace a variable by two: the inner one with extent `inner`."""
        outer_var, inner_var = self._new(var.extent // inner), self._new(inner)
        self.replace(var, [outer_var, inner_var], of(outer_var) * inner + of(inner_var))

    def replace(self, var: Var, by: list[Var], value: Index) -> None:
        """Replace a variable by others that give `value`."""
        at = self.vars.index(var)
        self.vars[at : at + 1] = [item for item in by if item.extent > 1]
        self.indices = [index.substitute({var: value}) for index in self.indices]

    def fresh(self, extent: int) -> Var:
        """A new variable, in no index yet."""
        return self._new(extent)

    def copy(self) -> Space:
        """An independent copy with the same variables."""
        twin = Space((), self._prefix)
        twin._made, twin.vars, twin.indices, twin.shape = self._made, [*self.vars], [*self.indices], self.shape
        return twin

    @property
    def numel(self) -> int:
        """Number of positions."""
        return math.prod(self.shape)


def flat(variables: Sequence[Var]) -> Index:
    """Row-major linear position over variables."""
    return linear([of(var) for var in variables], row_major([var.extent for var in variables]))
