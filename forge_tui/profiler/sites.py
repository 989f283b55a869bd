"""Every place of a model where a call is seen: module forwards, the model's own functions, torch functions.

Module forwards and functions are wrapped where they are looked up (the instance, the namespaces of the model's own
Python modules), which is also where a kernel would be put in. Torch functions are seen by a `TorchFunctionMode`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from forge_tui.models.load import LoadedModel

NOT_REPLACEABLE = "only modules, functions of the model's own files and torch.nn.functional can be replaced"


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """One callable as seen in the call tree."""

    kind: Literal["module", "function", "torch"]
    name: str
    path: str
    """Module path; empty for the other kinds."""
    qualname: str
    """`module:qualname`, or empty where the callable cannot be a target."""
    fn: Callable[..., Any]
    module: nn.Module | None = None


class Listener(Protocol):
    """What a profile pass does at every call."""

    def enter(self, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Called before the call; the number comes back in `leave`."""

    def leave(self, token: int, result: Any) -> None:
        """Called after the call returned."""

    def abandon(self, token: int) -> None:
        """Called when the call raised (models may catch their own exceptions)."""


class Sites:
    """The sites of one loaded model, and passes over it that a listener follows."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._torch: dict[Any, Site | None] = {}
        self._functional = _functional_names()
        self._thread = threading.get_ident()
        self.modules = _module_sites(loaded)
        self.functions = _function_sites(loaded.own_modules)

    @contextlib.contextmanager
    def heard(self, listener: Listener) -> Iterator[None]:
        """Everything wrapped inside the block, and as it was behind it."""
        undo: list[Callable[[], None]] = []
        try:
            # one by one: what is wrapped already must be undone if the next fails
            undo.extend(_wrap_forward(site, self._wrapped(site, listener)) for site in self.modules)
            undo.extend(_wrap_function(site, at, self._wrapped(site, listener)) for site, at in self.functions)
            with _TorchCalls(self, listener):
                yield
        finally:
            for restore in reversed(undo):
                restore()

    def _wrapped(self, site: Site, listener: Listener) -> Callable[..., Any]:
        fn, thread = site.fn, self._thread
        # what the listener itself asks of tensors is no call of the model
        quiet = torch._C.DisableTorchFunction  # noqa: SLF001

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return fn(*args, **kwargs)
            with quiet():
                token = listener.enter(site, args, kwargs)
            try:
                result = fn(*args, **kwargs)
            except BaseException:
                listener.abandon(token)
                raise
            with quiet():
                listener.leave(token, result)
            return result

        return call

    def torch_site(self, func: Any) -> Site | None:
        """The site of a torch function; None for property reads and the like."""
        try:
            return self._torch[func]
        except KeyError:
            site = self._torch[func] = self._new_torch_site(func)
            return site

    def _new_torch_site(self, func: Any) -> Site | None:
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__", ""):
            return None
        known = self._functional.get(func)
        if known:
            return Site("torch", f"F.{known}", "", f"torch.nn.functional:{known}", func)
        owner = getattr(func, "__objclass__", None)
        prefix = "Tensor" if owner is not None or (hasattr(Tensor, name) and not hasattr(torch, name)) else "torch"
        return Site("torch", f"{prefix}.{name.strip('_') or name}", "", "", func)


class _TorchCalls(TorchFunctionMode):
    """Tells the listener of every torch function that is called from Python."""

    def __init__(self, sites: Sites, listener: Listener) -> None:
        super().__init__()
        self._sites = sites
        self._listener = listener

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        site = self._sites.torch_site(func)
        if site is None:
            return func(*args, **kwargs)
        token = self._listener.enter(site, args, kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException:
            self._listener.abandon(token)
            raise
        self._listener.leave(token, result)
        return result


def is_step(site: Site, result: Any) -> bool:
    """Whether a call is a step of the model: every module is, the rest if they give tensors."""
    return site.kind == "module" or has_tensor(result)


def has_tensor(value: Any) -> bool:
    """Whether a result is a tensor, or a sequence or dictionary with one."""
    if isinstance(value, Tensor):
        return True
    if isinstance(value, (tuple, list)):
        return any(has_tensor(item) for item in value)
    if isinstance(value, dict):
        return any(has_tensor(item) for item in value.values())
    return False


def _functional_names() -> dict[Any, str]:
    found: dict[Any, str] = {}
    for name, value in vars(functional).items():
        if not name.startswith("_") and callable(value) and not inspect.isclass(value):
            with contextlib.suppress(TypeError):
                found.setdefault(value, name)
    return found


def _module_sites(loaded: LoadedModel) -> list[Site]:
    found = []
    for path, module in loaded.module.named_modules():
        if not path and not loaded.has_workload:
            continue  # the model itself is the root of the tree
        if isinstance(module, torch.jit.ScriptModule):
            continue
        kind = type(module)
        qualname = f"{kind.__module__}:{kind.__qualname__}"
        found.append(Site("module", kind.__name__, path, qualname, module.forward, module))
    return found


def _function_sites(own_modules: Sequence[str]) -> list[tuple[Site, list[tuple[dict[str, Any], str]]]]:
    """Functions of the model's own Python modules, each with every namespace entry that holds it."""
    spaces = [vars(sys.modules[name]) for name in own_modules]
    homes: dict[int, Site] = {}
    for name, space in zip(own_modules, spaces, strict=True):
        for attribute, fn in space.items():
            if not isinstance(fn, FunctionType) or fn.__module__ != name or attribute.startswith("__"):
                continue
            if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn) or id(fn) in homes:
                continue
            homes[id(fn)] = Site("function", attribute, "", f"{name}:{attribute}", fn)
    return [
        (site, [(space, attribute) for space in spaces for attribute, value in space.items() if value is site.fn])
        for site in homes.values()
    ]


def _wrap_forward(site: Site, wrapped: Callable[..., Any]) -> Callable[[], None]:
    assert site.module is not None
    own = vars(site.module)
    missing = object()
    before = own.get("forward", missing)
    own["forward"] = wrapped

    def restore() -> None:
        if before is missing:
            own.pop("forward", None)
        else:
            own["forward"] = before

    return restore


def _wrap_function(
    site: Site, places: list[tuple[dict[str, Any], str]], wrapped: Callable[..., Any]
) -> Callable[[], None]:
    for space, attribute in places:
        space[attribute] = wrapped

    def restore() -> None:
        for space, attribute in places:
            space[attribute] = site.fn

    return restore
