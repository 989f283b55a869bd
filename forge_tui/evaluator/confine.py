"""What a process that is about to load a kernel gives up, beside what `sandbox` takes from a CPU candidate.

Where the system has no Landlock nothing of this is in force, which `processes.isolation` says; the filter of system
calls is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from pathlib import Path

import forge_tui
from forge_tui.processes import isolation, landlock, seccomp

#: what the OpenMP and C libraries look at when they start
_ABOUT_THE_MACHINE = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system")
#: the driver names its threads through /proc and makes its memory known through /dev
_FOR_CUDA = ("/dev", "/proc/self")
#: what libraries would otherwise keep in the user's home
_CACHES = {
    "CUDA_CACHE_PATH": "cuda", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions", "PYTORCH_KERNEL_CACHE_PATH": "torch", "TMPDIR": "tmp",
}  # fmt: skip


def cuda_environment(folder: Path) -> dict[str, str]:
    """Where a CUDA runner keeps its caches: in a folder of its own, which is made."""
    for name in _CACHES.values():
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {variable: str(folder / name) for variable, name in _CACHES.items()}


def cpu_candidate(built: Path) -> bool:
    """For the forked child, before a CPU kernel is loaded: it reads libraries and the kernel's file, writes nothing.

    What a file does when it is loaded is thereby kept from the user's files already.
    """
    if _off():
        return False
    try:
        landlock.restrict([*_libraries(), str(built.parent)], ["/dev/null"])
    except OSError:
        return False
    return True


def cuda_runner(folders: list[Path]) -> bool:
    """For a CUDA runner whose model is built and whose context exists: no network, nothing written but in its folders.

    It holds for the calling thread and those that it starts; a CUDA kernel has no host side that could use another.
    """
    if _off():
        return False
    caches = [os.environ[name] for name in _CACHES if name in os.environ]
    confined = False
    with contextlib.suppress(OSError):
        confined = bool(landlock.restrict(_all_but_processes(), [*map(str, folders), *caches, *_FOR_CUDA], alone=False))
    return seccomp.cut_off() and confined


def _all_but_processes() -> list[str]:
    """Everything but other processes: their environments would be open to root in spite of Landlock."""
    about = [path for path in Path("/proc").iterdir() if not path.name.isdecimal()]
    return [str(path) for path in (*Path("/").iterdir(), *about) if path != Path("/proc")]


def _off() -> bool:
    return os.environ.get(isolation.VARIABLE, "") == "off"


@functools.cache
def _libraries() -> tuple[str, ...]:
    own = [str(Path(module).resolve().parent) for name in ("torch", "numpy") if (module := _file(name))]
    return (*isolation.SYSTEM, *_ABOUT_THE_MACHINE, *own, sys.prefix, sys.base_prefix,
            str(Path(forge_tui.__file__).parent))  # fmt: skip


def _file(name: str) -> str:
    module = sys.modules.get(name)
    return str(getattr(module, "__file__", "") or "") if module is not None else ""
