"""Kernels put into a model, and taken out again without a trace.

- Modules: the instance's `forward` attribute.
- Functions: every namespace in `sys.modules` and every table that holds the very object, static methods of the model's
  classes, and attributes of the model's modules.
- Functions of torch: the same, but only `torch.nn.functional` and the modules that the model is written in; active only
  while the model's forward runs in the calling thread.

Not reached are references in lists and tuples, closures, default arguments, `functools.partial`, methods that take
`self`, and modules taken apart without their forward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import nn

from forge_tui.core.errors import ModelError
from forge_tui.core.records import Target
from forge_tui.deploy.dispatch import (
    MISSING,
    CleanState,
    Dispatch,
    ModuleForward,
    Scope,
    Switch,
    function_wrapper,
)
from forge_tui.deploy.frozen import unwrapped
from forge_tui.deploy.guard import GuardedKernel, Launchable
from forge_tui.models.callables import find_function
from forge_tui.models.places import Place, places_of


@dataclass(frozen=True, slots=True)
class Deployable:
    """One target with its loaded kernel."""

    target: Target
    kernel: Launchable


@dataclass(slots=True)
class _Site:
    """One attribute that is replaced. `holder` is a dictionary, or a class (whose dictionary is read-only)."""

    holder: Any
    name: Any
    replacement: Any
    before: Any = MISSING

    def put(self) -> None:
        self.before = self._read()
        self._write(self.replacement)

    def take(self) -> None:
        # what somebody put there in the meantime stays; it reaches a replacement that is switched off
        if self._read() is self.replacement:
            self._write(self.before)

    def _read(self) -> Any:
        holder = self.holder if isinstance(self.holder, dict) else vars(self.holder)
        return holder.get(self.name, MISSING)

    def _write(self, value: Any) -> None:
        if not isinstance(self.holder, dict):
            setattr(self.holder, self.name, value)
        elif value is MISSING:
            self.holder.pop(self.name, None)
        else:
            self.holder[self.name] = value


class Patch:
    """Several targets of one model, patched and unpatched together.

    Nothing is changed before `install`. `own_modules` are the names of the Python modules the model is written in;
    `scopes` are further modules that count as the model when they are called themselves (a workload may not call the
    root's forward).

    Raises:
        ModelError: the model has no such callable.
    """

    def __init__(
        self, root: nn.Module, items: Sequence[Deployable], *, own_modules: Sequence[str] = (),
        scopes: Sequence[nn.Module] = (),
    ) -> None:  # fmt: skip
        self._root = root
        self._own = set(own_modules) | {type(m).__module__ for m in root.modules()}
        self._switch = Switch()
        self._scope = Scope()
        self._sites: list[_Site] = []
        self._wrappers: dict[int, tuple[Any, Any]] = {}
        self._guards: dict[str, list[GuardedKernel]] = {item.target.id: [] for item in items}
        self.installed = False
        before: dict[int, tuple[nn.Module, dict[str, Any]]] = {}
        self._patch_modules([i for i in items if i.target.kind == "module"], before,
                            [root, *scopes] if any(i.target.kind == "torch" for i in items) else [])  # fmt: skip
        self._patch_functions([i for i in items if i.target.kind != "module"])
        for module, names in before.values():
            names["__getstate__"] = vars(module).get("__getstate__", MISSING)
            self._sites.append(_Site(vars(module), "__getstate__", CleanState(module, names)))

    def install(self) -> None:
        """Put the kernels in; nothing happens if they are in."""
        if not self.installed:
            for site in self._sites:
                site.put()
            self._switch.on = True
            self.installed = True

    def suspend(self) -> None:
        """Take the kernels out; `install` puts them back."""
        if self.installed:
            self._switch.on = False
            for site in reversed(self._sites):
                site.take()
            self.installed = False

    def undo(self) -> None:
        """Take the kernels out for good: references that were imported meanwhile are restored, memory is freed."""
        self.suspend()
        for key, places in places_of(wrapper for wrapper, _ in self._wrappers.values()).items():
            for place in places:
                place.holder[place.key] = self._wrappers[key][1]
        for guards in self._guards.values():
            for guard in guards:
                guard.release()

    def guards(self, target_id: str) -> list[GuardedKernel]:
        """The guards of a target, one for each instance."""
        return self._guards[target_id]

    def counts(self, target_id: str) -> tuple[int, dict[str, int]]:
        """Calls served and calls given back by reason, over all instances of a target."""
        served, fallbacks = 0, dict[str, int]()
        for guard in self._guards[target_id]:
            more, reasons = guard.counts()
            served += more
            for reason, count in reasons.items():
                fallbacks[reason] = fallbacks.get(reason, 0) + count
        return served, fallbacks

    def fault(self, target_id: str) -> str:
        """The first failure of a launch of this target's kernel, or nothing."""
        return next((guard.fault for guard in self._guards[target_id] if guard.fault), "")

    def reset(self) -> None:
        """Start counting anew."""
        for guards in self._guards.values():
            for guard in guards:
                guard.reset()

    def _guard(self, item: Deployable, original: Callable[..., Any], module: nn.Module | None = None) -> GuardedKernel:
        guard = GuardedKernel(item.target, item.kernel, original, module=module)
        self._guards[item.target.id].append(guard)
        return guard

    def _patch_modules(
        self, items: list[Deployable], before: dict[int, tuple[nn.Module, dict[str, Any]]], scopes: list[nn.Module]
    ) -> None:
        by_module: dict[int, tuple[nn.Module, list[Deployable]]] = {id(m): (m, []) for m in scopes}
        for item in items:
            for path in item.target.instances:
                try:
                    module = self._root.get_submodule(path)
                except AttributeError as error:
                    raise ModelError(f"The model has no module {path!r}.", "Profile it again.") from error
                found = by_module.setdefault(id(module), (module, []))[1]
                if item not in found:  # one module under two names is one module
                    found.append(item)
        scoped = {id(m) for m in scopes}
        for module, here in by_module.values():
            dispatch = Dispatch([self._guard(item, module.forward, module) for item in here]) if here else None
            forward = ModuleForward(module, dispatch, self._scope if id(module) in scoped else None, self._switch)
            self._sites.append(_Site(vars(module), "forward", forward))
            before.setdefault(id(module), (module, {}))[1]["forward"] = vars(module).get("forward", MISSING)

    def _patch_functions(self, items: list[Deployable]) -> None:
        by_function: dict[int, tuple[Callable[..., Any], list[Deployable]]] = {}
        for item in items:
            function = unwrapped(find_function(item.target.qualname))
            by_function.setdefault(id(function), (function, []))[1].append(item)
        places = places_of(f for f, here in by_function.values() if here[0].target.kind != "torch")
        for function, here in by_function.values():
            torch_kind = here[0].target.kind == "torch"
            dispatch = Dispatch([self._guard(item, function) for item in here])
            scope = self._scope if torch_kind else None
            wrapper = function_wrapper(function, here[0].target.qualname, dispatch, scope, self._switch)
            self._wrappers[id(wrapper)] = (wrapper, function)
            for place in self._namespaces(function) if torch_kind else places[id(function)]:
                self._sites.append(_Site(place.holder, place.key, wrapper))
            for cls, name in self._static_methods(function):
                self._sites.append(_Site(cls, name, staticmethod(wrapper)))
            for module in self._root.modules():
                for name in [name for name, value in vars(module).items() if value is function]:
                    self._sites.append(_Site(vars(module), name, wrapper))

    def _namespaces(self, function: Callable[..., Any]) -> Iterator[Place]:
        """Where a function of torch is looked up by the model's own code."""
        names = {"torch.nn.functional"} | {n for n in self._own if n.partition(".")[0] != "torch"}
        for key, module in list(sys.modules.items()):
            if key in names and isinstance(module, ModuleType):
                space = vars(module)
                yield from (Place(space, name) for name, value in list(space.items()) if value is function)

    def _static_methods(self, function: Callable[..., Any]) -> Iterator[tuple[type, str]]:
        classes = {cls for module in self._root.modules() for cls in type(module).__mro__}
        classes |= {
            value for name in self._own for value in vars(sys.modules.get(name, object)).values()
            if isinstance(value, type)
        }  # fmt: skip
        for cls in classes:
            for name, value in vars(cls).items():
                if isinstance(value, staticmethod) and value.__func__ is function:
                    yield cls, name
