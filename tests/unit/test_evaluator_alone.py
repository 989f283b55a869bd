"""The program that runs one kernel without torch, on a driver that says what it was told."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from forge_tui.core.records import Launch, LaunchPlan
from forge_tui.evaluator import alone, raw
from forge_tui.evaluator.job import Job
from forge_tui.launch import cuda_alone
from forge_tui.launch.cuda_driver import Driver

STAND_IN = Path(__file__).parent.parent / "fixtures" / "cuda_alone_stand_in.cpp"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory) -> dict[str, Path]:
    """Drivers on which kernels end well, and fail."""
    nvcc = shutil.which("nvcc")
    places = [Path(nvcc).resolve().parent.parent / "include"] if nvcc else []
    include = next((p for p in [*places, Path("/usr/local/cuda/include")] if (p / "cuda.h").exists()), None)
    if include is None:
        pytest.skip("needs cuda.h")
    folder = tmp_path_factory.mktemp("driver")
    for name, code in (("well", 0), ("bad", 700)):
        command = ["g++", "-shared", "-fPIC", "-w", "-DEX", f"-DSYNCHRONIZED={code}", f"-I{include}", str(STAND_IN),
                   "-o", f"{name}.so"]  # fmt: skip
        subprocess.run(command, cwd=folder, check=True)
    return {name: folder / f"{name}.so" for name in ("well", "bad")}


class Said:
    """What the driver was told."""

    def __init__(self, path: Path, monkeypatch) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.said.restype = ctypes.c_char_p
        self.library.forget()
        monkeypatch.setattr(cuda_alone, "driver", lambda: Driver(self.library))

    def take(self) -> list[str]:
        """Everything since the last time."""
        text = self.library.said().decode()
        self.library.forget()
        return [part for part in text.split(";") if part]


def job(folder: Path, **changes) -> Job:
    """Two sets of two inputs, the second one strided, one output, two kernels and a third that is skipped."""
    (folder / "kernel.cubin").write_bytes(b"\x7fELF and more")
    path = folder / "inputs.bin"
    sets = [[torch.full((3, 5), fill, dtype=torch.uint8), torch.full((4, 4), fill + 1, dtype=torch.uint8)[:, :2]]
            for fill in (7, 70)]  # fmt: skip
    sizes = raw.write(path, sets)
    launches = (
        Launch(kernel="one", grid=(2, 1, 1), block=(32, 1, 1), smem=20000),
        Launch(kernel="none", grid=(0, 1, 1), block=(32, 1, 1)),
        Launch(kernel="two", grid=(3, 1, 1), block=(64, 1, 1), cluster=(2, 1, 1)),
    )
    fields = {
        "image": str(folder / "kernel.cubin"), "device_index": 1, "inputs_path": str(path), "input_names": ["x", "y"],
        "plan": LaunchPlan(launches=launches, workspace_bytes=40, workspace_zero=True), "input_bytes": sizes,
        "output_names": ["out0"], "output_bytes": [24],
    }  # fmt: skip
    return Job(**(fields | changes))


def test_a_job_is_run_on_every_set(libraries, tmp_path, monkeypatch, capsys):
    """Each buffer is an allocation of its own and exact size; outputs are left as they come; launches are in order."""
    said = Said(libraries["well"], monkeypatch)
    made = job(tmp_path)
    assert made.input_bytes == [[15, 14], [15, 14]], "from the first to the last element"
    made.write(tmp_path / "job.json")
    assert alone.main(["alone", str(tmp_path / "job.json")]) == 0
    told = said.take()
    begin = told.index("alloc 15")
    assert told[:begin] == ["retain 1", "current 0x7f00000000c0", "load ELF a 0"]
    one = ["alloc 15", "alloc 14", "copy 15 7 7", "copy 14 8 8", "alloc 24", "alloc 40", "set 0 40"]
    assert told[begin : begin + 7] == one
    assert told[begin + 7] == "attribute 8 20000", "more than a block gets without asking"
    launched = [part for part in told if part.startswith(("plain", "ex", "cluster"))]
    assert launched == [
        "plain 0x7f0000000020 2,1,1 32,1,1 20000 (nil)", "ex 0x7f0000000020 3,1,1 64,1,1 0 (nil) 1", "cluster 2,1,1",
    ] * 2  # fmt: skip
    assert told.count("free") == 8
    assert [part for part in told if part.startswith("copy")][2:] == ["copy 15 70 70", "copy 14 71 71"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(alone.BUFFERS)
    buffers = json.loads(lines[0].removeprefix(alone.BUFFERS))
    assert list(buffers) == ["x", "y", "out0", "workspace"]
    arguments = next(part for part in told if part.startswith("args"))
    assert arguments == f"args {buffers['x']:x} {buffers['y']:x}"
    assert alone.main(["alone", str(tmp_path / "job.json"), "1"]) == 0
    assert sum(part.startswith("plain") for part in said.take()) == 1


def test_how_it_ends_tells_whose_fault_it_was(libraries, tmp_path, monkeypatch, capsys):
    """A kernel that fails is code 4, a missing driver or function code 3, with a sentence each."""
    Said(libraries["bad"], monkeypatch)
    job(tmp_path).write(tmp_path / "job.json")
    assert alone.main(["alone", str(tmp_path / "job.json")]) == alone.FAILED
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in capsys.readouterr().err
    monkeypatch.setattr(cuda_alone, "driver", _Lacking)
    assert alone.main(["alone", "--probe", "0"]) == alone.MISSING
    assert capsys.readouterr().err == "The CUDA driver has no cuInit.\n"


class _Lacking:
    """A driver without the functions that are asked for."""

    def function(self, name):
        return None


def test_it_needs_no_torch():
    """Under a sanitizer every import costs: torch would take minutes."""
    code = "import sys, forge_tui.evaluator.alone; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_the_probe_assembles(tmp_path):
    """Its PTX is accepted for the oldest and the newest architecture that the toolkit here knows."""
    ptxas = shutil.which("ptxas") or "/usr/local/cuda/bin/ptxas"
    if not Path(ptxas).exists():
        pytest.skip("needs ptxas")
    (tmp_path / "probe.ptx").write_bytes(alone.PROBE_PTX.rstrip(b"\0"))
    for arch in ("sm_90", "sm_100"):
        done = subprocess.run([ptxas, f"-arch={arch}", "probe.ptx", "-o", "probe.cubin"], cwd=tmp_path,
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
