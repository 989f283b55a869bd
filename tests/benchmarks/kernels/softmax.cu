// One block a row, values held in registers between the passes.
//@tune BLOCK 256 128 512 1024
//@tune UNROLL 1 2 4 8
//@launch softmax grid=x_shape_0 block=BLOCK
#include "forge_target.h"
static __device__ float of_block(float value, bool largest) {
    __shared__ float parts[32];
    for (int step = 16; step > 0; step >>= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, value, step);
        value = largest ? fmaxf(value, other) : value + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = parts[0];
    for (int i = 1; i < BLOCK / 32; ++i) value = largest ? fmaxf(value, parts[i]) : value + parts[i];
    return value;
}
extern "C" __global__ void softmax(FORGE_PARAMS) {
    constexpr int n = forge::x_shape_1, per_thread = (n + BLOCK - 1) / BLOCK;
    const float* from = x + int64_t(blockIdx.x) * n;
    float held[per_thread], largest = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
        const int j = threadIdx.x + i * BLOCK;
        held[i] = j < n ? from[j] : -INFINITY;
        largest = fmaxf(largest, held[i]);
    }
    largest = of_block(largest, true);
#pragma unroll UNROLL
    for (int i = 0; i < per_thread; ++i) { held[i] = __expf(held[i] - largest); sum += held[i]; }
    const float scale = 1.0f / of_block(sum, false);
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
        const int j = threadIdx.x + i * BLOCK;
        if (j < n) out0[int64_t(blockIdx.x) * n + j] = held[i] * scale;
    }
}
