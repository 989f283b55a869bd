"""NVRTC in its worker: the same kernels, diagnostics and refusals as through nvcc."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
from targets_fixture import RMS_NORM_CUDA, SOFTMAX_CUDA, cuda_device, rms_norm_target, softmax_target

from forge_tui.compiler import build as build_module
from forge_tui.compiler import toolchain
from forge_tui.compiler.build import CommandCompiler
from forge_tui.contract import header
from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import Built, CompileFailure, Verdict

HEAD = '#include "forge_target.h"\n'


def cuda(body: str, before: str = "") -> str:
    """A CUDA candidate around a body."""
    return f'//@launch k grid=1 block=32\n{before}{HEAD}extern "C" __global__ void k(FORGE_PARAMS) {{ {body}; }}\n'


@pytest.fixture(scope="module")
def nvrtc():
    """The NVRTC of this machine."""
    try:
        return toolchain.find_nvrtc()
    except EnvironmentFault:
        pytest.skip("no libnvrtc")


@pytest.fixture
def compiler(nvrtc, tmp_path, monkeypatch):
    """A compiler that has no nvcc."""
    monkeypatch.setattr(build_module, "find_tool", lambda device: nvrtc)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    return CommandCompiler(cuda_device(), tmp_path / "cache")


async def test_a_softmax_builds_with_its_resources(compiler):
    """The cubin and ptxas' figures come back as from nvcc."""
    built = await compiler.build(softmax_target(), SOFTMAX_CUDA, {"BLOCK": 128})
    assert isinstance(built, Built), built
    assert Path(built.path).read_bytes()[:4] == b"\x7fELF"
    assert "sm_90a" in built.log
    assert built.resources["softmax_rows"]["smem_bytes"] == 128 // 32 * 4
    assert built.resources["softmax_rows"]["spill_bytes"] == 0


async def test_equal_input_gives_equal_bytes(compiler, tmp_path):
    """A second build elsewhere makes the same file."""
    first = await compiler.build(softmax_target(), SOFTMAX_CUDA, {})
    second = await CommandCompiler(cuda_device(), tmp_path / "other").build(softmax_target(), SOFTMAX_CUDA, {})
    assert isinstance(first, Built)
    assert isinstance(second, Built)
    assert (second.cached, second.sha256) == (False, first.sha256)


async def test_an_error_names_the_line(compiler):
    """The reason reads as nvcc's would."""
    failed = await compiler.build(softmax_target(), SOFTMAX_CUDA.replace("/ sum;", "/ total;"), {})
    assert isinstance(failed, CompileFailure)
    assert (failed.verdict, failed.reason) == (Verdict.COMPILE_ERROR, 'line 28: identifier "total" is undefined')


async def test_narrow_types_and_infinite_scalars_build(compiler, nvrtc):
    """The toolkit's headers are found, and every constant of the header is one for NVRTC too."""
    if not nvrtc.include:
        pytest.skip("no CUDA headers")
    for eps in (1e-6, math.inf, -math.inf, math.nan):
        built = await compiler.build(rms_norm_target(eps=eps), RMS_NORM_CUDA, {})
        assert isinstance(built, Built), built


@pytest.mark.parametrize(
    "source",
    [
        cuda("out0[0] = fmaxf(-INFINITY, M_PI) + (x[0] > 0 ? FLT_MAX : NAN); size_t n = 3; out0[n] = (int64_t)x[1]",
             "#include <cuda_runtime.h>\n#include <cstdint>\n#include <cmath>\n#include <cfloat>\n"),
        cuda("assert(x[0] > 0); out0[0] = INT_MAX", "#include <cassert>\n#include <climits>\n"),
        cuda("out0[0] = table[threadIdx.x % 4]", "__device__ const float table[4] = {0, 0, 0, 0};\n"),
        cuda('asm volatile("wgmma.fence.sync.aligned;")'),
    ],
    ids=["standard", "assert", "table", "wgmma"],
)  # fmt: skip
async def test_kernels_written_for_nvcc_build(compiler, source):
    """Standard headers have stand-ins, and what the compiler keeps of constants is not taken for state."""
    built = await compiler.build(softmax_target(), source, {})
    assert isinstance(built, Built), built


async def test_the_toolkits_globals_are_no_state(compiler, nvrtc):
    """Cub leaves hundreds of constants in the file; the kernel passes, and one with a real global does not."""
    if not any("cccl" in folder for folder in nvrtc.include):
        pytest.skip("no cub")
    body = (
        "using R = cub::BlockReduce<float, 32>; __shared__ R::TempStorage t; "
        "out0[0] = R(t).Sum(x[threadIdx.x]) + std::numeric_limits<float>::max()"
    )
    include = "#include <cub/block/block_reduce.cuh>\n#include <limits>\n"
    assert isinstance(await compiler.build(softmax_target(), cuda(body, include), {}), Built)
    state = include + "#define D __device__\nD float state;\n"
    failed = await compiler.build(softmax_target(), cuda(body + "; state += 1; out0[1] = state", state), {})
    assert isinstance(failed, CompileFailure)
    assert failed.verdict is Verdict.REFUSED
    assert "The global variable `state` is not allowed" in failed.reason


async def test_printing_is_refused_in_the_built_file(compiler):
    """A call that a macro hides from the lint is found as an undefined symbol."""
    source = cuda('P("%f", x[0])', "#define Q(a, b) a##b\n#define P Q(prin, tf)\n")
    failed = await compiler.build(softmax_target(), source, {})
    assert isinstance(failed, CompileFailure)
    assert (failed.verdict, failed.reason) == (
        Verdict.REFUSED, "The kernel calls `vprintf`, which is not allowed: a kernel prints nothing.",
    )  # fmt: skip


async def test_an_unknown_architecture_is_the_machines_fault(nvrtc, tmp_path, monkeypatch):
    """A library older than the GPU is no verdict."""
    monkeypatch.setattr(build_module, "find_tool", lambda device: nvrtc)
    with pytest.raises(EnvironmentFault, match="does not know the architecture sm_990a"):
        await CommandCompiler(cuda_device("sm_990a"), tmp_path).build(softmax_target(), SOFTMAX_CUDA, {})


async def test_the_empty_candidate_builds(compiler):
    """What a person starts from builds without nvcc too."""
    target = softmax_target()
    assert isinstance(await compiler.build(target, header.empty_candidate(target, cuda_device()), {}), Built)
