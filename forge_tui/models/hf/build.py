"""A model from a Hugging Face configuration: random weights on the device, in its dtype, with calls of its own."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import ModelSpec
from forge_tui.models.faults import explain
from forge_tui.models.hf import config as hf_config
from forge_tui.models.hf.making import HfModel

_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_CONSTANTS = {"HF_HUB_OFFLINE": True, "HF_HUB_DISABLE_IMPLICIT_TOKEN": True}


def build(spec: ModelSpec, device: torch.device, seed: int, *, with_inputs: bool) -> HfModel:
    """The model of a spec; without phases where its inputs come from elsewhere.

    No weights are read, no network and no token is used, and no Python file of the folder runs unless the spec lets it.

    Raises:
        ModelError: the configuration does not make a model, or no inputs are known for it.
        UsageError: the options do not fit it.
        EnvironmentFault: transformers or diffusers is not installed, or does not know the model.
    """
    raw = hf_config.read(Path(spec.path))
    name = hf_config.library_of(raw)
    with offline():
        library = _library(name)
        try:
            if name == "diffusers":
                from forge_tui.models.hf import from_diffusers

                return from_diffusers.build(library, spec, raw, device, seed, with_inputs=with_inputs)
            from forge_tui.models.hf import from_transformers

            return from_transformers.build(library, spec, raw, device, seed, with_inputs=with_inputs)
        except Exception as error:
            raise explain(error, spec, f"Building the model of {spec.path} with {name} {library.__version__} failed") \
                from error  # fmt: skip


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Without the hub: what is not on this machine is missing, and no stored token is read."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    constants: Any = None
    kept: dict[str, Any] = {}
    try:
        with contextlib.suppress(ImportError):
            constants = importlib.import_module("huggingface_hub.constants")
            # read once, at import, which may have been long ago
            kept = {name: getattr(constants, name) for name in _CONSTANTS if hasattr(constants, name)}
            for name in kept:
                setattr(constants, name, _CONSTANTS[name])
        yield
    finally:
        for name, value in kept.items():
            setattr(constants, name, value)
        for name, text in before.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != name:
            raise EnvironmentFault(f"{name} cannot be imported: {error}.", "pip install 'forge-tui[hf]'") from error
        raise EnvironmentFault(
            f"This model needs {name}, which is not installed.", "pip install 'forge-tui[hf]'"
        ) from error
