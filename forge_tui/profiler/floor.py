"""The roofline floor of one call: what moving its data and doing its matrix work costs at least. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from forge_tui.core.records import ITEMSIZE, Ceilings, Record, Signature, TensorSpec


class Floor(Record, frozen=True, kw_only=True):
    """The floor of one call and what sets it."""

    floor_us: float
    bound: Literal["memory", "compute", "launch"]
    bytes_moved: int
    flops: int


def real_bytes(spec: TensorSpec) -> int:
    """Bytes that memory holds of a tensor: expanded dimensions once, overlapping windows by their span, no gaps."""
    count = math.prod(n for n, s in zip(spec.shape, spec.strides, strict=True) if s or n == 0)
    return min(count, spec.span) * ITEMSIZE[spec.dtype]


def bytes_moved(signature: Signature, read_bytes: int | None = None) -> int:
    """Every input, parameter and output once; `read_bytes` is what is really read, where that is known to be less."""
    inputs = sum(real_bytes(i.spec) for i in signature.inputs)
    return (inputs if read_bytes is None else min(inputs, read_bytes)) + sum(
        real_bytes(o.spec) for o in signature.outputs
    )


def floor_of(
    signature: Signature,
    flops: Mapping[str, int],
    ceilings: Ceilings,
    kind: Literal["cpu", "cuda"],
    read_bytes: int | None = None,
) -> Floor:
    """The floor from bytes over copy bandwidth, matrix work over its rate, and on CUDA one launch.

    `flops` is the matrix work by dtype name (`tf32` for float32 that may run on tensor cores). A dtype without a
    measured rate counts at the fastest one (types of one byte at twice that), which keeps the floor below the truth.
    `read_bytes` is what the original reads of its inputs: less than their size where it looks up rows of a table,
    slices, or ignores an input.
    """
    moved = bytes_moved(signature, read_bytes)
    gbps = ceilings.copy_gbps
    if moved <= ceilings.cache_bytes:
        gbps = max(gbps, ceilings.cached_copy_gbps)
    memory_us = moved / (gbps * 1e3) if gbps > 0 else 0.0
    compute_us = sum(
        count / (rate * 1e6) for dtype, count in flops.items() if (rate := _rate(dtype, ceilings.matmul_tflops)) > 0
    )
    launch_us = ceilings.launch_us if kind == "cuda" else 0.0
    limits: dict[Literal["memory", "compute", "launch"], float] = {
        "memory": memory_us, "compute": compute_us, "launch": launch_us,
    }  # fmt: skip
    bound = max(limits, key=lambda name: limits[name])
    return Floor(floor_us=limits[bound], bound=bound, bytes_moved=moved, flops=sum(flops.values()))


def _rate(dtype: str, rates: Mapping[str, float]) -> float:
    """TFLOP/s for matrix work of a dtype; never below what a kernel could reach."""
    fastest = max(rates.values(), default=0.0)
    if dtype == "float32":
        # three products in TF32 give the accuracy of one in float32
        return max(rates.get("float32", 0.0), rates.get("tf32", 0.0) / 3) or fastest
    if dtype in rates:
        return rates[dtype]
    # types of one byte run at twice the rate of those of two, where there is hardware for them
    return 2 * fastest if dtype.startswith(("float8", "int8", "uint8")) else fastest


def headroom_ms(calls: float, time_us: float, floor_us: float) -> float:
    """What a perfect kernel would save in one model call; never below 0."""
    return max(0.0, calls * (time_us - floor_us) / 1e3)
