"""The calls that a signature describes, as fast checks: one form per way of writing the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from forge_tui.core.records import Signature
from forge_tui.models.binding import canonical, is_plain
from forge_tui.models.trees import NotEligible, Tree

#: takes a value and the list of tensors to fill; whether the value is the one of the tree
Matcher = Callable[[Any, list[Any]], bool]


class _Slot:
    """Stands for the argument at one position or under one keyword while a form is worked out."""

    def __init__(self, at: int | str) -> None:
        self.at = at


class Form:
    """One way of writing the call: so many positional arguments and these keywords.

    `direct` are (argument, input index) of tensors that are arguments themselves; `others` (argument, matcher) of
    everything else. An argument is a position or a keyword.
    """

    __slots__ = ("direct", "direct_named", "others", "others_named")

    def __init__(self, pairs: Sequence[tuple[int | str, Tree]], device: torch.device) -> None:
        self.direct = tuple((at, node["in"]) for at, node in pairs if "in" in node and isinstance(at, int))
        self.direct_named = tuple((at, node["in"]) for at, node in pairs if "in" in node and isinstance(at, str))
        rest = [(at, matcher(node, device)) for at, node in pairs if "in" not in node]
        self.others = tuple((at, match) for at, match in rest if isinstance(at, int))
        self.others_named = tuple((at, match) for at, match in rest if isinstance(at, str))

    def take(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Any]) -> bool:
        """Put the call's tensors at their places in `tensors`; False if a constant or the structure differs."""
        for at, index in self.direct:
            tensors[index] = args[at]
        for at, match in self.others:
            if not match(args[at], tensors):
                return False
        if kwargs:
            for name, index in self.direct_named:
                tensors[index] = kwargs[name]
            for name, match in self.others_named:
                if not match(kwargs[name], tensors):
                    return False
        return True


def make_form(
    signature: Signature, original: Callable[..., Any], count: int, names: Sequence[str], device: torch.device
) -> Form | None:
    """The form of a call with `count` positional arguments and these keywords, or None if it never fits."""
    try:
        positional, named, _ = canonical(original, [_Slot(i) for i in range(count)], {n: _Slot(n) for n in names})
    except NotEligible:
        return None
    args, kwargs = signature.call["tuple"]
    if len(positional) != len(args["tuple"]) or set(named) != set(kwargs["dict"]):
        return None
    pairs: list[tuple[int | str, Tree]] = []
    values = [*zip(positional, args["tuple"], strict=True), *((named[name], kwargs["dict"][name]) for name in named)]
    for value, node in values:
        if isinstance(value, _Slot):
            pairs.append((value.at, node))
        elif not (is_plain(value) and "in" not in node and matcher(node, device)(value, [])):
            return None
    return Form(pairs, device)


def matcher(node: Tree, device: torch.device) -> Matcher:
    """A check of one value against its tree."""
    (kind, inner), = node.items()  # fmt: skip
    match kind:
        case "in":
            return _tensor(inner)
        case "value":
            return _constant(inner)
        case "float":
            return lambda value, _: type(value) is float and repr(value) == inner
        case "dtype":
            dtype = getattr(torch, inner)
            return lambda value, _: value is dtype
        case "device":
            return _device(device)
        case "size":
            size = torch.Size(inner)
            return lambda value, _: type(value) is torch.Size and value == size
        case "slice":
            parts = [matcher(part, device) for part in inner]
            return lambda value, tensors: isinstance(value, slice) and all(
                part(item, tensors) for part, item in zip(parts, (value.start, value.stop, value.step), strict=True)
            )
        case "tuple" | "list":
            return _sequence(tuple if kind == "tuple" else list, [matcher(item, device) for item in inner])
        case "dict":
            return _mapping({key: matcher(item, device) for key, item in inner.items()})
    raise ValueError(f"unknown leaf {kind!r}")


def _tensor(index: int) -> Matcher:
    def match(value: Any, tensors: list[Any]) -> bool:
        tensors[index] = value
        return isinstance(value, Tensor)

    return match


def _constant(constant: Any) -> Matcher:
    kind = type(constant)
    if kind is float and constant == 0.0:
        text = repr(constant)  # 0.0 equals -0.0, and a kernel may tell them apart
        return lambda value, _: type(value) is float and repr(value) == text
    return lambda value, _: value is constant or (type(value) is kind and value == constant)


def _device(device: torch.device) -> Matcher:
    def match(value: Any, _: list[Any]) -> bool:
        if not isinstance(value, torch.device) or value.type != device.type:
            return False
        index: int | None = value.index
        if index is None and device.type == "cuda":
            index = torch.cuda.current_device()
        return index == device.index or device.type == "cpu"

    return match


def _sequence(kind: Any, items: list[Matcher]) -> Matcher:
    def match(value: Any, tensors: list[Any]) -> bool:
        if type(value) is not kind or len(value) != len(items):
            return False
        return all(item(part, tensors) for item, part in zip(items, value, strict=True))

    return match


def _mapping(items: dict[str, Matcher]) -> Matcher:
    def match(value: Any, tensors: list[Any]) -> bool:
        return type(value) is dict and value.keys() == items.keys() and all(
            item(value[key], tensors) for key, item in items.items()
        )

    return match
