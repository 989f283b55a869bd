"""Fourteen operators of published models in one model, for sessions in which somebody writes the kernels.

The first seven are of kinds that the templates know, the others are not. Sizes are those of the published models on
CUDA and tiny on the CPU; each operator has inputs of its own, so that no kernel can profit from its neighbour's.
"""

import torch
from torch import nn
from torch.nn import functional

from forge_tui.examples.tiny_llm import RMSNorm, apply_rotary_pos_emb, attention_softmax


class AttentionSoftmax(nn.Module):
    """The packaged language model's attention weights."""

    def forward(self, scores, mask):
        return attention_softmax(scores, mask, 0.0625)


class AddNorm(nn.Module):
    """A residual, then LayerNorm; both results go on."""

    def __init__(self, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x, residual):
        residual = residual + x
        return self.norm(residual), residual


class Modulate(nn.Module):
    """Adaptive norm of a diffusion transformer: no affine, then a scale and a shift for each image."""

    def __init__(self, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)

    def forward(self, x, scale, shift):
        return self.norm(x) * (1 + scale[:, None]) + shift[:, None]


class QueryKeyRotary(nn.Module):
    """Rotary embedding of queries and keys that come transposed, as attention hands them over."""

    def forward(self, q, k, cos, sin):
        return apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)


class CausalConv(nn.Module):
    """Short causal depthwise convolution with SiLU over (batch, channels, length)."""

    def __init__(self, channels, taps):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, taps) * 0.3)
        self.bias = nn.Parameter(torch.randn(channels) * 0.1)

    def forward(self, x):
        taps = self.weight.shape[1]
        wide = functional.pad(x, (taps - 1, 0))
        return functional.silu(functional.conv1d(wide, self.weight[:, None], self.bias, groups=x.shape[1]))


class DepthwiseConv(nn.Module):
    """ConvNeXt's 7x7 depthwise convolution."""

    def __init__(self, channels):
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)

    def forward(self, x):
        return self.dwconv(x)


class Router(nn.Module):
    """The k best experts of each token with weights that sum to 1."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, logits):
        weights, experts = torch.topk(functional.softmax(logits, dim=-1, dtype=torch.float32), self.k, dim=-1)
        return (weights / weights.sum(-1, keepdim=True)).to(logits.dtype), experts


class TokenLoss(nn.Module):
    """Cross entropy of every token."""

    def forward(self, logits, labels):
        return functional.cross_entropy(logits.float(), labels, reduction="none")


class Upsample(nn.Module):
    """Nearest upsampling of a decoder, twice as large."""

    def forward(self, x):
        return functional.interpolate(x, scale_factor=2.0, mode="nearest")


class ShiftedWindows(nn.Module):
    """Swin's shifted windows: rolled, then cut into windows."""

    def __init__(self, size, shift):
        super().__init__()
        self.size, self.shift = size, shift

    def forward(self, x):
        batch, height, width, channels = x.shape
        size = self.size
        x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        x = x.view(batch, height // size, size, width // size, size, channels)
        return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size * size, channels)


class BiasedScores(nn.Module):
    """T5's attention scores with the bias of relative positions, by a table of buckets."""

    def __init__(self, heads, buckets):
        super().__init__()
        self.bias = nn.Embedding(buckets, heads)

    def forward(self, scores, buckets):
        return scores + self.bias(buckets).permute(2, 0, 1)[None]


class SegmentDecay(nn.Module):
    """Differences of cumulative sums, masked, as the gates of a state space model need them."""

    def forward(self, x):
        sums = torch.cumsum(x.float(), dim=-1)
        steps = sums[..., :, None] - sums[..., None, :]
        mask = torch.ones(steps.shape[-2:], dtype=torch.bool, device=x.device).tril()
        return torch.exp(steps.masked_fill(~mask, float("-inf"))).to(x.dtype)


#: operator, shapes on CUDA and on the CPU; (bound, shape) has integers below the bound
OPERATORS = {
    "rms_norm": (RMSNorm, (2560, 1e-6), [(2, 2048, 2560)], (64, 1e-6), [(2, 8, 64)]),
    "softmax": (AttentionSoftmax, (), [(1, 16, 1024, 1024), (1, 1, 1024, 1024)], (), [(1, 4, 16, 16), (1, 1, 16, 16)]),
    "group_norm": (nn.GroupNorm, (32, 256), [(1, 256, 256, 256)], (4, 16), [(1, 16, 8, 8)]),
    "add_norm": (AddNorm, (1536,), [(2, 4096, 1536)] * 2, (64,), [(2, 8, 64)] * 2),
    "modulate": (Modulate, (1536,), [(2, 4096, 1536), (2, 1536), (2, 1536)], (64,), [(2, 8, 64), (2, 64), (2, 64)]),
    "rotary": (QueryKeyRotary, (), [(2, 2048, 16, 128)] * 2 + [(2048, 128)] * 2, (),
               [(2, 8, 4, 16)] * 2 + [(8, 16)] * 2),
    "upsample": (Upsample, (), [(1, 256, 256, 256)], (), [(1, 8, 8, 8)]),
    "causal_conv": (CausalConv, (8192, 4), [(2, 8192, 2048)], (16, 4), [(2, 16, 32)]),
    "depthwise": (DepthwiseConv, (192,), [(32, 192, 56, 56)], (8,), [(2, 8, 12, 12)]),
    "router": (Router, (8,), [(16384, 128)], (2,), [(32, 8)]),
    "token_loss": (TokenLoss, (), [(4096, 32000), (32000, (4096,))], (), [(16, 50), (50, (16,))]),
    "windows": (ShiftedWindows, (7, 3), [(32, 56, 56, 192)], (4, 2), [(2, 8, 8, 16)]),
    "biased": (BiasedScores, (16, 32), [(4, 16, 1024, 1024), (32, (1024, 1024))], (4, 8),
               [(2, 4, 16, 16), (8, (16, 16))]),
    "decay": (SegmentDecay, (), [(2, 16, 16, 256)], (), [(1, 2, 2, 16)]),
}  # fmt: skip


class Operators(nn.Module):
    """Every operator on its own inputs."""

    def __init__(self, operators, counts):
        super().__init__()
        self.operators = nn.ModuleDict(operators)
        self.counts = counts

    def forward(self, *inputs):
        results = []
        for operator, count in zip(self.operators.values(), self.counts, strict=True):
            results.append(operator(*inputs[:count]))
            inputs = inputs[count:]
        return results


def tensor(spec):
    """Standard normal numbers of a shape, or integers below a bound."""
    if isinstance(spec[1], tuple):
        return torch.randint(spec[0], spec[1])
    return torch.randn(spec)


def operators(device="cpu"):
    """The whole model and its inputs."""
    modules, counts, inputs = {}, [], []
    for name, (make, *sizes) in OPERATORS.items():
        arguments, specs = sizes[:2] if device.startswith("cuda") else sizes[2:]
        modules[name] = make(*arguments)
        counts.append(len(specs))
        inputs += [tensor(spec) for spec in specs]
    return Operators(modules, counts).eval(), tuple(inputs), {}
