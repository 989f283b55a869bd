"""Models of one operator each, for recorded landscapes: sizes of published models on CUDA, tiny ones on the CPU."""

import torch
from torch import nn
from torch.nn import functional


class Softmax(nn.Module):
    """Attention scores to probabilities, as eager attention writes it."""

    def forward(self, scores):
        return functional.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32."""

    def __init__(self, hidden):
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(hidden))

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Chain(nn.Module):
    """A fused chain: gated activation, scale, residual."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(1.0 + 0.1 * torch.randn(width))

    def forward(self, gate, up, residual):
        return residual + self.scale * (functional.silu(gate) * up)


def one(module, *shapes):
    """A module and standard normal inputs of these shapes."""
    return module, tuple(torch.randn(shape) for shape in shapes), {}


def softmax(device="cpu"):
    """Gemma-like attention scores; on the CPU 256 rows."""
    shape = (1, 16, 2048, 2048) if device.startswith("cuda") else (1, 4, 64, 192)
    return one(nn.Sequential(Softmax()), shape)


def rmsnorm(device="cpu"):
    """The hidden states of a language model."""
    shape = (2048, 2560) if device.startswith("cuda") else (128, 256)
    return one(nn.Sequential(RMSNorm(shape[-1])), shape)


def groupnorm(device="cpu"):
    """A decoder block of an autoencoder."""
    shape = (1, 256, 256, 256) if device.startswith("cuda") else (1, 32, 16, 16)
    return one(nn.Sequential(nn.GroupNorm(shape[1] // 8, shape[1])), shape)


def batchnorm(device="cpu"):
    """ResNet's first stage, in evaluation."""
    shape = (32, 256, 56, 56) if device.startswith("cuda") else (2, 32, 16, 16)
    return one(nn.Sequential(nn.BatchNorm2d(shape[1])).eval(), shape)


def pooling(device="cpu"):
    """ResNet's stem."""
    shape = (32, 64, 112, 112) if device.startswith("cuda") else (2, 16, 32, 32)
    return one(nn.Sequential(nn.MaxPool2d(3, 2, 1)), shape)


class Outer(nn.Module):
    """Something around a module of several inputs."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *inputs):
        return self.inner(*inputs)


def chain(device="cpu"):
    """A gated feed-forward's element-wise part."""
    shape = (2048, 9728) if device.startswith("cuda") else (128, 512)
    return one(Outer(Chain(shape[-1])), shape, shape, shape)
