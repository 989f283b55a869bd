"""What stands in the place of a forward or function: guards tried in turn, then the original."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

from torch import Tensor, nn

from forge_tui.deploy.ambient import is_compiling
from forge_tui.deploy.frozen import Replaced
from forge_tui.deploy.guard import GuardedKernel, Miss

MISSING = object()


class Scope(threading.local):
    """How deep the calling thread is inside the model; torch functions are replaced there only."""

    depth = 0


class Switch:
    """Whether what was put in place is in force; off, it is as good as the original."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


class Dispatch:
    """The guards of one callable, one for each signature; chosen by the shape of the first tensor."""

    def __init__(self, guards: Sequence[GuardedKernel]) -> None:
        self.guards = tuple(guards)
        self._only = self.guards[0] if len(self.guards) == 1 else None
        self._by_shape: dict[tuple[int, ...], tuple[GuardedKernel, ...]] = {}
        for guard in self.guards:
            shape = guard.target.signature.inputs[0].spec.shape if guard.target.signature.inputs else ()
            self._by_shape[shape] = (*self._by_shape.get(shape, ()), guard)

    def attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the first guard that serves the call, else a `Miss`, counted for each guard that was asked."""
        guard = self._only
        if guard is not None:
            result = guard.attempt(args, kwargs)
            if type(result) is Miss:
                guard.count(result)
            return result
        # the first argument is not the first input in every call: the shape is a hint, and no match asks all
        shape = args[0].shape if args and isinstance(args[0], Tensor) else None
        misses: list[tuple[GuardedKernel, Miss]] = []
        for guard in self._by_shape.get(shape, self.guards) if shape is not None else self.guards:
            result = guard.attempt(args, kwargs)
            if type(result) is not Miss:
                return result
            misses.append((guard, result))
        for guard, miss in misses:
            guard.count(miss)
        return misses[-1][1]


class ModuleForward(Replaced):
    """An instance's `forward` while deployed.

    A copy or pickle that takes it along gets the bound original of the copy instead: nothing deployed travels.
    """

    def __init__(self, module: nn.Module, dispatch: Dispatch | None, scope: Scope | None, switch: Switch) -> None:
        self._module = module
        self._prior = vars(module).get("forward", MISSING)
        self._dispatch = dispatch
        self._scope = scope
        self._switch = switch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The instance's forward: a kernel's result, or the original's."""
        if is_compiling() or not self._switch.on:
            # written out: torch.compile cannot trace the making of a bound method
            if self._prior is MISSING:
                return type(self._module).forward(self._module, *args, **kwargs)
            return self._prior(*args, **kwargs)
        scope = self._scope
        if scope is None:
            return self._serve(args, kwargs)
        scope.depth += 1
        try:
            return self._serve(args, kwargs)
        finally:
            scope.depth -= 1

    def _serve(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._dispatch is not None:
            result = self._dispatch.attempt(args, kwargs)
            if type(result) is not Miss:
                return result
        return self.original(*args, **kwargs)

    @property
    def original(self) -> Callable[..., Any]:
        """What the instance's `forward` would be otherwise: looked up anew, so that a class patched later counts."""
        if self._prior is not MISSING:
            prior: Callable[..., Any] = self._prior
            return prior
        return MethodType(type(self._module).forward, self._module)

    def __getattr__(self, name: str) -> Any:
        # __wrapped__, __func__, __self__, __name__, ...: who inspects the forward sees the original's
        if name.startswith("_") and not name.startswith("__"):
            raise AttributeError(name)
        if name == "__wrapped__":
            return self.original
        return getattr(self.original, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        module = memo.get(id(self._module))
        if module is None or self._prior is not MISSING:
            import copy

            return copy.deepcopy(self.original, memo)
        return MethodType(type(module).forward, module)

    def __reduce__(self) -> Any:
        return getattr, (self._module, "forward") if self._prior is MISSING else (self._prior, "__call__")


class CleanState:
    """An instance's `__getstate__` while deployed: pickles and copies hold what the instance had before."""

    def __init__(self, module: nn.Module, before: dict[str, Any]) -> None:
        self._module = module
        self._before = before

    def __call__(self) -> Any:
        """The state that a copy or pickle takes."""
        of: Any = type(self._module)
        state = of.__getstate__(self._module)
        if not isinstance(state, dict):
            return state
        state = dict(state)
        for name, value in self._before.items():
            if value is MISSING:
                state.pop(name, None)
            elif name in state:
                state[name] = value
        return state


def function_wrapper(
    original: Callable[..., Any], qualname: str, dispatch: Dispatch, scope: Scope | None, switch: Switch
) -> Callable[..., Any]:
    """What stands in the namespaces for the function `module:qualname`; with a scope, active only inside the model.

    It is pickled by that name, so that the reader of a pickle gets the original.
    """
    attempt = dispatch.attempt

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not switch.on or (scope is not None and not scope.depth):
            return original(*args, **kwargs)
        result = attempt(args, kwargs)
        return original(*args, **kwargs) if type(result) is Miss else result

    wrapper = functools.wraps(original)(call)
    wrapper.__module__, _, wrapper.__qualname__ = qualname.partition(":")
    wrapper.forge_deployed = True  # type: ignore[attr-defined]
    return wrapper
