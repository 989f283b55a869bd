//@tune ROWS 8 1 32
#include "forge_target.h"
#include <math.h>

// out0[r, c] = x[r, c] / max(|x[r, :]|)
extern "C" int forge_launch(FORGE_PARAMS) {
#pragma omp parallel for schedule(static, ROWS) if (forge::x_numel > 32768)
    for (int64_t r = 0; r < forge::x_shape_0; ++r) {
        const float* row = x + r * forge::x_stride_0;
        float* to = out0 + r * forge::out0_stride_0;
        float top = 0.0f;
#pragma omp simd reduction(max : top)
        for (int64_t c = 0; c < forge::x_shape_1; ++c) top = fabsf(row[c]) > top ? fabsf(row[c]) : top;
        const float scale = 1.0f / top;
#pragma omp simd
        for (int64_t c = 0; c < forge::x_shape_1; ++c) to[c] = row[c] * scale;
    }
    return 0;
}
