"""Kernels that go wrong in every way that a worker must outlive, for the RMSNorm of the evaluator's tests.

Each has the verdicts that may come of it. `checked` ones pass through the compiler room, the others are built without
its checks, so that what they do reaches the process that runs them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from forge_tui.core.records import Verdict

RIGHT = (Verdict.FASTER, Verdict.SLOWER, Verdict.INCONCLUSIVE)
COMPILE = (Verdict.COMPILE_ERROR, Verdict.TIMED_OUT, Verdict.REFUSED)


@dataclass(frozen=True)
class Fault:
    """One source with what must become of it."""

    name: str
    source: str
    verdicts: tuple[Verdict, ...]
    reason: str = ""
    """A pattern that the reason must match."""
    checked: bool = False
    quick: bool = True
    """Whether it ends within a second, so that the small campaign has it."""

    def problem(self, verdict: Verdict, reason: str) -> str:
        """What differs from what was expected; empty where nothing does."""
        if verdict not in self.verdicts:
            return f"{self.name}: {verdict.value} ({reason}), expected {' or '.join(v.value for v in self.verdicts)}"
        if self.reason and not re.search(self.reason, reason):
            return f"{self.name}: {verdict.value}, but the reason is {reason!r}"
        return ""


_CPU = """\
#include "forge_target.h"
#include <cmath>
HEAD
extern "C" __attribute__((visibility("default"))) int forge_launch(FORGE_PARAMS) {
    for (int64_t r = 0; r < forge::x_shape_0; ++r) {
        float sum = 0;
        for (int64_t j = 0; j < 96; ++j) sum += x[r * 96 + j] * x[r * 96 + j];
        const float scale = 1.0f / std::sqrt(sum / 96 + float(forge::eps));
        for (int64_t j = 0; j < 96; ++j) out0[r * 96 + j] = x[r * 96 + j] * scale * weight[j];
    }
    BODY
    return 0;
}
"""


def cpu(body: str = "", head: str = "") -> str:
    """A right kernel that does something else, too."""
    return _CPU.replace("HEAD", head).replace("BODY", body)


_DEEP = """
template <int N, int M> struct Wide { typedef typename Wide<N - 1, 2 * M>::type a;
                                      typedef typename Wide<N - 1, 2 * M + 1>::type b; typedef a type; };
template <int M> struct Wide<0, M> { typedef int type; };
Wide<28, 0>::type bomb();
"""
_RECURSION = "template <int N> struct R { static const int v = R<N + 1>::v; }; const int bottom = R<0>::v;"
_MACROS = "#define A0 1+1+1+1+1+1+1+1+1+1\n" + "".join(
    f"#define A{n} {'+'.join([f'A{n - 1}'] * 10)}\n" for n in range(1, 8)
) + "const int much = A7;"
_CONSTANT = ("constexpr unsigned spin(unsigned n) { unsigned a = 1; for (unsigned i = 0; i < n; ++i) a = a * 3 + i; "
             "return a; }\n")  # fmt: skip
_SPIN = _CONSTANT + "\n".join(f"constexpr unsigned c{n} = spin(200000u + {n});" for n in range(400))
_NOISE = "\n".join(f"int f{n}() {{ return {'x' * 2000}{n}; }}" for n in range(60))
_C = "extern \"C\" {{ {} }}"

GOOD = Fault("good", cpu(), RIGHT)
WRONG = Fault("wrong", cpu("out0[7] += 1.0f;"), (Verdict.REJECTED,), "out0")

#: what a CPU kernel may do to its process
CPU: tuple[Fault, ...] = (
    Fault("honest", cpu("", "// through the compiler room"), RIGHT, checked=True),
    Fault("forgets a row", cpu("for (int j = 0; j < 96; ++j) out0[49 * 96 + j] = 0;"), (Verdict.REJECTED,), "row"),
    Fault("segfault", cpu("*(volatile int*)8 = 1;"), (Verdict.CRASHED,), "SIGSEGV", checked=True),
    Fault("illegal instruction", cpu("__builtin_trap();"), (Verdict.CRASHED,), "SIGILL"),
    Fault("misaligned", cpu("if (x) asm volatile(\"movaps (%0), %%xmm0\" :: \"r\"((const char*)x + 4) : \"xmm0\");"),
          (Verdict.CRASHED,), "SIG(SEGV|BUS)"),
    Fault("assert", cpu("assert(x == nullptr);", "#undef NDEBUG\n#include <cassert>"), (Verdict.CRASHED,),
          "SIG(ABRT|SYS|XFSZ)"),
    Fault("stack overflow", cpu("deep(0);", "__attribute__((noinline)) int deep(int n) { volatile char a[4096]; "
          "a[n % 4096] = 1; return deep(n + 1) + a[5]; }"), (Verdict.CRASHED,), "SIGSEGV"),
    Fault("abort", cpu("abort();", _C.format("void abort();")), (Verdict.CRASHED,), "SIG(ABRT|SYS)"),
    Fault("exit", cpu("_exit(0);", _C.format("void _exit(int);")), (Verdict.CRASHED,), "exit code 0"),
    Fault("division by zero", cpu("volatile int z = 0; out0[0] = float((int(x[1] * 1000) + 7) / z);"),
          (Verdict.CRASHED,), "SIGFPE"),
    Fault("bus", cpu("raise(7);", _C.format("int raise(int);")), (Verdict.CRASHED,), "SIG(BUS|SYS)"),
    Fault("kills itself", cpu("kill(getpid(), 9);", _C.format("int kill(int, int); int getpid();")),
          (Verdict.CRASHED,), "SIG(KILL|SYS)"),
    Fault("kills its group", cpu("kill(0, 9);", _C.format("int kill(int, int);")), (Verdict.CRASHED,), "SIG(KILL|SYS)"),
    Fault("address space", cpu("for (;;) *(volatile char*)malloc(1ul << 30) = 1;",
          _C.format("void* malloc(unsigned long);")), (Verdict.CRASHED,), "SIGSEGV"),
    Fault("memory", cpu("for (;;) { volatile char* p = (volatile char*)malloc(1 << 26); "
          "for (int i = 0; i < 1 << 26; i += 4096) p[i] = 1; }", _C.format("void* malloc(unsigned long);")),
          (Verdict.CRASHED, Verdict.TIMED_OUT), "SIGSEGV|SIGKILL|did not end", quick=False),
    # the limit of file size makes every write to the log fail: nothing grows, and the result counts
    Fault("output", cpu("char a[4096] = {1}; for (int i = 0; i < 500; ++i) write(2, a, 4096);",
          _C.format("long write(int, const void*, unsigned long);")), (*RIGHT, Verdict.CRASHED)),
    Fault("endless output", cpu("char a[4096] = {1}; for (;;) write(2, a, 4096);", _C.format("long write(int, "
          "const void*, unsigned long);")), (Verdict.TIMED_OUT, Verdict.CRASHED), quick=False),
    Fault("output everywhere", cpu("char a[4096] = {1}; for (int f = 0; f < 256; ++f) write(f, a, 4096);",
          _C.format("long write(int, const void*, unsigned long);")), (Verdict.CRASHED, Verdict.REJECTED)),
    Fault("file", cpu("if (open(\"/tmp/forge-fault-left\", 0102, 0600) >= 0) out0[0] += 1; else abort();",
          _C.format("int open(const char*, int, ...); void abort();")), (Verdict.CRASHED,), "SIG(ABRT|SYS)"),
    Fault("file at load", cpu("", _C.format("int open(const char*, int, ...); void abort();") +
          "__attribute__((constructor)) static void early() { if (open(\"/tmp/forge-fault-left\", 0102, 0600) < 0) "
          "abort(); }"), (Verdict.CRASHED,), "SIG(ABRT|XFSZ)"),
    Fault("forks", cpu("for (;;) fork();", _C.format("int fork();")), (Verdict.CRASHED,), "SIGSYS"),
    Fault("threads", cpu("unsigned long t; for (int i = 0; i < 1000; ++i) if (pthread_create(&t, 0, spin, 0)) break; "
          "for (;;) {}", "extern \"C\" { int pthread_create(unsigned long*, const void*, void* (*)(void*), void*); }\n"
          "static void* spin(void*) { for (volatile int i = 0;; ++i) {} }"), (Verdict.TIMED_OUT, Verdict.CRASHED),
          quick=False),
    Fault("hangs", cpu("for (volatile int i = 0;; ++i) {}"), (Verdict.TIMED_OUT,), "did not end within", quick=False),
    Fault("hangs in a thread team", cpu("\n#pragma omp parallel\n{ for (volatile int i = 0;; ++i) {} }\n"),
          (Verdict.TIMED_OUT,), "did not end within", quick=False),
    Fault("template bomb", cpu("", _DEEP), COMPILE, "longer than|GiB", checked=True, quick=False),
    Fault("template recursion", cpu("", _RECURSION), COMPILE, "depth", checked=True),
    Fault("macro bomb", cpu("", _MACROS), COMPILE, "", checked=True, quick=False),
    Fault("constant bomb", cpu("", _SPIN), (*COMPILE, *RIGHT), "", checked=True, quick=False),
    Fault("huge array", cpu("out0[0] += huge[int(x[0])];", "const int huge[1u << 29] = {1};"), COMPILE, "GiB|MiB",
          checked=True, quick=False),
    Fault("endless messages", cpu("", _NOISE), (Verdict.COMPILE_ERROR,), "", checked=True),
    Fault("reads a file", "#include \"/etc/passwd\"\n", (Verdict.REFUSED,), "headers are named", checked=True),
)  # fmt: skip

_CUDA = """\
//@launch rows grid=x_shape_0 block=32 LAUNCH
HEAD
#include "forge_target.h"
extern "C" __global__ void rows(FORGE_PARAMS) {
    const int64_t row = blockIdx.x, n = forge::x_shape_1;
    float sum = 0.0f;
    for (int64_t j = threadIdx.x; j < n; j += 32) { const float v = x[row * n + j]; sum += v * v; }
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float scale = rsqrtf(sum / n + float(forge::eps));
    for (int64_t j = threadIdx.x; j < n; j += 32) out0[row * n + j] = x[row * n + j] * scale * weight[j];
    BODY
}
"""


def cuda(body: str = "", head: str = "", launch: str = "") -> str:
    """The same for a GPU."""
    return _CUDA.replace("HEAD", head).replace("BODY", body).replace(" LAUNCH", f" {launch}".rstrip())


_DIED = "CUDA_ERROR|illegal|misaligned|assert|trap|launch|memory|process ended"

CUDA_GOOD = Fault("good", cuda(), RIGHT, checked=True)
#: what a CUDA kernel may do to its context; all pass the compiler room, but where a refusal is expected
CUDA: tuple[Fault, ...] = (
    Fault("wrong", cuda("if (!row && !threadIdx.x) out0[7] += 1.0f;"), (Verdict.REJECTED,), "out0", checked=True),
    Fault("illegal address", cuda("if (!row) *(volatile int*)(1ull << 52) = 1;"), (Verdict.CRASHED,), _DIED,
          checked=True),
    Fault("misaligned", cuda("*(volatile double*)((char*)out0 + 4) = 1.0;"), (Verdict.CRASHED,), _DIED, checked=True),
    Fault("trap", cuda("__trap();"), (Verdict.CRASHED,), _DIED, checked=True),
    Fault("assert", cuda("assert(x == nullptr);", "#undef NDEBUG\n#include <cassert>"),
          (Verdict.REFUSED, Verdict.CRASHED), f"__assertfail|{_DIED}", checked=True),
    Fault("stack overflow", cuda("if (deep(int(x[0]) & 1, out0) == 12345) out0[1] = 2.0f;",
          "__device__ __noinline__ int deep(int n, float* o) { volatile int a[512]; a[n & 511] = n; "
          "return o[n & 7] == 1e30f ? a[3] : deep(n + 1, o) + a[5]; }"), (Verdict.CRASHED,), _DIED, checked=True),
    Fault("infinite loop", cuda("while (*(volatile const float*)weight != 1e30f) {}"), (Verdict.TIMED_OUT,),
          "did not end within", checked=True, quick=False),
    Fault("huge shared request", cuda("", "", "smem=1000000"), (Verdict.REFUSED, Verdict.CRASHED), "shared",
          checked=True),
    Fault("huge local memory", cuda("volatile float a[130000]; for (int i = 0; i < 130000; ++i) a[i] = x[i & 7]; "
          "if (a[int(x[0]) & 1023] == 1e30f) out0[0] = 1.0f;"), (*RIGHT, Verdict.CRASHED, Verdict.TIMED_OUT,
          Verdict.COMPILE_ERROR, Verdict.INFRA), "", checked=True, quick=False),
    Fault("printf", cuda("printf(\"%d\\n\", 1);"), (Verdict.REFUSED,), "prints nothing", checked=True),
    Fault("malloc", cuda("if (!malloc(1 << 20)) out0[0] = 1.0f;"), (Verdict.REFUSED,), "allocates nothing",
          checked=True),
    Fault("template recursion", cuda("", _RECURSION), COMPILE, "", checked=True, quick=False),
    Fault("reads a file", "#include \"/etc/passwd\"\n", (Verdict.REFUSED,), "headers are named", checked=True),
)  # fmt: skip
