"""Callables that are one leaf: what torch has compiled already, and torch's modules that look whether they are watched.

A `TorchFunctionMode`, and a wrapper around a function, are seen from inside: TorchDynamo guards on both and compiles
anew, and torch's transformer layers leave their fast path. So neither is there while such a callable runs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

SCRIPTED = "it is compiled by TorchScript"
COMPILED = "it is compiled by torch.compile"
HIGHER = "it is a higher-order operator of torch, whose inside is not seen"

#: functions that compile what they are given where they are called, and raise if something watches
_HIGHER = {
    "torch.nn.attention.flex_attention": "flex_attention", "torch._higher_order_ops.cond": "cond",
    "torch._higher_order_ops.while_loop": "while_loop", "torch._higher_order_ops.scan": "scan",
    "torch._higher_order_ops.associative_scan": "associative_scan",
}  # fmt: skip

#: they take another path where a torch function may be overridden
_FAST_PATHS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


def opaque_reason(value: Any) -> str:
    """Why nothing inside of a module or function can be seen or replaced; empty if it can."""
    if isinstance(value, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return SCRIPTED
    if isinstance(value, nn.Module):
        return COMPILED if _is_optimized(value) or value._compiled_call_impl is not None else ""  # noqa: SLF001
    held = getattr(value, "__dict__", {})
    return COMPILED if "_torchdynamo_orig_callable" in held and not held.get("_torchdynamo_disable") else ""


def _is_optimized(module: nn.Module) -> bool:
    # not imported here: it takes a second, and where it is not loaded nothing is compiled
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None or not isinstance(module, dynamo.OptimizedModule):
        return False
    return not isinstance(getattr(module, "dynamo_ctx", None), dynamo.DisableContext)


def leaf_name(module: nn.Module) -> str:
    """The class that was compiled."""
    if isinstance(module, torch.jit.ScriptModule):
        return str(module.original_name)
    inner = getattr(module, "_orig_mod", module)
    return type(inner).__name__


def has_fast_path(module: nn.Module | None) -> bool:
    """Whether the module takes another path while torch functions are overridden."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in _FAST_PATHS)


def is_unseen(reason: str) -> bool:
    """Whether something opaque for this reason hides its operations from the dispatcher's modes too."""
    return reason in (COMPILED, HIGHER)


def opaque_functions(modules: Iterable[str]) -> list[tuple[str, Callable[..., Any], str]]:
    """Name, function and reason of compiled functions that some Python modules hold, and of higher-order operators."""
    found: dict[int, tuple[str, Callable[..., Any], str]] = {}
    for home, name in _HIGHER.items():
        value = getattr(sys.modules.get(home), name, None)
        if isinstance(value, FunctionType):
            found[id(value)] = (name, value, HIGHER)
    for module in modules:
        for name, value in list(vars(sys.modules[module]).items()) if module in sys.modules else ():
            if isinstance(value, (FunctionType, torch.jit.ScriptFunction)) and (reason := opaque_reason(value)):
                found.setdefault(id(value), (name, value, reason))
    return list(found.values())


@contextlib.contextmanager
def without_mode(mode: TorchFunctionMode) -> Iterator[None]:
    """The mode off the stack inside the block, if it is the innermost one."""
    depth = torch._C._len_torch_function_stack()  # noqa: SLF001
    if not depth or torch._C._get_function_stack_at(depth - 1) is not mode:  # noqa: SLF001
        yield
        return
    torch._C._pop_torch_function_stack()  # noqa: SLF001
    try:
        yield
    finally:
        torch._C._push_on_torch_function_stack(mode)  # noqa: SLF001
