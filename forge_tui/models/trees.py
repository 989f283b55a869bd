"""The JSON trees of calls and results: leaves made, values rebuilt, outputs found.

Leaves beside those that `Signature` names: `{"float": "inf"}` (and `-inf`, `nan`, which JSON lacks),
`{"slice": [a, b, c]}`, and `{"size": [...]}` for a torch.Size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Any]
_INT64 = 1 << 63
#: values of one call or result, and containers inside one another: what has more is no call of a kernel
MAX_VALUES = 4096
MAX_DEPTH = 32


class NotEligible(Exception):
    """The call or result holds something that no kernel can take or give; the text is the reason."""


class CallMismatch(Exception):
    """The call is not the one that the signature describes; the text says where."""


def rebuild(tree: Tree, inputs: Sequence[Tensor], outputs: Sequence[Tensor], device: torch.device) -> Any:
    """A value from its tree."""
    (kind, value), = tree.items()  # fmt: skip
    match kind:
        case "in":
            return inputs[value]
        case "out":
            return outputs[value]
        case "value":
            return value
        case "tuple":
            return tuple(rebuild(item, inputs, outputs, device) for item in value)
        case "list":
            return [rebuild(item, inputs, outputs, device) for item in value]
        case "dict":
            return {key: rebuild(item, inputs, outputs, device) for key, item in value.items()}
        case "dtype":
            return getattr(torch, value)
        case "device":
            return device
        case "float":
            return float(value)
        case "slice":
            return slice(*(rebuild(item, inputs, outputs, device) for item in value))
        case "size":
            return torch.Size(value)
    raise ValueError(f"unknown leaf {kind!r}")


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` for `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


def is_constant(value: bool | float) -> bool:
    """Whether a number fits a constant of the header: finite, within 64 bits."""
    return math.isfinite(value) if isinstance(value, float) else -_INT64 <= value < _INT64


def leaves(value: Any, what: str) -> list[Any]:
    """The values inside of tuples, lists and dictionaries, in order.

    Raises:
        NotEligible: they are too many, or nested too deeply (a list may hold itself).
    """
    found: list[Any] = []
    stack = [(value, 0)]
    count = 0
    while stack:
        item, depth = stack.pop()
        if type(item) not in (tuple, list, dict):
            found.append(item)
            continue
        count += len(item)
        if count > MAX_VALUES:
            raise NotEligible(f"{what} holds more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise NotEligible(f"{what} is nested more than {MAX_DEPTH} deep")
        inner = list(item.values()) if type(item) is dict else item
        stack += [(part, depth + 1) for part in reversed(inner)]
    return found


def check_keys(value: dict[Any, Any], path: str) -> None:
    """Refuse dictionaries that JSON cannot hold."""
    if not all(type(key) is str for key in value):
        raise NotEligible(f"{path} is a dictionary with keys that are not strings")
    if not all(is_text(key) for key in value):
        raise NotEligible(f"{path} is a dictionary with a key that is no Unicode text")


def is_text(value: str) -> bool:
    """Whether a string is Unicode text: a lone surrogate, as in a file name that is not UTF-8, has no encoding."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain_leaf(value: Any, path: str) -> Tree:
    """A constant of the tree.

    Raises:
        NotEligible: the type cannot be described.
    """
    if type(value) is int and not is_constant(value):
        raise NotEligible(f"{path} is an integer of more than 64 bits")
    if type(value) is str and not is_text(value):
        raise NotEligible(f"{path} is a string that is no Unicode text")
    if value is None or type(value) in (bool, int, str):
        return {"value": value}
    if type(value) is float:
        return {"value": value} if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, torch.Size):
        return {"size": list(value)}
    if isinstance(value, slice):
        return {"slice": [plain_leaf(part, path) for part in (value.start, value.stop, value.step)]}
    kind = type(value)
    what = ""
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        what = ", a named tuple"
    elif dataclasses.is_dataclass(kind):
        what = ", a dataclass"
    elif isinstance(value, (tuple, list, dict)):
        what = f", a kind of {next(k.__name__ for k in (tuple, list, dict) if isinstance(value, k))}"
    raise NotEligible(f"{path} is of type {kind.__name__}{what}")


def collect_outputs(tree: Tree, value: Any, found: list[Tensor | None]) -> None:
    """Put the output tensors of a result at their places in `found`.

    Raises:
        CallMismatch: the result has another structure.
    """
    (kind, inner), = tree.items()  # fmt: skip
    if kind == "out":
        if not isinstance(value, Tensor):
            raise CallMismatch(f"out{inner} is a {type(value).__name__}, not a tensor")
        found[inner] = value
    elif kind in ("tuple", "list"):
        if not isinstance(value, (tuple, list)) or len(value) != len(inner):
            raise CallMismatch("the result has another structure")
        for item, part in zip(inner, value, strict=True):
            collect_outputs(item, part, found)
    elif kind == "dict":
        if not isinstance(value, dict) or set(value) != set(inner):
            raise CallMismatch("the result has another structure")
        for key, item in inner.items():
            collect_outputs(item, value[key], found)
