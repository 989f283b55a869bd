"""The part of the prompt that is the same for every target: role, contract, example, output form."""

from __future__ import annotations

from forge_tui.core.records import Language

ROLE = """\
You write kernels that replace one callable of a PyTorch model. A kernel is compiled, checked against the original in \
float64 on hidden inputs, and timed against the original with paired samples. Only a kernel that is right and faster \
counts. Write for the exact shapes, strides and device given below.
"""

EXAMPLE_CUDA = """\
//@tune THREADS 256 128 512
//@launch scale_rows grid=x_shape_0 block=THREADS
#include "forge_target.h"

// out0[r, c] = x[r, c] / max(|x[r, :]|)
extern "C" __global__ void __launch_bounds__(THREADS) scale_rows(FORGE_PARAMS) {
    __shared__ float part[THREADS / 32];
    const float* row = x + blockIdx.x * forge::x_stride_0;
    float top = 0.0f;
    for (int c = threadIdx.x; c < forge::x_shape_1; c += THREADS) top = fmaxf(top, fabsf(row[c]));
    for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = top;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; ++w) top = fmaxf(top, part[w]);
    float* to = out0 + blockIdx.x * forge::out0_stride_0;
    for (int c = threadIdx.x; c < forge::x_shape_1; c += THREADS) to[c] = row[c] / top;
}
"""

EXAMPLE_CPP = """\
//@tune ROWS 8 1 32
#include "forge_target.h"
#include <math.h>

// out0[r, c] = x[r, c] / max(|x[r, :]|)
extern "C" int forge_launch(FORGE_PARAMS) {
#pragma omp parallel for schedule(static, ROWS) if (forge::x_numel > 32768)
    for (int64_t r = 0; r < forge::x_shape_0; ++r) {
        const float* row = x + r * forge::x_stride_0;
        float* to = out0 + r * forge::out0_stride_0;
        float top = 0.0f;
#pragma omp simd reduction(max : top)
        for (int64_t c = 0; c < forge::x_shape_1; ++c) top = fabsf(row[c]) > top ? fabsf(row[c]) : top;
        const float scale = 1.0f / top;
#pragma omp simd
        for (int64_t c = 0; c < forge::x_shape_1; ++c) to[c] = row[c] * scale;
    }
    return 0;
}
"""

_CUDA = """\
# Contract (CUDA)
- One source of device code. Each kernel is `extern "C" __global__ void NAME(FORGE_PARAMS)`. There is no host code.
- It includes the generated `forge_target.h`: shapes and strides (in elements) as `constexpr int64_t` in `namespace \
forge`, constants of the call, device facts, and the parameter list `FORGE_PARAMS`: inputs, then outputs `out0`, \
`out1`, ..., then `void* workspace`, then `ForgeDims dims`. bfloat16 is `__nv_bfloat16` (include <cuda_bf16.h>), \
float16 is `__half` (include <cuda_fp16.h>).
- Launches are comment lines, run in the order written on one stream: \
`//@launch NAME grid=(a,b) block=n [smem=bytes] [cluster=n] [cooperative]`. \
Dynamic shared memory is `smem`. A launch is not followed by any synchronisation of the host.
- `//@workspace BYTES [zero]` asks for scratch memory; without `zero` its contents are undefined at every call.
- `//@tune NAME default other ...` declares an integer macro whose values are swept without asking you: at most 6, \
with at most 8 values each. Declare block sizes, elements per thread, unroll factors. Every value must be right.
- Expressions in directives are integer arithmetic over header names without `forge::` (`x_shape_0`), tunables and \
`sms`, `smem_optin`, with `ceil_div(a, b)`, `min(a, b)`, `max(a, b)`.
- The body uses a tunable by its name, and header names as `forge::x_shape_0`.
"""

_CPP = """\
# Contract (CPU, C++17, g++ -O3 with OpenMP and the CPU's own features)
- One source with one entry: `extern "C" int forge_launch(FORGE_PARAMS)`, which returns 0.
- It includes the generated `forge_target.h`: shapes and strides (in elements) as `constexpr int64_t` in `namespace \
forge`, constants of the call, device facts, and the parameter list `FORGE_PARAMS`: inputs, then outputs `out0`, \
`out1`, ..., then `void* workspace`, then `ForgeDims dims`. bfloat16 is `forge::bfloat16`, float16 is `forge::half`; \
both convert to and from float.
- The header has float functions that vectorise inside `#pragma omp simd` loops: `forge::exp`, `forge::log`, \
`forge::tanh`, `forge::sigmoid`, `forge::erf`, `forge::rsqrt`. The C library's do not vectorise.
- `//@workspace BYTES [zero]` asks for scratch memory; without `zero` its contents are undefined at every call.
- `//@tune NAME default other ...` declares an integer macro whose values are swept without asking you: at most 6, \
with at most 8 values each. Declare block sizes, chunk sizes, unroll factors. Every value must be right.
- Starting threads costs several microseconds: use `if (...)` in the pragma where the work may be small.
"""

_BANS = """\
# Refused before compiling
Calls of libraries (cuBLAS, cuDNN, Thrust, BLAS), allocation, printing, files, the operating system, clocks, random \
numbers, mutable globals and statics, threads of your own, inline assembly on the CPU, token pasting, `<<<...>>>`. \
Includes other than the toolkit's or the C and C++ libraries' arithmetic headers.
# Rejected after checking
Wrong values on other inputs of the same shapes (zeros, large, negative, infinite where the original handles them), \
writes outside the outputs, changed inputs, results that depend on the run, results kept from an earlier call, work \
that is skipped. Accumulate in float or wider; round once at the end.
"""

FORM = """\
# Form of the reply
Two lines, then the whole source in one fenced block, and nothing after it:
family: <two or three words that name the approach>
hypothesis: <one sentence: what makes it fast, or what was wrong>
"""


def contract_text(language: Language) -> str:
    """Role, contract, example, bans and form for a language; equal bytes every time."""
    rules, example, fence = (_CUDA, EXAMPLE_CUDA, "cuda") if language == "cuda" else (_CPP, EXAMPLE_CPP, "cpp")
    return f"{ROLE}\n{rules}\n# Example of the form\n```{fence}\n{example}```\n\n{_BANS}\n{FORM}"
