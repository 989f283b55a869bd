// Vectors by the compiler, rows over threads in chunks.
//@tune CHUNK 1 2 4 8
//@tune LANES 8 4 16
//@tune SERIAL 0 1
#include "forge_target.h"
extern "C" int forge_launch(FORGE_PARAMS) {
    constexpr int64_t rows = forge::x_shape_0, columns = forge::x_shape_1;
#pragma omp parallel for schedule(static, CHUNK) if (!SERIAL)
    for (int64_t r = 0; r < rows; ++r) {
        const float* from = x + r * columns;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum) simdlen(LANES)
        for (int64_t j = 0; j < columns; ++j) sum += from[j] * from[j];
        const float scale = forge::rsqrt(sum / columns + float(forge::eps));
#pragma omp simd simdlen(LANES)
        for (int64_t j = 0; j < columns; ++j) out0[r * columns + j] = from[j] * scale * weight[j];
    }
    return 0;
}
