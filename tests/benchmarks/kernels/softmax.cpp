// Largest, sum, scale; rows over threads in chunks.
//@tune CHUNK 1 2 4 8
//@tune LANES 8 4 16
//@tune SERIAL 0 1
#include "forge_target.h"
extern "C" int forge_launch(FORGE_PARAMS) {
    constexpr int64_t rows = forge::x_shape_0, columns = forge::x_shape_1;
#pragma omp parallel for schedule(static, CHUNK) if (!SERIAL)
    for (int64_t r = 0; r < rows; ++r) {
        const float* from = x + r * columns;
        float* to = out0 + r * columns;
        float largest = from[0], sum = 0.0f;
#pragma omp simd reduction(max : largest) simdlen(LANES)
        for (int64_t j = 0; j < columns; ++j) largest = from[j] > largest ? from[j] : largest;
#pragma omp simd reduction(+ : sum) simdlen(LANES)
        for (int64_t j = 0; j < columns; ++j) { to[j] = forge::exp(from[j] - largest); sum += to[j]; }
        const float scale = 1.0f / sum;
#pragma omp simd
        for (int64_t j = 0; j < columns; ++j) to[j] *= scale;
    }
    return 0;
}
