"""The driver API as ctypes sees it, against a stand-in library compiled with the toolkit's own cuda.h."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from forge_tui.core.records import Launch
from forge_tui.launch import cuda
from forge_tui.launch.cuda_driver import Driver
from forge_tui.launch.errors import DriverMissing, LaunchError

STAND_IN = Path(__file__).parent.parent / "fixtures" / "cuda_stand_in.cpp"


def _include() -> Path | None:
    nvcc = shutil.which("nvcc")
    found = [Path(nvcc).resolve().parent.parent / "include"] if nvcc else []
    return next((p for p in [*found, Path("/usr/local/cuda/include")] if (p / "cuda.h").exists()), None)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory) -> dict[str, Path]:
    """The stand-in with and without cuLaunchKernelEx."""
    include = _include()
    if include is None:
        pytest.skip("needs cuda.h")
    folder = tmp_path_factory.mktemp("driver")
    for name, flags in (("new", ["-DEX"]), ("old", [])):
        command = ["g++", "-shared", "-fPIC", "-w", *flags, f"-I{include}", str(STAND_IN), "-o", f"{name}.so"]
        subprocess.run(command, cwd=folder, check=True)
    return {name: folder / f"{name}.so" for name in ("new", "old")}


class Said:
    """A driver on a stand-in, and what the stand-in was told."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.said.restype = ctypes.c_char_p
        self.library.forget()
        self.driver = Driver(self.library)

    def take(self) -> list[str]:
        """Everything since the last time."""
        text = self.library.said().decode()
        self.library.forget()
        return [part for part in text.split(";") if part]


def prepared(said: Said, launch: Launch) -> cuda._Prepared:
    """A launch whose two arguments are 0x123456789abc and 0."""
    said.values = (ctypes.c_uint64 * 2)(0x123456789ABC, 0)
    start = ctypes.addressof(said.values)
    said.slots = (ctypes.c_void_p * 2)(start, start + 8)
    return cuda._Prepared(said.driver, 0x7F0000000010, launch, said.slots)


def test_an_extended_launch_has_every_field(libraries):
    """Grid, block, shared memory, stream, cluster, cooperative and arguments arrive where cuda.h has them."""
    said = Said(libraries["new"])
    launch = Launch(kernel="k", grid=(70000, 3, 2), block=(128, 2, 1), smem=1024, cluster=(2, 1, 1), cooperative=True)
    assert prepared(said, launch).launch(0x7F00DEADBEE0) == 0
    assert said.take() == [
        "ex 0x7f0000000020 70000,3,2 128,2,1 1024 0x7f00deadbee0 2", "cluster 2,1,1", "cooperative 1",
        "args 123456789abc 0",
    ]  # fmt: skip


def test_values_are_replaced_in_place(libraries):
    """A later launch sees new pointers and a new stream without new arrays; stream 0 is the default stream."""
    said = Said(libraries["new"])
    item = prepared(said, Launch(kernel="k", grid=(1, 1, 1), block=(1, 1, 1)))
    item.launch(8)
    said.take()
    said.values[:2] = [7, 9]
    item.launch(0)
    assert said.take() == ["ex 0x7f0000000020 1,1,1 1,1,1 0 (nil) 0", "args 7 9"]


def test_an_old_driver_launches_plainly(libraries):
    """Without cuLaunchKernelEx a plain launch works, and one with attributes is refused in words."""
    said = Said(libraries["old"])
    assert prepared(said, Launch(kernel="k", grid=(5, 1, 1), block=(32, 1, 1), smem=64)).launch(16) == 0
    assert said.take() == ["plain 0x7f0000000020 5,1,1 32,1,1 64 0x10", "args 123456789abc 0"]
    with pytest.raises(LaunchError, match="too old"):
        prepared(said, Launch(kernel="k", grid=(5, 1, 1), block=(32, 1, 1), cooperative=True))


def test_shared_memory_is_asked_for_with_the_static_part(libraries):
    """The limit is raised where static (40000 here) plus dynamic passes 48 KiB, and only then."""
    said = Said(libraries["new"])
    said.driver.allow_shared_bytes(1, 9152, "k")
    assert said.take() == []
    said.driver.allow_shared_bytes(1, 9153, "k")
    assert said.take() == ["attribute 8 9153"]


def test_errors_have_the_driver_s_name(libraries):
    """A failed call raises with the name and the text of the driver; an unknown code with its number."""
    said = Said(libraries["new"])
    with pytest.raises(LaunchError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS \(an illegal memory access") as caught:
        said.driver.synchronize()
    assert caught.value.code == "CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(LaunchError, match="Looking up the kernel absent failed: CUDA error 500"):
        said.driver.get_function(16, "absent")
    assert prepared(said, Launch(kernel="k", grid=(666, 1, 1), block=(1, 1, 1))).launch(0) == 700


def test_modules_contexts_and_limits(libraries):
    """Handles of 64 bits come back whole, images and limits arrive."""
    said = Said(libraries["new"])
    assert said.driver.load_module(b"\x7fELF2\0x") == 0x7F0000000010
    assert said.driver.current_context() == 0x7F00000000C0
    said.driver.set_current(0x7F00000000C0)
    said.driver.unload_module(0x7F0000000010)
    said.driver.forget_persisting_l2()
    assert said.take() == ["load ELF2 0", "current 0x7f00000000c0", "unload 0x7f0000000010", "limit 6 0", "reset"]


def test_a_library_that_is_no_driver_is_said():
    """A missing function names itself."""
    with pytest.raises(DriverMissing, match="has no cuGetErrorName"):
        Driver(ctypes.CDLL(None))
