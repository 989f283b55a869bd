"""The lint: what is refused with which sentence, and what honest kernels may contain."""

from __future__ import annotations

import pytest
from targets_fixture import RMS_NORM_CPP, RMS_NORM_CUDA, SOFTMAX_CPP, SOFTMAX_CUDA

from forge_tui.contract import lint
from forge_tui.contract.source import read
from forge_tui.core.errors import ContractError


def refusal(source, language):
    """The sentence of a refusal."""
    with pytest.raises(ContractError) as caught:
        lint.check(source, language)
    return caught.value.what


@pytest.mark.parametrize(
    ("source", "language"),
    [(SOFTMAX_CPP, "cpp"), (RMS_NORM_CPP, "cpp"), (SOFTMAX_CUDA, "cuda"), (RMS_NORM_CUDA, "cuda")],
)
def test_honest_kernels_pass(source, language):
    """The right kernels of these tests break no rule."""
    lint.check(source, language)


@pytest.mark.parametrize(
    "line",
    [
        "static __device__ __forceinline__ float f(float x) { return x; }",
        "__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return a; }",
        "template <int N = 4> __device__ float g(const float (&a)[N]) { return a[0]; }",
        "__device__ const float table[2] = {1.0f, 2.0f};",
        "static __device__ constexpr int t[] = {1, 2};",
        "__constant__ float c[4] = {1, 2, 3, 4};",
        "__device__ void h() { static __shared__ float s[32]; __shared__ alignas(16) float u[4]; }",
        "__device__ float k(float x) { static constexpr float a[2] = {1, 2}; return a[0] + x; }",
        "struct S { static constexpr int N = 4; static __device__ int get() { return N; } };",
        "#define CEIL(a, b) (((a) + (b) - 1) / (b))\n#define CAT(a, b) a##b",
        "namespace cg = cooperative_groups;",
        'asm volatile("cp.async.commit_group;\\n" ::);',
        "struct T { T() = delete; };",
        "#include <cuda_bf16.h>\n#include <mma.h>\n#include <cooperative_groups.h>",
        "#include <cub/block/block_reduce.cuh>",
        "#include <cuda/std/limits>\n#include <cuda_runtime.h>\n#include <cstdint>\n#include <forge_target.h>",
        "#pragma unroll 4\n#if __CUDA_ARCH__ >= 900\n#endif",
        "__host__ __device__ inline int twice(int x) { return 2 * x; }",
        "// printf malloc <<< cudaMalloc\n/* static int x; */",
        "static_assert(sizeof(float) == 4);",
    ],
)
def test_device_code_as_people_write_it_passes(line):
    """Functions, constants, shared memory, assembly and the toolkit's headers are allowed."""
    lint.check(line, "cuda")


@pytest.mark.parametrize(
    "line",
    [
        "static inline float f(float x) { return x; }",
        "static const float table[] = {1, 2};",
        "static constexpr int64_t tile = 8;",
        "template <class T> static T g(T x) { return x; }",
        "namespace { constexpr int n = 4; inline float h(float* p) { return *p; } }",
        "#include <immintrin.h>\n#include <omp.h>\n#include <cmath>\n#include <algorithm>\n#include <cstring>",
        "#pragma omp parallel for collapse(2) schedule(static)\nfor (;;) {}",
        "#pragma omp sections\n{\n#pragma omp section\n{}\n}",
        "int time = 3; int thread = omp_get_thread_num(); float open = 1; o.free = 2;",
        "struct S { int a; } const s = {1};",
        "const char* text = \"asm fopen system\";",
        "__attribute__((always_inline, noinline)) void f();",
        "[[gnu::always_inline]] inline int g() { return 1; }",
        "auto f = [&](int i) { return i; };",
    ],
)
def test_cpu_code_as_people_write_it_passes(line):
    """Helpers, constants, intrinsics, OpenMP and common words as names are allowed."""
    lint.check(line, "cpp")


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("#include <torch/extension.h>", "Line 1: the include `torch/extension.h` is not allowed"),
        ('#include "/etc/passwd"', "Line 1: the include path `/etc/passwd` is not allowed"),
        ('#include "../x.h"', "Line 1: the include path `../x.h` is not allowed"),
        ("#include <cub/../../x.h>", "Line 1: the include path"),
        ("#define H <cub/cub.cuh>\n#include H", "Line 2: an include that is not written out"),
        ("#include <fstream>", "the include `fstream` is not allowed"),
        ("#import <mma.h>", "`#import` is not allowed"),
        ("#include_next <mma.h>", "`#include_next` is not allowed"),
        ("\n#embed <x>", "Line 2: `#embed` is not allowed"),
        ('# 3 "other.cu"', "line markers"),
        ("#line 4", "`#line` is not allowed"),
        ("%: include <fstream>", "the include `fstream`"),
        ("#inc\\\nlude <fstream>", "Line 1: the include `fstream`"),
        ("/* */ # /* */ include /* */ <fstream>", "the include `fstream`"),
        ("#if __has_include(<x>)\n#endif", "`__has_include` is not allowed"),
        ("float t = __TIME__;", "`__TIME__` is not allowed"),
        ("__device__ float state;", "Line 1: the `__device__` variable `state` is not allowed"),
        ("__device__ float state[4] = {1};", "variable `state`"),
        ("__device__ __align__(16) float state[4];", "variable `state`"),
        ("__device__ const float* pointer;", "variable `pointer`"),
        ("static __device__ int a;", "variable `a`"),
        ("static int a = 0;", "static variable `a`"),
        ("__global__ void k() { static int calls; }", "static variable `calls`"),
        ("__managed__ int a;", "`__managed__` is not allowed"),
        ("#define const\n", "a macro called `const` is not allowed"),
        ("#undef FORGE_PARAMS", "a macro called `FORGE_PARAMS` is not allowed"),
        ("void f() { printf(\"x\"); }", "`printf` is not allowed: a kernel prints nothing."),
        ("float* p = (float*)malloc(4);", "`malloc` is not allowed"),
        ("float* p = new float;", "`new` is not allowed"),
        ("void f(float* p) { delete p; }", "`delete` is not allowed"),
        ("void f() { k<<<1, 2>>>(); }", "a launch with `<<<` is not allowed"),
        ("void f() { cudaMalloc(0, 1); }", "`cudaMalloc` is not allowed"),
        ("void f() { cudaDeviceSynchronize(); }", "`cudaDeviceSynchronize` is not allowed"),
        ('asm(".incbin \\"/etc/passwd\\"");', "`.incbin` or `.include`"),
        ("int* p = const_cast<int*>(q);", "`const_cast` is not allowed"),
        ("#define P print\\\nf\nvoid f() { printf(); }", "Line 1: `printf`"),
    ],
)
def test_cuda_refusals(source, part):
    """What a CUDA kernel may not contain is refused, with its line."""
    assert part in refusal(source, "cuda")


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ('void f() { asm("syscall"); }', "`asm` is not allowed"),
        ("void f() { __as\\\nm__(\"syscall\"); }", "`__asm__` is not allowed"),
        ("#define A(x, y) x##y\n", "Line 1: token pasting with `##` is not allowed"),
        ("#define A(x, y) x%:%:y\n", "token pasting"),
        ("#define A asm\n", "`asm` is not allowed"),
        ("__attribute__((constructor)) void f() {}", "`constructor` is not allowed"),
        ("[[gnu::constructor]] void f() {}", "`constructor` is not allowed"),
        ("__attribute__((__section__(\".text\"))) const char x[] = {1};", "the attribute `__section__` is not allowed"),
        ("[[gnu::section(\".text\")]] const char x[] = {1};", "the attribute `section` is not allowed"),
        ("void f() __attribute__((alias(\"g\")));", "the attribute `alias` is not allowed"),
        ("thread_local int x;", "`thread_local` is not allowed"),
        ("#pragma omp threadprivate(x)\n", "`threadprivate` is not allowed"),
        ("static float cache[100];", "static variable `cache`"),
        ("int f() { static int n = 0; return n++; }", "static variable `n`"),
        ("static std::vector<float> cache;", "static variable `cache`"),
        ("static float* const pointer = 0; static const float* moving = 0;", "static variable `moving`"),
        ("std::thread t([]{});", "`thread` is not allowed"),
        ("void f() { pthread_create(0); }", "`pthread_create` is not allowed"),
        ("void f() { fork(); }", "`fork` is not allowed"),
        ("void f() { ::system(\"ls\"); }", "`system` is not allowed"),
        ("void f() { dlopen(0, 1); }", "`dlopen` is not allowed"),
        ("void f() { syscall(1); }", "`syscall` is not allowed"),
        ("void f() { fopen(\"x\", \"r\"); }", "`fopen` is not allowed"),
        ("std::ofstream o;", "`ofstream` is not allowed"),
        ("char** e = environ;", "`environ` is not allowed"),
        ("void f() { getenv(\"X\"); }", "`getenv` is not allowed"),
        ("void f() { omp_set_num_threads(1); }", "`omp_set_num_threads` is not allowed"),
        ("void f() { _MM_SET_FLUSH_ZERO_MODE(1); }", "`_MM_SET_FLUSH_ZERO_MODE` is not allowed"),
        ("long t = __rdtsc();", "`__rdtsc` is not allowed"),
        ("__global__ void k() {}", "this is CUDA"),
        ("#pragma GCC dependency \"/etc/passwd\"", "`#pragma dependency` is not allowed"),
        ("#pragma redefine_extname f system", "`#pragma redefine_extname` is not allowed"),
        ("_Pragma(\"redefine_extname f system\")", "`#pragma redefine_extname` is not allowed"),
        ("#define P _Pragma (\"GCC dependency \\\"/etc/passwd\\\"\")\n", "`#pragma dependency` is not allowed"),
        ("__attribute__((no_sanitize(\"address\"))) void f() {}", "`no_sanitize` is not allowed: all of a kernel"),
        ("[[gnu::no_sanitize_address]] void f() {}", "`no_sanitize_address` is not allowed"),
        ("extern \"C\" void __asan_report_load4(unsigned long) {}", "`__asan_report_load4` is not allowed"),
        ("long* p = (long*)_readfsbase_u64();", "`_readfsbase_u64` is not allowed: a kernel keeps no state"),
        ("void f(void** b) { __builtin_longjmp(b, 1); }", "`__builtin_longjmp` is not allowed"),
        ("void f() { __builtin_unwind_init(); }", "`__builtin_unwind_init` is not allowed"),
        ("#include <thread>", "the include `thread` is not allowed"),
        ("#include <iostream>", "the include `iostream` is not allowed"),
    ],
)
def test_cpu_refusals(source, part):
    """What a CPU kernel may not contain is refused, with its line."""
    assert part in refusal(source, "cpp")


@pytest.mark.parametrize(
    ("source", "name", "constant"),
    [
        ("__device__ const float t[2] = {1, 2};", "t", True),
        ("constexpr int a = 1, b = 2;", "a", True),
        ("STATE t[2] = {1, 2};", "t", False),
        ("void f() { t[0] = 1; }", "t", False),
        ("const int* t = 0;", "t", False),
        ("const int t = 0; void f() { int t = 1; }", "t", False),
        ("// const int t = 0;\n", "t", False),
    ],
)
def test_constants_are_told_from_variables(source, name, constant):
    """A name counts as a constant only where every declaration of it says so."""
    assert lint.declares_constant(read(source), name) is constant


@pytest.mark.parametrize(
    ("source", "alone"),
    [
        ("namespace cg = cooperative_groups; using namespace nvcuda;", True),
        ("namespace mine { int begin; }", True),
        ("namespace cuda { namespace std { __device__ int end; } }", False),
        ("namespace mine::cub { }", False),
        ("#define N cuda\nnamespace N { }", False),
        ("#define OPEN(x) namespace x {\nOPEN(cuda) }", False),
        ("#define P(a, b) a##b\n", False),
    ],
)
def test_opening_a_toolkit_namespace_is_seen(source, alone):
    """By name, by macro or by pasting: a source that could add to the toolkit's namespaces is known."""
    assert lint.leaves_toolkit_alone(read(source)) is alone
