"""Tensors that belong to the model: known by their place in it, so that captured calls need not store them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from forge_tui.core.errors import ModelError, StoreError
from forge_tui.models.attributes import module_tensors
from forge_tui.models.callables import closure_tensors, find_function, function_slot
from forge_tui.models.strided import span

if TYPE_CHECKING:
    from forge_tui.models.load import LoadedModel


@dataclass(frozen=True, slots=True)
class Held:
    """A place of the model that holds a tensor."""

    name: str
    """Qualified name in the model, or the name under which a function reads it."""
    function: str = ""
    """`module:qualname` of that function; empty for tensors of modules."""

    def words(self) -> str:
        """For sentences: `layers.0.weight`."""
        return f"{self.name} of {self.function.partition(':')[2]}" if self.function else self.name


class Origins:
    """The tensors that a model was built with, so that what it writes or replaces later is told apart."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._known = {id(t): (weakref.ref(t), version_of(t)) for t in tensors}

    def unchanged(self, tensor: Tensor) -> bool:
        """Whether the tensor was there from the start and was not written to since."""
        found = self._known.get(id(tensor))
        return found is not None and found[0]() is tensor and found[1] == version_of(tensor)


def origins_of(module: nn.Module, own_modules: Iterable[str]) -> Origins:
    """What a model just built holds: in its modules, and in the Python modules that it is written in."""
    held = [t for _, _, t in module_tensors(module)]
    for name in own_modules:
        for value in list(vars(sys.modules[name]).values()) if name in sys.modules else ():
            if isinstance(value, FunctionType):
                held += closure_tensors(value).values()
            elif isinstance(value, Tensor):
                held.append(value)
    return Origins(held)


def version_of(tensor: Tensor) -> int:
    """The counter of writes; those made in inference mode have none."""
    return -1 if tensor.is_inference() else int(tensor._version)  # noqa: SLF001


class Holders:
    """Finds the place of the model that a tensor, or a view of one, comes from."""

    def __init__(self, loaded: LoadedModel, functions: Mapping[str, Callable[..., Any]] | None = None) -> None:
        """Take a model, and by their qualified names the functions whose closures count as its places."""
        self._origins = loaded.origins
        # the tensors are kept: memory given up by a replaced one would come back as something else
        self._by_storage: dict[int, list[tuple[Held, Tensor]]] = {}
        for held, tensor in _places(loaded.module, functions or {}):
            if tensor.layout is torch.strided and tensor.numel():
                self._by_storage.setdefault(_storage(tensor), []).append((held, tensor))

    def find(self, tensor: Tensor) -> tuple[Held, int] | None:
        """The place, and how many elements behind its first one the tensor begins; None if it is not the model's.

        Tensors that the model made or wrote to after it was built count as none: another process lacks them.
        """
        if not tensor.numel():
            return None
        for held, base in self._by_storage.get(_storage(tensor), ()):
            begin = int(tensor.storage_offset() - base.storage_offset())
            fits = begin >= 0 and begin + span(tensor.shape, tensor.stride()) <= span(base.shape, base.stride())
            if fits and tensor.dtype is base.dtype and (self._origins is None or self._origins.unchanged(base)):
                return held, begin
        return None


class Places:
    """The other way: from a place to the tensor that a model holds there."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._named: dict[str, Tensor] = {}

    def view(self, held: Held, begin: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Tensor:
        """A view of the tensor at this place, without a copy.

        Raises:
            StoreError: the model has no such tensor, or one of another form.
        """
        base = self._tensor(held)
        if f"torch.{dtype}" != str(base.dtype) or begin + span(shape, strides) > span(base.shape, base.stride()):
            raise StoreError(f"{held.words()} of the model has another form than when it was profiled.", AGAIN)
        return base.detach().as_strided(shape, strides, int(base.storage_offset()) + begin)

    def _tensor(self, held: Held) -> Tensor:
        value: Any = None
        if held.function:
            try:
                value = function_slot(find_function(held.function), held.name)[0]()
            except ModelError as error:
                raise StoreError(f"The captured inputs refer to {held.words()}: {error.what}", AGAIN) from error
        else:
            if not self._named:
                self._named = {name: tensor for _, name, tensor in module_tensors(self._loaded.module)}
            value = self._named.get(held.name)
        if not isinstance(value, Tensor):
            raise StoreError(f"The model has no tensor {held.words()}, to which captured inputs refer.", AGAIN)
        return value


#: what to do about a model that is not the one that was profiled
AGAIN = "Profile the model again."


def _places(module: nn.Module, functions: Mapping[str, Callable[..., Any]]) -> Iterator[tuple[Held, Tensor]]:
    for _, name, tensor in module_tensors(module):
        yield Held(name), tensor
    for qualname, fn in functions.items():
        for name, tensor in closure_tensors(fn).items():
            yield Held(name, qualname), tensor


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - the storage's identity
