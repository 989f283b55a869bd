//@tune SPLIT 16 4 64
//@tune COLUMNS 256 64 1024
//@workspace SPLIT * x_shape_1 * 4
#include "forge_target.h"
#include <math.h>

// out0[r, c] = x[r, c] / mean(|x[:, c]|): rows in SPLIT parts, so that memory is read in its order by every core
constexpr int64_t LINES = forge::x_shape_0, COLS = forge::x_shape_1, PART = (LINES + SPLIT - 1) / SPLIT;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

extern "C" int forge_launch(FORGE_PARAMS) {
    float* sums = static_cast<float*>(workspace);
#pragma omp parallel if (forge::x_numel > 32768)
    {
#pragma omp for schedule(static, 1)
        for (int64_t s = 0; s < SPLIT; ++s) {
            float* mine = sums + s * COLS;
            for (int64_t c = 0; c < COLS; ++c) mine[c] = 0.0f;
            for (int64_t r = s * PART; r < smaller(LINES, (s + 1) * PART); ++r) {
                const float* row = x + r * forge::x_stride_0;
#pragma omp simd
                for (int64_t c = 0; c < COLS; ++c) mine[c] += fabsf(row[c]);
            }
        }
        // parts are added in a fixed order, so that every run gives the same result; the loop ends with a barrier
#pragma omp for schedule(static)
        for (int64_t b = 0; b < COLS; b += COLUMNS) {
            const int64_t end = smaller(COLS, b + COLUMNS);
            for (int64_t s = 1; s < SPLIT; ++s) {
#pragma omp simd
                for (int64_t c = b; c < end; ++c) sums[c] += sums[s * COLS + c];
            }
            for (int64_t c = b; c < end; ++c) sums[c] = float(LINES) / sums[c];
        }
#pragma omp for schedule(static)
        for (int64_t r = 0; r < LINES; ++r) {
            const float* row = x + r * forge::x_stride_0;
            float* to = out0 + r * forge::out0_stride_0;
#pragma omp simd
            for (int64_t c = 0; c < COLS; ++c) to[c] = row[c] * sums[c];
        }
    }
    return 0;
}
