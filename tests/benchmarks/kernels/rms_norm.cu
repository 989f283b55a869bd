// One block a row, vectors of four.
//@tune BLOCK 256 128 512 1024
//@tune UNROLL 1 2 4 8
//@launch rows grid=x_shape_0 block=BLOCK
#include "forge_target.h"
extern "C" __global__ void rows(FORGE_PARAMS) {
    static_assert(forge::x_shape_1 % 4 == 0 && forge::x_align % 16 == 0, "whole vectors");
    __shared__ float parts[BLOCK / 32];
    constexpr int n = forge::x_shape_1 / 4;
    const float4* from = reinterpret_cast<const float4*>(x) + int64_t(blockIdx.x) * n;
    float sum = 0.0f;
#pragma unroll UNROLL
    for (int j = threadIdx.x; j < n; j += BLOCK) { const float4 v = from[j]; sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < BLOCK / 32; ++i) sum += parts[i];
    const float scale = rsqrtf(sum / forge::x_shape_1 + float(forge::eps));
#pragma unroll UNROLL
    for (int j = threadIdx.x; j < n; j += BLOCK) {
        const float4 v = from[j], w = reinterpret_cast<const float4*>(weight)[j];
        reinterpret_cast<float4*>(out0)[int64_t(blockIdx.x) * n + j] =
            make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
    }
}
