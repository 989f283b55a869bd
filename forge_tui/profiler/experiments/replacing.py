"""A model with stand-ins in the places of some targets, and without them again."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn

from forge_tui.core.errors import ModelError
from forge_tui.core.records import Target
from forge_tui.models.callables import find_function
from forge_tui.models.load import LoadedModel
from forge_tui.models.places import places_of
from forge_tui.profiler.experiments.costs import Counter, make_produce, opaque
from forge_tui.profiler.experiments.standins import Produce, Unreplaceable, make_stand_in

_MISSING = object()


@dataclass(frozen=True, slots=True)
class _Put:
    """One entry of a dictionary, with what stands there for a while."""

    holder: dict[Any, Any]
    key: Any
    stand_in: Callable[..., Any]


class StandIns:
    """Stand-ins for some targets of one model, made once and put in place for a while at a time.

    Modules are replaced at the instance, functions in every dictionary that holds them, functions of torch in
    `torch.nn.functional` and where the model imported them. One callable with several targets tries one after the
    other. Where one target runs inside another, the outer one's stand-in never calls the inner one.

    Raises:
        ModelError: the model has no such callable.
        Unreplaceable: nothing can stand in for one of them.
    """

    def __init__(
        self, loaded: LoadedModel, targets: Sequence[Target], *, launch_us: float = 0.0, compiled: bool = False
    ) -> None:
        self.counter = Counter()
        self._loaded = loaded
        self._launch_us = launch_us
        self._compiled = compiled
        self._sites = 0
        self._puts: list[_Put] = [*self._modules([t for t in targets if t.kind == "module"]),
                                  *self._functions([t for t in targets if t.kind != "module"])]  # fmt: skip

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """The stand-ins are in place inside the block, and everything is as it was behind it."""
        undo: list[tuple[_Put, Any]] = []
        try:
            for put in self._puts:
                undo.append((put, put.holder.get(put.key, _MISSING)))
                put.holder[put.key] = put.stand_in
            yield
        finally:
            for put, before in reversed(undo):
                if before is _MISSING:
                    put.holder.pop(put.key, None)
                else:
                    put.holder[put.key] = before

    def _produce(self, target: Target) -> Produce:
        outputs, device = [o.spec for o in target.signature.outputs], self._loaded.device
        if not outputs:
            raise Unreplaceable("it gives no tensor")
        produce = make_produce(outputs, target.floor_us, device, self.counter, self._launch_us)
        return opaque(produce, outputs, device) if self._compiled else produce

    def _modules(self, targets: Sequence[Target]) -> list[_Put]:
        found: dict[int, tuple[nn.Module, list[tuple[Target, Produce]]]] = {}
        for target in targets:
            produce = self._produce(target)
            for module in {id(m): m for m in map(self._module, target.instances)}.values():
                found.setdefault(id(module), (module, []))[1].append((target, produce))
        return [
            _Put(vars(module), "forward", self._chain(module.forward, items)) for module, items in found.values()
        ]

    def _module(self, path: str) -> nn.Module:
        try:
            return self._loaded.module.get_submodule(path)
        except AttributeError as error:
            raise ModelError(f"The model has no module {path!r}.", "Profile it again.") from error

    def _functions(self, targets: Sequence[Target]) -> list[_Put]:
        found: dict[str, tuple[Callable[..., Any], list[tuple[Target, Produce]]]] = {}
        for target in targets:
            function = find_function(target.qualname)
            found.setdefault(target.qualname, (function, []))[1].append((target, self._produce(target)))
        puts: list[_Put] = []
        functions = tuple(function for function, _ in found.values())
        places = places_of(functions)
        spaces = _torch_namespaces()
        for function, items in found.values():
            stand_in = self._chain(function, items)
            held = [place for place in places[id(function)] if id(place.holder) not in spaces]
            puts += [_Put(place.holder, place.key, stand_in) for place in held]
        return puts

    def _chain(self, original: Callable[..., Any], items: Sequence[tuple[Target, Produce]]) -> Callable[..., Any]:
        made = original
        for target, produce in items:
            self._sites += 1
            made = make_stand_in(target.signature, made, produce, site=self._sites, device=self._loaded.device,
                                 described=original)  # fmt: skip
        return made


def _torch_namespaces() -> set[int]:
    """Namespaces of torch that keep their functions: all but `torch.nn.functional`, which is what models call."""
    return {
        id(vars(module)) for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and name.partition(".")[0] == "torch" and module is not torch.nn.functional
    }  # fmt: skip
