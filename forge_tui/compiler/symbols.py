"""Which functions of the system a built CPU kernel may call."""

from __future__ import annotations

import re

from forge_tui.contract.identifiers import word_set

_MATH = word_set("""
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 exp10 expm1 fabs fdim floor fma
    fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nearbyint
    nextafter pow remainder remquo rint round roundeven scalbn scalbln sin sincos sinh sqrt tan tanh tgamma trunc
    j0 j1 jn y0 y1 yn
""")
_MEMORY = ["memcpy", "memmove", "memset", "memcmp", "bcmp"]
#: names that the C runtime or the compiler bring, weak or harmless
_RUNTIME = [
    "__stack_chk_fail", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__cxa_finalize", "__gmon_start__",
    "__cpu_model", "__cpu_features2",
]  # fmt: skip
_OPENMP = [
    "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads", "omp_in_parallel", "omp_get_num_procs",
    "omp_get_level", "omp_get_team_size", "omp_get_ancestor_thread_num", "omp_get_thread_limit", "omp_get_dynamic",
    "omp_get_max_active_levels", "omp_get_active_level",
]  # fmt: skip
ALLOWED = frozenset([*_MATH, *(f"{n}f" for n in _MATH), *(f"{n}l" for n in _MATH), *_MEMORY, *_RUNTIME, *_OPENMP])

#: GCC's own OpenMP calls, apart from offloading and what outlives the call; vector mathematics of glibc
ALLOWED_FORMS = re.compile(
    r"GOMP_(?!target|offload|teams4|error|warning|alloc|free|task_detach)\w+|_ZGV[a-zA-Z]N?\w+|__(?:\w+)_finite"
)

#: files that a kernel may need at load
ALLOWED_LIBRARIES = frozenset(
    ["libm.so.6", "libc.so.6", "libmvec.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"]
)

_EXPLAINED: tuple[tuple[str, str], ...] = (
    (r"_Zn[wa]|_Zd[la]|malloc|calloc|realloc|free|posix_memalign|aligned_alloc|GOMP_alloc",
     ("a kernel allocates nothing; ask for a `//@workspace`")),
    (r"_ZSt\d+__throw|__cxa_|_Unwind", "a kernel throws nothing"),
    (r".*(printf|puts|putchar|fwrite)", "a kernel prints nothing"),
    (r"__tls_get_addr", "a kernel keeps no state between calls"),
    (r"omp_set_.*", "a kernel does not change OpenMP's settings"),
)  # fmt: skip


def allowed(name: str) -> bool:
    """Whether a kernel may leave this symbol undefined."""
    return name in ALLOWED or ALLOWED_FORMS.fullmatch(name) is not None


def why_not(name: str) -> str:
    """The rule behind a refusal."""
    for pattern, why in _EXPLAINED:
        if re.match(pattern, name):
            return why
    return "a kernel calls only arithmetic, memory and OpenMP functions"
