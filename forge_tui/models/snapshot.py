"""The tensors of one call as they were: values, strides, alignment, and which of them share memory.

What belongs to the model is kept as a reference to its place (`held`), the rest as copies on the CPU, equal ones once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from forge_tui.core.errors import StoreError
from forge_tui.models.held import Held, Holders, Places
from forge_tui.models.strided import fill, from_flat, real_elements, span, to_flat, without_gaps
from forge_tui.models.trees import dtype_name

#: an address is kept modulo this
ALIGN = 16
_CHUNK_BYTES = 32 << 20
_SAMPLES = 16
#: difference of sampled weights, over the largest: below it they are the same weights rounded in another way
_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a call."""

    key: str
    """Hash of dtype and elements."""
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    room: int = -1
    """Parts of one room share memory."""
    at: int = 0
    """Bytes from the room's start; for a held part, elements from the first one of the model's tensor."""
    same_as: int | None = None
    """Position of an earlier tensor that is the same Python object."""
    held: Held | None = None
    sample: tuple[float, ...] = ()
    """Some values of a held part."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tensors of one call. `flats` are the elements of the stored parts, 1-D, by key; they are never written."""

    parts: tuple[Part, ...]
    flats: dict[str, Tensor]

    def tensors(self, device: str | torch.device, places: Places | None = None) -> list[Tensor]:
        """The tensors again, on the device; held ones are views of the model's own, not to be written to.

        Raises:
            StoreError: the model holds other tensors than it did, or `places` is missing.
        """
        return restore(self.parts, lambda key: self.flats[key], torch.device(device), places)


@dataclass(slots=True)
class Copier:
    """Takes snapshots; elements that were copied before are shared as long as a snapshot holds them."""

    holders: Holders | None = None
    _known: WeakValueDictionary[str, Tensor] = field(default_factory=WeakValueDictionary)
    _hashes: dict[tuple[object, ...], tuple[str, tuple[float, ...]]] = field(default_factory=dict)

    def take(self, tensors: Sequence[Tensor]) -> Snapshot:
        """A snapshot of the tensors of one call, which may be on any device."""
        flats: dict[str, Tensor] = {}
        stored: list[int] = []
        parts: list[Part | None] = []
        first: dict[int, int] = {}
        for i, tensor in enumerate(tensors):
            found = self.holders.find(tensor) if self.holders is not None else None
            parts.append(self._held(tensor, *found, first.get(id(tensor))) if found is not None else None)
            if found is None:
                stored.append(i)
            first.setdefault(id(tensor), i)
        for i, (room, at) in zip(stored, _rooms([tensors[i] for i in stored]), strict=True):
            same, tensor = first[id(tensors[i])], tensors[i]
            key = self._store(tensor, flats) if same == i else _known_part(parts[same]).key
            parts[i] = Part(key, dtype_name(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), room, at,
                            same if same != i else None)  # fmt: skip
        return Snapshot(tuple(_known_part(part) for part in parts), flats)

    def _store(self, tensor: Tensor, flats: dict[str, Tensor]) -> str:
        flat = to_flat(tensor).cpu()
        key = content_hash(flat)
        flats[key] = self._known.setdefault(key, flat)
        return key

    def _held(self, tensor: Tensor, held: Held, begin: int, same: int | None) -> Part:
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        place = (held, begin, shape, strides)
        if place not in self._hashes:  # weights are hashed once, however many targets have them inside
            self._hashes[place] = (content_hash(tensor), sample_of(tensor))
        key, sample = self._hashes[place]
        return Part(key, dtype_name(tensor.dtype), shape, strides, at=begin, same_as=same, held=held, sample=sample)

    def stored_bytes(self, tensors: Sequence[Tensor]) -> int:
        """Most bytes that a snapshot of these tensors would hold: without what the model itself holds."""
        distinct = {id(t): t for t in tensors if self.holders is None or self.holders.find(t) is None}
        return sum(real_elements(t.shape, t.stride()) * t.element_size() for t in distinct.values())


def restore(
    parts: Sequence[Part], flat_of: Callable[[str], Tensor], device: torch.device, places: Places | None
) -> list[Tensor]:
    """Tensors from their parts; `flat_of` gives the elements of a stored part.

    Raises:
        StoreError: as in `Snapshot.tensors`.
    """
    rooms = _new_rooms(parts, device)
    made: list[Tensor] = []
    for part in parts:
        if part.same_as is not None:
            made.append(made[part.same_as])
        elif part.held is not None:
            made.append(_from_model(part, part.held, places))
        elif part.room not in rooms:
            made.append(from_flat(flat_of(part.key).to(device, copy=True), part.shape, part.strides))
        else:
            dtype: torch.dtype = getattr(torch, part.dtype)
            room = rooms[part.room].view(dtype)
            made.append(room.as_strided(part.shape, part.strides, part.at // dtype.itemsize))
            fill(made[-1], flat_of(part.key).to(device))
    return made


def _new_rooms(parts: Sequence[Part], device: torch.device) -> dict[int, Tensor]:
    """Bytes for the rooms of several parts, or of one that begins at an odd address."""
    of_room: dict[int, list[Part]] = {}
    for part in parts:
        if part.held is None and part.same_as is None:
            of_room.setdefault(part.room, []).append(part)
    rooms = {}
    for number, inside in of_room.items():
        if len(inside) > 1 or inside[0].at:
            end = max(p.at + span(p.shape, p.strides) * getattr(torch, p.dtype).itemsize for p in inside)
            rooms[number] = torch.zeros(-(-end // ALIGN) * ALIGN, dtype=torch.uint8, device=device)
    return rooms


def _from_model(part: Part, held: Held, places: Places | None) -> Tensor:
    if places is None:
        raise StoreError(f"The captured inputs refer to {held.words()} of a model that is not loaded.",
                         "Load the model first.")  # fmt: skip
    tensor = places.view(held, part.at, part.shape, part.strides, part.dtype)
    if content_hash(tensor) != part.key and not _rounded(sample_of(tensor), part.sample):
        raise StoreError(
            f"The model holds other values in {held.words()} than when it was profiled.",
            "Profile it again; if this comes back, seed what it draws its weights from.",
        )
    return tensor


def _rounded(have: tuple[float, ...], want: tuple[float, ...]) -> bool:
    """Whether weights are the same but for rounding: sums in an initialisation depend on the number of threads."""
    largest = max(map(abs, want), default=0.0)
    return bool(want) and len(have) == len(want) and all(
        a == b or abs(a - b) <= _ROUNDING * largest or (math.isnan(a) and math.isnan(b))
        for a, b in zip(have, want, strict=True)
    )  # fmt: skip


def content_hash(tensor: Tensor) -> str:
    """A hash of dtype and elements, the same on every device; expanded dimensions count once."""
    digest = hashlib.sha256(str(tensor.dtype).encode())
    flat = _run(tensor)
    step = _CHUNK_BYTES // max(1, flat.element_size())
    for begin in range(0, flat.numel(), step):
        digest.update(flat[begin : begin + step].cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def sample_of(tensor: Tensor) -> tuple[float, ...]:
    """Values from all over a floating tensor; of others nothing, since they are not rounded."""
    if not tensor.is_floating_point() or not tensor.numel():
        return ()
    flat = _run(tensor)
    at = torch.linspace(0, flat.numel() - 1, min(_SAMPLES, flat.numel()), dtype=torch.float64).long()
    return tuple(flat[at.to(flat.device)].double().tolist())


def _run(tensor: Tensor) -> Tensor:
    """The elements as `to_flat` gives them, without a copy where there are no gaps."""
    if without_gaps(tensor.shape, tensor.stride()):
        return tensor.detach().as_strided((span(tensor.shape, tensor.stride()),), (1,))
    return to_flat(tensor)


def _rooms(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """(room, bytes from its start) of every tensor: those that reach into one another share a room."""
    ranges = []
    for i, tensor in enumerate(tensors):
        begin = tensor.data_ptr() if tensor.numel() else 0
        if begin and begin % tensor.element_size() == 0:
            size = span(tensor.shape, tensor.stride()) * tensor.element_size()
            ranges.append((str(tensor.device), begin, begin + size, i))
    placed: dict[int, tuple[int, int]] = {}
    device, start, reach, leader = "", 0, -1, 0
    for where, begin, end, i in sorted(ranges):
        if where != device or begin >= reach:
            device, start, reach, leader = where, begin - begin % ALIGN, end, i
        reach = max(reach, end)
        placed[i] = (leader, begin - start)
    # what is empty, or at an address that its dtype cannot have, is alone at the start of a room
    found = [placed.get(i, (i, 0)) for i in range(len(tensors))]
    # numbered in the order of the tensors: addresses differ from run to run
    numbers: dict[int, int] = {}
    return [(numbers.setdefault(leader, len(numbers)), at) for leader, at in found]


def _known_part(part: Part | None) -> Part:
    assert part is not None
    return part
