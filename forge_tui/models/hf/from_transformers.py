"""Models of transformers: the class, its random weights, and its calls."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forge_tui.core.errors import EnvironmentFault, ModelError, UsageError
from forge_tui.core.records import ModelSpec
from forge_tui.core.words import count
from forge_tui.models.hf import config as hf_config
from forge_tui.models.hf.making import HfModel, Maker
from forge_tui.models.hf.text import phases_of

#: tried in this order where the configuration names no class
_MAPPINGS = (
    ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING", "AutoModelForSpeechSeq2Seq"),
    ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "AutoModelForSeq2SeqLM"),
    ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", "AutoModelForImageTextToText"),
    ("MODEL_FOR_MASKED_LM_MAPPING", "AutoModelForMaskedLM"),
    ("MODEL_FOR_CAUSAL_LM_MAPPING", "AutoModelForCausalLM"),
    ("MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING", "AutoModelForZeroShotImageClassification"),
    ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING", "AutoModelForImageClassification"),
    ("MODEL_MAPPING", "AutoModel"),
)
_UPGRADE = "pip install --upgrade transformers"
_UNQUANTIZED = (
    "The configuration's quantization is left out, since random weights have no scales: times are those of the plain "
    "dtype. Write a .py file whose build() loads the quantized model to profile that."
)


def build(
    library: Any, spec: ModelSpec, raw: dict[str, Any], device: torch.device, seed: int, *, with_inputs: bool
) -> HfModel:
    """The model; see `hf.build.build`."""
    assert spec.hf is not None
    given, raw = raw, _unquantized(raw)
    config_class = _config_class(library, spec, raw)
    config = config_class.from_dict(raw)
    if spec.hf.layers is not None:
        try:
            config = config_class.from_dict(hf_config.cut(raw, config.to_dict(), spec.hf.layers))
        except Exception as error:
            why = " ".join(str(error).split())
            raise ModelError(
                f"The configuration cannot be cut to {count(spec.hf.layers, 'layer')}: {why}.", "Leave out --layers."
            ) from error
    # Python files are looked up beside it
    config._name_or_path = str(Path(spec.path).parent)  # noqa: SLF001
    dtype = _dtype(spec, config)
    more: dict[str, Any] = {"attn_implementation": spec.hf.attention} if spec.hf.attention else {}
    with torch.device(device):
        module: nn.Module = _make(library, spec, config, raw, {"dtype": dtype, **more})
    module.eval().requires_grad_(False)
    module.to(device)
    found = HfModel(module, modules=_attention_modules(config), warnings=() if raw == given else (_UNQUANTIZED,))
    if with_inputs:
        maker = Maker(spec.hf, device, dtype, seed)
        try:
            found.phases = phases_of(library, module, maker)
        except ModelError as error:
            if spec.hf.layers is None:
                raise
            hint = f"Perhaps it needs more than {count(spec.hf.layers, 'layer')}. {error.hint}"
            raise ModelError(error.what, hint) from error
        maker.check_length(module)
    return found


def _config_class(library: Any, spec: ModelSpec, raw: Mapping[str, Any]) -> Any:
    assert spec.hf is not None
    model_type, references = raw["model_type"], raw.get("auto_map")
    known = model_type in library.CONFIG_MAPPING
    remote = isinstance(references, Mapping) and "AutoConfig" in references
    if remote and spec.hf.remote_code:
        folder = Path(spec.path).parent
        if Path(spec.path).name != hf_config.FILE:
            raise UsageError(f"{spec.path} needs Python files beside a {hf_config.FILE}.", "Name the folder.")
        return type(library.AutoConfig.from_pretrained(str(folder), trust_remote_code=True, local_files_only=True))
    if known:
        return library.CONFIG_MAPPING[model_type]
    if remote:
        raise UsageError(
            f"The model type {model_type!r} comes with Python files of its own, which are not run unasked.",
            "Read them, then say --trust-remote-code.",
        )
    raise EnvironmentFault(f"transformers {library.__version__} does not know the model type {model_type!r}.", _UPGRADE)


def _make(library: Any, spec: ModelSpec, config: Any, raw: Mapping[str, Any], options: dict[str, Any]) -> Any:
    assert spec.hf is not None
    references = raw.get("auto_map")
    if spec.hf.remote_code and isinstance(references, Mapping):
        names = [name for name in references if name.startswith("AutoModel")]
        if names:
            # the most useful one: a head over the bare model
            name = min(names, key=lambda n: (n == "AutoModel", "CausalLM" not in n, n))
            return getattr(library, name).from_config(config, trust_remote_code=True, **options)
    wanted = raw.get("architectures") or []
    if wanted:
        kind = getattr(library, str(wanted[0]), None)
        if kind is None:
            if isinstance(references, Mapping):
                raise UsageError(
                    f"The class {wanted[0]} comes with Python files of its own, which are not run unasked.",
                    "Read them, then say --trust-remote-code.",
                )
            raise EnvironmentFault(f"transformers {library.__version__} has no class {wanted[0]}.", _UPGRADE)
        return kind._from_config(config, **options)  # noqa: SLF001 - what every from_config calls
    mappings = importlib.import_module("transformers.models.auto.modeling_auto")
    for mapping, auto in _MAPPINGS:
        if type(config) in getattr(mappings, mapping, {}):
            return getattr(library, auto).from_config(config, trust_remote_code=False, **options)
    raise ModelError(
        f"The configuration names no class, and transformers has no model for {type(config).__name__}.",
        'Add "architectures": ["CLASS"] to it.',
    )


def _dtype(spec: ModelSpec, config: Any) -> torch.dtype:
    if spec.dtype:
        found: torch.dtype = getattr(torch, spec.dtype)
        return found
    for candidate in (config, config.get_text_config()):
        dtype = getattr(candidate, "dtype", None)
        dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
        if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
            return dtype
    return torch.float32


def _unquantized(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Random weights have no scales and no packed integers: the model in its plain dtype."""
    return {
        key: _unquantized(value) if isinstance(value, Mapping) else value
        for key, value in raw.items()
        if key != "quantization_config"
    }


def _attention_modules(config: Any) -> tuple[str, ...]:
    """The Python module of the attention function, which model classes take from a table."""
    table = getattr(importlib.import_module("transformers.modeling_utils"), "ALL_ATTENTION_FUNCTIONS", {})
    found = set()
    for part in (config, config.get_text_config()):
        name = str(getattr(part, "_attn_implementation", "") or "")
        function = table[name] if re.fullmatch(r"\w+", name) and name in table.keys() else None  # noqa: SIM118 - no `in`
        if function is not None and hasattr(function, "__module__"):
            found.add(function.__module__)
    return tuple(sorted(found))
