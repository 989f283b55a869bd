"""A residual convolutional network in eval mode, with seeded random weights and batch statistics.

On the CPU (float32): ResNet-18 shape (basic blocks 2, 2, 2, 2; width 64), batch 4 of 160 x 160 pixels.
On CUDA (bfloat16): ResNet-50 shape (bottlenecks 3, 4, 6, 3; width 64), batch 32 of 224 x 224 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of its input."""

    blocks: tuple[int, ...]
    bottleneck: bool
    width: int
    classes: int
    batch: int
    pixels: int


CPU = Config(blocks=(2, 2, 2, 2), bottleneck=False, width=64, classes=1000, batch=4, pixels=160)
CUDA = Config(blocks=(3, 4, 6, 3), bottleneck=True, width=64, classes=1000, batch=32, pixels=224)


class ConvNorm(nn.Module):
    """Convolution and batch norm, with ReLU unless `activate` is false."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, activate: bool = True):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.activate = activate

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return functional.relu(x) if self.activate else x


def add_relu(x: Tensor, shortcut: Tensor) -> Tensor:
    """The end of a residual block."""
    return functional.relu(x + shortcut)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.first = ConvNorm(inputs, width, 3, stride)
        self.second = ConvNorm(width, width, 3, activate=False)
        self.shortcut = shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return add_relu(self.second(self.first(x)), self.shortcut(x))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.reduce = ConvNorm(inputs, width, 1)
        self.middle = ConvNorm(width, width, 3, stride)
        self.expand = ConvNorm(width, width * self.expansion, 1, activate=False)
        self.shortcut = shortcut(inputs, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        return add_relu(self.expand(self.middle(self.reduce(x))), self.shortcut(x))


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Identity where shapes agree, else a 1 x 1 convolution."""
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return ConvNorm(inputs, outputs, 1, stride, activate=False)


class ResNet(nn.Module):
    """Images to class scores."""

    def __init__(self, config: Config):
        super().__init__()
        block = Bottleneck if config.bottleneck else BasicBlock
        self.stem = ConvNorm(3, config.width, 7, stride=2)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        channels, stages = config.width, []
        for index, count in enumerate(config.blocks):
            width = config.width * 2**index
            for position in range(count):
                stages.append(block(channels, width, 2 if index and position == 0 else 1))
                channels = width * block.expansion
        self.blocks = nn.Sequential(*stages)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, config.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.pool(self.stem(images)))
        return self.head(self.average(x).flatten(1))


def settle(model: nn.Module) -> None:
    """Give the batch norms statistics and weights that are neither zero nor one."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, std=0.1)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)


def build(
    device: str = "cpu", dtype: torch.dtype | None = None, config: Config | None = None
) -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Tensor]]:
    """The model with seeded weights and one batch of images."""
    on_cuda = device.startswith("cuda")
    config = config or (CUDA if on_cuda else CPU)
    dtype = dtype or (torch.bfloat16 if on_cuda else torch.float32)
    torch.manual_seed(0)
    model = ResNet(config).eval()
    settle(model)
    images = torch.randn(config.batch, 3, config.pixels, config.pixels)
    return model.to(device, dtype), (images.to(device, dtype),), {}
