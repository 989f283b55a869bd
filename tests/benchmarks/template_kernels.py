"""Ratios of eager time to template kernel time on the CPU, variant by variant.

    python tests/benchmarks/template_kernels.py [NAME ...] [--threads N] [--rounds N] [--tune]

Every variant of every template that fits is built with its default tunables (with `--tune`, at every neighbour setting
as well) and timed interleaved with the eager callable on the same inputs: per round one batch of calls of each, the
fastest batch of all rounds is printed, of either side alike. On a machine that has other work, use `--threads 1`: a
parallel region waits for its slowest thread. A ratio above 1 means that the kernel is faster. Results are compared
with eager first. Needs g++; takes about a second per line, more on a busy machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1] / "compile"))

from template_support import CPU, assert_right, build_cpp, make_target, results

from forge_tui.contract import tune
from forge_tui.proposers.templates.proposer import fits, write

Case = tuple[Callable[..., object], tuple[Tensor, ...]]


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """As Hugging Face writes it."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    """The halves of the last dimension swapped, the second negated."""
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding of queries and keys."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """Inference batch norm with ReLU."""
    return functional.relu(functional.batch_norm(x, mean, var.abs() + 0.1, weight, bias))


def cases() -> dict[str, Case]:
    """What is measured."""
    r = torch.randn
    mask = torch.zeros(1, 1, 512, 512).masked_fill(torch.ones(512, 512).triu(1).bool(), float("-inf"))
    channels = (r(64), r(64), r(64), r(64))
    return {
        "rms_norm f32 (1,512,512)": (rms_norm, (r(1, 512, 512), r(512))),
        "rms_norm bf16 (1,512,1024)": (rms_norm, (r(1, 512, 1024).bfloat16(), r(1024).bfloat16())),
        "rotary (1,8,512,64) transposed": (rotary, (
            r(1, 512, 8, 64).transpose(1, 2), r(1, 512, 8, 64).transpose(1, 2), r(1, 512, 64), r(1, 512, 64))),
        "masked softmax (1,8,512,512)": (
            lambda x, m: functional.softmax(x * 0.125 + m, -1), (r(1, 8, 512, 512), mask)),
        "softmax (8,512,512)": (lambda x: functional.softmax(x, -1), (r(8, 512, 512),)),
        "silu times up (1,512,1408)": (lambda a, b: functional.silu(a) * b, (r(1, 512, 1408), r(1, 512, 1408))),
        "group_norm silu (1,128,64,64)": (
            lambda x, w, b: functional.silu(functional.group_norm(x, 32, w, b)), (r(1, 128, 64, 64), r(128), r(128))),
        "batch_norm relu (8,64,56,56)": (batch_norm, (r(8, 64, 56, 56), *channels)),
        "max_pool2d 3s2p1 (8,64,56,56)": (lambda x: functional.max_pool2d(x, 3, 2, 1), (r(8, 64, 56, 56),)),
        "adaptive_avg_pool2d 1 (8,512,7,7)": (lambda x: functional.adaptive_avg_pool2d(x, 1), (r(8, 512, 7, 7),)),
        "avg_pool2d 2 (8,64,56,56)": (lambda x: functional.avg_pool2d(x, 2), (r(8, 64, 56, 56),)),
        "layer_norm (512,768)": (
            lambda x, w, b: functional.layer_norm(x, (768,), w, b), (r(512, 768), r(768), r(768))),
        "gelu tanh (512,3072)": (lambda x: functional.gelu(x, approximate="tanh"), (r(512, 3072),)),
        "gelu (512,3072)": (functional.gelu, (r(512, 3072),)),
        "add relu (8,64,56,56)": (lambda x, y: functional.relu(x + y), (r(8, 64, 56, 56), r(8, 64, 56, 56))),
        "upsample nearest 2x (1,64,64,64)": (
            lambda x: functional.interpolate(x, scale_factor=2.0), (r(1, 64, 64, 64),)),
        "softmax over dim 1 (8,64,3136)": (lambda x: functional.softmax(x, 1), (r(8, 64, 3136),)),
        "transpose copy (1,8,512,64)": (
            lambda x: x.transpose(1, 2).contiguous(), (r(1, 8, 512, 64),)),
        "matrix transpose (1024,1024)": (lambda x: x.t().contiguous(), (r(1024, 1024),)),
        "sum of all (2048,1024)": (lambda x: (x * x).sum(), (r(2048, 1024),)),
    }  # fmt: skip


def seconds(call: Callable[[], object], calls: int) -> float:
    """Seconds per call over a batch of calls."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def measure(case: Case, kernels: Sequence[Callable[..., object]], rounds: int) -> tuple[float, list[float]]:
    """Least microseconds of eager and of each kernel, interleaved."""
    call, inputs = case
    outputs = [torch.empty_like(out) for out in results(call, inputs)]
    calls: list[Callable[[], object]] = [lambda: call(*inputs)]
    calls += [lambda kernel=kernel: kernel(inputs, outputs) for kernel in kernels]
    batches = [max(1, int(0.01 / max(seconds(run, 3), 1e-7))) for run in calls]
    times: list[list[float]] = [[] for _ in calls]
    with torch.inference_mode():
        for _ in range(rounds):
            for number, run in enumerate(calls):
                times[number].append(seconds(run, batches[number]))
    found = [min(sample) * 1e6 for sample in times]
    return found[0], found[1:]


def main() -> None:
    """Print one line per variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    for name, case in cases().items():
        if options.names and not any(part in name for part in options.names):
            continue
        target = make_target(*case, name)
        fit = fits(target, CPU)
        if not fit:
            print(f"{name:36} no template: {fit.reason}")
            continue
        built = []
        for variant, _ in fit.variants:
            source = write(target, CPU, variant)
            settings = [tune.defaults(source)]
            settings += tune.neighbours(source, settings[0]) if options.tune else []
            built += [(variant, source, setting) for setting in settings]
        with tempfile.TemporaryDirectory() as folder:
            kernels = build_cpp(Path(folder), [(target, source, setting) for _, source, setting in built])
            for (variant, _, _), kernel in zip(built, kernels, strict=True):
                assert_right(*case, kernel(case[1]), f"{name} {variant}")
            eager, mine = measure(case, kernels, options.rounds)
        for (variant, _, setting), each in zip(built, mine, strict=True):
            words = " ".join(f"{key}={value}" for key, value in setting.items())
            times = f"{eager:9.1f} us -> {each:9.1f} us  {eager / each:6.2f}x"
            print(f"{name:36} {variant:12} {times}  {words}", flush=True)


if __name__ == "__main__":
    main()
