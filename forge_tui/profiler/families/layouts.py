"""What may differ between signatures of one family: strides that follow from sizes, integers that repeat a size. Pure.

Every stride and every integer starts with all explanations that its first signature allows; each further signature
leaves those that hold for it too. A signature that would leave one of them without any does not belong here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from forge_tui.core.records import TensorSpec

#: a dimension of a tensor: (name, index)
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Shapes:
    """What differs between siblings: the tensors' sizes and strides, and the integers of the call."""

    names: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    integers: tuple[int, ...]

    @property
    def places(self) -> list[Place]:
        """Every dimension of every tensor, in order."""
        return [(name, i) for name, spec in zip(self.names, self.specs, strict=True) for i in range(len(spec.shape))]

    @property
    def sizes(self) -> list[int]:
        """The size at every place."""
        return [size for spec in self.specs for size in spec.shape]

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sorts those first that say most about strides: a dimension of size 1 says nothing."""
        shapes = [spec.shape for spec in self.specs]
        return -sum(n > 1 for n in self.sizes), shapes, [spec.strides for spec in self.specs], self.integers


class Strides:
    """The layout of one tensor over all siblings: its dimensions from outer to inner, and the gap of each."""

    def __init__(self, spec: TensorSpec) -> None:
        self._order = _outer_first(spec)
        self._expanded = {i for i, (n, s) in enumerate(zip(spec.shape, spec.strides, strict=True)) if n > 1 and s == 0}
        self._ratio: dict[int, set[Fraction]] = {}
        self._fixed: dict[int, set[int]] = {}
        self.keep(spec)

    def fits(self, spec: TensorSpec) -> bool:
        """Whether every stride has an explanation left."""
        if spec.numel == 0:
            return True  # nothing is read, so strides mean nothing
        for i, (size, stride) in enumerate(zip(spec.shape, spec.strides, strict=True)):
            if size > 1 and i in self._ratio and not (
                self._gap(spec, i) in self._ratio[i] or stride in self._fixed[i]
            ):  # fmt: skip
                return False
            if size > 1 and (stride == 0) != (i in self._expanded) and i in self._ratio:
                return False
        return True

    def keep(self, spec: TensorSpec) -> None:
        """Leave only explanations that hold for this signature too."""
        if spec.numel == 0:
            return
        for i, (size, stride) in enumerate(zip(spec.shape, spec.strides, strict=True)):
            if size > 1:
                gap = self._gap(spec, i)
                self._ratio[i] = self._ratio[i] & {gap} if i in self._ratio else {gap}
                self._fixed[i] = self._fixed[i] & {stride} if i in self._fixed else {stride}

    def at(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The strides of a tensor of this shape: those that follow from sizes anew, the others as they were.

        Raises:
            ValueError: the explanations leave no stride of whole elements.
        """
        strides = [0] * len(shape)
        dense = 1
        for i in reversed(self._order):
            if i in self._expanded:
                continue
            gap = min(self._ratio.get(i) or {Fraction(1)})
            if i in self._ratio and not self._ratio[i]:
                strides[i] = min(self._fixed[i])
            elif (gap * dense).denominator != 1:
                raise ValueError("a stride is no whole number of elements")
            else:
                strides[i] = int(gap * dense)
            dense *= max(1, shape[i])
        return tuple(strides)

    @property
    def following(self) -> int:
        """How many strides follow from sizes."""
        return sum(bool(ratios) for ratios in self._ratio.values())

    def describe(self) -> list[Any]:
        """Order and gaps, without sizes where they are not needed."""
        gaps = [[i, *sorted(map(str, self._ratio[i]))] if self._ratio[i] else [i, "=", *sorted(self._fixed[i])]
                for i in sorted(self._ratio)]  # fmt: skip
        return [[i for i in self._order if i in self._ratio], gaps]

    def _gap(self, spec: TensorSpec, dim: int) -> Fraction:
        """The stride over that of a tensor without gaps."""
        inner = self._order[self._order.index(dim) + 1 :]
        dense = 1
        for i in inner:
            dense *= max(1, spec.shape[i]) if i not in self._expanded else 1
        return Fraction(spec.strides[dim], dense)


def _outer_first(spec: TensorSpec) -> list[int]:
    """Dimensions by descending stride; those of size 1 stand before the next one by number."""
    dims = range(len(spec.shape))
    order = sorted((i for i in dims if spec.shape[i] > 1), key=lambda i: (-spec.strides[i], i))
    for i in reversed([i for i in dims if spec.shape[i] <= 1]):
        later = [order.index(j) for j in range(i + 1, len(spec.shape))]
        order.insert(later[0] if later else len(order), i)
    return order


@dataclass(slots=True)
class Integer:
    """One integer of the call over all siblings: a constant, or the size at a place."""

    constant: int | None
    sizes: set[int] = field(default_factory=set)
    """Numbers of the places that have it."""

    def left(self, value: int, sizes: Sequence[int]) -> Integer:
        """The explanations that hold for another signature too."""
        return Integer(value if value == self.constant else None, {i for i in self.sizes if sizes[i] == value})

    @property
    def explained(self) -> bool:
        """Whether anything is left."""
        return self.constant is not None or bool(self.sizes)


class Pattern:
    """Strides and integers of a growing family."""

    def __init__(self, first: Shapes) -> None:
        self.strides = [Strides(spec) for spec in first.specs]
        sizes = first.sizes
        self.integers = [Integer(v, {i for i, n in enumerate(sizes) if n == v}) for v in first.integers]

    def fits(self, shapes: Shapes) -> bool:
        """Whether a signature can join."""
        return all(s.fits(spec) for s, spec in zip(self.strides, shapes.specs, strict=True)) and all(
            kept.explained for kept in self._left(shapes)
        )

    def join(self, shapes: Shapes) -> None:
        """Take a signature in."""
        for s, spec in zip(self.strides, shapes.specs, strict=True):
            s.keep(spec)
        self.integers = self._left(shapes)

    def _left(self, shapes: Shapes) -> list[Integer]:
        sizes = shapes.sizes
        return [kept.left(value, sizes) for kept, value in zip(self.integers, shapes.integers, strict=True)]

    @property
    def strength(self) -> int:
        """How much of it is explained: constants, and strides that follow from sizes."""
        return sum(s.following for s in self.strides) + sum(i.constant is not None for i in self.integers)

    def describe(self) -> list[Any]:
        """What tells apart families of one structure."""
        return [[s.describe() for s in self.strides], [i.constant for i in self.integers]]
