"""The kernels that prompts show as examples compile under the contract."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from forge_tui.contract import header
from forge_tui.core.records import Device
from forge_tui.proposers.contract_text import EXAMPLE_CPP, EXAMPLE_CUDA
from forge_tui.search import simulate


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_the_cpp_example_compiles_without_warnings(tmp_path: Path) -> None:
    """What is shown for the CPU is right C++17 for the generated header."""
    device = Device(name="cpu", model="m", arch="a", cores=2, threads=2)
    (tmp_path / "forge_target.h").write_text(header.render(simulate.target("t"), device))
    (tmp_path / "k.cpp").write_text(EXAMPLE_CPP)
    done = subprocess.run(
        ["g++", "-std=c++17", "-O2", "-fopenmp", "-Wall", "-Wno-unused-parameter", "-DROWS=8", "-fsyntax-only",
         f"-I{tmp_path}", tmp_path / "k.cpp"], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
@pytest.mark.parametrize("threads", [128, 256, 512])
def test_the_cuda_example_compiles_for_every_setting(tmp_path: Path, threads: int) -> None:
    """What is shown for CUDA makes a cubin at each of its settings."""
    device = Device(name="cuda:0", model="m", arch="sm_90a", sms=132, smem_optin=232448)
    (tmp_path / "forge_target.h").write_text(header.render(simulate.target("t"), device))
    (tmp_path / "k.cu").write_text(EXAMPLE_CUDA)
    done = subprocess.run(
        ["nvcc", "-std=c++17", "-arch=sm_90a", "-cubin", f"-DTHREADS={threads}", f"-I{tmp_path}",
         "-o", tmp_path / "k.cubin", tmp_path / "k.cu"], capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "k.cubin").stat().st_size > 500
