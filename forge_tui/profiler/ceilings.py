"""What the device is able to do, measured: copy bandwidth, matrix rates, the cost of a smallest launch."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

import torch

from forge_tui.core.records import Ceilings
from forge_tui.launch.graphs import graph_capture
from forge_tui.models.trees import dtype_name

_CPU_COPY_BYTES = 96 << 20
_CPU_CACHED_BYTES = 1 << 19
_DEFAULT_CACHE_BYTES = 8 << 20


def measure_ceilings(device: torch.device) -> Ceilings:
    """Measure once; about a second. Best of several runs: a ceiling is what is possible, not what is usual."""
    default, precision = torch.get_default_dtype(), torch.backends.cuda.matmul.allow_tf32
    try:
        # a model file may have set either
        torch.set_default_dtype(torch.float32)
        torch.backends.cuda.matmul.allow_tf32 = False
        with torch.no_grad():
            return _measure_cuda(device) if device.type == "cuda" else _measure_cpu()
    finally:
        torch.set_default_dtype(default)
        torch.backends.cuda.matmul.allow_tf32 = precision


def _measure_cpu() -> Ceilings:
    big = _copy_gbps_cpu(_CPU_COPY_BYTES, repeats=4)
    cached = max(big, _copy_gbps_cpu(_CPU_CACHED_BYTES, repeats=40))
    rates = {}
    for dtype, size in ((torch.float32, 768), (torch.float64, 512), (torch.bfloat16, 384), (torch.float16, 384)):
        a = torch.ones(size, size, dtype=dtype)
        best = _best_s(functools.partial(torch.mm, a, a), repeats=4, limit_s=0.2)
        rates[dtype_name(dtype)] = 2 * size**3 / best / 1e12
    one = torch.ones(1)
    launch = _best_s(lambda: torch.neg(one), repeats=200, limit_s=0.05)
    return Ceilings(copy_gbps=big, matmul_tflops=rates, launch_us=launch * 1e6, cached_copy_gbps=cached,
                    cache_bytes=_cache_bytes() // 2)  # fmt: skip


def _copy_gbps_cpu(size: int, repeats: int) -> float:
    source = torch.ones(size // 4)
    target = torch.ones_like(source)
    return 2 * size / _best_s(lambda: target.copy_(source), repeats=repeats, limit_s=0.4) / 1e9


def _best_s(run: Callable[[], object], repeats: int, limit_s: float) -> float:
    """Shortest of `repeats` runs after one to warm up; stops early past the limit."""
    run()
    best, end = float("inf"), time.perf_counter() + limit_s
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            break
    return best


def _cache_bytes() -> int:
    """Size of the largest cache of the first core, as Linux tells it."""
    sizes = [_DEFAULT_CACHE_BYTES]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = file.read_text().strip()
            sizes.append(int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0))
        except (OSError, ValueError):
            continue
    return max(sizes)


def _measure_cuda(device: torch.device) -> Ceilings:
    free, _ = torch.cuda.mem_get_info(device)
    size = min(1 << 30, free // 8)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    copy = _best_cuda_s(device, functools.partial(target.copy_, source), repeats=10)
    del source, target
    rates = {}
    for dtype, side in ((torch.bfloat16, 8192), (torch.float16, 8192), (torch.float32, 4096), (torch.float64, 2048)):
        if 3 * side * side * 8 > free // 2:
            side = 2048
        try:
            a = torch.randn(side, side, device=device).to(dtype)
            best = _best_cuda_s(device, functools.partial(torch.mm, a, a), repeats=6)
        except RuntimeError:  # a GPU without this dtype
            continue
        rates[dtype_name(dtype)] = 2 * side**3 / best / 1e12
    torch.backends.cuda.matmul.allow_tf32 = True
    a = torch.randn(4096, 4096, device=device)
    rates["tf32"] = 2 * 4096**3 / _best_cuda_s(device, functools.partial(torch.mm, a, a), repeats=6) / 1e12
    torch.backends.cuda.matmul.allow_tf32 = False
    launch = _smallest_kernel_s(device)
    torch.cuda.empty_cache()
    return Ceilings(copy_gbps=2 * size / copy / 1e9, matmul_tflops=rates, launch_us=launch * 1e6)


def _smallest_kernel_s(device: torch.device, many: int = 200) -> float:
    """Device time of a kernel that does next to nothing: replayed from a graph, so that no host stands between."""
    one = torch.ones(1, device=device)
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    graph = torch.cuda.CUDAGraph()
    one.neg_()
    torch.cuda.synchronize(device)
    with graph_capture(graph, device, side):
        for _ in range(many):
            one.neg_()
    return _best_cuda_s(device, graph.replay, repeats=5) / many


def _best_cuda_s(device: torch.device, run: Callable[[], object], repeats: int) -> float:
    run()
    best = float("inf")
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record(torch.cuda.current_stream(device))
        run()
        end.record(torch.cuda.current_stream(device))
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return best
