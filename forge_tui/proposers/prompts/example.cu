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
