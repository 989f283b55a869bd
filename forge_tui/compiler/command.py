"""The command lines of a build, as pure functions of what is asked.

Every path is relative to the private folder, so that equal input gives equal bytes wherever the folder lies.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from forge_tui.compiler.toolchain import NVRTC_WORKER, Gxx, Nvcc, Nvrtc
from forge_tui.core.records import Language

LIMIT_SCRIPT = Path(__file__).with_name("limit.py")

SOURCE: dict[Language, str] = {"cuda": "candidate.cu", "cpp": "candidate.cpp"}
ARTIFACT: dict[Language, str] = {"cuda": "kernel.cubin", "cpp": "kernel.so"}
HEADER = "forge_target.h"
LINK_MAP = "kernel.map"
#: nothing but the entry leaves the file, so no library function can be replaced from it
LINK_MAP_TEXT = "{ global: forge_launch; local: *; };\n"
OBJECT = "candidate.o"
#: exit code of the limiting script where the command cannot be started
NOT_STARTED = 127
#: the same where it cannot be confined
NOT_CONFINED = 126

_CXX_FLAGS = (
    "-O3", "-std=c++17", "-march=native", "-fopenmp", "-fPIC", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast", "-fvisibility=hidden", "-DNDEBUG",
    # no unwinding, no guards of distributions, so that nothing but the kernel's own calls is undefined in the file
    "-fno-exceptions", "-fno-rtti", "-fno-stack-protector", "-fno-threadsafe-statics", "-U_FORTIFY_SOURCE",
    "-fno-gnu-unique", "-w", "-fdiagnostics-color=never", "-fmax-errors=20", "-ftemplate-backtrace-limit=6",
)  # fmt: skip
_LINK_FLAGS = (
    # without the C runtime's start files nothing of ours runs at load, so any constructor found is the candidate's
    "-shared", "-nostdlib", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack", "-Wl,--build-id=none",
    # lets a candidate with destructors link, so that the inspection can say what is wrong with it
    "-Wl,--defsym=__dso_handle=0",
    "-Wl,--as-needed", f"-Wl,--version-script={LINK_MAP}",
)  # fmt: skip
#: 177: the header declares constants that a kernel does not use
_NVCC_FLAGS = ("-cubin", "-O3", "-std=c++17", "-DNDEBUG", "-diag-suppress", "177", "-Xptxas", "-v",
               "-allow-unsupported-compiler")  # fmt: skip
#: 47: the toolkit's cmath defines INFINITY again
_NVRTC_FLAGS = ("--std=c++17", "-DNDEBUG", "--diag-suppress=177,47", "--ptxas-options=-v")


def defines(tunables: Mapping[str, int]) -> list[str]:
    """`-D` options of the tunables; negative values in parentheses."""
    return [f"-D{name}={value if value >= 0 else f'({value})'}" for name, value in sorted(tunables.items())]


def gencode(arch: str) -> str:
    """The virtual and real architecture for nvcc: `arch=compute_90a,code=sm_90a`."""
    return f"arch={arch.replace('sm_', 'compute_')},code={arch}"


def valid_arch(arch: str) -> bool:
    """Whether a text is an architecture that may stand in a command line."""
    return re.fullmatch(r"sm_\d{2,3}[af]?", arch) is not None


def cxx_compile(gxx: Gxx, tunables: Mapping[str, int], seed: str) -> list[str]:
    """Source to object."""
    own = [f"-frandom-seed={seed}", *defines(tunables), "-I."]
    return [gxx.path, *_CXX_FLAGS, *own, "-c", SOURCE["cpp"], "-o", OBJECT]


def cxx_link(gxx: Gxx) -> list[str]:
    """Object to shared library; OpenMP's symbols stay undefined and resolve against PyTorch's own runtime."""
    return [gxx.path, *_LINK_FLAGS, "-o", ARTIFACT["cpp"], OBJECT, "-lm", "-lc", "-lgcc"]


def nvcc_compile(nvcc: Nvcc, arch: str, tunables: Mapping[str, int], seed: str) -> list[str]:
    """Source to cubin."""
    return [
        nvcc.path, *_NVCC_FLAGS, "-gencode", gencode(arch), "-frandom-seed", seed, *defines(tunables), "-I.",
        SOURCE["cuda"], "-o", ARTIFACT["cuda"],
    ]  # fmt: skip


def nvrtc_compile(nvrtc: Nvrtc, arch: str, tunables: Mapping[str, int]) -> list[str]:
    """Source to cubin through NVRTC's worker."""
    includes = [f"-I{folder}" for folder in nvrtc.include]
    return [
        sys.executable, "-I", str(NVRTC_WORKER), nvrtc.path, SOURCE["cuda"], ARTIFACT["cuda"],
        f"--gpu-architecture={arch}", *_NVRTC_FLAGS, *defines(tunables), "-I.", *includes,
    ]  # fmt: skip


#: no limit of address space
UNLIMITED = -1


def limited(argv: list[str], *, memory_bytes: int, file_bytes: int, cpu_s: int, confinement: str = "") -> list[str]:
    """A command under limits of address space, file size and processor time, and confined (see `limit.py`)."""
    script = [sys.executable, "-I", str(LIMIT_SCRIPT)]
    return [*script, str(memory_bytes), str(file_bytes), str(cpu_s), confinement, *argv]


def disassemble_cubin(cuobjdump: str) -> list[str]:
    """The instructions of a built CUDA kernel."""
    return [cuobjdump, "-sass", ARTIFACT["cuda"]]


def disassemble(objdump: str) -> list[str]:
    """The instructions of a built CPU kernel, without their bytes."""
    return [objdump, "-d", "--no-show-raw-insn", ARTIFACT["cpp"]]
