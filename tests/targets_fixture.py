"""Targets, devices and right kernels written out by hand, for tests of several rooms."""

from __future__ import annotations

from forge_tui.core.records import (
    Device,
    KernelInput,
    KernelOutput,
    Scalar,
    Signature,
    Target,
    TensorSpec,
)


def spec(*shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None) -> TensorSpec:
    """A tensor, row-major unless strides are given."""
    if strides is None:
        steps, step = [], 1
        for size in reversed(shape):
            steps.append(step)
            step *= size
        strides = tuple(reversed(steps))
    return TensorSpec(shape=shape, dtype=dtype, strides=strides)


def make_target(
    name: str,
    inputs: list[tuple[str, TensorSpec, str]],
    outputs: list[TensorSpec],
    scalars: list[tuple[str, bool | int | float, str]] = (),
    qualname: str = "torch.nn.functional:softmax",
    kind: str = "torch",
) -> Target:
    """A target from (name, spec, source) inputs, output specs and (name, value, source) scalars."""
    signature = Signature(
        inputs=tuple(KernelInput(name=n, spec=s, source=source, path=n) for n, s, source in inputs),
        outputs=tuple(KernelOutput(name=f"out{i}", spec=s) for i, s in enumerate(outputs)),
        scalars=tuple(Scalar(name=n, value=v, source=source, path=n) for n, v, source in scalars),
        call={"tuple": [{"tuple": [{"in": 0}]}, {"dict": {}}]},
        result={"out": 0},
    )
    return Target(
        id=f"test-{name}", name=name, kind=kind, qualname=qualname, instances=(), signature=signature, calls=1,
        time_us=100.0, share=0.5, floor_us=10.0, bound="memory", headroom_ms=0.09,
        bytes_moved=sum(s.nbytes for _, s, _ in inputs) + sum(s.nbytes for s in outputs), flops=0,
    )  # fmt: skip


def softmax_target(rows: int = 64, columns: int = 256, dtype: str = "float32") -> Target:
    """`F.softmax(x, dim=-1)` on a row-major matrix."""
    x = spec(rows, columns, dtype=dtype)
    return make_target("F.softmax", [("x", x, "arg")], [x], [("dim", -1, "arg")])


def rms_norm_target(rows: int = 32, columns: int = 128, dtype: str = "bfloat16", eps: float = 1e-6) -> Target:
    """RMSNorm with a weight, `eps` a module attribute."""
    x = spec(rows, columns, dtype=dtype)
    return make_target(
        "RMSNorm", [("hidden_states", x, "arg"), ("weight", spec(columns, dtype=dtype), "param")], [x],
        [("eps", eps, "attribute")], qualname="model:RMSNorm.forward", kind="module",
    )  # fmt: skip


def cpu_device(**changes: object) -> Device:
    """A CPU as the profiler would describe it."""
    fields: dict[str, object] = {
        "name": "cpu", "model": "Test CPU", "arch": "test-cpu", "cores": 2, "threads": 2, "runtime_version": "12.2.0",
    }  # fmt: skip
    return Device(**(fields | changes))


def cuda_device(arch: str = "sm_90a", **changes: object) -> Device:
    """A GPU as the profiler would describe it; nothing needs it to be there."""
    fields: dict[str, object] = {
        "name": "cuda:0", "model": "Test GPU", "arch": arch, "uuid": "GPU-0", "sms": 132, "smem_optin": 232448,
        "l2_bytes": 50 * 2**20, "cores": 2,
    }  # fmt: skip
    return Device(**(fields | changes))


SOFTMAX_CPP = """\
#include "forge_target.h"

extern "C" int forge_launch(FORGE_PARAMS) {
    constexpr int64_t rows = forge::x_shape_0, columns = forge::x_shape_1;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const float* from = x + row * forge::x_stride_0;
        float* to = out0 + row * forge::out0_stride_0;
        float largest = from[0];
#pragma omp simd reduction(max : largest)
        for (int64_t j = 0; j < columns; ++j) largest = from[j] > largest ? from[j] : largest;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < columns; ++j) {
            to[j] = forge::exp(from[j] - largest);
            sum += to[j];
        }
        const float scale = 1.0f / sum;
#pragma omp simd
        for (int64_t j = 0; j < columns; ++j) to[j] *= scale;
    }
    return 0;
}
"""

SOFTMAX_CUDA = """\
//@tune BLOCK 256 128 512
//@launch softmax_rows grid=x_shape_0 block=BLOCK
#include "forge_target.h"

__device__ __forceinline__ float all_of_block(float value, bool largest, float* shared) {
    for (int step = 16; step > 0; step >>= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, value, step);
        value = largest ? fmaxf(value, other) : value + other;
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[0];
    for (int warp = 1; warp < BLOCK / 32; ++warp) value = largest ? fmaxf(value, shared[warp]) : value + shared[warp];
    __syncthreads();
    return value;
}

extern "C" __global__ void __launch_bounds__(BLOCK) softmax_rows(FORGE_PARAMS) {
    __shared__ float shared[BLOCK / 32];
    const float* from = x + blockIdx.x * forge::x_stride_0;
    float* to = out0 + blockIdx.x * forge::out0_stride_0;
    float largest = -INFINITY;
    for (int64_t j = threadIdx.x; j < forge::x_shape_1; j += BLOCK) largest = fmaxf(largest, from[j]);
    largest = all_of_block(largest, true, shared);
    float sum = 0.0f;
    for (int64_t j = threadIdx.x; j < forge::x_shape_1; j += BLOCK) sum += expf(from[j] - largest);
    sum = all_of_block(sum, false, shared);
    for (int64_t j = threadIdx.x; j < forge::x_shape_1; j += BLOCK) to[j] = expf(from[j] - largest) / sum;
}
"""

RMS_NORM_CPP = """\
//@tune CHUNK 1 4
#include "forge_target.h"

extern "C" int forge_launch(FORGE_PARAMS) {
#pragma omp parallel for schedule(static, CHUNK)
    for (int64_t row = 0; row < forge::hidden_states_shape_0; ++row) {
        const auto* from = hidden_states + row * forge::hidden_states_stride_0;
        auto* to = out0 + row * forge::out0_stride_0;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < forge::hidden_states_shape_1; ++j) sum += float(from[j]) * float(from[j]);
        const float scale = forge::rsqrt(sum / forge::hidden_states_shape_1 + float(forge::eps));
#pragma omp simd
        for (int64_t j = 0; j < forge::hidden_states_shape_1; ++j) to[j] = float(from[j]) * scale * float(weight[j]);
    }
    return 0;
}
"""

RMS_NORM_CUDA = """\
//@launch rms_norm grid=hidden_states_shape_0 block=32
#include "forge_target.h"

extern "C" __global__ void rms_norm(FORGE_PARAMS) {
    const int64_t row = blockIdx.x;
    const __nv_bfloat16* from = hidden_states + row * forge::hidden_states_stride_0;
    float sum = 0.0f;
    for (int64_t j = threadIdx.x; j < forge::hidden_states_shape_1; j += 32) {
        const float value = __bfloat162float(from[j]);
        sum += value * value;
    }
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float scale = rsqrtf(sum / forge::hidden_states_shape_1 + float(forge::eps));
    for (int64_t j = threadIdx.x; j < forge::hidden_states_shape_1; j += 32)
        out0[row * forge::out0_stride_0 + j] =
            __float2bfloat16(__bfloat162float(from[j]) * scale * __bfloat162float(weight[j]));
}
"""
