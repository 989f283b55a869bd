// Rows of outputs updated by one k after the other, in blocks of columns.
//@tune CHUNK 1 2 4 8
//@tune BLOCK 128 64 512
//@tune SERIAL 0 1
#include "forge_target.h"
extern "C" int forge_launch(FORGE_PARAMS) {
    constexpr int64_t M = forge::out0_shape_0, N = forge::out0_shape_1, K = forge::a_shape_1;
#pragma omp parallel for schedule(static, CHUNK) if (!SERIAL)
    for (int64_t m = 0; m < M; ++m)
        for (int64_t start = 0; start < N; start += BLOCK) {
            const int64_t end = start + BLOCK < N ? start + BLOCK : N;
            for (int64_t n = start; n < end; ++n) out0[m * N + n] = 0.0f;
            for (int64_t k = 0; k < K; ++k) {
                const float value = a[m * K + k];
#pragma omp simd
                for (int64_t n = start; n < end; ++n) out0[m * N + n] += value * b[k * N + n];
            }
        }
    return 0;
}
