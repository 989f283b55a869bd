// Tiles in shared memory, several outputs a thread.
//@tune TILE 16 32
//@tune WORK 4 1 2 8
//@tune UNROLL 1 4
//@launch tiles grid=(ceil_div(out0_shape_1, TILE), ceil_div(out0_shape_0, TILE * WORK)) block=(TILE, TILE)
#include "forge_target.h"
extern "C" __global__ void tiles(FORGE_PARAMS) {
    constexpr int M = forge::out0_shape_0, N = forge::out0_shape_1, K = forge::a_shape_1;
    __shared__ float left[TILE * WORK][TILE + 1], right[TILE][TILE + 1];
    const int column = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE * WORK + threadIdx.y;
    float sums[WORK] = {};
    for (int k = 0; k < K; k += TILE) {
        for (int w = 0; w < WORK; ++w) {
            const int r = row + w * TILE, c = k + threadIdx.x;
            left[threadIdx.y + w * TILE][threadIdx.x] = r < M && c < K ? a[int64_t(r) * K + c] : 0.0f;
        }
        const int r = k + threadIdx.y;
        right[threadIdx.y][threadIdx.x] = r < K && column < N ? b[int64_t(r) * N + column] : 0.0f;
        __syncthreads();
#pragma unroll UNROLL
        for (int i = 0; i < TILE; ++i)
            for (int w = 0; w < WORK; ++w) sums[w] += left[threadIdx.y + w * TILE][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    for (int w = 0; w < WORK; ++w)
        if (row + w * TILE < M && column < N) out0[int64_t(row + w * TILE) * N + column] = sums[w];
}
