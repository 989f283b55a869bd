"""Whether a value holds tensors, however it is nested; no code of the value's own class runs."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

_DEEPEST = 6


def has_tensor(value: Any, depth: int = 0) -> bool:
    """Whether a value is a tensor, or a sequence, dictionary or dataclass with one."""
    kind = type(value)  # not isinstance(): it asks the value for its __class__ as well, which may raise
    if issubclass(kind, Tensor):
        return True
    if depth > _DEEPEST:
        return False
    if issubclass(kind, tuple):
        return any(has_tensor(item, depth + 1) for item in tuple.__iter__(value))
    if issubclass(kind, list):
        return any(has_tensor(item, depth + 1) for item in list.__iter__(value))
    if issubclass(kind, dict):
        return any(has_tensor(item, depth + 1) for item in list(dict.values(value)))
    if dataclasses.is_dataclass(kind):
        return any(has_tensor(_field(value, field.name), depth + 1) for field in dataclasses.fields(kind))
    return False


def _field(value: Any, name: str) -> Any:
    """A field as it is stored: attribute access may be the class's own, and raise."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None
