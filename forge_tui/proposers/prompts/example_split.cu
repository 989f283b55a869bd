//@tune THREADS 256 128 512
//@tune SPLIT 8 1 4 16
//@workspace x_shape_0 * SPLIT * 4
//@launch partial grid=(x_shape_0, SPLIT) block=THREADS
//@launch finish grid=(x_shape_0, SPLIT) block=THREADS
#include "forge_target.h"

// out0[r, c] = x[r, c] / sqrt(mean(x[r, :]^2)): few long rows, so SPLIT blocks to each; 16 bytes to a load
constexpr int64_t COLS = forge::x_shape_1, QUADS = COLS / 4, PART = (QUADS + SPLIT - 1) / SPLIT;
static_assert(COLS % 4 == 0 && forge::x_stride_1 == 1 && forge::x_stride_0 % 4 == 0 && forge::x_align >= 16);

__device__ float block_sum(float value) {
    __shared__ float parts[THREADS / 32];
    for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(0xffffffffu, value, d);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
    for (int w = 0; w < THREADS / 32; ++w) value += parts[w];
    return value;
}

extern "C" __global__ void __launch_bounds__(THREADS) partial(FORGE_PARAMS) {
    const float4* row = reinterpret_cast<const float4*>(x + blockIdx.x * forge::x_stride_0);
    const int64_t from = blockIdx.y * PART, to = from + PART < QUADS ? from + PART : QUADS;
    float sum = 0.0f;
    for (int64_t i = from + threadIdx.x; i < to; i += THREADS) {
        const float4 v = row[i];
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) static_cast<float*>(workspace)[blockIdx.x * SPLIT + blockIdx.y] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) finish(FORGE_PARAMS) {
    float sum = 0.0f;  // in a fixed order, without atomics: the same result in every run
    for (int s = 0; s < SPLIT; ++s) sum += static_cast<const float*>(workspace)[blockIdx.x * SPLIT + s];
    const float scale = rsqrtf(sum / float(COLS));
    const float4* row = reinterpret_cast<const float4*>(x + blockIdx.x * forge::x_stride_0);
    float4* out = reinterpret_cast<float4*>(out0 + blockIdx.x * forge::out0_stride_0);
    const int64_t from = blockIdx.y * PART, to = from + PART < QUADS ? from + PART : QUADS;
    for (int64_t i = from + threadIdx.x; i < to; i += THREADS) {
        const float4 v = row[i];
        out[i] = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
    }
}
