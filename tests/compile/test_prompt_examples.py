"""The kernels that prompts show as examples compile under the contract, and are right."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
import torch
from template_emulation import build_emulated

from forge_tui.contract import directives, header, lint, plan
from forge_tui.core.records import Device, Signature, Target, TensorSpec
from forge_tui.proposers import book, device_facts, prompt
from forge_tui.search import simulate

ROWS, COLS = 50, 132


def target() -> Target:
    """Rows of a size that no block divides."""
    base = simulate.target("t")
    spec = TensorSpec(shape=(ROWS, COLS), dtype="float32", strides=(COLS, 1))
    replace = msgspec.structs.replace
    signature: Signature = replace(base.signature, inputs=tuple(replace(i, spec=spec) for i in base.signature.inputs),
                                   outputs=tuple(replace(o, spec=spec) for o in base.signature.outputs))  # fmt: skip
    return replace(base, signature=signature)


def settings(source: str) -> list[dict[str, int]]:
    """The defaults, then every other value of one tunable."""
    read = directives.parse(source)
    return [read.defaults, *(read.defaults | {t.name: v} for t in read.tunes for v in t.values[1:])]


def by_max(x: torch.Tensor) -> torch.Tensor:
    """What the first example computes."""
    return x / x.abs().amax(1, keepdim=True)


def by_mean(x: torch.Tensor) -> torch.Tensor:
    """What the second example for the CPU computes."""
    return x / x.abs().mean(0)


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
@pytest.mark.parametrize(("name", "original"), [("example.cpp", by_max), ("example_split.cpp", by_mean)])
def test_the_cpp_examples_compile_without_warnings_and_are_right(tmp_path: Path, name: str, original: object) -> None:
    """What is shown for the CPU is right C++17 for the generated header, and computes what its comment says."""
    assert name in prompt.EXAMPLES["cpp"]
    source = book.packaged().raw(name)
    (tmp_path / "forge_target.h").write_text(
        header.render(target(), Device(name="cpu", model="m", arch="a", cores=2, threads=2)))  # fmt: skip
    (tmp_path / "k.cpp").write_text(source)
    x = torch.randn(ROWS, COLS, generator=torch.Generator().manual_seed(0))
    for number, setting in enumerate(settings(source)):
        library = tmp_path / f"k{number}.so"
        done = subprocess.run(
            ["g++", "-std=c++17", "-O1", "-fopenmp", "-Wall", "-Wno-unused-parameter", "-shared", "-fPIC",
             *(f"-D{key}={value}" for key, value in setting.items()), f"-I{tmp_path}", "-o", library,
             tmp_path / "k.cpp"], capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        out, workspace = torch.zeros_like(x), torch.full((64 * COLS,), torch.nan)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, out, workspace)]
        assert ctypes.CDLL(str(library)).forge_launch(*pointers, ctypes.c_int64(0)) == 0
        assert callable(original)
        torch.testing.assert_close(out, original(x))


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
@pytest.mark.parametrize("name", prompt.EXAMPLES["cuda"])
def test_the_cuda_examples_compile_for_every_setting(tmp_path: Path, name: str) -> None:
    """What is shown for CUDA makes a cubin at each of its settings."""
    source = book.packaged().raw(name)
    device = Device(name="cuda:0", model="m", arch="sm_90a", sms=132, smem_optin=232448)
    (tmp_path / "forge_target.h").write_text(header.render(target(), device))
    (tmp_path / "k.cu").write_text(source)
    for setting in settings(source):
        done = subprocess.run(
            ["nvcc", "-std=c++17", "-arch=sm_90a", "-cubin", *(f"-D{key}={value}" for key, value in setting.items()),
             f"-I{tmp_path}", "-o", tmp_path / "k.cubin", tmp_path / "k.cu"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "k.cubin").stat().st_size > 500


#: what the emulation lacks
_FLOAT4 = """\
struct alignas(16) float4 { float x, y, z, w; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
"""


def by_root_mean_square(x: torch.Tensor) -> torch.Tensor:
    """What the second example for CUDA computes."""
    return x / x.square().mean(1, keepdim=True).sqrt()


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_the_cuda_examples_are_right_in_the_emulation(tmp_path: Path) -> None:
    """At each setting they compute what their comments say, scratch memory full of NaN or not."""
    cases = [(name, setting) for name in prompt.EXAMPLES["cuda"] for setting in settings(book.packaged().raw(name))]
    originals = dict(zip(prompt.EXAMPLES["cuda"], (by_max, by_root_mean_square), strict=True))
    calls = build_emulated(tmp_path, [(target(), _FLOAT4 + book.packaged().raw(name), s) for name, s in cases])
    x = torch.randn(ROWS, COLS, generator=torch.Generator().manual_seed(0))
    for call, (name, _) in zip(calls, cases, strict=True):
        torch.testing.assert_close(call([x])[0], originals[name](x))


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
def test_what_the_device_sheet_names_can_be_used(tmp_path: Path) -> None:
    """Headers and names of the facilities pass the contract, and compile for the architecture that has them all."""
    source = (Path(__file__).parent / "facilities.cu").read_text()
    device = Device(name="cuda:0", model="m", arch="sm_90a", sms=132, smem_optin=232448)
    said = "\n".join(device_facts.facilities(device))
    for word in ("memcpy_async_tx", "__pipeline_memcpy_async", "map_shared_rank", "nvcuda::wmma", "__nv_bfloat162",
                 "__ldcs", "__stcs", "wgmma.fence"):  # fmt: skip
        assert word in said
        assert word.removeprefix("nvcuda::") in source
    lint.check(source, "cuda")
    (launch,) = plan.make(source, target(), device, {}).launches
    assert (launch.cluster, launch.smem) == ((2, 1, 1), 4096)
    (tmp_path / "forge_target.h").write_text(header.render(target(), device))
    (tmp_path / "k.cu").write_text(source)
    done = subprocess.run(
        ["nvcc", "-std=c++17", "-arch=sm_90a", "-cubin", "-DTHREADS=128", f"-I{tmp_path}", "-o", tmp_path / "k.cubin",
         tmp_path / "k.cu"], capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
