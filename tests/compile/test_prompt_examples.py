"""The kernels that prompts show as examples compile under the contract, and are right."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
import torch

from forge_tui.contract import directives, header
from forge_tui.core.records import Device, Signature, Target, TensorSpec
from forge_tui.proposers import book, prompt
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
