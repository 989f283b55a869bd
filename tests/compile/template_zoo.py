"""Small callables of every kind that the templates claim, with inputs; what they decline, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Case = tuple[Callable[..., Any], tuple[Tensor, ...]]
INF = float("inf")


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """As Hugging Face writes it."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    """Halves of the last dimension swapped, the second negated."""
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding; q and k may have different numbers of heads."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def interleaved(x: Tensor) -> Tensor:
    """The other rotary: pairs of neighbours turned."""
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((-b, a), -1).flatten(-2)


def slice_assigned(x: Tensor) -> Tensor:
    """Written in place into a copy."""
    y = x.clone()
    y[..., :3] = 1.0
    y[:, 2] += 5.0
    return y * 2


def causal(x: Tensor) -> Tensor:
    """A mask made inside."""
    mask = torch.ones(x.shape[-2], x.shape[-1], dtype=torch.bool).tril()
    return functional.softmax(x.masked_fill(~mask, -INF), -1)


def two_results(x: Tensor) -> tuple[Tensor, Tensor]:
    """A row result beside the full one."""
    mean = x.mean(-1)
    return x - mean.unsqueeze(-1), mean


def batch_norm(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """Inference batch norm and ReLU."""
    return functional.relu(functional.batch_norm(x, mean, var.abs() + 0.1, w, b))


def cases() -> dict[str, Case]:
    """Everything that must fit, by name."""
    torch.manual_seed(0)
    r = torch.randn

    def b(*shape: int) -> Tensor:
        return r(*shape).bfloat16()

    def h(*shape: int) -> Tensor:
        return r(*shape).half()

    def d(*shape: int) -> Tensor:
        return r(*shape).double()

    def i(*shape: int) -> Tensor:
        return torch.randint(-50, 50, shape)

    masked = r(1, 1, 16, 24).masked_fill(torch.rand(1, 1, 16, 24) < 0.3, -INF)
    spoiled = r(6, 40)
    spoiled[1, 3], spoiled[2] = float("nan"), -INF
    c = functional
    return {
        # element-wise
        "add_broadcast": (lambda x, y: x + y * 2, (r(3, 1, 5), r(4, 1))),
        "silu_mul_bf16": (lambda x, y: c.silu(x) * y, (b(4, 64), b(4, 64))),
        "gelu": (c.gelu, (r(3, 37) * 3,)),
        "gelu_tanh_bf16": (lambda x: c.gelu(x, approximate="tanh"), (b(2, 129),)),
        "gelu_f64": (c.gelu, (d(9, 7),)),
        "activations": (lambda x: (c.relu(x), c.elu(x), c.leaky_relu(x, 0.1), c.hardswish(x), c.mish(x), c.softplus(x),
                                   torch.tanh(x), c.hardtanh(x)), (r(11, 13) * 4,)),
        "math": (lambda x: (x.abs().log1p() + x.exp().clamp(max=5) - (x * 3).sin().cos() + x.sign() * x.erf(),
                            torch.expm1(x * 1e-3), torch.log(x.abs() + 0.1), x.abs().sqrt()), (r(70,),)),
        "powers": (lambda x: x.pow(3) + x.abs().pow(0.5) + x.abs().pow(1.7) + (x.abs() + 1) ** -2, (d(40),)),
        "where_mask": (lambda m, x, y: torch.where(m, x, y.float()), (torch.rand(4, 33) < 0.5, r(4, 33), h(33))),
        "masked_fill": (lambda x, m: x.masked_fill(m, -INF), (h(4, 33), torch.rand(4, 33) < 0.5)),
        "compare_bool": (lambda x, y: ((x > y) | (x == 0)) & ~(y <= -1), (r(50), r(50))),
        "integers": (lambda x, y: (x * y - 7 + x // 3 + x % 5, (x & 15) ^ y, x.abs().float() / 3), (i(60), i(60))),
        "int_overflow": (lambda x: x * 3 + 100, (torch.arange(-128, 128).to(torch.int8),)),
        "uint8_to_float": (lambda x: x.float() / 255 - 0.5, (torch.arange(256).to(torch.uint8),)),
        "float_to_int": (lambda x: (x.to(torch.int32), (x > 0.25).to(torch.int64)), (b(100) * 9,)),
        "floor_mod": (lambda x, y: torch.remainder(x, y) + torch.floor(x / y) + torch.fmod(x, y), (d(40), d(40))),
        "round_bf16": (lambda x: torch.round(x * 1.7) + (x * 3 >= 1.5), (b(200),)),
        "mixed_dtypes": (lambda x, y, z: x * y + z, (b(8, 16), r(8, 16), i(16))),
        "nan_inf": (lambda x: (torch.maximum(x, x * 0), x.isnan(), x.clamp(-1, 1), c.relu(x)), (spoiled,)),
        "minimum_int": (lambda x, y: torch.minimum(x, y) - torch.maximum(x, y), (i(30), i(30))),
        "scalar_result": (lambda x, y: x * y + 1, (r(()), r(()))),
        # views and copies
        "transposed_input": (lambda x, y: x + y, (r(8, 6).t(), r(6, 8))),
        "tiled": (lambda x, y: (x.transpose(1, 2) * y).contiguous(), (r(2, 37, 50), r(37))),
        "transpose_copy": (lambda x: x.transpose(1, 2).contiguous(), (r(2, 3, 8, 5),)),
        "strided_slice": (lambda x: x[:, 1::2, -3:] * 2, (r(4, 9, 7),)),
        "reshape_mix": (lambda x, y: x.reshape(4, 3, 10) + y.view(4, 3, 1), (r(12, 10), r(12))),
        "expand_heads": (lambda x: x[:, :, None].expand(2, 2, 3, 5, 8).reshape(2, 6, 5, 8) * 1.5, (r(2, 2, 5, 8),)),
        "cat_uneven": (lambda x, y, z: torch.cat((x, y * 2, z), 1), (r(3, 5, 4), r(3, 2, 4), r(3, 9, 4))),
        "cat_last": (lambda x, y: torch.cat((x, y), -1) + 1, (r(7, 8), r(7, 8))),
        "stack": (lambda x, y: torch.stack((x, y, x + y), 1), (r(4, 6), r(4, 6))),
        "rotary": (rotary, (r(1, 6, 8, 16).transpose(1, 2), r(1, 6, 2, 16).transpose(1, 2), r(1, 6, 16), r(1, 6, 16))),
        "rotary_bf16": (rotary, (b(1, 6, 4, 16).transpose(1, 2), b(1, 6, 4, 16).transpose(1, 2), b(1, 6, 16),
                                 b(1, 6, 16))),
        "interleaved": (interleaved, (r(3, 5, 16),)),
        "chunks": (lambda x: [part * n for n, part in enumerate(x.chunk(3, -1))], (r(5, 12),)),
        "flip_roll": (lambda x: x.flip(-1) + x.flip(0), (r(4, 9),)),
        "pad": (lambda x: c.pad(x, (1, 2, 0, 3), value=0.5), (r(2, 5, 6),)),
        "tril": (lambda x: x.tril(1) + x.triu(-1), (r(6, 7),)),
        "slice_assigned": (slice_assigned, (r(2, 4, 7),)),
        "arange_positions": (lambda x: x * torch.arange(x.shape[-1]) + torch.full((1,), 2.0), (r(3, 10),)),
        "repeat": (lambda x: x.repeat(2, 3), (r(3, 4),)),
        "nearest": (lambda x: c.interpolate(x, scale_factor=2.0), (r(1, 3, 4, 8),)),
        "channels_last": (lambda x: c.silu(x), (r(2, 8, 3, 5).to(memory_format=torch.channels_last),)),
        # rows
        "rms_norm": (rms_norm, (r(2, 7, 96), r(96))),
        "rms_norm_bf16": (rms_norm, (b(2, 7, 128), b(128))),
        "rms_norm_heads": (rms_norm, (b(1, 9, 4, 64).transpose(1, 2), b(64))),
        "layer_norm": (lambda x, w, v: c.layer_norm(x, (100,), w, v), (r(9, 100) + 5, r(100), r(100))),
        "layer_norm_f16": (lambda x: c.layer_norm(x, (6, 8)), (h(5, 6, 8),)),
        "softmax": (lambda x: c.softmax(x, -1), (r(5, 7, 33) * 5,)),
        "softmax_masked": (lambda x, m: c.softmax(x * 0.3 + m, -1), (r(2, 3, 16, 24), masked)),
        "softmax_f16_dim1": (lambda x: c.softmax(x, 1), (h(3, 12, 20),)),
        "softmax_nan": (lambda x: c.softmax(x, -1), (spoiled,)),
        "softmax_then_mask": (lambda x: c.softmax(x, -1) * (x > 0), (r(6, 30),)),
        "log_softmax": (lambda x: c.log_softmax(x, -1), (d(4, 50),)),
        "logsumexp": (lambda x: torch.logsumexp(x, (0, 2)), (r(3, 8, 5),)),
        "causal": (causal, (r(2, 12, 12),)),
        "l2_normalise": (lambda x: c.normalize(x, dim=-1), (r(6, 40),)),
        "amax_amin": (lambda x: (x.amax(-1), x.amin(-1)), (spoiled,)),
        "mean_middle": (lambda x: x.mean(1), (r(3, 17, 24),)),
        "mean_channels_keepdim": (lambda x: x * x.mean((2, 3), keepdim=True), (r(2, 6, 5, 7),)),
        "sum_rows_bf16": (lambda x: x.sum(0), (b(40, 19),)),
        "sum_int": (lambda x: x.sum(-1), (i(7, 31),)),
        "count_bool": (lambda x: (x > 0).sum(-1), (r(7, 31),)),
        "any_all": (lambda x: ((x > 2).any(-1), (x > -2).all(-1)), (r(9, 31),)),
        "prod": (lambda x: x.prod(-1), (d(5, 6),)),
        "std": (lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5), (r(6, 50),)),
        "var_offset": (lambda x: x.var(-1, correction=0), (r(4, 500) + 100,)),
        "sum_all": (lambda x: (x * x).sum(), (r(40, 1000),)),
        "two_results": (two_results, (r(5, 23),)),
        "group_norm_silu": (lambda x, w, v: c.silu(c.group_norm(x, 4, w, v)), (r(2, 16, 6, 6), r(16), r(16))),
        "group_norm_bf16": (lambda x, w, v: c.group_norm(x, 4, w, v), (b(2, 16, 8, 8), b(16), b(16))),
        "group_norm_big": (lambda x, w, v: c.group_norm(x, 2, w, v), (b(1, 8, 64, 64) + 3, b(8), b(8))),
        "instance_norm": (lambda x: c.instance_norm(x), (r(2, 5, 6, 7),)),
        "batch_norm_relu": (batch_norm, (r(3, 6, 5, 5), r(6), r(6), r(6), r(6))),
        "channel_norm": (lambda x, w: x / (x.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * w[:, None, None],
                         (r(2, 12, 5, 16), r(12))),
        "partial_reduction": (lambda x: x[:, :10] - x.mean(-1, keepdim=True), (r(5, 64),)),
        # pooling
        "max_pool": (lambda x: c.max_pool2d(x, 3, 2, 1), (r(2, 3, 13, 17),)),
        "max_pool_bf16": (lambda x: c.max_pool2d(x, 2), (b(2, 3, 12, 16),)),
        "max_pool_nan": (lambda x: c.max_pool2d(x, 3, 1, 1), (spoiled.view(1, 1, 6, 40),)),
        "avg_pool": (lambda x: c.avg_pool2d(x, 3, 2, 1), (r(2, 3, 13, 17),)),
        "adaptive_1": (lambda x: c.adaptive_avg_pool2d(x, 1), (r(2, 5, 7, 7),)),
        "adaptive_2": (lambda x: c.adaptive_avg_pool2d(x, 2), (r(2, 5, 8, 6),)),
        "pool_of_relu": (lambda x, y: c.max_pool2d(c.relu(x + y), 2), (r(1, 4, 8, 8), r(4, 1, 1))),
    }  # fmt: skip


def declined() -> dict[str, tuple[Case, str]]:
    """What must not fit, with a part of the reason."""
    torch.manual_seed(0)
    r = torch.randn
    return {
        "linear": ((functional.linear, (r(3, 8), r(5, 8))), "vendor library"),
        "matmul": ((lambda x, y: (x @ y).relu(), (r(2, 4, 5), r(2, 5, 3))), "vendor library"),
        "conv": ((functional.conv2d, (r(1, 2, 5, 5), r(3, 2, 3, 3))), "vendor library"),
        "attention": ((functional.scaled_dot_product_attention, (r(1, 2, 4, 8),) * 3), "vendor library"),
        "different_dims": ((lambda x: x.sum(0).unsqueeze(0) * x.sum(1).unsqueeze(1), (r(5, 7),)), "reduces"),
        "nested_reductions": ((lambda x: x.softmax(-1).mean(-2), (r(3, 6, 6),)), "reduces"),
        "cumulative": ((lambda x: x.cumsum(-1), (r(3, 6),)), "operation cumsum"),
        "sorting": ((lambda x: x.sort(-1).values, (r(3, 6),)), "sort"),
        "embedding": ((functional.embedding, (torch.tensor([1, 2]), r(4, 3))), "operation embedding"),
        "random": ((lambda x: functional.dropout(x, 0.5), (r(3, 6),)), "operation"),
        "pool_indices": ((lambda x: functional.max_pool2d(x, 2, return_indices=True), (r(1, 1, 4, 4),)), "result 1"),
        "empty": ((lambda x: x * 2, (r(0, 3),)), "empty"),
    }
