"""Every place of a model where a call is seen: module forwards, the model's own functions, torch functions.

Module forwards and functions are wrapped where they are looked up (the instance, the namespaces and tables that hold
them), which is also where a kernel would be put in. Torch functions are seen by a `TorchFunctionMode`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from forge_tui.models.load import LoadedModel
from forge_tui.models.places import Place, places_of
from forge_tui.models.tensors import has_tensor
from forge_tui.profiler.discover import Found
from forge_tui.profiler.opaque import has_fast_path, is_unseen, leaf_name, opaque_functions, opaque_reason, without_mode

NOT_REPLACEABLE = "only modules, the model's own functions and torch.nn.functional can be replaced"
_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


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
    reason: str = ""
    """Why it cannot be a target, whatever its calls are."""


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

    def __init__(self, loaded: LoadedModel, functions: Sequence[Found]) -> None:
        self._loaded = loaded
        self._torch: dict[Any, Site | None] = {}
        self._functional = _functional_names()
        self._thread = threading.get_ident()
        self._mode: _TorchCalls | None = None
        self._paused = False
        """Whether the mode is off the stack for a while."""
        self._in_place: list[tuple[Place, Callable[..., Any], Callable[..., Any]]] = []
        """What is wrapped now: places, each with the function and its wrapper."""
        self.modules = _module_sites(loaded)
        self.functions = _function_sites(functions, opaque_functions(loaded.own_modules))

    @contextlib.contextmanager
    def heard(self, listener: Listener) -> Iterator[None]:
        """Everything wrapped inside the block, and as it was behind it."""
        undo: list[Callable[[], None]] = []
        try:
            # one by one: what is wrapped already must be undone if the next fails
            undo.extend(_wrap_forward(site, self._wrapped(site, listener)) for site in self.modules)
            for site, places in self.functions:
                wrapper = self._wrapped(site, listener)
                undo.append(_wrap_function(site, places, wrapper))
                self._in_place += [(place, site.fn, wrapper) for place in places]
            with _TorchCalls(self, listener) as self._mode:
                yield
        finally:
            self._in_place = []
            for restore in reversed(undo):
                restore()

    @contextlib.contextmanager
    def _unwatched(self, site: Site) -> Iterator[None]:
        """The profile out of a site's sight: the mode, and around what is compiled the wrapped functions too."""
        assert self._mode is not None
        wrapped, paused = list(self._in_place) if site.reason else [], self._paused
        try:
            for place, original, _ in wrapped:
                place.holder[place.key] = original
            self._paused = True
            with without_mode(self._mode), _disable_current_modes() if is_unseen(site.reason) else _NOTHING:
                yield
        finally:
            self._paused = paused
            for place, _, wrapper in wrapped:
                place.holder[place.key] = wrapper

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """The mode on the stack again, below a site that is unwatched."""
        assert self._mode is not None
        self._paused = False
        try:
            with self._mode:
                yield
        finally:
            self._paused = True

    def _wrapped(self, site: Site, listener: Listener) -> Callable[..., Any]:
        fn, thread = site.fn, self._thread
        # what the listener itself asks of tensors is no call of the model
        quiet = torch._C.DisableTorchFunction  # noqa: SLF001
        apart = bool(site.reason) or has_fast_path(site.module)

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or threading.get_ident() != thread:
                return fn(*args, **kwargs)
            with quiet():
                token = listener.enter(site, args, kwargs)
            try:
                if apart or self._paused:
                    with self._unwatched(site) if apart else self._watched():
                        result = fn(*args, **kwargs)
                else:
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
        if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):  # noqa: SLF001
            return Site("torch", str(func), "", "", func, reason=NOT_REPLACEABLE)
        known = self._functional.get(func)
        if known:
            return Site("torch", f"F.{known}", "", f"torch.nn.functional:{known}", func)
        owner = getattr(func, "__objclass__", None)
        prefix = "Tensor" if owner is not None or (hasattr(Tensor, name) and not hasattr(torch, name)) else "torch"
        return Site("torch", f"{prefix}.{name.strip('_') or name}", "", "", func, reason=NOT_REPLACEABLE)


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
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
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


def _functional_names() -> dict[Any, str]:
    found: dict[Any, str] = {}
    for name, value in vars(functional).items():
        if not name.startswith("_") and callable(value) and not inspect.isclass(value):
            with contextlib.suppress(TypeError):
                found.setdefault(value, name)
    return found


def _module_sites(loaded: LoadedModel) -> list[Site]:
    found = []
    closed: list[str] = []
    for path, module in loaded.module.named_modules():
        if any(path.startswith(prefix) for prefix in closed):
            continue
        reason = opaque_reason(module)
        if reason:
            closed.append(f"{path}." if path else "")
        elif not path and not loaded.has_workload:
            continue  # the model itself is the root of the tree
        kind = type(module)
        qualname = "" if reason else f"{kind.__module__}:{kind.__qualname__}"
        name = leaf_name(module) if reason else kind.__name__
        found.append(Site("module", name, path, qualname, _call_of(module), module, reason))
    return found


def _call_of(module: nn.Module) -> Callable[..., Any]:
    """What a call of the module runs: compiled in place, or its forward."""
    return vars(module).get("_compiled_call_impl") or module.forward


def _function_sites(
    functions: Sequence[Found], opaque: Sequence[tuple[str, Callable[..., Any], str]]
) -> list[tuple[Site, list[Place]]]:
    """Functions of the model's packages, each with every dictionary entry that holds it."""
    closed = {id(fn) for _, fn, _ in opaque}
    sites = [
        Site("function", name, "", f"{fn.__module__}:{name}", fn) for name, fn in functions if id(fn) not in closed
    ]
    sites += [Site("function", name, "", "", fn, reason=reason) for name, fn, reason in opaque]
    places = places_of(site.fn for site in sites)
    return [(site, places[id(site.fn)]) for site in sites]


def _wrap_forward(site: Site, wrapped: Callable[..., Any]) -> Callable[[], None]:
    assert site.module is not None
    own = vars(site.module)
    name = "_compiled_call_impl" if own.get("_compiled_call_impl") else "forward"
    missing = object()
    before = own.get(name, missing)
    own[name] = wrapped

    def restore() -> None:
        if before is missing:
            own.pop(name, None)
        else:
            own[name] = before

    return restore


def _wrap_function(site: Site, places: list[Place], wrapped: Callable[..., Any]) -> Callable[[], None]:
    for place in places:
        place.holder[place.key] = wrapped

    def restore() -> None:
        for place in places:
            place.holder[place.key] = site.fn

    return restore
