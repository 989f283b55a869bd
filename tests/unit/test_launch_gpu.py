"""Cubins on a real GPU: right results, streams, graphs, clusters, errors with their names."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from targets_fixture import SOFTMAX_CUDA, cuda_device, make_target, softmax_target

from forge_tui.compiler.build import CommandCompiler
from forge_tui.core.records import Built, Device, Target, TensorSpec
from forge_tui.launch.kernel import allocate_outputs, load_kernel

pytestmark = pytest.mark.gpu

PARTS = """\
//@workspace out0_numel * 4 zero
//@launch clustered grid=x_shape_0 block=32 smem=65536 cluster=2
//@launch nothing grid=0 block=32
//@launch together grid=x_shape_0 block=32 cooperative
#include "forge_target.h"
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void clustered(FORGE_PARAMS) {
    extern __shared__ float shared[];
    shared[16383] = x[blockIdx.x];
    cg::this_cluster().sync();
    const float other = *cg::this_cluster().map_shared_rank(&shared[16383], cg::this_cluster().block_rank() ^ 1);
    cg::this_cluster().sync();
    if (threadIdx.x == 0) ((float*)workspace)[blockIdx.x] += other;
}
extern "C" __global__ void nothing(FORGE_PARAMS) { out0[0] = -1; }
extern "C" __global__ void together(FORGE_PARAMS) {
    cg::this_grid().sync();
    if (threadIdx.x == 0) out0[blockIdx.x] = ((float*)workspace)[blockIdx.x ^ 1] + dims.reserved;
}
"""
WILD = """\
//@launch wild grid=1 block=1
#include "forge_target.h"
extern "C" __global__ void wild(FORGE_PARAMS) { *(volatile float*)(out0 + (1ll << 44)) = x[0]; }
"""


def device() -> Device:
    """The GPU at hand, as far as the compiler needs it."""
    found = torch.cuda.get_device_properties(0)
    suffix = "a" if found.major >= 9 else ""
    smem = found.shared_memory_per_block_optin
    return cuda_device(arch=f"sm_{found.major}{found.minor}{suffix}", sms=found.multi_processor_count, smem_optin=smem)


async def build(target: Target, source: str, folder: Path) -> Built:
    """The source compiled for the GPU at hand."""
    built = await CommandCompiler(device(), folder).build(target, source, {})
    assert isinstance(built, Built), built
    return built


async def test_softmax_is_right_on_any_stream(tmp_path):
    """The kernel runs on the current stream, on a given one, and inside a captured graph."""
    target = softmax_target(300, 1000)
    kernel = load_kernel(await build(target, SOFTMAX_CUDA, tmp_path), target.signature, "cuda:0")
    x = torch.randn(300, 1000, device="cuda:0")
    want = torch.softmax(x, -1)
    (out,) = allocate_outputs(target.signature, "cuda:0")
    kernel.launch([x], [out], None)
    kernel.synchronize()
    assert torch.allclose(out, want, atol=1e-6)
    stream = torch.cuda.Stream()
    out.zero_()
    torch.cuda.synchronize()
    kernel.launch([x], [out], None, stream.cuda_stream)
    stream.synchronize()
    assert torch.allclose(out, want, atol=1e-6)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.launch([x], [out], None)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.allclose(out, torch.softmax(x, -1), atol=1e-6)
    kernel.close()


async def test_clusters_shared_memory_cooperation_and_zeroed_workspace(tmp_path):
    """Launch attributes take effect, launches run in order, a zero grid is skipped."""
    if torch.cuda.get_device_capability(0)[0] < 9:
        pytest.skip("needs clusters")
    spec = TensorSpec(shape=(64,), dtype="float32", strides=(1,))
    target = make_target("parts", [("x", spec, "arg")], [spec])
    kernel = load_kernel(await build(target, PARTS, tmp_path), target.signature, "cuda:0")
    x = torch.arange(64.0, device="cuda:0")
    (out,) = allocate_outputs(target.signature, "cuda:0")
    workspace = kernel.allocate_workspace()
    for _ in range(2):
        workspace.fill_(0x7F)
        kernel.launch([x], [out], workspace)
        kernel.synchronize()
        assert torch.equal(out, x)


async def test_a_wild_write_is_named(tmp_path):
    """An illegal access surfaces as the driver's error name, in a process of its own because the context is lost."""
    target = softmax_target(4, 32)
    built = await build(target, WILD, tmp_path)
    code = f"""
        import msgspec, torch
        from forge_tui.core.records import Built, Signature
        from forge_tui.launch.kernel import LaunchError, allocate_outputs, load_kernel
        signature = msgspec.json.decode({target.signature.to_json()!r}, type=Signature)
        kernel = load_kernel(msgspec.json.decode({built.to_json()!r}, type=Built), signature, "cuda:0")
        try:
            kernel.launch([torch.ones(4, 32, device="cuda:0")], allocate_outputs(signature, "cuda:0"), None)
            kernel.synchronize()
        except LaunchError as error:
            print(error.code, flush=True)
    """
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "CUDA_ERROR_ILLEGAL_ADDRESS", done.stderr


async def test_a_thread_without_a_context_can_launch(tmp_path):
    """A fresh thread launches on the default stream although torch has not touched it."""
    import threading

    target = softmax_target(8, 64)
    kernel = load_kernel(await build(target, SOFTMAX_CUDA, tmp_path), target.signature, "cuda:0")
    x = torch.randn(8, 64, device="cuda:0")
    (out,) = allocate_outputs(target.signature, "cuda:0")
    thread = threading.Thread(target=lambda: kernel.launch([x], [out], None))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.allclose(out, torch.softmax(x, -1), atol=1e-6)
