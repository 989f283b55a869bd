"""What a call changes without an operation of torch: containers, attributes, names of its file, random state of Python.

A kernel in the place of the callable would leave these as they are.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_DEEPEST = 8
_LONGEST = 4096
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Effect:
    """A change. One that is `wide` is seen outside of the callable's arguments, so callers make it as well."""

    reason: str
    wide: bool


class Before:
    """What a call could change, as it was before the call."""

    def __init__(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], module: nn.Module | None
    ) -> None:
        self._fn, self._args, self._kwargs, self._module = fn, args, kwargs, module
        self._arguments = [(held, _items(held)) for held in _containers((args, kwargs))]
        self._state = self._now()
        self._random = _random_state()

    def effect(self) -> Effect | None:
        """The first change that is found now, after the call."""
        if any(not _same_items(_items(held), items) for held, items in self._arguments):
            return Effect("it changes a list or dictionary among its arguments", wide=False)
        now = self._now()
        for name in self._state.keys() | now.keys():
            if not _same(self._state.get(name, _ABSENT), now.get(name, _ABSENT)):
                what = f"its attribute {name[1]}" if name[0] else f"{name[1]}, which outlives the call"
                return Effect(f"it changes {what}", wide=True)
        if _random_state() != self._random:
            return Effect("it draws random numbers", wide=True)
        return None

    def _now(self) -> dict[tuple[int, str], Any]:
        """Attributes of the module and its children, and names that the function reads; by holder (or 0) and name."""
        found: dict[tuple[int, str], Any] = {}
        if self._module is not None:
            for prefix, child in self._module.named_modules():
                for holder in (vars(child), child._parameters, child._buffers, child._modules):  # noqa: SLF001
                    for name, value in holder.items():
                        if name not in ("_parameters", "_buffers", "_modules"):
                            found[id(holder), f"{prefix}.{name}" if prefix else str(name)] = _state(value)
        fn = getattr(self._fn, "__func__", self._fn)
        if isinstance(fn, FunctionType):
            found |= {(0, name): _state(value) for name, value in _names_read(fn)}
        return found


def _names_read(fn: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            yield name, _ABSENT
    positional = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    defaults = dict(zip(reversed(positional), reversed(fn.__defaults__ or ()), strict=False))
    for name, value in (defaults | (fn.__kwdefaults__ or {})).items():
        yield f"the default of {name}", value
    for name in fn.__code__.co_names:
        if name in fn.__globals__:
            yield name, fn.__globals__[name]


def _state(value: Any) -> Any:
    """A value, and with a container or function what it holds now."""
    if type(value) is FunctionType:
        return value, _items(vars(value))
    return (value, _items(value)) if type(value) in (list, dict, set) else value


def _containers(value: Any, depth: int = 0) -> Iterator[Any]:
    """Lists and dictionaries inside of a call's arguments."""
    if depth > _DEEPEST or type(value) not in (list, tuple, dict):
        return
    if type(value) is not tuple:
        yield value
    for item in list(value.values() if type(value) is dict else value)[:_LONGEST]:
        yield from _containers(item, depth + 1)


def _items(held: Any) -> tuple[Any, ...]:
    if type(held) is dict:
        return (len(held), *(part for item in list(held.items())[:_LONGEST] for part in item))
    if type(held) is set:
        return (len(held), frozenset(map(id, list(held)[:_LONGEST])))
    return (len(held), *held[:_LONGEST])


def _same_items(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _same(one: Any, other: Any) -> bool:
    """The same object, or an equal constant; no code of the values' own classes runs."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) in (tuple, frozenset):
        return _same_items(one, other) if type(one) is tuple else bool(one == other)
    # NaN is the same as itself here
    return isinstance(one, _PLAIN) and type(one) in _PLAIN and (bool(one == other) or (one != one and other != other))


def _random_state() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    state: tuple[Any, ...] = (random.getstate(),)
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state += (kind, keys.tobytes(), *rest)
    return state
