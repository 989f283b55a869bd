// Sums of parts of a group by one launch, the rest by another; differences from the group's first value are summed.
//@tune PARTS 16 4 8 32
//@tune BLOCK 256 128 512 1024
//@workspace 32 * PARTS * 8
//@launch sums grid=(32, PARTS) block=BLOCK
//@launch apply grid=(x_shape_1, PARTS) block=BLOCK
#include "forge_target.h"
constexpr int64_t inner = forge::x_shape_2, group = forge::x_numel / 32, in_group = forge::x_shape_1 / 32;
extern "C" __global__ void sums(FORGE_PARAMS) {
    __shared__ float2 parts[BLOCK / 32];
    const float* from = x + blockIdx.x * group;
    const float shift = from[0];
    float sum = 0.0f, squares = 0.0f;
    for (int64_t i = blockIdx.y * int64_t(BLOCK) + threadIdx.x; i < group; i += int64_t(PARTS) * BLOCK) {
        const float d = from[i] - shift;
        sum += d;
        squares += d * d;
    }
    for (int step = 16; step > 0; step >>= 1) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
        squares += __shfl_xor_sync(0xffffffffu, squares, step);
    }
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = make_float2(sum, squares);
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < BLOCK / 32; ++i) { sum += parts[i].x; squares += parts[i].y; }
    ((float2*)workspace)[blockIdx.x * PARTS + blockIdx.y] = make_float2(sum, squares);
}
extern "C" __global__ void apply(FORGE_PARAMS) {
    const int64_t channel = blockIdx.x, at = channel / in_group;
    float sum = 0.0f, squares = 0.0f;
    for (int i = 0; i < PARTS; ++i) {
        const float2 part = ((const float2*)workspace)[at * PARTS + i];
        sum += part.x;
        squares += part.y;
    }
    const float away = sum / group, mean = x[at * group] + away;
    const float scale = rsqrtf(squares / group - away * away + float(forge::eps)) * weight[channel];
    for (int64_t i = blockIdx.y * int64_t(BLOCK) + threadIdx.x; i < inner; i += int64_t(PARTS) * BLOCK)
        out0[channel * inner + i] = (x[channel * inner + i] - mean) * scale + bias[channel];
}
