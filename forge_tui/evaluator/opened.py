"""Targets as judge and runner hold them: the model once, captured inputs of the targets used last."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import torch
from torch import Tensor

from forge_tui.core.errors import StoreError
from forge_tui.core.records import ModelSpec, Signature, Target
from forge_tui.evaluator.inputs import generate
from forge_tui.evaluator.sets import MOST_CALLS, InputSet, Kind
from forge_tui.models import capture
from forge_tui.models.load import LoadedModel, load_model
from forge_tui.models.resolve import caller

#: captured inputs of so many targets stay in memory, fewer where they are large; one may come at many sizes
_MOST_TARGETS = 24
_CPU_CACHE_BYTES = 1 << 30
_CUDA_CACHE_BYTES = 8 << 30
#: and never more than this part of the memory there is
_CACHE_SHARE = 0.06


Value = TypeVar("Value")


class Cache(Generic[Value]):
    """Values by key, the oldest given up when their bytes pass the limit."""

    def __init__(self, limit_bytes: int, size: Callable[[Value], int]) -> None:
        self._limit = limit_bytes
        self._size = size
        self._items: OrderedDict[object, Value] = OrderedDict()
        self._bytes = 0

    def get(self, key: object) -> Value | None:
        """The value, or None; it becomes the newest."""
        if key not in self._items:
            return None
        self._items.move_to_end(key)
        return self._items[key]

    def put(self, key: object, value: Value) -> None:
        """Keep a value if it fits at all."""
        size = self._size(value)
        if size > self._limit or key in self._items:
            return
        self._items[key] = value
        self._bytes += size
        while self._bytes > self._limit:
            _, old = self._items.popitem(last=False)
            self._bytes -= self._size(old)


@dataclass(slots=True)
class OpenTarget:
    """A target with its original callable and captured inputs on the device."""

    target: Target
    call: Callable[[Sequence[Tensor]], list[Tensor]]
    captured: list[list[Tensor]]
    kept: Cache[list[Tensor]]
    """Inputs made before, of the sets that come back; all targets share it."""

    @property
    def signature(self) -> Signature:
        """What a kernel is written for."""
        return self.target.signature

    def values(self, which: InputSet) -> list[Tensor]:
        """The tensors of an input set, not to be written to."""
        if which.kind is Kind.CAPTURED and not which.patch:
            return self.captured[which.call]
        found = self.kept.get((self.target.id, which.key))
        return found if found is not None else generate(self.captured[which.call], self.target.signature, which)

    def keep(self, sets: Sequence[InputSet]) -> None:
        """Make the inputs of sets that every candidate meets, once."""
        for which in sets:
            key = self.target.id, which.key
            if which.kind is not Kind.CAPTURED and self.kept.get(key) is None:
                self.kept.put(key, self.values(which))


class Targets:
    """One model on one device and the targets opened in it."""

    def __init__(self, device: str, artifacts: Path, seed: int) -> None:
        self.device = torch.device(device)
        self._artifacts = artifacts
        self._seed = seed
        self._model: tuple[ModelSpec, LoadedModel] | None = None
        self._open: OrderedDict[str, OpenTarget] = OrderedDict()
        self._kept: Cache[list[Tensor]] | None = None

    @property
    def cache_bytes(self) -> int:
        """How much of derived data may be kept in memory."""
        if self.device.type == "cuda":
            total = torch.cuda.get_device_properties(self.device).total_memory
            return min(_CUDA_CACHE_BYTES, int(_CACHE_SHARE * total))
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min(_CPU_CACHE_BYTES, int(_CACHE_SHARE * total))

    def loaded(self, message: dict[str, Any]) -> LoadedModel:
        """The model of a request, built if it is not."""
        return self._load(msgspec.convert(message["spec"], ModelSpec))

    def open(self, message: dict[str, Any]) -> OpenTarget:
        """The target of a request, opened if it is not.

        Raises:
            ModelError: the model cannot be built, or lacks the callable.
            StoreError: the captured inputs are gone, or the model holds other weights than it did.
        """
        target = msgspec.convert(message["target"], Target)
        found = self._open.get(target.id)
        if found is not None:
            self._open.move_to_end(target.id)
            return found
        loaded = self.loaded(message)
        folder = self._artifacts / target.capture
        count = capture.count(folder) if target.capture else 0
        if not count:
            raise StoreError(f"No inputs of {target.name} were captured.", "Profile again.")
        captured = [capture.load(folder, i, self.device, loaded) for i in range(min(count, MOST_CALLS))]
        if self._kept is None:
            self._kept = Cache(self.cache_bytes, tensors_bytes)
        found = OpenTarget(target, caller(target, loaded), captured, self._kept)
        self._open[target.id] = found
        while len(self._open) > _MOST_TARGETS or (len(self._open) > 1 and self._bytes() > self.cache_bytes):
            self._open.popitem(last=False)
        return found

    def _bytes(self) -> int:
        """Memory of the captured arguments; the rest is the model's own."""
        return tensors_bytes([
            t for item in self._open.values() for call in item.captured
            for t, i in zip(call, item.signature.inputs, strict=True) if i.source == "arg"
        ])  # fmt: skip

    def _load(self, spec: ModelSpec) -> LoadedModel:
        if self._model is None or self._model[0] != spec:
            self._model = (spec, load_model(spec, str(self.device), self._seed))
        return self._model[1]


def tensors_bytes(tensors: Sequence[Tensor]) -> int:
    """Memory of some tensors; what they share counts once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors}  # noqa: SLF001 - its identity
    return sum(storage.nbytes() for storage in storages.values())
