// ---- forge:: types and functions for CPU kernels -------------------------------------------------------------------
// All functions are float -> float, branch-free, and vectorise inside `#pragma omp simd` loops without -ffast-math.

#define FORGE_INLINE inline __attribute__((always_inline))

namespace forge {

namespace detail {
FORGE_INLINE float float_of(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}
FORGE_INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}
}  // namespace detail

// The narrow types copy member by member, as written out below: with the compiler's own copy, g++ does not vectorise a
// `#pragma omp simd` loop that stores them. half is arithmetic on bits, since g++ 12 does not vectorise _Float16 either.

// Storage of torch.bfloat16. Converts to and from float; rounds to nearest even, keeps NaN.
struct bfloat16 {
    uint16_t bits;
    bfloat16() = default;
    FORGE_INLINE bfloat16(float value) : bits(narrow(value)) {}
    FORGE_INLINE bfloat16(const bfloat16& other) : bits(other.bits) {}
    FORGE_INLINE bfloat16& operator=(const bfloat16& other) {
        bits = other.bits;
        return *this;
    }
    FORGE_INLINE bfloat16& operator=(float value) {
        bits = narrow(value);
        return *this;
    }
    FORGE_INLINE operator float() const { return detail::float_of((uint32_t)bits << 16); }

    static FORGE_INLINE uint16_t narrow(float value) {
        const uint32_t from = detail::bits_of(value);
        const uint32_t rounded = (from + 0x7fffu + ((from >> 16) & 1u)) >> 16;
        const uint32_t nan = (from >> 16) | 0x40u;
        return (uint16_t)((from & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
    }
};

// Storage of torch.float16. Converts to and from float; rounds to nearest even, keeps NaN and infinity.
struct half {
    uint16_t bits;
    half() = default;
    FORGE_INLINE half(float value) : bits(narrow(value)) {}
    FORGE_INLINE half(const half& other) : bits(other.bits) {}
    FORGE_INLINE half& operator=(const half& other) {
        bits = other.bits;
        return *this;
    }
    FORGE_INLINE half& operator=(float value) {
        bits = narrow(value);
        return *this;
    }
    FORGE_INLINE operator float() const { return widen(bits); }

    static FORGE_INLINE uint16_t narrow(float value) {
        const uint32_t from = detail::bits_of(value), sign = (from >> 16) & 0x8000u, size = from & 0x7fffffffu;
        // adding 0.5 lets the float unit round the last 10 bits of what is subnormal in half precision
        const uint32_t small = detail::bits_of(detail::float_of(size) + 0.5f) - 0x3f000000u;
        const uint32_t normal = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
        const uint32_t big = size > 0x7f800000u ? 0x7e00u | ((size >> 13) & 0x3ffu) : 0x7c00u;
        return (uint16_t)(sign | (size < 0x38800000u ? small : size < 0x477ff000u ? normal : big));
    }
    static FORGE_INLINE float widen(uint16_t value) {
        const uint32_t size = value & 0x7fffu, sign = (uint32_t)(value & 0x8000u) << 16;
        // a multiplication by 2^112 moves the exponent and makes subnormals right
        const float scaled = detail::float_of(size << 13) * 0x1p112f;
        const uint32_t special = 0x7f800000u | (size << 13);
        return detail::float_of(sign | (size >= 0x7c00u ? special : detail::bits_of(scaled)));
    }
};

// e^x, about 1 ulp; exp(-inf) = 0, overflow gives inf, results below the normal range are right too.
FORGE_INLINE float exp(float x) {
    float clamped = x < -105.0f ? -105.0f : x;
    clamped = clamped > 89.0f ? 89.0f : clamped;
    const float shifted = clamped * 0x1.715476p0f + 0x1.8p23f;  // x / ln 2, rounded to an integer in the low bits
    const float n = shifted - 0x1.8p23f;
    float r = clamped - n * 0x1.62e4p-1f;
    r = r - n * 0x1.7f7d1cp-20f;
    float p = 0.00139421611f;
    p = p * r + 0.00836377614f;
    p = p * r + 0.0416663635f;
    p = p * r + 0.166665734f;
    p = p * r + 0.5f;
    p = (p * r) * r + r + 1.0f;
    // 2^n as a product of two, so that neither factor leaves the range of normal numbers
    const uint32_t exponent = detail::bits_of(shifted) - 0x4b400000u;
    const uint32_t half_exponent = (uint32_t)((int32_t)exponent >> 1);
    return p * detail::float_of((half_exponent + 127u) << 23) * detail::float_of((exponent - half_exponent + 127u) << 23);
}

// Natural logarithm, about 2 ulp; log(0) = -inf, log of a negative number is NaN.
FORGE_INLINE float log(float x) {
    const bool tiny = x < 0x1p-126f;
    const float scaled = tiny ? x * 0x1p23f : x;
    const uint32_t bits = detail::bits_of(scaled);
    const uint32_t moved = bits - 0x3f3504f3u;  // sqrt(1/2), so that the mantissa lies around 1
    const float n = (float)((int32_t)moved >> 23) - (tiny ? 23.0f : 0.0f);
    const float f = detail::float_of((moved & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    // log(1 + f) = f - f*f/2 + s * (f*f/2 + R), with s = f / (2 + f)
    const float s = f / (2.0f + f), z = s * s, square = 0.5f * f * f;
    const float rest = z * (0.66666667f + z * (0.4f + z * (0.28571429f + z * (0.22222222f + z * 0.18181818f))));
    const float sum = f - (square - (s * (square + rest) + n * 0x1.7f7d1cp-20f));
    float result = n * 0x1.62e4p-1f + sum;
    result = x == __builtin_huge_valf() ? x : result;
    result = x == 0.0f ? -__builtin_huge_valf() : result;
    return x < 0.0f || x != x ? __builtin_nanf("") : result;
}

FORGE_INLINE float tanh(float x) {
    const float size = __builtin_fabsf(x), z = x * x;
    float p = 0.00225263229f;
    p = p * z - 0.00830849607f;
    p = p * z + 0.0217581438f;
    p = p * z - 0.0539579538f;
    p = p * z + 0.133332982f;
    p = p * z - 0.333333331f;
    const float small = size + size * (z * p);
    const float large = 1.0f - 2.0f / (forge::exp(2.0f * size) + 1.0f);
    return __builtin_copysignf(size < 0.625f ? small : large, x);
}

// 1 / (1 + e^-x), right in its far left tail too.
FORGE_INLINE float sigmoid(float x) {
    const float e = forge::exp(-__builtin_fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

FORGE_INLINE float erf(float x) {
    const float z = x * x;
    float p = 7.88911953e-05f;
    p = p * z - 0.000802084128f;
    p = p * z + 0.00518953534f;
    p = p * z - 0.0268544446f;
    p = p * z + 0.112836002f;
    p = p * z - 0.376126271f;
    p = p * z + 1.12837917f;
    const float size = __builtin_fabsf(x), t = size > 4.0f ? 4.0f : size;
    float q = 2.16868131e-05f;
    q = q * t - 0.000441335892f;
    q = q * t + 0.00420455919f;
    q = q * t - 0.0252082486f;
    q = q * t + 0.108418563f;
    q = q * t + 0.633219908f;
    q = q * t + 1.12957842f;
    q = q * t - 0.000188038173f;
    const float large = __builtin_copysignf(1.0f - forge::exp(-q), x);
    return size < 1.0f ? x * p : x != x ? x : large;
}

FORGE_INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }

}  // namespace forge

// Link map and prototype: 0 for success.
extern "C" __attribute__((visibility("default"))) int forge_launch(FORGE_PARAMS);
