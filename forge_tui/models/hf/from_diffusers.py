"""Models of diffusers: denoising transformers and U-Nets by their forward, autoencoders by their decoding."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forge_tui.core.errors import EnvironmentFault, UsageError
from forge_tui.core.records import ModelSpec
from forge_tui.models.hf import config as hf_config
from forge_tui.models.hf.making import HfModel, Maker, missing, parameters_of, required
from forge_tui.models.hf.text import run
from forge_tui.models.phases import Phase

#: a step in the middle of a schedule of 1000
_TIMESTEP = 500
_TEXT_TOKENS = {"SD3Transformer2DModel": 333, "FluxTransformer2DModel": 512, "PixArtTransformer2DModel": 300,
                "SanaTransformer2DModel": 300}  # fmt: skip
_WIDTHS = ("joint_attention_dim", "encoder_hid_dim", "caption_channels", "cross_attention_dim", "text_embed_dim")


class Decode:
    """A workload: the autoencoder's `decode` of latents."""

    def __init__(self, latents: Tensor, options: Mapping[str, Any]) -> None:
        self.latents = latents
        self._options = dict(options)

    def __call__(self, module: nn.Module) -> Any:
        """Decode; whatever the model raises passes through."""
        return module.decode(self.latents, **self._options)  # type: ignore[operator]


def build(
    library: Any, spec: ModelSpec, raw: dict[str, Any], device: torch.device, seed: int, *, with_inputs: bool
) -> HfModel:
    """The model; see `hf.build.build`."""
    assert spec.hf is not None
    if spec.hf.attention:
        raise UsageError("--attention is for models of transformers; this one is of diffusers.", "Leave it out.")
    name = raw["_class_name"]
    kind = getattr(library, name, None)
    if kind is None:
        what = f"diffusers {library.__version__} has no class {name}."
        raise EnvironmentFault(what, "pip install --upgrade diffusers")
    if not (inspect.isclass(kind) and issubclass(kind, nn.Module)):
        raise UsageError(f"{name} is no model: it has no forward.", "Name the folder of a transformer, U-Net or VAE.")
    if spec.hf.layers is not None:
        defaults = {n: p.default for n, p in inspect.signature(kind.__init__).parameters.items()
                    if p.default is not inspect.Parameter.empty}  # fmt: skip
        raw = hf_config.cut(raw, defaults | raw, spec.hf.layers)
    dtype = getattr(torch, spec.dtype) if spec.dtype else torch.float32
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        with torch.device(device):
            module: nn.Module = kind.from_config(raw)  # type: ignore[attr-defined]
    finally:
        torch.set_default_dtype(before)
    module.eval().requires_grad_(False)
    module.to(device)
    decodes = hasattr(module, "decode") and not _denoises(module)
    found = HfModel(module, entry="decode" if decodes else "forward")
    if with_inputs:
        maker = Maker(spec.hf, device, dtype, seed)
        inputs = _Inputs(module, maker)
        found.phases = (inputs.decoding() if decodes else inputs.denoising(),)
        maker.check_length(module)
    return found


def _denoises(module: nn.Module) -> bool:
    return any("timestep" in name for name in parameters_of(module.forward))


class _Inputs:
    """What is known of a module's inputs."""

    def __init__(self, module: nn.Module, maker: Maker) -> None:
        self.module = module
        self.maker = maker
        self.config: Any = module.config
        self.name = type(module).__name__
        self.parameters = parameters_of(module.forward)

    def value(self, *names: str) -> Any:
        """The first of these that the configuration has."""
        return next((v for n in names if (v := self.config.get(n)) is not None), None)

    def decoding(self) -> Phase:
        """Latents to samples."""
        decode: Any = self.module.decode
        parameters = parameters_of(decode)
        channels = self.value("latent_channels", "z_dim", "vq_embed_dim")
        size = self.value("sample_size") or 512
        size = size if isinstance(size, (list, tuple)) else (size, size)
        flat = len(size) == 2 and not any(isinstance(m, nn.Conv3d) for m in self.module.modules())
        if not isinstance(channels, int) or not flat:
            raise missing(self.module, f"latents ({next(iter(parameters))} of decode)")
        blocks = self.value("block_out_channels", "decoder_block_out_channels")
        shrunk = 2 ** (len(blocks) - 1 if isinstance(blocks, (list, tuple)) else 3)
        latents = self.maker.normal(self.maker.batch, channels, *(max(1, n // shrunk) for n in size))
        options = {"return_dict": False} if "return_dict" in parameters else {}
        return Phase(workload=Decode(latents, options))

    def denoising(self) -> Phase:
        """One step of a denoising model."""
        wanted = required(self.parameters)
        optional = ("encoder_hidden_states", "pooled_projections", "timestep", "img_ids", "txt_ids", "guidance",
                    "added_cond_kwargs", "class_labels")  # fmt: skip
        kwargs: dict[str, Any] = {}
        for name in [n for n in self.parameters if n in wanted or n in optional]:
            value = self.one(name)
            if value is not None:
                kwargs[name] = value
            elif name in wanted:
                raise missing(self.module, name)
        if "return_dict" in self.parameters:
            kwargs["return_dict"] = False
        run(self.module, kwargs)
        return Phase(kwargs=kwargs)

    def one(self, name: str) -> Any:
        """One input, or None where the configuration has none."""
        maker, batch = self.maker, self.maker.batch
        match name:
            case "sample" | "hidden_states":
                return self._latents()
            case "timestep":
                if self.name.startswith("UNet"):
                    return torch.tensor(_TIMESTEP, device=maker.device)
                return maker.filled(_TIMESTEP / 1000 if "img_ids" in self.parameters else _TIMESTEP, batch)
            case "encoder_hidden_states":
                width = self.value(*_WIDTHS)
                width = width[-1] if isinstance(width, (list, tuple)) else width
                return maker.normal(batch, self._tokens(), width) if isinstance(width, int) else None
            case "encoder_attention_mask":
                return torch.ones(batch, self._tokens(), dtype=torch.bool, device=maker.device)
            case "pooled_projections":
                width = self.value("pooled_projection_dim")
                return maker.normal(batch, width) if isinstance(width, int) else None
            case "img_ids":
                side = self._side()
                grid = torch.cartesian_prod(torch.arange(float(side)), torch.arange(float(side)))
                return torch.cat([torch.zeros(side * side, 1), grid], dim=1).to(maker.device, maker.dtype)
            case "txt_ids":
                return torch.zeros(self._tokens(), 3, device=maker.device, dtype=maker.dtype)
            case "guidance":
                return maker.filled(3.5, batch) if self.value("guidance_embeds") else None
            case "class_labels":
                classes = self.value("num_class_embeds", "num_embeds_ada_norm" if self.name.startswith("DiT") else "")
                return maker.whole(classes, batch) if isinstance(classes, int) else None
            case "added_cond_kwargs":
                return self._added()
        return None

    def _latents(self) -> Tensor | None:
        channels, size = self.value("in_channels"), self.value("sample_size")
        if not isinstance(channels, int):
            return None
        if "img_ids" in self.parameters:
            return self.maker.normal(self.maker.batch, self._side() ** 2, channels)
        if isinstance(self.value("patch_size"), (list, tuple)) or "3D" in self.name or size is None:
            return None
        dims = size if isinstance(size, (list, tuple)) else (size,) if "1D" in self.name else (size, size)
        return self.maker.normal(self.maker.batch, channels, *dims)

    def _side(self) -> int:
        """Patches of a side of the image: those of 1024 pixels."""
        return 64

    def _tokens(self) -> int:
        self.maker.has_text = True
        return self.maker.options.length or _TEXT_TOKENS.get(self.name, 512 if "txt_ids" in self.parameters else 77)

    def _added(self) -> dict[str, Any] | None:
        batch = self.maker.batch
        if self.value("addition_embed_type") == "text_time":
            width = self.value("projection_class_embeddings_input_dim") - 6 * self.value("addition_time_embed_dim")
            pixels = 8 * int(self.value("sample_size") or 128)
            ids = torch.tensor([pixels, pixels, 0, 0, pixels, pixels], dtype=self.maker.dtype, device=self.maker.device)
            return {"text_embeds": self.maker.normal(batch, width), "time_ids": ids.expand(batch, 6).contiguous()}
        if self.name.startswith("PixArt"):
            return {"resolution": None, "aspect_ratio": None} if not self.value("use_additional_conditions") else {
                "resolution": self.maker.filled(1024, batch, 2), "aspect_ratio": self.maker.filled(1, batch, 1),
            }  # fmt: skip
        return None
