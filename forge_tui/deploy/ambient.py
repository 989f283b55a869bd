"""What surrounds a call and makes a kernel invisible or wrong: tracing, transforms, modes, autocast, forward AD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext


def _of(holder: Any, name: str, default: Any) -> Callable[[], Any]:
    """A function of torch's C part, or a stand-in where this version of torch lacks it."""
    found = getattr(holder, name, None)
    return found if callable(found) else lambda: default


_C = torch._C  # noqa: SLF001 - torch offers no public way to ask for these
_function_modes = _of(_C, "_len_torch_function_stack", 0)
_dispatch_modes = _of(_C, "_len_torch_dispatch_stack", 0)
_tracing = _of(_C, "_get_tracing_state", None)
_autocast = _of(_C, "_is_any_autocast_enabled", False)
_transform = _of(getattr(_C, "_functorch", None), "maybe_current_level", None)

#: True while torch.compile or torch.export traces; torch folds it to a constant there
is_compiling = torch.compiler.is_compiling


def obstacle() -> str:
    """Why no kernel may serve a call just now, or nothing."""
    if _dispatch_modes() or _transform() is not None or _tracing() is not None:
        return "tracing or transform"
    if _autocast():
        return "autocast"
    if _function_modes() and not _only_default_device():
        return "torch function mode"
    if forward_ad._current_level >= 0:  # noqa: SLF001 - the level has no public reader
        return "forward-mode AD"
    return ""


def _only_default_device() -> bool:
    """Whether every active mode is `torch.device(...)` as a context, which touches factory functions alone."""
    at = getattr(_C, "_get_function_stack_at", None)
    return at is not None and all(isinstance(at(i), DeviceContext) for i in range(_function_modes()))
