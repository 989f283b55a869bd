"""What a module holds beside parameters and buffers: numbers that become constants, and stray tensors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

#: attributes of every module: bookkeeping of torch, and `training`, which is guarded apart
_OWN = frozenset(vars(nn.Module())) | {"training", "forward"}
_LONGEST = 8


def attributes(module: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """(module path, attribute path, value) of the plain attributes of a module and its children."""
    for prefix, child in module.named_modules():
        for name, value in sorted(vars(child).items()):
            if name not in _OWN:
                yield prefix, f"{prefix}.{name}" if prefix else name, value


def module_scalars(module: nn.Module | None) -> list[tuple[str, bool | int | float]]:
    """(path, value) of the numbers among the attributes; short tuples and lists of numbers item by item."""
    found: list[tuple[str, bool | int | float]] = []
    if module is None:
        return found
    for _, path, value in attributes(module):
        if type(value) in (bool, int, float):
            found.append((path, value))
        elif isinstance(value, (tuple, list)) and len(value) <= _LONGEST:
            found += [(f"{path}.{i}", item) for i, item in enumerate(value) if type(item) in (bool, int, float)]
    return [(path, value) for path, value in found
            if (math.isfinite(value) if isinstance(value, float) else -(2**63) <= value < 2**63)]  # fmt: skip


def read_scalar(module: nn.Module, path: str) -> Any:
    """The attribute that `module_scalars` gave this path."""
    value: Any = module
    for part in path.split("."):
        if isinstance(value, (list, tuple)) or (isinstance(value, nn.Module) and part.isdigit()):
            value = value[int(part)] if isinstance(value, (list, tuple)) else value.get_submodule(part)
        else:
            value = getattr(value, part)
    return value


def variant(module: nn.Module | None) -> str:
    """Equal for modules that differ in numbers and tensors alone, which a signature holds; empty for functions."""
    if module is None:
        return ""
    return hashlib.sha256(fingerprint(module, numbers=False).encode()).hexdigest()[:16]


def fingerprint(module: nn.Module, *, numbers: bool = True) -> str:
    """Equal for modules of the same classes whose attributes are the same, tensors' values aside.

    Without `numbers` those that `module_scalars` gives are left out.
    """
    given = set() if numbers else {path for path, _ in module_scalars(module)}
    parts = [f"{path}:{type(child).__module__}.{type(child).__qualname__}" for path, child in module.named_modules()]
    for _, path, value in attributes(module):
        items = value if isinstance(value, (tuple, list)) else (value,)
        if path in given or f"{path}.0" in given:
            items = [None if type(item) in (bool, int, float) else item for item in items]
            value = (type(value).__qualname__, items)
        if all(item is None or isinstance(item, (bool, int, float, str, torch.dtype)) for item in items):
            parts.append(f"{path}={value!r}")
        elif callable(value):
            parts.append(f"{path}={getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value))}")
        else:
            parts.append(f"{path}:{type(value).__qualname__}")
    return "\n".join(parts)


def extra_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """(path, tensor) of tensors held as plain attributes, which are neither parameters nor buffers."""
    return [(path, value) for _, path, value in attributes(module) if isinstance(value, Tensor)]


def module_tensors(
    module: nn.Module | None, closure: Mapping[str, Tensor] | None = None
) -> list[tuple[str, str, Tensor]]:
    """(source, path, tensor) of everything beside the arguments that a callable may read; tied tensors once."""
    if module is None:
        return [("closure", name, tensor) for name, tensor in sorted((closure or {}).items())]
    found: list[tuple[str, str, Tensor]] = [("param", name, p) for name, p in sorted(module.named_parameters())]
    found += [("buffer", name, b) for name, b in sorted(module.named_buffers())]
    seen = {id(t) for _, _, t in found}
    return found + [("closure", name, t) for name, t in extra_tensors(module) if id(t) not in seen]
