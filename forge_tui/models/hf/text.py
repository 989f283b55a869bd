"""The calls of a model of transformers: prefill and decode, encoders, encoder and decoder, images, sound."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from forge_tui.core.errors import ModelError, UsageError
from forge_tui.models.faults import is_out_of_memory
from forge_tui.models.hf.cache import CachedStep, Snapshot
from forge_tui.models.hf.making import (
    BUILD_HINT,
    DEFAULT_LENGTH,
    Maker,
    described,
    integers,
    missing,
    parameters_of,
    required,
)  # fmt: skip
from forge_tui.models.phases import Phase

#: decode steps that count as one model call beside one prefill
DECODE_WEIGHT = 128.0
_POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "max_target_positions")
_SPECIAL = ("_token_id", "_token_index", "_token_ids")
_NOT_TEXT = re.compile(r"vision|visual|image|patch|audio|relative|rel_")


def phases_of(library: Any, module: nn.Module, maker: Maker) -> tuple[Phase, ...]:
    """The calls of a model: two phases for one that generates text with a cache, else one without a name.

    Raises:
        ModelError: an input is not known, or the model does not run with those that were made.
        UsageError: the text is longer than the model has positions.
    """
    inputs = _Inputs(module, maker)
    cached = "use_cache" in inputs.parameters
    if cached and "decoder_input_ids" in inputs.parameters:
        return _encoder_decoder(library, inputs)
    if cached and "input_ids" in inputs.parameters:
        found = _decoder_only(inputs)
        if found:
            return found
    kwargs = inputs.all()
    if set(kwargs) != {"pixel_values"}:
        run(module, kwargs)
    return (Phase(kwargs=kwargs),)


def run(module: nn.Module, kwargs: dict[str, Any]) -> Any:
    """The result of a call, or the sentence that these inputs do not fit."""
    try:
        with torch.no_grad():
            return module(**kwargs)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".")
        raise ModelError(
            f"{type(module).__name__} does not run with the inputs that were made for it ({described(kwargs)}): {why}.",
            BUILD_HINT,
        ) from error


class _Inputs:
    """What is known of a module's inputs."""

    def __init__(self, module: nn.Module, maker: Maker) -> None:
        self.module = module
        self.maker = maker
        config: Any = module.config
        self.config = config
        self.parameters = parameters_of(module.forward)
        self._special = frozenset(integers(config.to_dict(), _SPECIAL))

    def text(self, length: int) -> Tensor:
        """Tokens."""
        table = None
        with contextlib.suppress(NotImplementedError, AttributeError):  # models of two towers have no one table
            table = getattr(self.module.get_input_embeddings(), "num_embeddings", None)  # type: ignore[operator]
        size = getattr(self.config.get_text_config(), "vocab_size", None)
        sizes = [n for n in (table, size) if isinstance(n, int) and n > 0]
        if not sizes:
            raise missing(self.module, "input_ids")
        return self.maker.ids(length, min(sizes), self._special)

    def length(self, spare: int, skipped: re.Pattern[str] = _NOT_TEXT, config: Any = None) -> int:
        """Tokens of a text, with so many positions left for more."""
        config = config or self.config.get_text_config()
        self.maker.has_text = True
        said = [n for name in _POSITIONS if type(n := getattr(config, name, None)) is int and n > 0]
        if hasattr(config, "relative_attention_num_buckets"):
            said = []
        tables = [n - spare for n in _position_tables(self.module, skipped, min(said, default=None))]
        wanted = self.maker.options.length
        if wanted is None:
            return max(1, min([DEFAULT_LENGTH, *tables, *(n - spare for n in said)]))
        if tables and wanted > min(tables):
            why = ", of which decoding takes one" if spare else ""
            raise UsageError(
                f"--length {wanted} is more than the model's {min(tables) + spare} positions{why}.",
                f"Give at most {max(1, min(tables))}.",
            )
        return wanted

    def cached(self, kwargs: dict[str, Any]) -> tuple[str, Any, Any]:
        """Name of the cache, the cache that a call left, and the call's result; None for no cache.

        The name (`past_key_values`, `cache_params`, `cache` since 5.24) is whatever the call gives back as an object
        and takes as an argument.
        """
        out = run(self.module, kwargs)
        for name, cache in out.items() if isinstance(out, Mapping) else ():
            if name in self.parameters and not isinstance(cache, (Tensor, tuple, list, NoneType)):
                return name, cache, out
        return "", None, out

    def having(self, **wanted: Any) -> dict[str, Any]:
        """Those of the arguments that the forward takes."""
        return {name: value for name, value in wanted.items() if name in self.parameters}

    def all(self) -> dict[str, Any]:
        """Every input that one call needs."""
        main = getattr(self.module, "main_input_name", "input_ids")
        names = dict.fromkeys([main, *required(self.parameters)])
        if {"input_ids", "pixel_values"} <= set(self.parameters) and hasattr(self.config, "vision_config"):
            names |= {"input_ids": None, "pixel_values": None}  # of both towers
        return {name: self.one(name) for name in names}

    def one(self, name: str) -> Tensor:
        """One input by its name."""
        config, maker = self.config, self.maker
        vision = getattr(config, "vision_config", None) or config
        match name:
            case "input_ids" | "decoder_input_ids":
                return self.text(self.length(0))
            case "pixel_values":
                frames = getattr(vision, "num_frames", None)
                shape = (int(getattr(vision, "num_channels", None) or 3), *_image(vision))
                return maker.normal(maker.batch, *([frames] if isinstance(frames, int) else []), *shape)
            case "input_features":
                bins = getattr(config, "num_mel_bins", None) or getattr(config, "input_feat_per_channel", None)
                if isinstance(bins, int):
                    frames = 2 * int(getattr(config, "max_source_positions", None) or 512)
                    sizes = (bins, frames) if hasattr(config, "num_mel_bins") else (frames, bins)
                    return maker.normal(maker.batch, *sizes)
            case "input_values":
                bins, frames = getattr(config, "num_mel_bins", None), getattr(config, "max_length", None)
                if isinstance(bins, int) and isinstance(frames, int):
                    return maker.normal(maker.batch, frames, bins)
                return maker.normal(maker.batch, 16000)
        raise missing(self.module, name)


def _decoder_only(inputs: _Inputs) -> tuple[Phase, ...]:
    length = inputs.length(1)
    last = inputs.having(logits_to_keep=1)
    prefill = {"input_ids": inputs.text(length), "use_cache": True, **last}
    name, cache, _ = inputs.cached(prefill)
    if cache is None:
        return ()
    step = {"input_ids": inputs.text(1), "use_cache": True, **last}
    return (Phase("prefill", kwargs=prefill), Phase("decode", workload=_step(inputs, name, cache, step),
                                                    weight=DECODE_WEIGHT))  # fmt: skip


def _encoder_decoder(library: Any, inputs: _Inputs) -> tuple[Phase, ...]:
    """The encoder with the first token of the decoder, then one token after `length` others."""
    main = getattr(inputs.module, "main_input_name", "input_ids")
    decoder = inputs.config.get_text_config(decoder=True)
    length = inputs.length(1, re.compile(rf"{_NOT_TEXT.pattern}|(^|\.)encoder\."), decoder)
    source = inputs.one(main)
    prefill = {main: source, "decoder_input_ids": inputs.text(1), "use_cache": True}
    name, cache, out = inputs.cached({**prefill, "decoder_input_ids": inputs.text(length)})
    if cache is None:
        run(inputs.module, prefill := {main: source, "decoder_input_ids": inputs.text(1)})
        return (Phase(kwargs=prefill),)
    outputs = library.modeling_outputs.BaseModelOutput(last_hidden_state=out.encoder_last_hidden_state)
    step = {"encoder_outputs": outputs, "decoder_input_ids": inputs.text(1), "use_cache": True}
    return (Phase("prefill", kwargs=prefill), Phase("decode", workload=_step(inputs, name, cache, step),
                                                    weight=DECODE_WEIGHT))  # fmt: skip


def _step(inputs: _Inputs, name: str, cache: Any, kwargs: dict[str, Any]) -> CachedStep:
    snapshot = Snapshot(cache)
    snapshot.learn(lambda: run(inputs.module, {**kwargs, name: cache}))
    return CachedStep(snapshot, name, kwargs)


def _image(config: Any) -> tuple[int, int]:
    size = getattr(config, "image_size", None)
    if isinstance(size, dict):
        size = (size.get("height"), size.get("width"))
    if isinstance(size, (list, tuple)) and len(size) == 2 and all(isinstance(n, int) for n in size):
        return size[0], size[1]
    return (size, size) if isinstance(size, int) and size > 0 else (224, 224)


def _position_tables(module: nn.Module, skipped: re.Pattern[str], said: int | None) -> Iterator[int]:
    """Positions of every table of learned positions."""
    for name, table in module.named_modules():
        last = name.rpartition(".")[2]
        if not isinstance(table, nn.Embedding) or not re.search(r"pos|wpe", last) or skipped.search(name):
            continue
        size = table.num_embeddings
        if table.padding_idx is not None:
            size -= table.padding_idx + 1
        # some tables have a few rows before the first position
        yield said if said is not None and said <= size <= said + 2 else size
