"""What a kernel source may include, and the words it must not use, with the sentence for each."""

from __future__ import annotations

from forge_tui.contract.identifiers import word_set

HEADER = "forge_target.h"

#: toolkit headers that hold device code only, and standard ones that device code can use
CUDA_HEADERS = word_set("""
    cuda_runtime.h cuda_fp16.h cuda_bf16.h cuda_fp8.h cuda_fp6.h cuda_fp4.h mma.h cuComplex.h vector_types.h
    vector_functions.h math_constants.h device_launch_parameters.h device_functions.h sm_61_intrinsics.h
    cooperative_groups.h cooperative_groups/reduce.h cooperative_groups/scan.h cooperative_groups/memcpy_async.h
    cooperative_groups/details/partitioning.h
    cuda_pipeline.h cuda_pipeline_primitives.h cuda_awbarrier.h cuda_awbarrier_primitives.h
    cuda/barrier cuda/pipeline cuda/atomic cuda/ptx cuda/functional cuda/annotated_ptr cuda/access_property
    cuda/std/barrier cuda/cmath cuda/bit cuda/warp
    stdint.h stddef.h math.h float.h limits.h assert.h string.h
    cstdint cstddef cmath cfloat climits cassert cstring type_traits limits utility
""")
CUDA_FOLDERS = ("cuda/std/", "cub/")

CPP_HEADERS = word_set("""
    stdint.h stddef.h math.h float.h limits.h assert.h string.h stdlib.h stdbool.h tgmath.h
    cstdint cstddef cmath cfloat climits cassert cstring cstdlib algorithm array bit complex concepts functional
    initializer_list iterator limits numbers numeric ratio span tuple type_traits utility vector new optional
    memory string omp.h cpuid.h
    immintrin.h x86intrin.h emmintrin.h xmmintrin.h pmmintrin.h tmmintrin.h smmintrin.h nmmintrin.h avxintrin.h
    arm_neon.h arm_sve.h arm_fp16.h arm_bf16.h experimental/simd
""")

_NO_STATE = "a kernel keeps no state between calls"
_NO_OS = "a kernel does not call the operating system"
_NO_FILES = "a kernel reads and writes no files"
_NO_THREADS = "use OpenMP for parallelism; a kernel starts no threads of its own"
_NO_MEMORY = "a kernel allocates nothing; ask for a `//@workspace`"
_NO_TEXT = "a kernel prints nothing"
NO_CLOCK = "a kernel does not read clocks or random numbers"
_NO_MODE = "a kernel does not change the mode of the floating-point unit"
_NO_OMP = "a kernel does not change OpenMP's settings"
_SANITISED = "all of a kernel is run under a sanitizer"
_NO_LAUNCH = "launches are written as `//@launch` directives; a kernel source has no host side"


def _words(text: str, why: str) -> dict[str, str]:
    return dict.fromkeys(text.split(), why)


#: names refused wherever they stand in code, macros included
BOTH_NAMES: dict[str, str] = {
    **_words("__has_include __has_include_next __has_embed", "a source does not ask what is installed"),
    **_words("__DATE__ __TIME__ __TIMESTAMP__", "the built file must not depend on the time"),
    **_words("thread_local __thread _Thread_local", _NO_STATE),
}
CUDA_NAMES: dict[str, str] = {
    **_words("__managed__", _NO_STATE),
    **_words("const_cast", "what is constant stays constant"),
    **_words("printf vprintf fprintf puts putchar", _NO_TEXT),
    **_words("clock clock64 __clock __clock64 globaltimer __globaltimer chrono", NO_CLOCK),
    **_words("malloc calloc realloc free alloca __nv_aligned_device_malloc new delete", _NO_MEMORY),
}
CPP_NAMES: dict[str, str] = {
    **_words("asm __asm __asm__", "inline assembly is not allowed in CPU kernels; use intrinsics"),
    **_words("constructor __constructor__ destructor __destructor__ ifunc __ifunc__", "nothing runs when a kernel is "
             "loaded or unloaded"),
    **_words("malloc calloc realloc free aligned_alloc posix_memalign valloc memalign mmap munmap mprotect mremap brk "
             "sbrk new delete make_unique make_shared unique_ptr shared_ptr _mm_malloc _mm_free", _NO_MEMORY),
    **_words("printf fprintf sprintf snprintf vprintf puts putchar fputs cout cerr clog perror", _NO_TEXT),
    **_words("fopen fclose fread fwrite freopen open openat creat ofstream ifstream fstream FILE mkstemp tmpfile "
             "unlink rename shm_open memfd_create", _NO_FILES),
    **_words("fork vfork exec execl execlp execle execv execve execvp execvpe posix_spawn popen system syscall dlopen "
             "dlsym dlclose dl_iterate_phdr socket connect kill raise ptrace prctl signal sigaction setjmp longjmp "
             "getenv secure_getenv setenv putenv environ __environ exit _exit _Exit quick_exit abort atexit on_exit "
             "at_quick_exit sleep usleep nanosleep getpid gettid personality", _NO_OS),
    **_words("thread jthread async pthread_create pthread_self std_thread mutex condition_variable call_once "
             "sched_setaffinity pthread_setaffinity_np", _NO_THREADS),
    **_words("omp_set_num_threads omp_set_dynamic omp_set_nested omp_set_schedule omp_set_max_active_levels "
             "omp_pause_resource omp_pause_resource_all omp_fulfill_event threadprivate", _NO_OMP),
    **_words("omp_get_wtime omp_get_wtick clock clock_gettime gettimeofday time chrono __rdtsc __rdtscp _rdtsc "
             "__builtin_ia32_rdtsc __builtin_ia32_rdtscp _rdpmc __rdpmc __builtin_ia32_rdpmc "
             "__builtin_readcyclecounter rand srand random drand48 rand_r random_device mt19937 getrandom "
             "_rdrand16_step _rdrand32_step _rdrand64_step _rdseed16_step _rdseed32_step _rdseed64_step", NO_CLOCK),
    **_words("_mm_setcsr _MM_SET_FLUSH_ZERO_MODE _MM_SET_DENORMALS_ZERO_MODE _MM_SET_ROUNDING_MODE "
             "_MM_SET_EXCEPTION_MASK _MM_SET_EXCEPTION_STATE __builtin_ia32_ldmxcsr fesetround fesetenv feupdateenv "
             "feenableexcept", _NO_MODE),
    **_words("__global__ __device__ __shared__ threadIdx blockIdx", "this is CUDA; the target wants a CPU kernel"),
    **_words("__builtin_return_address __builtin_frame_address __builtin_extract_return_addr __builtin_dwarf_cfa "
             "__builtin_unwind_init __builtin_eh_return __builtin_apply_args __builtin_apply __builtin_return "
             "__builtin_setjmp __builtin_longjmp", "a kernel does not look at its caller"),
    **_words("_readfsbase_u32 _readfsbase_u64 _readgsbase_u32 _readgsbase_u64 _writefsbase_u32 _writefsbase_u64 "
             "_writegsbase_u32 _writegsbase_u64 __builtin_ia32_rdfsbase32 __builtin_ia32_rdfsbase64 "
             "__builtin_ia32_rdgsbase32 __builtin_ia32_rdgsbase64 __builtin_ia32_wrfsbase32 __builtin_ia32_wrfsbase64 "
             "__builtin_ia32_wrgsbase32 __builtin_ia32_wrgsbase64 __builtin_thread_pointer "
             "__builtin_set_thread_pointer", _NO_STATE),
    **_words("no_sanitize __no_sanitize__ no_sanitize_address __no_sanitize_address__ no_address_safety_analysis "
             "__no_address_safety_analysis__ no_sanitize_undefined __no_sanitize_undefined__ no_sanitize_thread "
             "__no_sanitize_thread__ no_sanitize_coverage __no_sanitize_coverage__", _SANITISED),
}  # fmt: skip
#: beginnings of names refused in CPU sources
CPP_PREFIXES: tuple[tuple[str, str], ...] = (
    ("__asan_", _SANITISED), ("__ubsan_", _SANITISED), ("__sanitizer_", _SANITISED), ("__lsan_", _SANITISED),
)  # fmt: skip

#: beginnings of names refused in CUDA sources: the host side of the toolkit and the device-side runtime
CUDA_PREFIXES: tuple[tuple[str, str], ...] = (
    ("cudaMalloc", _NO_MEMORY), ("cudaFree", _NO_MEMORY), ("cudaMemcpy", _NO_LAUNCH), ("cudaMemset", _NO_LAUNCH),
    ("cudaLaunch", _NO_LAUNCH), ("cudaStream", _NO_LAUNCH), ("cudaEvent", _NO_LAUNCH), ("cudaDevice", _NO_LAUNCH),
    ("cudaGraph", _NO_LAUNCH), ("cudaFunc", _NO_LAUNCH), ("cudaGet", _NO_LAUNCH), ("cudaSet", _NO_LAUNCH),
    ("cudaHost", _NO_LAUNCH), ("cudaOccupancy", _NO_LAUNCH), ("cudaPeek", _NO_LAUNCH), ("cudaTensorMap", _NO_LAUNCH),
    ("get_sreg_clock", NO_CLOCK), ("get_sreg_globaltimer", NO_CLOCK),
    ("cudaCtx", _NO_LAUNCH), ("cublas", _NO_LAUNCH), ("cudnn", _NO_LAUNCH),
)  # fmt: skip
#: whole names that the prefixes above would catch but that are types and constants of device code
CUDA_PREFIX_EXCEPTIONS = frozenset({"cudaStream_t", "cudaError_t"})

#: namespaces that a source may use but not add to
TOOLKIT_NAMESPACES = frozenset({"std", "cuda", "cub", "thrust", "cooperative_groups", "nvcuda"})

#: GCC attributes that move code or data, run code at load, or bind a name to another
REFUSED_ATTRIBUTES = word_set("""
    section alias weakref ifunc constructor destructor init_priority cleanup copy symver retain tls_model
    target_clones
""")
