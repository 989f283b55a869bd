"""The decoder of an image autoencoder, as diffusion models have it, with seeded random weights.

GroupNorm, SiLU, 3 x 3 convolutions in residual blocks, one attention in the middle, nearest-neighbour upsampling.

On the CPU (float32): channels 128, 64, 64, latent 4 x 32 x 32, image 128 x 128 pixels.
On CUDA (bfloat16): channels 512, 512, 256, 128, latent 16 x 64 x 64, image 512 x 512 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of its input; `channels` from the latent to the image."""

    channels: tuple[int, ...]
    blocks: int
    groups: int
    latent_channels: int
    latent_pixels: int
    batch: int


CPU = Config(channels=(128, 64, 64), blocks=1, groups=32, latent_channels=4, latent_pixels=32, batch=1)
CUDA = Config(channels=(512, 512, 256, 128), blocks=3, groups=32, latent_channels=16, latent_pixels=64, batch=1)


class NormSilu(nn.Module):
    """GroupNorm and SiLU, the pair before every convolution."""

    def __init__(self, groups: int, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=1e-6)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(self.norm(x))


class ResidualBlock(nn.Module):
    """Two norm-activation-convolution steps beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, groups: int):
        super().__init__()
        self.norm1 = NormSilu(groups, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2 = NormSilu(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.conv2(self.norm2(self.conv1(self.norm1(x))))


class MiddleAttention(nn.Module):
    """Single-head attention over all pixels."""

    def __init__(self, channels: int, groups: int):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=1e-6)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        pixels = self.norm(x).view(batch, channels, height * width).transpose(1, 2)
        q, k, v = self.qkv(pixels).chunk(3, dim=-1)
        mixed = functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.out(mixed).transpose(1, 2).reshape(batch, channels, height, width)


class Upsample(nn.Module):
    """Nearest-neighbour upsampling by two, and a convolution."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest"))


class VaeDecoder(nn.Module):
    """Latents to images."""

    def __init__(self, config: Config):
        super().__init__()
        first = config.channels[0]
        self.conv_in = nn.Conv2d(config.latent_channels, first, 3, padding=1)
        self.middle = nn.Sequential(
            ResidualBlock(first, first, config.groups),
            MiddleAttention(first, config.groups),
            ResidualBlock(first, first, config.groups),
        )
        stages: list[nn.Module] = []
        channels = first
        for index, width in enumerate(config.channels):
            for _ in range(config.blocks):
                stages.append(ResidualBlock(channels, width, config.groups))
                channels = width
            if index + 1 < len(config.channels):
                stages.append(Upsample(channels))
        self.up = nn.Sequential(*stages)
        self.norm_out = NormSilu(config.groups, channels)
        self.conv_out = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, latents: Tensor) -> Tensor:
        return self.conv_out(self.norm_out(self.up(self.middle(self.conv_in(latents)))))


def build(
    device: str = "cpu", dtype: torch.dtype | None = None, config: Config | None = None
) -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Tensor]]:
    """The model with seeded weights and one latent."""
    on_cuda = device.startswith("cuda")
    config = config or (CUDA if on_cuda else CPU)
    dtype = dtype or (torch.bfloat16 if on_cuda else torch.float32)
    torch.manual_seed(0)
    model = VaeDecoder(config).eval()
    latents = torch.randn(config.batch, config.latent_channels, config.latent_pixels, config.latent_pixels)
    return model.to(device, dtype), (latents.to(device, dtype),), {}
