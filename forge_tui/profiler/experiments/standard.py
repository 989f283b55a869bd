"""Standard ways to set a model up that change no code of it: SDPA attention, channels-last memory, TF32."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from forge_tui.models.load import LoadedModel
from forge_tui.models.phases import Phase
from forge_tui.profiler.experiments.names import LABELS

_IMPLEMENTATION = "_attn_implementation_internal"
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_CONVOLUTIONS = {
    4: (nn.Conv2d, nn.ConvTranspose2d),
    5: (nn.Conv3d, nn.ConvTranspose3d),
}

Switch = Callable[[], AbstractContextManager[None]]


class Inapplicable(Exception):
    """The model takes no such setting; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Configured:
    """A model under some settings: its phases, and the switch that puts the settings in force for a while."""

    phases: tuple[Phase, ...]
    switch: Switch


def applicable(loaded: LoadedModel, allow_tf32: bool) -> tuple[str, ...]:
    """The settings that this model may take and does not have yet; TF32 only where it is allowed."""
    found = {
        "channels-last": bool(_convolution_dims(loaded.module)),
        "sdpa": any(_wants_sdpa(model) for model in _transformers(loaded.module)),
        "tf32": allow_tf32 and loaded.device.type == "cuda" and _has_float32(loaded)
        and _matmul_precision() == "highest",
    }  # fmt: skip
    return tuple(name for name in LABELS if found[name])


def configure(loaded: LoadedModel, settings: Sequence[str]) -> Configured:
    """Get the settings ready; nothing is changed outside of the switch.

    Raises:
        Inapplicable: the model does not take one of them.
    """
    makers: dict[str, Callable[[LoadedModel], Switch]] = {"channels-last": _channels_last, "sdpa": _sdpa, "tf32": _tf32}
    switches = [makers[name](loaded) for name in LABELS if name in settings]
    phases = loaded.phases
    if "channels-last" in settings:
        dims = _convolution_dims(loaded.module)
        phases = tuple(replace(p, args=_laid_out(p.args, dims), kwargs=_laid_out(p.kwargs, dims)) for p in phases)

    @contextlib.contextmanager
    def switch() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for one in switches:
                stack.enter_context(one())
            yield

    return Configured(phases, switch)


def _has_float32(loaded: LoadedModel) -> bool:
    leaves = pytree.tree_leaves([(p.args, p.kwargs) for p in loaded.phases])
    tensors = [*loaded.module.parameters(), *(t for t in leaves if isinstance(t, Tensor))]
    return any(t.dtype is torch.float32 for t in tensors)


def _matmul_precision() -> str:
    """The precision of float32 matrix products; `mixed` where a model set it by the newer switches of each back end."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "mixed"


def _tf32(loaded: LoadedModel) -> Switch:
    del loaded

    @contextlib.contextmanager
    def switch() -> Iterator[None]:
        precision, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        try:
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.allow_tf32 = True
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            torch.backends.cudnn.allow_tf32 = cudnn

    return switch


def _convolution_dims(module: nn.Module) -> tuple[int, ...]:
    return tuple(
        dim for dim, kinds in _CONVOLUTIONS.items() if any(isinstance(m, kinds) for m in module.modules())
    )


def _laid_out(tree: Any, dims: Sequence[int]) -> Any:
    def one(leaf: Any) -> Any:
        fits = isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim in dims
        return leaf.contiguous(memory_format=_FORMATS[leaf.ndim]) if fits else leaf

    return pytree.tree_map(one, tree)


def _channels_last(loaded: LoadedModel) -> Switch:
    """Parameters and buffers with the number of dimensions of a convolution's weight, as `module.to` changes them."""
    dims = _convolution_dims(loaded.module)
    if not dims:
        raise Inapplicable("it has no convolution")
    tensors = {id(t): t for t in [*loaded.module.parameters(), *loaded.module.buffers()] if t.ndim in dims}
    with torch.no_grad():
        pairs = [(t, t.data, t.data.contiguous(memory_format=_FORMATS[t.ndim])) for t in tensors.values()]

    @contextlib.contextmanager
    def switch() -> Iterator[None]:
        try:
            for tensor, _, after in pairs:
                tensor.data = after
            yield
        finally:
            for tensor, before, _ in pairs:
                tensor.data = before

    return switch


def _transformers(module: nn.Module) -> list[Any]:
    """The outermost modules of a transformers model that can change their attention implementation."""
    found: list[Any] = []
    inside: set[int] = set()
    for child in module.modules():
        if id(child) in inside or not callable(getattr(child, "set_attn_implementation", None)):
            continue
        if hasattr(getattr(child, "config", None), "_attn_implementation"):
            found.append(child)
            inside.update(map(id, child.modules()))
    return found


def _wants_sdpa(model: Any) -> bool:
    """Whether a model has another attention than SDPA, and it or a part of it knows SDPA."""
    known = any(getattr(part, "_supports_sdpa", False) for part in model.modules())
    return known and model.config._attn_implementation != "sdpa"  # noqa: SLF001 - it has no public reader


def _sdpa(loaded: LoadedModel) -> Switch:
    models = _transformers(loaded.module)
    holders = [vars(config) for config in _configurations(loaded.module)]
    before = _implementations(holders)
    try:
        for model in models:
            model.set_attn_implementation("sdpa")
        after = _implementations(holders)
    except Exception as error:
        raise Inapplicable(f"transformers does not set it: {' '.join(str(error).split())[:200]}") from error
    finally:
        _set_implementations(before)
    if [value for _, value in after] == [value for _, value in before]:
        raise Inapplicable("this model's attention cannot be changed")

    @contextlib.contextmanager
    def switch() -> Iterator[None]:
        try:
            _set_implementations(after)
            yield
        finally:
            _set_implementations(before)

    return switch


def _configurations(module: nn.Module) -> list[Any]:
    """The configuration objects of a transformers model, those inside others included."""
    found: dict[int, Any] = {}
    open_ = [m.config for m in module.modules() if hasattr(getattr(m, "config", None), "_attn_implementation")]
    while open_:
        config = open_.pop()
        if id(config) not in found:
            found[id(config)] = config
            open_ += [value for value in vars(config).values() if hasattr(value, "_attn_implementation")]
    return list(found.values())


def _implementations(holders: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], Any]]:
    return [(holder, holder[_IMPLEMENTATION]) for holder in holders if _IMPLEMENTATION in holder]


def _set_implementations(values: Sequence[tuple[dict[str, Any], Any]]) -> None:
    for holder, value in values:
        holder[_IMPLEMENTATION] = value
