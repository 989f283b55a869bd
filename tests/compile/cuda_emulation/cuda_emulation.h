// Enough of CUDA to run the template kernels on the CPU: the threads of a block are fibers that meet at barriers.
// Every thread must reach every barrier and shuffle; blocks run one after the other.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <stdlib.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

struct Index3 {
    unsigned x = 0, y = 0, z = 0;
};
namespace emulated {
constexpr size_t stack_bytes = 64 * 1024;
inline Index3 block, thread;
inline ucontext_t* fibers = static_cast<ucontext_t*>(calloc(1024, sizeof(ucontext_t)));
inline ucontext_t scheduler;
inline char* stacks = static_cast<char*>(malloc(1024 * stack_bytes));
inline bool done[1024];
inline unsigned current = 0;
inline double exchange[1024];
inline void wait() {
    swapcontext(&fibers[current], &scheduler);
}
template <class Body> void run_fiber(Body* body) {
    (*body)();
    done[current] = true;
    swapcontext(&fibers[current], &scheduler);
}
template <class Body> void entry(unsigned high, unsigned low) {
    run_fiber(reinterpret_cast<Body*>((uintptr_t(high) << 32) | low));
}
template <class Body> void launch(unsigned gx, unsigned gy, unsigned threads, Body body) {
    for (unsigned y = 0; y < gy; ++y)
        for (unsigned x = 0; x < gx; ++x) {
            block = {x, y, 0};
            for (unsigned t = 0; t < threads; ++t) {
                done[t] = false;
                getcontext(&fibers[t]);
                fibers[t].uc_stack.ss_sp = stacks + t * stack_bytes;
                fibers[t].uc_stack.ss_size = stack_bytes;
                fibers[t].uc_link = nullptr;
                const uintptr_t address = reinterpret_cast<uintptr_t>(&body);
                makecontext(&fibers[t], (void (*)()) & entry<Body>, 2, unsigned(address >> 32), unsigned(address));
            }
            for (unsigned left = threads; left;) {
                for (unsigned t = 0; t < threads; ++t) {
                    if (done[t]) continue;
                    current = t;
                    thread = {t, 0, 0};
                    swapcontext(&scheduler, &fibers[t]);
                    if (done[t]) --left;
                }
            }
        }
}
}  // namespace emulated
#define blockIdx emulated::block
#define threadIdx emulated::thread

inline void __syncthreads() { emulated::wait(); }
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) {
    const unsigned me = emulated::current;
    memcpy(&emulated::exchange[me], &value, sizeof(T));
    emulated::wait();
    T other;
    memcpy(&other, &emulated::exchange[me ^ mask], sizeof(T));
    emulated::wait();
    return other;
}
inline float __int_as_float(int bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
struct __nv_bfloat16 {
    uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) { return __int_as_float(int(uint32_t(x.bits) << 16)); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return {0x7fff};
    return {uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
struct __half {
    _Float16 value;
};
inline float __half2float(__half x) { return float(x.value); }
inline __half __float2half_rn(float x) { return {_Float16(x)}; }
