//@tune ROWS 4 1 16
#include "forge_target.h"
#include <math.h>

static float mean_of(const float* row) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < forge::x_shape_1; ++c) sum += row[c];
    return sum / float(forge::x_shape_1);
}

extern "C" int forge_launch(FORGE_PARAMS) {
#pragma omp parallel for schedule(static, ROWS) if (forge::x_numel > 32768)
    for (int64_t r = 0; r < forge::x_shape_0; ++r) {
        const float* row = x + r * forge::x_stride_0;
        float* to = out0 + r * forge::out0_stride_0;
        const float mean = mean_of(row);
        float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
        for (int64_t c = 0; c < forge::x_shape_1; ++c) squares += (row[c] - mean) * (row[c] - mean);
        const float scale = 1.0f / sqrtf(squares / float(forge::x_shape_1) + float(forge::eps));
#pragma omp simd
        for (int64_t c = 0; c < forge::x_shape_1; ++c) to[c] = (row[c] - mean) * scale * weight[c] + bias[c];
    }
    return 0;
}
