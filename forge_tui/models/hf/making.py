"""Seeded inputs for a Hugging Face model, by the names of its forward's parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from forge_tui.core.errors import ModelError, UsageError
from forge_tui.core.records import HfOptions
from forge_tui.models.phases import Phase

BUILD_HINT = "Write a .py file whose build() returns the module and its inputs, or name inputs with --inputs FILE."
DEFAULT_LENGTH = 1024


@dataclass(slots=True)
class HfModel:
    """A module made from its configuration, and its calls."""

    module: nn.Module
    phases: tuple[Phase, ...] = ()
    entry: str = "forward"
    """The method that a model call is."""
    modules: tuple[str, ...] = field(default=())
    """Python modules that the model is written in beside those that define its classes."""
    warnings: tuple[str, ...] = ()
    """What of the configuration the model does not have."""


class Maker:
    """Random tensors, the same on every device for one seed."""

    def __init__(self, options: HfOptions, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self.batch = options.batch
        self.options = options
        self.device = device
        self.dtype = dtype
        self.has_text = False
        """Whether an input's size is the length of a text."""
        self._generator = torch.Generator().manual_seed(seed)

    def check_length(self, module: nn.Module) -> None:
        """Refuse a length that no input has.

        Raises:
            UsageError: one was said.
        """
        if self.options.length is not None and not self.has_text:
            raise UsageError(f"{type(module).__name__} reads no text, so there is nothing of --length "
                             f"{self.options.length}.", "Leave it out.")  # fmt: skip

    def normal(self, *shape: int) -> Tensor:
        """Standard normal values in the model's dtype."""
        values = torch.randn(shape, generator=self._generator)
        return values.to(self.device, self.dtype)

    def ids(self, length: int, vocabulary: int, avoided: Collection[int] = ()) -> Tensor:
        """(batch, length) tokens from a vocabulary, without those that mean something special."""
        usable = [i for i in range(min(vocabulary, 512)) if i not in avoided] if vocabulary <= 512 else []
        tokens = torch.randint(vocabulary, (self.batch, length), generator=self._generator)
        if usable:
            tokens = torch.tensor(usable)[tokens % len(usable)]
        elif vocabulary > 512:
            special = torch.tensor(sorted(avoided), dtype=torch.int64)
            plain = next(i for i in range(vocabulary) if i not in avoided)
            tokens = torch.where(torch.isin(tokens, special), plain, tokens)
        return tokens.to(self.device)

    def whole(self, below: int, *shape: int) -> Tensor:
        """Integers from 0 to below `below`."""
        return torch.randint(max(1, below), shape, generator=self._generator).to(self.device)

    def filled(self, value: float, *shape: int) -> Tensor:
        """One float32 value."""
        return torch.full(shape, float(value), device=self.device)


def parameters_of(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Named parameters of a method, without `*args` and `**kwargs`."""
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in inspect.signature(call).parameters.items() if p.kind not in loose and name != "self"}


def required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Those without a default."""
    return [name for name, p in parameters.items() if p.default is inspect.Parameter.empty]


def missing(module: nn.Module, name: str) -> ModelError:
    """The sentence for an input that nothing is known of."""
    return ModelError(f"{type(module).__name__} takes {name}, which its configuration does not describe.", BUILD_HINT)


def described(kwargs: Mapping[str, Any]) -> str:
    """`input_ids (1, 1024), pixel_values (1, 3, 224, 224)`."""
    return ", ".join(f"{name} {tuple(value.shape)}" if isinstance(value, Tensor) else name
                     for name, value in kwargs.items())  # fmt: skip


def integers(config: Mapping[str, Any], endings: tuple[str, ...]) -> Iterator[int]:
    """Every integer of a configuration, nested ones included, whose name ends in one of these."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from integers(value, endings)
        elif isinstance(key, str) and key.endswith(endings):
            yield from (v for v in (value if isinstance(value, (list, tuple)) else [value]) if type(v) is int)
