"""Floors are bytes over bandwidth, matrix work over its rate, or one launch."""

import pytest

from forge_tui.core.records import Ceilings, KernelInput, KernelOutput, Signature, TensorSpec
from forge_tui.profiler.floor import bytes_moved, floor_of, headroom_ms, real_bytes

CEILINGS = Ceilings(copy_gbps=100.0, matmul_tflops={"float32": 1.0, "bfloat16": 4.0}, launch_us=3.0,
                    cached_copy_gbps=400.0, cache_bytes=1000)  # fmt: skip


def signature(*shapes: tuple[int, ...]) -> Signature:
    """Inputs of these shapes, the last one the output."""
    specs = [TensorSpec(shape=s, dtype="float32", strides=(s[1], 1)) for s in shapes]
    inputs = tuple(KernelInput(name=f"x{i}", spec=s, source="arg", path=f"x{i}") for i, s in enumerate(specs[:-1]))
    out = KernelOutput(name="out0", spec=specs[-1])
    return Signature(inputs=inputs, outputs=(out,), scalars=(), call={}, result={})


def test_real_bytes():
    """Expanded dimensions and gaps hold no memory; overlapping windows hold their span; empty tensors nothing."""
    for shape, strides, elements in (
        ((4, 8), (8, 1), 32), ((4, 8), (0, 1), 8), ((4, 8), (100, 1), 32), ((4, 3), (1, 1), 6), ((4, 0), (0, 1), 0),
        ((), (), 1), ((5,), (0,), 1),
    ):  # fmt: skip
        assert real_bytes(TensorSpec(shape=shape, dtype="bfloat16", strides=strides)) == 2 * elements


def test_memory_bound():
    """Every tensor once, over the copy bandwidth."""
    sig = signature((100, 1000), (1, 1000), (100, 1000))
    floor = floor_of(sig, {}, CEILINGS, "cpu")
    assert bytes_moved(sig) == 4 * 201_000
    assert (floor.bound, floor.floor_us) == ("memory", pytest.approx(804_000 / 100e9 * 1e6))


def test_what_fits_the_cache():
    """A working set that fits the cache has the cache's bandwidth."""
    floor = floor_of(signature((10, 10), (10, 10)), {}, CEILINGS, "cpu")
    assert floor.floor_us == pytest.approx(800 / 400e9 * 1e6)


def test_compute_bound_by_dtype():
    """Matrix work counts at the rate of its dtype, an unknown dtype at the fastest."""
    sig = signature((10, 10), (10, 10))
    floor = floor_of(sig, {"float32": 10**9, "bfloat16": 4 * 10**9, "float16": 10**9}, CEILINGS, "cpu")
    assert floor.bound == "compute"
    assert floor.floor_us == pytest.approx(1000 + 1000 + 250)
    assert floor.flops == 6 * 10**9


def test_launch_bound_on_cuda_only():
    """On CUDA nothing is faster than one launch; on the CPU there is no launch."""
    sig = signature((2, 2), (2, 2))
    assert (floor_of(sig, {}, CEILINGS, "cuda").bound, floor_of(sig, {}, CEILINGS, "cuda").floor_us) == ("launch", 3.0)
    assert floor_of(sig, {}, CEILINGS, "cpu").floor_us < 0.1


def test_headroom():
    """Calls times what is above the floor, never negative."""
    assert headroom_ms(4, 300.0, 50.0) == pytest.approx(1.0)
    assert headroom_ms(4, 30.0, 50.0) == 0.0
