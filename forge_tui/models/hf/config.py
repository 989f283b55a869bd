"""A Hugging Face configuration as plain JSON: whose it is, and fewer layers of it. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from forge_tui.core.errors import UsageError

Library = Literal["transformers", "diffusers"]

FILE = "config.json"
PIPELINE = "model_index.json"
#: number of equal layers one after another, by its name in a configuration
STACKS = frozenset({
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_decoder_layers", "num_encoder_layers",
    "encoder_layers", "decoder_layers", "num_single_layers", "num_dit_layers", "depth", "depths",
})  # fmt: skip
#: of the layers, the last so many share their keys and values
_SHARED = "num_kv_shared_layers"
_INDICES = ("_layers", "_indexes", "_indices", "_layer_ids")


def read(path: Path) -> dict[str, Any]:
    """The configuration in a file.

    Raises:
        UsageError: it cannot be read, is no JSON object, or does not say what model it is.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"The configuration {path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The configuration {path} is not JSON: {error}.") from error
    if not isinstance(found, dict) or not any(_is_name(found.get(k)) for k in ("model_type", "_class_name")):
        raise UsageError(
            f"The configuration {path} does not say what model it is.",
            "transformers' configurations have a model_type, those of diffusers a _class_name.",
        )
    if path.name == PIPELINE or str(found.get("_class_name", "")).endswith("Pipeline"):
        raise UsageError(f"{path} describes a pipeline of several models.", "Name the folder of one of them.")
    for key, value in _stacks(found).items():
        if min(value if isinstance(value, list) else [value]) < 0:
            raise UsageError(f"The configuration {path} says {key}: {value}.", "A number of layers is at least 0.")
    return found


def library_of(config: Mapping[str, Any]) -> Library:
    """The package that a configuration is for."""
    return "diffusers" if _is_name(config.get("_class_name")) else "transformers"


def locate(folder: Path, text: str) -> Path:
    """The configuration in a folder.

    Raises:
        UsageError: there is none; a pipeline's parts are named.
    """
    if (folder / FILE).is_file():
        return folder / FILE
    parts = sorted(p.parent.name for p in folder.glob(f"*/{FILE}"))
    if (folder / PIPELINE).is_file() and parts:
        names = ", ".join(f"{text}/{part}" for part in parts)
        raise UsageError(f"{folder} is a pipeline of several models.", f"Name one of them: {names}.")
    hint = f"Did you mean {' or '.join(f'{text}/{p}' for p in parts[:6])}?" if parts else "Name one that has it."
    raise UsageError(f"The folder {folder} has no {FILE}.", hint)


def cut(config: Mapping[str, Any], complete: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The configuration with at most so many layers in each stack, nested configurations included.

    `complete` is the same with the defaults that the file leaves out. Lists and dictionaries with one entry a layer
    are cut as well, and lists of layers' numbers.
    """
    found = dict(config)
    for key, inner in complete.items():
        if isinstance(inner, Mapping):
            given = config.get(key)
            given = given if isinstance(given, Mapping) else {}
            shorter = cut(given, inner, layers)
            if shorter != dict(given):
                kept = {"model_type": inner["model_type"]} if "model_type" in inner else {}
                found[key] = kept | shorter
    stacks = _stacks(complete)
    counts = {n for n in stacks.values() if isinstance(n, int) and n > layers}
    for key, value in (stacks | _stacks(config)).items():
        less = [min(n, layers) for n in value] if isinstance(value, list) else min(value, layers)
        if less != value:
            found[key] = less
    if counts:
        found |= {k: _cut_value(k, v, layers, counts) for k, v in found.items() if k not in STACKS}
    shared = complete.get(_SHARED)
    if isinstance(shared, int) and shared and len(counts) == 1:
        found[_SHARED] = shared * layers // max(counts)
    return found


def _cut_value(key: str, value: Any, layers: int, counts: set[int]) -> Any:
    if isinstance(value, (list, tuple)):
        if key.endswith(_INDICES) and value and all(type(v) is int for v in value) and len(set(value)) == len(value):
            return [v for v in value if v < layers]
        # a short list may be a size that has as many numbers as there are layers
        return list(value[:layers]) if len(value) in counts and (len(value) > 3 or "layer" in key) else value
    if isinstance(value, Mapping) and value and "layer" in key and all(str(k).isdecimal() for k in value):
        return {k: v for k, v in value.items() if int(k) < layers}
    return value


def _stacks(config: Mapping[str, Any]) -> dict[str, int | list[int]]:
    found: dict[str, int | list[int]] = {}
    for key in STACKS.intersection(config):
        value = config[key]
        if type(value) is int:
            found[key] = value
        elif isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
            found[key] = list(value)
    return found


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
