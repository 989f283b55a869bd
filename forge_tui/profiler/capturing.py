"""The capture pass: inputs of chosen calls copied before the call, and the outputs of the first one behind it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from forge_tui.models.callables import closure_tensors
from forge_tui.models.calls import NotEligible, describe_result
from forge_tui.models.capture import flats_bytes, size_words
from forge_tui.models.held import Holders, Places
from forge_tui.models.load import LoadedModel
from forge_tui.models.snapshot import Copier, Snapshot, content_hash
from forge_tui.models.strided import from_flat, to_flat
from forge_tui.profiler.observe import Group, describe_site_call, group_key
from forge_tui.profiler.reservoir import Reservoir
from forge_tui.profiler.sites import Site, Sites

#: of each signature these calls are kept, and so many of the later ones
FIRST_CALLS = 2
LATER_CALLS = 2
#: elements of a parameter up to which it is looked at again behind the call
_MOST_CHECKED = 1 << 20


@dataclass(frozen=True, slots=True)
class Budget:
    """Most bytes of captured inputs, without what the model itself holds."""

    total: int = 2 << 30
    """Of all targets together."""
    target: int = sys.maxsize
    """Of one target, where it has more than one call."""


@dataclass(slots=True)
class Captured:
    """What was copied of one group."""

    places: Places
    calls: list[Snapshot] = field(default_factory=list)
    instances: list[str] = field(default_factory=list)
    """Module path of each call."""
    outputs: list[Tensor] = field(default_factory=list)
    """Of the first captured call, on the CPU, with the strides they had."""
    refused: str = ""
    """Why nothing is kept of it."""

    def tensors(self, index: int, device: str | torch.device) -> list[Tensor]:
        """The inputs of one call; what belongs to the model are its own tensors, not to be written to."""
        return self.calls[index].tensors(device, self.places)


@dataclass(slots=True)
class _Group:
    """A group while the model runs."""

    site: Site
    reservoir: Reservoir
    closures: frozenset[str]
    kept: dict[int, tuple[Snapshot, str]] = field(default_factory=dict)
    outputs: tuple[int, list[Tensor]] = (sys.maxsize, [])
    refused: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the kept calls, equal tensors once."""
        flats = {key: flat for snapshot, _ in self.kept.values() for key, flat in snapshot.flats.items()}
        return flats_bytes(flats.values())

    @property
    def least_bytes(self) -> int:
        """Bytes of its first kept call."""
        return flats_bytes(self.kept[min(self.kept)][0].flats.values()) if self.kept else 0

    def shrink(self) -> bool:
        """Give up a call beside the first; whether there was one."""
        number = self.reservoir.shrink()
        if number is not None:
            self.kept.pop(number, None)
        return number is not None


class Capturer:
    """The listener of the capture pass."""

    def __init__(
        self, loaded: LoadedModel, wanted: Mapping[str, tuple[Group, int]], budget: Budget | None = None, *,
        first: int = FIRST_CALLS, later: int = LATER_CALLS, seed: int = 0,
    ) -> None:  # fmt: skip
        """Take the groups to capture, the worthiest first, each with the most calls that are kept of it.

        Of each, `first` calls and `later` of the others are kept, as `Reservoir` says. What passes the budget costs
        the least worthy groups their calls: first those beside their first ones, then all.
        """
        self._loaded = loaded
        self._budget = budget or Budget()
        self._groups = {
            key: _Group(
                group.site, Reservoir(min(first, most), min(later, most - min(first, most)), Random(f"{seed}:{key}")),  # noqa: S311
                _closures(group),
            )
            for key, (group, most) in wanted.items()
        }  # fmt: skip
        self._qualnames: dict[str, set[str]] = {}
        for item in self._groups.values():
            self._qualnames.setdefault(item.site.qualname, set()).update(item.closures)
        functions = {item.site.qualname: item.site.fn for item in self._groups.values() if item.closures}
        self._copier = Copier(Holders(loaded, functions))
        self._open: dict[int, tuple[_Group, int, list[Tensor]]] = {}
        self._count = 0

    def run(self, sites: Sites) -> dict[str, Captured]:
        """What was captured in one call of every phase, by group."""
        with sites.heard(self):
            self._loaded.run()
        places = Places(self._loaded)
        found = {}
        for key, item in self._groups.items():
            numbers = sorted(item.kept)
            # the outputs are those of the first call that is kept, or they are none
            outputs = item.outputs[1] if numbers and item.outputs[0] == numbers[0] else []
            found[key] = Captured(places, [item.kept[n][0] for n in numbers], [item.kept[n][1] for n in numbers],
                                  outputs, item.refused)  # fmt: skip
        return found

    def enter(self, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Copy the inputs if this call is one of the chosen."""
        self._count += 1
        wanted = self._qualnames.get(site.qualname)
        if wanted is None:
            return self._count
        closure = {name: t for name, t in closure_tensors(site.fn).items() if name in wanted} if wanted else None
        try:
            description = describe_site_call(site, args, kwargs, closure)
        except NotEligible:
            return self._count
        key = group_key(site, description)
        item = self._groups.get(key)
        if item is None or item.refused:
            return self._count
        number, taken, given_up = item.reservoir.offer(site.path)
        if given_up is not None:
            item.kept.pop(given_up, None)
        if taken:
            self._take(key, number, site.path, description.tensors)
        if number in item.kept:
            self._open[self._count] = (item, number, description.tensors)
        return self._count

    def leave(self, token: int, result: Any) -> None:
        """Copy the outputs of the first call of a group."""
        item, number, inputs = self._open.pop(token, (None, 0, []))
        if item is None or number != min(item.kept, default=-1) or number >= item.outputs[0]:
            return
        if self._written(item.kept[number][0], inputs):
            # by code that neither PyTorch's dispatcher nor its counters see: NumPy, a Triton kernel
            self._give_up(item, "it writes into one of its inputs")
            return
        try:
            item.outputs = number, [copy_to_cpu(t) for t in describe_result(result, inputs).tensors]
        except NotEligible:
            # in the observing pass the same call gave something else
            self._give_up(item, "calls with equal arguments give results of different form")

    def abandon(self, token: int) -> None:
        """A call that raised is not kept."""
        item, number, _ = self._open.pop(token, (None, 0, []))
        if item is not None:
            item.reservoir.withdraw(number)
            item.kept.pop(number, None)

    def _take(self, key: str, number: int, path: str, tensors: Sequence[Tensor]) -> None:
        item, total = self._groups[key], self._budget.total
        size = self._copier.stored_bytes(tensors)
        if size > total and not item.kept:
            self._refuse(item, size)
            return
        if size > total:
            item.reservoir.withdraw(number)
            return
        item.kept[number] = self._copier.take(tensors), path
        while item.nbytes > self._budget.target and item.shrink():
            pass
        self._fit(key)

    def _fit(self, key: str) -> None:
        """Bring everything below the cap, at the cost of the least worthy."""
        total = self._budget.total
        worthier = list(self._groups)[: list(self._groups).index(key)]
        item = self._groups[key]
        if sum(self._groups[k].least_bytes for k in worthier) + item.least_bytes > total:
            self._refuse(item, item.least_bytes)
        for other in reversed(self._groups.values()):
            while self._bytes() > total and other.shrink():
                pass
        for other in reversed(self._groups.values()):
            if other.kept and self._bytes() > total:
                self._refuse(other, other.least_bytes)

    def _bytes(self) -> int:
        return sum(item.nbytes for item in self._groups.values())

    def _refuse(self, item: _Group, size: int) -> None:
        cap = size_words(self._budget.total)
        self._give_up(item, f"its inputs of {size_words(size)} are over the size cap of {cap}; "
                            "raise it with --capture-gb")  # fmt: skip

    @staticmethod
    def _give_up(item: _Group, reason: str) -> None:
        item.refused = reason
        item.kept.clear()
        item.outputs = (sys.maxsize, [])

    @staticmethod
    def _written(snapshot: Snapshot, tensors: Sequence[Tensor]) -> bool:
        """Whether the tensors have other values than before the call; large ones of the model are believed."""
        return any(
            part.key != content_hash(tensor)
            for part, tensor in zip(snapshot.parts, tensors, strict=True)
            if part.same_as is None and (part.held is None or tensor.numel() <= _MOST_CHECKED)
        )


def _closures(group: Group) -> frozenset[str]:
    """Names of the tensors that a function reads beside its arguments."""
    if group.site.kind != "function" or group.description is None:
        return frozenset()
    return frozenset(i.path for i in group.description.inputs if i.source == "closure")


def copy_to_cpu(tensor: Tensor) -> Tensor:
    """A copy on the CPU with the same strides."""
    return from_flat(to_flat(tensor).cpu(), tensor.shape, tensor.stride())
