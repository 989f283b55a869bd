"""The cache of a decode step, put back before every call, so that each call reads the same tokens.

A step writes into its cache in two ways. It binds longer tensors to attributes: binding the old ones again costs
nothing on the device. And it writes into tensors (states of convolutions and recurrences, static caches): those are
copied back, which is part of the step's time, as the states' update is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from forge_tui.core.errors import ModelError

#: of tensors that stay in place, so many bytes are compared; beyond, their version counters are believed
_COMPARED_BYTES = 1 << 30
_PLAIN = (str, bytes, int, float, bool, type(None), torch.dtype, torch.device)


class Snapshot:
    """The state of a cache at one moment."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self._containers = list(_containers(cache))
        self._copies = [container.copy() for container in self._containers]
        self._written: list[Tensor] = []
        self._contents: list[Tensor] = []

    def learn(self, step: Callable[[], Any]) -> None:
        """Run one step, find the tensors that it writes into, and put the cache back.

        Raises:
            ModelError: too much of it is written in place.
        """
        tensors = self._tensors()
        versions = [t._version for t in tensors.values()]  # noqa: SLF001 - torch's own counter of writes
        kept: dict[int, Tensor] = {}
        left = _COMPARED_BYTES
        for key, tensor in sorted(tensors.items(), key=lambda item: item[1].nbytes):
            left -= tensor.nbytes
            if left < 0:
                break
            kept[key] = tensor.clone()
        step()
        for (key, tensor), version in zip(tensors.items(), versions, strict=True):
            before = kept.get(key)
            if before is None:
                if tensor._version != version:  # noqa: SLF001
                    raise ModelError(
                        f"A decode step writes into {tensor.nbytes >> 20} MiB of its cache, of which no copy is kept.",
                        "Use a smaller --batch or --length.",
                    )
            elif tensor._version != version or not _same(tensor, before):  # noqa: SLF001
                self._written.append(tensor)
                self._contents.append(before)
        self.restore()

    def restore(self) -> None:
        """Make the cache what it was."""
        for container, copy in zip(self._containers, self._copies, strict=True):
            if isinstance(container, list):
                container[:] = copy
            else:
                container.clear()
                container.update(copy)
        if self._written:
            torch._foreach_copy_(self._written, self._contents)

    def _tensors(self) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        for container in self._containers:
            for value in container if isinstance(container, list) else container.values():
                for item in value if isinstance(value, tuple) else (value,):
                    if isinstance(item, Tensor):
                        found[id(item)] = item
        return found


class CachedStep:
    """A workload: one call of the module with its cache as it was at first."""

    def __init__(self, snapshot: Snapshot, name: str, kwargs: dict[str, Any]) -> None:
        self._snapshot = snapshot
        self._name = name
        self._kwargs = kwargs

    def __call__(self, module: nn.Module) -> Any:
        """Put the cache back and make the call; whatever the model raises passes through."""
        self._snapshot.restore()
        return module(**self._kwargs, **{self._name: self._snapshot.cache})


def _containers(root: Any) -> Iterator[dict[Any, Any] | list[Any]]:
    """Every dictionary and list that the state of a cache is in: attributes of objects, and what they hold."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        value = stack.pop()
        if id(value) in seen or isinstance(value, (*_PLAIN, Tensor, nn.Module, type)) or callable(value):
            continue
        seen.add(id(value))
        if isinstance(value, tuple):
            stack.extend(value)
        elif isinstance(value, list):
            yield value
            stack.extend(value)
        elif isinstance(value, dict):
            yield value
            stack.extend(value.values())
        if hasattr(value, "__dict__"):
            stack.append(vars(value))


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a, b)) or bool(((a == b) | ((a != a) & (b != b))).all())
