"""Candidates through the real compilers: built files, verdicts, limits, cache."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import math
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

import pytest
from targets_fixture import (
    RMS_NORM_CPP,
    RMS_NORM_CUDA,
    SOFTMAX_CPP,
    SOFTMAX_CUDA,
    cpu_device,
    cuda_device,
    rms_norm_target,
    softmax_target,
)

from forge_tui.compiler import build as build_module
from forge_tui.compiler.build import CommandCompiler
from forge_tui.contract import header
from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import Built, CompileFailure, Verdict

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
PARAMS = "extern \"C\" int forge_launch(FORGE_PARAMS)"
HEAD = '#include "forge_target.h"\n'


def cpp(body: str, before: str = "") -> str:
    """A CPU candidate around a body."""
    return f"{HEAD}{before}\n{PARAMS} {{ {body}; return 0; }}\n"


def cuda(body: str, before: str = "") -> str:
    """A CUDA candidate around a body."""
    return f'//@launch k grid=1 block=32\n{HEAD}{before}\nextern "C" __global__ void k(FORGE_PARAMS) {{ {body}; }}\n'


@pytest.fixture(autouse=True)
def _private_temp(tmp_path, monkeypatch):
    """Builds use a temporary folder of the test's own, which must be empty afterwards."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield
    assert list(scratch.iterdir()) == []


@pytest.fixture
def cpu(tmp_path):
    """A compiler for the CPU."""
    return CommandCompiler(cpu_device(), tmp_path / "cache")


@pytest.fixture
def gpu(tmp_path):
    """A compiler for a Hopper GPU that need not be there."""
    return CommandCompiler(cuda_device(), tmp_path / "cache")


@needs_gxx
async def test_a_cpu_softmax_builds_and_is_right(cpu):
    """The built file computes a softmax, and its hash is the file's."""
    rows, columns = 64, 256
    built = await cpu.build(softmax_target(rows, columns), SOFTMAX_CPP, {})
    assert isinstance(built, Built)
    assert built.sha256 == hashlib.sha256(Path(built.path).read_bytes()).hexdigest()
    assert (built.language, built.cached, built.plan.launches) == ("cpp", False, ())
    assert not os.access(built.path, os.W_OK) or not Path(built.path).stat().st_mode & 0o222
    ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
    launch = ctypes.CDLL(built.path).forge_launch
    x = (ctypes.c_float * (rows * columns))(*[math.sin(i) * 5 for i in range(rows * columns)])
    out = (ctypes.c_float * (rows * columns))()
    assert launch(x, out, None, ctypes.c_int64(0)) == 0
    for row in (0, 17, rows - 1):
        values = [math.exp(x[row * columns + j]) for j in range(columns)]
        right = [value / sum(values) for value in values]
        assert max(abs(out[row * columns + j] - right[j]) for j in range(columns)) < 1e-7


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
async def test_a_cuda_softmax_builds_with_its_resources(tmp_path, arch):
    """A cubin for the asked architecture, with what ptxas says of the kernel."""
    compiler = CommandCompiler(cuda_device(arch), tmp_path / "cache")
    built = await compiler.build(softmax_target(), SOFTMAX_CUDA, {"BLOCK": 128})
    assert isinstance(built, Built)
    assert Path(built.path).read_bytes()[:4] == b"\x7fELF"
    assert f"for '{arch}'" in built.log
    assert built.plan.launches[0].block == (128, 1, 1)
    used = built.resources["softmax_rows"]
    assert (used["spill_bytes"], used["smem_bytes"]) == (0, 128 // 32 * 4)
    assert 8 <= used["registers"] <= 64


@needs_gxx
async def test_narrow_types_and_tunables_reach_the_compiler(cpu):
    """A bfloat16 RMSNorm with an infinite eps builds for each setting, each with a file of its own."""
    target = rms_norm_target(eps=math.inf)
    one = await cpu.build(target, RMS_NORM_CPP, {})
    four = await cpu.build(target, RMS_NORM_CPP, {"CHUNK": 4})
    assert isinstance(one, Built)
    assert isinstance(four, Built)
    assert one.path != four.path
    assert one.sha256 != four.sha256


@needs_nvcc
async def test_bfloat16_builds_for_cuda(gpu):
    """The header brings the toolkit's narrow types."""
    built = await gpu.build(rms_norm_target(eps=math.inf), RMS_NORM_CUDA, {})
    assert isinstance(built, Built)


@pytest.mark.parametrize(
    ("device", "dtype"), [(cpu_device(), "float16"), (cuda_device(), "float16"), (cuda_device(), "bfloat16")]
)
async def test_the_empty_candidate_compiles(tmp_path, device, dtype):
    """What a person starts from builds as it is."""
    if shutil.which("nvcc" if device.language == "cuda" else "g++") is None:
        pytest.skip("no compiler")
    target = softmax_target(dtype=dtype)
    compiler = CommandCompiler(device, tmp_path / "cache")
    assert isinstance(await compiler.build(target, header.empty_candidate(target, device), {}), Built)


@needs_gxx
async def test_a_cpu_error_names_the_line(cpu):
    """The reason is the first error, the log has the compiler's words, and no path of ours is in it."""
    failed = await cpu.build(softmax_target(), SOFTMAX_CPP.replace("1.0f / sum", "1.0f / total"), {})
    assert isinstance(failed, CompileFailure)
    assert failed.verdict is Verdict.COMPILE_ERROR
    assert failed.reason == "line 18: 'total' was not declared in this scope"
    assert "candidate.cpp:18:" in failed.log
    assert "forge-build-" not in failed.log
    assert failed.compile_s > 0


@needs_nvcc
async def test_a_cuda_error_names_the_line(gpu):
    """As for the CPU, in nvcc's form."""
    failed = await gpu.build(softmax_target(), SOFTMAX_CUDA.replace("/ sum;", "/ total;"), {})
    assert isinstance(failed, CompileFailure)
    assert (failed.verdict, failed.reason) == (Verdict.COMPILE_ERROR, 'line 28: identifier "total" is undefined')
    assert "candidate.cu(28)" in failed.log
    assert "forge-build-" not in failed.log


@needs_nvcc
async def test_an_assembler_error_is_a_compile_error(gpu):
    """What only ptxas finds is told, without the names of scratch files."""
    failed = await gpu.build(softmax_target(), cuda('asm("bogus.u32 %r1;");'), {})
    assert isinstance(failed, CompileFailure)
    assert failed.verdict is Verdict.COMPILE_ERROR
    assert failed.reason.startswith("ptxas: ")
    assert "tmpxft" not in failed.log


@needs_gxx
async def test_a_wrong_entry_is_a_compile_error_and_a_missing_one_a_refusal(cpu):
    """The header's prototype catches other parameters; the inspection a missing entry."""
    wrong = await cpu.build(softmax_target(), HEAD + 'extern "C" int forge_launch(float* x) { return 0; }', {})
    missing = await cpu.build(softmax_target(), HEAD + "int other() { return 0; }", {})
    assert isinstance(wrong, CompileFailure)
    assert isinstance(missing, CompileFailure)
    assert (wrong.verdict, "conflicting declaration" in wrong.reason) == (Verdict.COMPILE_ERROR, True)
    assert missing.verdict is Verdict.REFUSED
    assert missing.reason == 'The source does not define `extern "C" int forge_launch(FORGE_PARAMS)`.'


STATE = "state between calls"


@needs_gxx
@pytest.mark.parametrize(
    ("source", "part"),
    [
        (cpp("static int n; out0[0] = n++"), STATE),
        (cpp("counter += 1; out0[0] = counter", "float counter;"), "The variable `counter` can be written"),
        (cpp("table[0] += 1; out0[0] = table[1]", "namespace { float table[4] = {1, 2}; }"), "The variable `table`"),
        (cpp("KEEP int n = 1; out0[0] = n++", "#define KEEP stat\\\nic"), "`n`"),
        (cpp("std::vector<float> v(x[0]); out0[0] = v[int(x[1])]", "#include <vector>"), "a kernel allocates nothing"),
        (cpp("out0[0] = write(1, x, 4)", 'extern "C" long write(int, const void*, unsigned long);'), "calls `write`"),
        (cpp("f()", 'extern "C" void f() noexcept;'), "calls `f`"),
        (cpp("out0[0] = helper(1)", "float helper(int);"), "calls `helper`"),
        (cpp("", "struct S { S() { value = 3; } ~S() {} int value; } const s;"), "runs code when it is loaded"),
        (cpp("", 'extern "C" void _init() {}'), "DT_INIT"),
    ],
    ids=range(10),
)  # fmt: skip
async def test_cpu_files_that_do_more_than_arithmetic_are_refused(cpu, source, part):
    """State, allocation, foreign calls and code at load do not pass, whatever the source looks like."""
    failed = await cpu.build(softmax_target(), source, {})
    assert isinstance(failed, CompileFailure)
    assert failed.verdict is Verdict.REFUSED
    assert part in failed.reason


@needs_nvcc
@pytest.mark.parametrize(
    ("source", "part"),
    [
        (cuda("counter += 1; out0[0] = counter", "#define D __dev\\\nice__\nD float counter;"),
         "The global variable `counter`"),
        (cuda("table[threadIdx.x] += 1; out0[0] = table[1]", "#define D __device__\nD float table[32] = {1};"),
         "The global variable `table`"),
        (cuda("out0[0] = cuda::std::state++", "#define P(a, b) a##b\n#define D P(__dev, ice__)\n"
              "namespace cuda { namespace std { D int state; } }"), "The global variable `cuda::std::state`"),
        (cuda("f(1)", 'extern "C" __device__ int f(int);'), "f"),
        (cuda('asm("{ .reg .u32 r; .global .u32 hidden; ld.global.u32 r, [hidden]; st.global.u32 [hidden], r; }")'),
         "hidden"),
    ],
    ids=range(5),
)  # fmt: skip
async def test_cuda_files_that_keep_state_are_refused(gpu, source, part):
    """Mutable globals are found in the built file, behind macros and pasted names too."""
    failed = await gpu.build(softmax_target(), source, {})
    assert isinstance(failed, CompileFailure)
    assert failed.verdict in (Verdict.REFUSED, Verdict.COMPILE_ERROR)
    assert part in failed.reason


@needs_nvcc
@pytest.mark.parametrize(
    "source",
    [
        cuda("out0[threadIdx.x] = table[threadIdx.x % 4]", "__device__ const float table[4] = {1, 2, 3, 4};"),
        cuda("out0[threadIdx.x] = table[threadIdx.x % 4]", "__constant__ float table[4] = {1, 2, 3, 4};"),
        cuda("static constexpr float t[4] = {1, 2, 3, 4}; out0[threadIdx.x] = t[threadIdx.x % 4]"),
        cuda("out0[0] = sinf(x[0]) + tgammaf(x[1]) + (float)pow((double)x[2], 1.7)"),
        cuda("assert(x[0] > 0); out0[0] = x[0]", "#include <cassert>"),
        cuda("using R = cub::BlockReduce<float, 32>; __shared__ R::TempStorage t; int end = 3; "
             "out0[0] = R(t).Sum(x[threadIdx.x]) + end", "#include <cub/block/block_reduce.cuh>"),
        cuda("auto b = cg::this_thread_block(); out0[0] = cg::reduce(cg::tiled_partition<32>(b), x[threadIdx.x], "
             "cg::plus<float>())", "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\n"
             "namespace cg = cooperative_groups;"),
        cuda('asm volatile("wgmma.fence.sync.aligned;")'),
    ],
    ids=["table", "constant", "static", "math", "assert", "cub", "groups", "wgmma"],
)  # fmt: skip
async def test_honest_cuda_kernels_pass_the_inspection(gpu, source):
    """Constant tables, the toolkit's own globals and architecture-specific instructions are no state."""
    built = await gpu.build(softmax_target(), source, {})
    assert isinstance(built, Built), built


async def test_a_refused_source_never_reaches_a_compiler(cpu, monkeypatch):
    """Lint, directives and plan come first, and their sentence is the reason."""

    async def never(*args, **kwargs):
        raise AssertionError("a compiler was started")

    monkeypatch.setattr(build_module.subprocesses, "run", never)
    monkeypatch.setattr(build_module, "find_tool", lambda device: build_module.Gxx(path="g++", version="0"))
    for source, tunables, sentence in (
        ('#include "/etc/passwd"\n', {},
         "Line 1: the include path `/etc/passwd` is not allowed: headers are named, not reached by path."),
        ("//@workspace 1/0\n", {}, "Line 1: `1/0` divides by zero."),
        ("a\0b", {}, "Line 1 holds the control character 0x00."),
        ("//@tune A 1\n", {"A": 2}, "A=2 is not one of the values that the source declares."),
    ):  # fmt: skip
        failed = await cpu.build(softmax_target(), source, tunables)
        assert failed == CompileFailure(verdict=Verdict.REFUSED, reason=sentence)


BOMB = """
template <int N> struct Bomb { static constexpr long value = Bomb<N - 1>::value + Bomb<N - 2>::value * N; };
template <> struct Bomb<0> { static constexpr long value = 1; };
template <> struct Bomb<1> { static constexpr long value = 1; };
template <int N, int M> struct Wide { typedef typename Wide<N - 1, 2 * M>::type a;
                                      typedef typename Wide<N - 1, 2 * M + 1>::type b; typedef a type; };
template <int M> struct Wide<0, M> { typedef int type; };
Wide<28, 0>::type bomb();
"""


@needs_gxx
async def test_a_template_bomb_times_out_and_leaves_nothing_running(tmp_path):
    """The compiler's whole process group is gone when the limit has passed, and the next build works."""
    compiler = CommandCompiler(cpu_device(), tmp_path / "cache", timeout_s=1.5, memory_bytes=64 * 2**30)
    started = time.monotonic()
    failed = await compiler.build(softmax_target(), cpp("", BOMB), {})
    assert isinstance(failed, CompileFailure)
    assert (failed.verdict, failed.reason) == (Verdict.TIMED_OUT, "The compiler ran longer than 1.5 s.")
    assert time.monotonic() - started < 20
    assert not [line for line in _command_lines() if "candidate.cpp" in line and str(tmp_path) in line]
    compiler = CommandCompiler(cpu_device(), tmp_path / "cache")
    assert isinstance(await compiler.build(softmax_target(), SOFTMAX_CPP, {}), Built)


def _command_lines():
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield (folder / "cmdline").read_bytes().decode(errors="replace") + str((folder / "cwd").readlink())
        except OSError:
            continue


async def _compiler_runs(place):
    """Wait until a compiler's process is there; nothing of ours announces it."""
    while not any("candidate.cpp" in line and str(place) in line for line in _command_lines()):  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@needs_gxx
async def test_a_memory_bomb_ends_at_its_limit(tmp_path):
    """A compiler that eats memory fails alone, with a reason that says so."""
    compiler = CommandCompiler(cpu_device(), tmp_path / "cache", memory_bytes=400 * 2**20, timeout_s=50)
    failed = await compiler.build(softmax_target(), cpp("", BOMB), {})
    assert isinstance(failed, CompileFailure)
    assert (failed.verdict, failed.reason) == (
        Verdict.COMPILE_ERROR, "The compiler needed more than 0.390625 GiB of memory.",
    )  # fmt: skip


@needs_gxx
async def test_an_endless_constant_ends(tmp_path):
    """A constexpr loop without end is an error or a time-out, not a hang."""
    loop = "constexpr int f() { int i = 0; while (true) i ^= 1; return i; }"
    source = cpp("constexpr int n = f(); out0[0] = n", loop)
    compiler = CommandCompiler(cpu_device(), tmp_path / "cache", timeout_s=6)
    failed = await compiler.build(softmax_target(), source, {})
    assert isinstance(failed, CompileFailure)
    assert failed.verdict in (Verdict.COMPILE_ERROR, Verdict.TIMED_OUT)


@needs_gxx
async def test_endless_output_is_cut(cpu):
    """A log fits a prompt however much the compiler says."""
    errors = "\n".join(f"int f{i}() {{ return {'x' * 3000}{i}; }}" for i in range(40))
    failed = await cpu.build(softmax_target(), cpp("", errors), {})
    assert isinstance(failed, CompileFailure)
    assert failed.verdict is Verdict.COMPILE_ERROR
    assert len(failed.log.encode()) < 12_100
    assert failed.log.endswith("bytes more]")
    assert len(failed.reason) <= 400


@pytest.mark.parametrize(("device", "source"), [(cpu_device(), SOFTMAX_CPP), (cuda_device(), SOFTMAX_CUDA)],
                         ids=["cpu", "cuda"])  # fmt: skip
async def test_equal_input_gives_equal_bytes(tmp_path, device, source):
    """Two builds in different folders with caches of their own make the same file."""
    if shutil.which("nvcc" if device.language == "cuda" else "g++") is None:
        pytest.skip("no compiler")
    first = await CommandCompiler(device, tmp_path / "a").build(softmax_target(), source, {})
    second = await CommandCompiler(device, tmp_path / "b").build(softmax_target(), source, {})
    assert isinstance(first, Built)
    assert isinstance(second, Built)
    assert not first.cached
    assert not second.cached
    assert first.sha256 == second.sha256


@needs_gxx
async def test_a_build_is_taken_from_the_cache_by_content(cpu, tmp_path):
    """The same source and settings are built once; another header, source or setting again."""
    first = await cpu.build(softmax_target(), SOFTMAX_CPP, {})
    again = await CommandCompiler(cpu_device(), tmp_path / "cache").build(softmax_target(), SOFTMAX_CPP, {})
    other = await cpu.build(softmax_target(rows=65), SOFTMAX_CPP, {})
    assert isinstance(first, Built)
    assert isinstance(again, Built)
    assert isinstance(other, Built)
    assert (first.cached, again.cached, other.cached) == (False, True, False)
    assert (again.path, again.sha256, again.compile_s) == (first.path, first.sha256, first.compile_s)
    assert other.path != first.path


@needs_gxx
@pytest.mark.parametrize("damage", ["artifact", "meta", "no artifact", "no meta"])
async def test_a_damaged_entry_is_built_again(cpu, damage):
    """A file that does not match its hash, or half an entry, is not used."""
    first = await cpu.build(softmax_target(), SOFTMAX_CPP, {})
    assert isinstance(first, Built)
    path = Path(first.path)
    victim = path if "artifact" in damage else path.with_name("meta.json")
    if damage.startswith("no"):
        victim.unlink()
    else:
        victim.chmod(stat.S_IRUSR | stat.S_IWUSR)
        victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    again = await cpu.build(softmax_target(), SOFTMAX_CPP, {})
    assert isinstance(again, Built)
    assert (again.cached, again.sha256) == (False, first.sha256)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == first.sha256


@needs_gxx
async def test_equal_builds_at_one_time_are_one(cpu, monkeypatch):
    """Four callers of the same source get one compile; a different source has its own."""
    started = []
    run = build_module.subprocesses.run

    async def counted(argv, *args, **kwargs):
        started.append(argv)
        return await run(argv, *args, **kwargs)

    monkeypatch.setattr(build_module.subprocesses, "run", counted)
    results = await asyncio.gather(
        *(cpu.build(softmax_target(), SOFTMAX_CPP, {}) for _ in range(4)),
        cpu.build(rms_norm_target(), RMS_NORM_CPP, {}),
    )
    assert all(isinstance(result, Built) for result in results)
    assert len({result.path for result in results[:4]}) == 1
    assert sum("-c" in argv for argv in started) == 2


@needs_gxx
async def test_no_more_compilers_run_than_allowed(tmp_path, monkeypatch):
    """With one job the builds come one after the other."""
    running = peak = 0
    run = build_module.subprocesses.run

    async def watched(*args, **kwargs):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        try:
            return await run(*args, **kwargs)
        finally:
            running -= 1

    monkeypatch.setattr(build_module.subprocesses, "run", watched)
    compiler = CommandCompiler(cpu_device(), tmp_path / "cache", jobs=1)
    results = await asyncio.gather(*(compiler.build(softmax_target(rows), SOFTMAX_CPP, {}) for rows in (1, 2, 3)))
    assert all(isinstance(result, Built) for result in results)
    assert peak == 1


@needs_gxx
async def test_a_cancelled_build_stops_its_compiler_unless_another_waits(tmp_path):
    """Cancelling one of two callers leaves the build; cancelling the last one kills the compiler."""
    compiler = CommandCompiler(cpu_device(), tmp_path / "cache")
    one = asyncio.create_task(compiler.build(softmax_target(), SOFTMAX_CPP, {}))
    two = asyncio.create_task(compiler.build(softmax_target(), SOFTMAX_CPP, {}))
    await _compiler_runs(tmp_path)
    one.cancel()
    assert isinstance(await two, Built)
    slow = CommandCompiler(cpu_device(), tmp_path / "cache", memory_bytes=64 * 2**30)
    alone = asyncio.create_task(slow.build(softmax_target(), cpp("", BOMB), {}))
    await _compiler_runs(tmp_path)
    alone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await alone
    assert not [line for line in _command_lines() if "candidate.cpp" in line and str(tmp_path) in line]


@needs_gxx
async def test_a_full_disk_is_said(cpu, monkeypatch):
    """No space for the cache is a fault of the machine, in one sentence."""

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("forge_tui.compiler.cache.tempfile.mkdtemp", full)
    with pytest.raises(EnvironmentFault, match="The disk is full, so kernels cannot be built"):
        await cpu.build(softmax_target(), SOFTMAX_CPP, {})


@needs_gxx
async def test_a_source_that_prints_machine_faults_is_still_only_wrong(cpu):
    """Words of a full disk or a missing header in a source's own error do not stop a session."""
    for words in ("No space left on device", "nvcc fatal : Unsupported gpu architecture", "fatal error: cuda_fp16.h"):
        failed = await cpu.build(softmax_target(), f"#error {words}\n", {})
        assert isinstance(failed, CompileFailure)
        assert failed.verdict is Verdict.COMPILE_ERROR
        assert failed.reason == f"line 1: #error {words}"


@needs_nvcc
async def test_an_architecture_the_toolkit_does_not_know_is_the_machines_fault(tmp_path):
    """A toolkit older than the GPU is no verdict on the candidate."""
    compiler = CommandCompiler(cuda_device("sm_990a"), tmp_path / "cache")
    with pytest.raises(EnvironmentFault, match="does not know the architecture sm_990a"):
        await compiler.build(softmax_target(), SOFTMAX_CUDA, {})


@needs_nvcc
async def test_a_launch_that_could_never_start_is_refused(gpu, tmp_path):
    """More registers or shared memory than a block can have is told after the compile, cached or not."""
    heavy = cuda(
        "float a[100]; for (int i = 0; i < 100; ++i) a[i] = x[i * 32 + threadIdx.x]; __syncthreads(); float s = 0; "
        "for (int i = 0; i < 100; ++i) s += a[i]; for (int i = 0; i < 100; ++i) out0[i * 32 + threadIdx.x] = a[i] * s"
    )
    built = await gpu.build(softmax_target(), heavy, {})
    assert isinstance(built, Built)
    assert built.resources["k"]["registers"] > 64
    for _ in range(2):
        failed = await gpu.build(softmax_target(), heavy.replace("block=32", "block=1024"), {})
        assert isinstance(failed, CompileFailure)
        assert failed.verdict is Verdict.REFUSED
        assert "add __launch_bounds__(1024) or launch smaller blocks." in failed.reason
    small = CommandCompiler(cuda_device(smem_optin=65536), tmp_path / "cache")
    greedy = cuda("__shared__ float s[8192]; s[threadIdx.x] = x[threadIdx.x]; out0[0] = s[31 - threadIdx.x]")
    failed = await small.build(softmax_target(), greedy.replace("block=32", "block=32 smem=40000"), {})
    assert isinstance(failed, CompileFailure)
    assert "needs 72768 bytes of shared memory in a block; 65536 are allowed." in failed.reason


@needs_gxx
@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
async def test_machine_code_of_a_cpu_kernel_is_shown(cpu):
    """The entry's instructions are counted; a loop over memory is there."""
    built = await cpu.build(softmax_target(64, 256), SOFTMAX_CPP, {})
    text = await cpu.machine_code(built)
    assert "instructions: " in text.splitlines()[0]
    assert "Its largest inner loop has " in text
    assert "@plt" not in text


@needs_nvcc
async def test_machine_code_needs_a_disassembler(gpu, monkeypatch):
    """Without one the sentence names the program."""
    built = await gpu.build(softmax_target(64, 256), cuda("out0[0] = x[0]"), {})
    assert isinstance(built, Built), built
    monkeypatch.setattr(build_module.cuda_tools, "find", lambda name: "")
    with pytest.raises(EnvironmentFault, match=r"cuobjdump .of the CUDA toolkit. is not installed"):
        await gpu.machine_code(built)
