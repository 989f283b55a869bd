"""A small decoder-only language model, written as the common open models are, with seeded random weights.

RMSNorm is written out as Hugging Face writes it, rotary embedding is a function, attention is the eager softmax form,
and the feed-forward is SwiGLU. One call is a prefill of one sequence.

On the CPU (float32): 4 layers, hidden 256, 8 heads, feed-forward 704, sequence 768, vocabulary 2048.
On CUDA (bfloat16): 8 layers, hidden 2048, 16 heads, feed-forward 5632, sequence 2048, vocabulary 32000, batch 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of its input."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    sequence: int
    batch: int
    tied: bool = False
    eps: float = 1e-6
    rope_theta: float = 10000.0


CPU = Config(layers=4, hidden=256, heads=8, feed_forward=704, vocabulary=2048, sequence=768, batch=1)
CUDA = Config(layers=8, hidden=2048, heads=16, feed_forward=5632, vocabulary=32000, sequence=2048, batch=2)


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32."""

    def __init__(self, hidden: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(hidden))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


def rotate_half(x: Tensor) -> Tensor:
    """The second half of the last dimension, negated, before the first half."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys turned by their positions."""
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


def attention_softmax(scores: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention weights of raw scores: scaled, masked, normalised in float32."""
    scores = scores * scale + mask
    return functional.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU of the gate times the other half."""
    return functional.silu(gate) * up


class Attention(nn.Module):
    """Causal multi-head attention, eager."""

    def __init__(self, config: Config):
        super().__init__()
        self.heads = config.heads
        self.head_dim = config.hidden // config.heads
        self.q_proj = nn.Linear(config.hidden, config.hidden, bias=False)
        self.k_proj = nn.Linear(config.hidden, config.hidden, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.hidden, bias=False)
        self.o_proj = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        weights = attention_softmax(torch.matmul(q, k.transpose(2, 3)), mask, self.head_dim**-0.5)
        mixed = torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, hidden)
        return self.o_proj(mixed)


class MLP(nn.Module):
    """Feed-forward with SwiGLU."""

    def __init__(self, config: Config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.feed_forward, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.feed_forward, bias=False)
        self.down_proj = nn.Linear(config.feed_forward, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, config: Config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class TinyLlm(nn.Module):
    """Token ids to logits."""

    cos: Tensor
    sin: Tensor
    mask: Tensor

    def __init__(self, config: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.eps)
        self.lm_head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        if config.tied:
            self.lm_head.weight = self.embed_tokens.weight
        cos, sin = rotary_tables(config.sequence, config.hidden // config.heads, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.register_buffer("mask", causal_mask(config.sequence), persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.mask)
        return self.lm_head(self.norm(x))


def rotary_tables(length: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (length, head_dim)."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def causal_mask(length: int) -> Tensor:
    """Additive mask (length, length): 0 where a position may look, a very small number elsewhere."""
    lowest = -3.0e38  # finite in float32 and bfloat16
    return torch.full((length, length), lowest).triu(1)


def build(
    device: str = "cpu", dtype: torch.dtype | None = None, config: Config | None = None
) -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Tensor]]:
    """The model with seeded weights and one batch of token ids."""
    on_cuda = device.startswith("cuda")
    config = config or (CUDA if on_cuda else CPU)
    dtype = dtype or (torch.bfloat16 if on_cuda else torch.float32)
    torch.manual_seed(0)
    model = TinyLlm(config).eval().to(dtype)
    ids = torch.randint(0, config.vocabulary, (config.batch, config.sequence))
    return model.to(device), (ids.to(device),), {}
