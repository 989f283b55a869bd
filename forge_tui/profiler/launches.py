"""Launches of Triton kernels from Python, which PyTorch's dispatcher does not see."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def hear_triton(launched: Callable[[Any], None]) -> Iterator[None]:
    """Call `launched` with the arguments of every Triton kernel, before its launch."""
    kernel = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
    run = getattr(kernel, "run", None)
    if kernel is None or run is None:
        yield
        return

    @functools.wraps(run)
    def heard(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - what is asked of tensors here is no call of the model
            launched((args, kwargs))
        return run(self, *args, **kwargs)

    kernel.run = heard
    try:
        yield
    finally:
        kernel.run = run
