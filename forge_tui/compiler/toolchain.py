"""The compilers of this machine: g++, nvcc, NVRTC; where they are and which version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import Device, Record
from forge_tui.processes.environment import clean_environment

NVRTC_WORKER = Path(__file__).with_name("nvrtc.py")
_ASK_TIMEOUT_S = 30
_GXX_NAMES = ("g++", *(f"g++-{major}" for major in range(16, 8, -1)))
_NO_GXX = EnvironmentFault(
    "No C++ compiler was found: install g++ (Debian and Ubuntu: apt-get install g++).",
    "Set CXX to its path if it is not on PATH.",
)
_NO_NVCC = EnvironmentFault(
    "No CUDA compiler was found: install the CUDA toolkit, or NVRTC with `pip install nvidia-cuda-nvrtc`.",
    "Set CUDA_HOME to the toolkit's folder if nvcc is not on PATH.",
)
#: what would change a build behind our back
_BUILD_VARIABLES = (
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "LD_PRELOAD",
    "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "NVCC_CCBIN", "CUDA_CACHE_PATH", "DEPENDENCIES_OUTPUT",
    "SUNPRO_DEPENDENCIES", "SOURCE_DATE_EPOCH", "LANGUAGE", "LD_RUN_PATH", "MAKEFLAGS",
)  # fmt: skip


class Gxx(Record, frozen=True):
    """GNU C++. `version` is such as `12.2.0`."""

    path: str
    version: str


class Nvcc(Record, frozen=True):
    """nvcc. `version` is such as `13.0.88`."""

    path: str
    version: str


class Nvrtc(Record, frozen=True):
    """The NVRTC library, called in a process of its own. `version` is such as `13.0`."""

    path: str
    version: str
    include: tuple[str, ...]
    """Folders with cuda_fp16.h and the like; empty where none were found."""


Tool = Gxx | Nvcc | Nvrtc


def build_environment(scratch: str | None = None) -> dict[str, str]:
    """The environment of a compiler: no secrets, no settings that change the result, messages in English."""
    kept = {name: value for name, value in clean_environment().items() if name not in _BUILD_VARIABLES}
    kept |= {"LC_ALL": "C", "LANG": "C"}
    if scratch is not None:
        kept |= {"TMPDIR": scratch, "HOME": scratch}
    return kept


def find_gxx() -> Gxx:
    """GNU C++ by `$CXX` or on PATH.

    Raises:
        EnvironmentFault: there is none; the sentence says what to install.
    """
    for candidate in _distinct([os.environ.get("CXX", ""), *_GXX_NAMES]):
        path = shutil.which(candidate)
        if path is None:
            continue
        banner = _ask([path, "--version"])
        if "Free Software Foundation" not in banner:
            continue  # clang under that name links another OpenMP runtime than PyTorch's
        version = _ask([path, "-dumpfullversion", "-dumpversion"]).strip()
        if re.fullmatch(r"\d+(\.\d+)*", version):
            return Gxx(path=path, version=version)
    raise _NO_GXX


def find_nvcc() -> Nvcc:
    """The nvcc on PATH, of a toolkit folder, or of the `nvidia-cuda-nvcc` wheel.

    Raises:
        EnvironmentFault: there is none; the sentence says what to install.
    """
    places = [shutil.which("nvcc") or ""]
    places += [str(root / "bin" / "nvcc") for root in _toolkits()]
    for site in _site_folders():
        places += [str(path) for path in sorted(site.glob("nvidia/c*/bin/nvcc"), reverse=True)]
    for place in _distinct(places):
        if not os.access(place, os.X_OK) or not Path(place).is_file():
            continue
        found = re.search(r"\bV(\d+\.\d+\.\d+)", _ask([place, "--version"]))
        if found:
            return Nvcc(path=place, version=found[1])
    raise _NO_NVCC


def find_nvrtc() -> Nvrtc:
    """The libnvrtc from a wheel, beside torch, or in a toolkit; asked for its version in a process of its own.

    Raises:
        EnvironmentFault: there is none that loads; the sentence says what to install.
    """
    for path in _distinct(_nvrtc_places()):
        answer = _ask([sys.executable, "-I", str(NVRTC_WORKER), "--version", path])
        found = re.fullmatch(r"(\d+)\.(\d+)\n", answer)
        if found:
            version = f"{found[1]}.{found[2]}"
            return Nvrtc(path=path, version=version, include=_cuda_includes(int(found[1]), Path(path)))
    raise _NO_NVCC


def find_tool(device: Device) -> Tool:
    """The compiler for a device: g++; or nvcc where it and the g++ it needs are there, else NVRTC.

    Raises:
        EnvironmentFault: there is none; the sentence says what to install.
    """
    if device.language == "cpp":
        return find_gxx()
    try:
        find_gxx()
        return find_nvcc()
    except EnvironmentFault:
        return find_nvrtc()


def toolkit_folders() -> list[Path]:
    """Folders of CUDA toolkits that nvcc, or a wrapper of it, may use."""
    return _toolkits()


def _ask(argv: list[str]) -> str:
    """Standard output of a short command; empty where it fails."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, env=build_environment(), check=False,
            stdin=subprocess.DEVNULL, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _distinct(places: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(place for place in places if place))


def _toolkits() -> list[Path]:
    """Toolkit folders, the chosen ones first, then the newest."""
    chosen = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    installed = [*Path("/usr/local").glob("cuda*"), *Path("/opt").glob("cuda*")]
    return chosen + sorted(installed, key=_version_of, reverse=True)


def _version_of(path: Path) -> tuple[int, ...]:
    """`cuda-13.0` before `cuda-12.8`, plain `cuda` before both."""
    numbers = tuple(int(n) for n in re.findall(r"\d+", path.name))
    return numbers or (10**6,)


def _site_folders() -> Iterator[Path]:
    for entry in sys.path:
        if entry and Path(entry).is_dir():
            yield Path(entry)


def _nvrtc_places() -> Iterator[str]:
    roots = [
        folder
        for site in _site_folders()
        for pattern in ("nvidia/cu[0-9]*/lib", "nvidia/cuda_nvrtc/lib", "torch/lib")
        for folder in sorted(site.glob(pattern), reverse=True)
    ]
    roots += [root / lib for root in _toolkits() for lib in ("lib64", "lib", "targets/x86_64-linux/lib")]
    roots += [Path(part) for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    for root in roots:
        for path in sorted(root.glob("libnvrtc*.so*"), key=lambda p: len(p.name)):
            if "builtins" not in path.name and ".alt." not in path.name:
                yield str(path)


def _cuda_includes(major: int, library: Path) -> tuple[str, ...]:
    """Include folders for NVRTC of one major version: those beside the library, then wheels, then toolkits."""
    wanted = [library.parent.parent / "include"]
    for site in _site_folders():
        wanted += [site / f"nvidia/cu{major}/include", site / "nvidia/cuda_runtime/include"]
    wanted += [root / "include" for root in _toolkits()]
    for folder in wanted:
        if (folder / "cuda_fp16.h").is_file():
            extra = [folder / "cccl", folder.parent.parent / "cuda_cccl/include"]
            return tuple(str(path) for path in [folder, *extra] if path.is_dir())
    return ()
