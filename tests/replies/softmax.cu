//@tune THREADS 256 128 512
//@launch softmax_rows grid=x_shape_0 block=THREADS
#include "forge_target.h"
#include <cuda_bf16.h>

// one block to a row; the row stays in registers between the passes
constexpr int PER = (forge::x_shape_1 + THREADS - 1) / THREADS;

extern "C" __global__ void __launch_bounds__(THREADS) softmax_rows(FORGE_PARAMS) {
    __shared__ float part[THREADS / 32];
    const __nv_bfloat16* row = x + blockIdx.x * forge::x_stride_0;
    float v[PER];
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int64_t c = threadIdx.x + int64_t(i) * THREADS;
        v[i] = c < forge::x_shape_1 ? __bfloat162float(row[c]) : -INFINITY;
        top = fmaxf(top, v[i]);
    }
    for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = top;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; ++w) top = fmaxf(top, part[w]);
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        v[i] = __expf(v[i] - top);
        sum += v[i];
    }
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int w = 0; w < THREADS / 32; ++w) sum += part[w];
    const float scale = 1.0f / sum;
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int64_t c = threadIdx.x + int64_t(i) * THREADS;
        if (c < forge::x_shape_1) out0[blockIdx.x * forge::out0_stride_0 + c] = __float2bfloat16(v[i] * scale);
    }
}
