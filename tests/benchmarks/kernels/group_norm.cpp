// A group at a time, in two passes.
//@tune CHUNK 1 2 4 8
//@tune LANES 8 4 16
//@tune SERIAL 0 1
#include "forge_target.h"
extern "C" int forge_launch(FORGE_PARAMS) {
    constexpr int64_t inner = forge::x_shape_2, group = forge::x_numel / 32, in_group = forge::x_shape_1 / 32;
#pragma omp parallel for schedule(static, CHUNK) if (!SERIAL)
    for (int64_t g = 0; g < 32; ++g) {
        const float* from = x + g * group;
        float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum) simdlen(LANES)
        for (int64_t i = 0; i < group; ++i) sum += from[i];
        const float mean = sum / group;
#pragma omp simd reduction(+ : squares) simdlen(LANES)
        for (int64_t i = 0; i < group; ++i) squares += (from[i] - mean) * (from[i] - mean);
        const float scale = forge::rsqrt(squares / group + float(forge::eps));
        for (int64_t c = 0; c < in_group; ++c)
            for (int64_t i = 0; i < inner; ++i)
                out0[g * group + c * inner + i] =
                    (from[c * inner + i] - mean) * scale * weight[g * in_group + c] + bias[g * in_group + c];
    }
    return 0;
}
