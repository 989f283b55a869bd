"""The functions and types that CPU kernels get from forge_target.h, against the C library."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from targets_fixture import cpu_device, make_target, spec

from forge_tui.contract import header

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

FLAGS = [
    "-O3", "-std=c++17", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
]  # fmt: skip

ACCURACY = """\
#include "forge_target.h"
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

static double sigmoid_of(double x) { return 1.0 / (1.0 + std::exp(-x)); }
static double rsqrt_of(double x) { return 1.0 / std::sqrt(x); }
static float of_bits(uint32_t bits) { float value; std::memcpy(&value, &bits, 4); return value; }

struct Worst { double relative = 0, ulps = 0; float at = 0; long wrong = 0, seen = 0; };

// relative error where the right result is a normal number, ulps of the result's own grid everywhere
static void compare(Worst& worst, float x, float got, double right) {
    ++worst.seen;
    const float nearest = (float)right;
    if (std::isnan(nearest) || std::isinf(nearest) || nearest == 0.0f) {
        const bool same = std::isnan(nearest) ? std::isnan(got) : got == nearest;
        // one step beyond the largest number, or below the smallest, is rounding
        const bool close = std::isinf(nearest) ? got >= 3.4028e38f : nearest == 0.0f && std::fabs(got) <= 2e-45f;
        if (!same && !close) { ++worst.wrong; worst.at = x; }
        return;
    }
    const double step = std::fmax(std::ldexp(1.0, std::ilogb(nearest) - 23), std::ldexp(1.0, -149));
    const double error = std::fabs((double)got - right);
    if (!(error / step <= worst.ulps)) { worst.ulps = error / step; worst.at = x; }
    if (std::fabs(right) >= std::numeric_limits<float>::min())
        worst.relative = std::fmax(worst.relative, error / std::fabs(right));
}

int main() {
    Worst worst[6];
    for (uint64_t bits = 0; bits < (1ull << 32); bits += 1021) {
        const float x = of_bits((uint32_t)bits);
        compare(worst[0], x, forge::exp(x), std::exp((double)x));
        compare(worst[1], x, forge::log(x), std::log((double)x));
        compare(worst[2], x, forge::tanh(x), std::tanh((double)x));
        compare(worst[3], x, forge::sigmoid(x), sigmoid_of(x));
        compare(worst[4], x, forge::erf(x), std::erf((double)x));
        if (x > 0 && !std::isinf(x)) compare(worst[5], x, forge::rsqrt(x), rsqrt_of(x));
    }
    const char* names[] = {"exp", "log", "tanh", "sigmoid", "erf", "rsqrt"};
    std::printf("{");
    for (int i = 0; i < 6; ++i)
        std::printf("%s\\"%s\\": [%.9g, %.9g, %ld, %ld, \\"%a\\"]", i ? ", " : "", names[i], worst[i].relative,
                    worst[i].ulps, worst[i].wrong, worst[i].seen, worst[i].at);
    std::printf("}\\n");
}
"""

EDGES = """\
#include "forge_target.h"
#include <cmath>
#include <cstdio>

int main() {
    const float inf = INFINITY, nan = NAN;
    std::printf("[%d", forge::exp(-inf) == 0.0f);
    std::printf(", %d", forge::exp(inf) == inf && forge::exp(89.0f) == inf && forge::exp(1e30f) == inf);
    std::printf(", %d", forge::exp(0.0f) == 1.0f && forge::exp(-0.0f) == 1.0f && std::isnan(forge::exp(nan)));
    std::printf(", %d", forge::log(0.0f) == -inf && forge::log(-0.0f) == -inf && forge::log(1.0f) == 0.0f);
    std::printf(", %d", std::isnan(forge::log(-1.0f)) && std::isnan(forge::log(-inf)) && forge::log(inf) == inf);
    std::printf(", %d", forge::tanh(inf) == 1.0f && forge::tanh(-inf) == -1.0f && std::isnan(forge::tanh(nan)));
    std::printf(", %d", forge::sigmoid(-inf) == 0.0f && forge::sigmoid(inf) == 1.0f && forge::sigmoid(0.0f) == 0.5f);
    std::printf(", %d", forge::erf(inf) == 1.0f && forge::erf(-inf) == -1.0f && std::isnan(forge::erf(nan)));
    std::printf(", %d", std::signbit(forge::tanh(-0.0f)) && std::signbit(forge::erf(-0.0f)));
    std::printf(", %d]\\n", forge::rsqrt(4.0f) == 0.5f && forge::rsqrt(0.0f) == inf);
}
"""

NARROW = """\
#include "forge_target.h"
#include <cstdio>
#include <cstring>

int main() {
    long widened = 0, narrowed = 0;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        forge::half h;
        h.bits = (uint16_t)bits;
        _Float16 own;
        std::memcpy(&own, &bits, 2);
        const float a = h, b = (float)own;
        widened += !(a == b || (a != a && b != b)) || __builtin_signbit(a) != __builtin_signbit(b);
    }
    for (uint64_t bits = 0; bits < (1ull << 32); bits += 257) {
        const uint32_t word = (uint32_t)bits;
        float value;
        std::memcpy(&value, &word, 4);
        const _Float16 own = (_Float16)value;
        uint16_t right;
        std::memcpy(&right, &own, 2);
        narrowed += value == value && forge::half(value).bits != right;
    }
    const float nan = __builtin_nanf("");
    const float half_back = forge::half(nan), bfloat_back = forge::bfloat16(nan);
    std::printf("[%ld, %ld, %d]\\n", widened, narrowed, half_back != half_back && bfloat_back != bfloat_back);
}
"""

SAMPLES = """\
#include "forge_target.h"
#include <cstdio>

int main() {
    const float values[] = {0.0f, -0.0f, 1.0f, 1.00390625f, 1.01171875f, 3.14159274f, -65504.0f, 65519.0f, 65520.0f,
                            5.9604645e-08f, 2.9802322e-08f, 2.9802326e-08f, 6.1035156e-05f, 6.0975552e-05f, 1e30f};
    std::printf("[");
    for (float value : values) std::printf("%s[%u, %u]", value == 0.0f && !__builtin_signbit(value) ? "" : ", ",
                                           forge::half(value).bits, forge::bfloat16(value).bits);
    std::printf("]\\n");
}
"""

LOOPS = """\
#include "forge_target.h"
template <class T> void all(const float* __restrict__ x, float* __restrict__ y, T* __restrict__ b, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = forge::exp(x[i]);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = forge::log(x[i]);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = forge::tanh(x[i]);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = forge::sigmoid(x[i]);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = forge::erf(x[i]);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = forge::rsqrt(x[i]);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = b[i];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) b[i] = x[i];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) b[i] = T(float(b[i]) * forge::exp(x[i]));
}
template void all<forge::bfloat16>(const float*, float*, forge::bfloat16*, int64_t);
template void all<forge::half>(const float*, float*, forge::half*, int64_t);
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the CPU header of a target."""
    path = tmp_path_factory.mktemp("cpu")
    target = make_target("t", [("x", spec(4), "arg")], [spec(4)])
    (path / "forge_target.h").write_text(header.render(target, cpu_device()))
    return path


def run(folder, source: str, *options: str):
    """Compile a program with the header and return what it prints, as JSON."""
    (folder / "program.cpp").write_text(source)
    subprocess.run(["g++", *FLAGS, *options, "program.cpp", "-o", "program"], cwd=folder, check=True)
    done = subprocess.run([folder / "program"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_functions_are_as_exact_as_promised_over_all_magnitudes(folder):
    """The exponential stays within 2 ulp and the others within 1e-6, from subnormal to largest arguments."""
    fields = ("relative", "ulps", "wrong", "seen", "at")
    worst = {name: dict(zip(fields, row, strict=True)) for name, row in run(folder, ACCURACY).items()}
    assert {name: entry["wrong"] for name, entry in worst.items()} == dict.fromkeys(worst, 0)
    assert worst["exp"]["seen"] > 4_000_000
    assert worst["exp"]["ulps"] <= 2.0, worst["exp"]
    for name in ("log", "tanh", "sigmoid", "erf", "rsqrt"):
        assert worst[name]["relative"] <= 1e-6, (name, worst[name])
    for name in ("tanh", "sigmoid", "erf"):
        assert worst[name]["ulps"] <= 8.0, (name, worst[name])


def test_functions_keep_infinities_zeros_and_nan(folder):
    """Limits and signs at the ends of the range are C's."""
    assert run(folder, EDGES) == [1] * 10


def test_narrow_types_convert_as_ieee_does(folder):
    """Narrow types round to nearest even, overflow to infinity and keep subnormals."""
    got = run(folder, SAMPLES)
    assert [pair[0] for pair in got] == [
        0x0000, 0x8000, 0x3C00, 0x3C04, 0x3C0C, 0x4248, 0xFBFF, 0x7BFF, 0x7C00, 0x0001, 0x0000, 0x0001, 0x0400, 0x03FF,
        0x7C00,
    ]  # fmt: skip
    assert [pair[1] for pair in got[:6]] == [0x0000, 0x8000, 0x3F80, 0x3F80, 0x3F82, 0x4049]


def test_half_is_the_compilers_own_half(folder):
    """The half type agrees with `_Float16` for every pattern and for millions of floats, and NaN stays NaN."""
    assert run(folder, NARROW) == [0, 0, 1]


def test_functions_vectorise_without_fast_math(folder):
    """Every function and the narrow types' conversions become vector code in a simd loop."""
    (folder / "loops.cpp").write_text(LOOPS)
    done = subprocess.run(
        ["g++", *FLAGS, "-fopt-info-vec-optimized", "-c", "loops.cpp", "-o", "loops.o"], cwd=folder,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = {int(line.split(":")[1]) for line in done.stderr.splitlines() if "loop vectorized" in line}
    assert {4, 6, 8, 10, 12, 14, 16, 18, 20} <= lines, done.stderr
    missed = subprocess.run(
        ["g++", *FLAGS, "-fopt-info-vec-missed", "-c", "loops.cpp", "-o", "loops.o"], cwd=folder,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "couldn't vectorize loop" not in missed.stderr
