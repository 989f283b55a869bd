"""What `doctor` concludes from what it found; pure, so that every machine can be tested on this one."""

from __future__ import annotations

import re
from typing import Literal

from forge_tui.core.records import Record

Status = Literal["ok", "note", "warn", "fail"]


class Check(Record, frozen=True, kw_only=True):
    """One finding. `fail` means that the default job cannot run here."""

    name: str
    status: Status
    text: str
    fix: str = ""


class Machine(Record, frozen=True, kw_only=True):
    """Versions as found; empty where a thing is not there, with the reason beside it."""

    device: str
    """What `--device auto` takes: `cpu` or `cuda:0`."""
    torch: str = ""
    torch_error: str = ""
    torch_cuda: str = ""
    torch_sees_gpu: bool = False
    torch_why: str = ""
    driver: str = ""
    driver_cuda: str = ""
    """The newest CUDA version that the driver serves."""
    gpus: tuple[str, ...] = ()
    gpu_error: str = ""
    gxx: str = ""
    gxx_error: str = ""
    nvcc: str = ""
    nvcc_error: str = ""
    nvrtc: str = ""
    nvrtc_error: str = ""
    sanitizer: str = ""
    """Path of compute-sanitizer where it works on the GPU, else the reason in `sanitizer_error`."""
    sanitizer_error: str = ""
    cpu_sanitizer_error: str = ""
    """Why CPU kernels cannot be run under AddressSanitizer; empty where they can, or where there is no g++."""
    ncu: str = ""
    ncu_error: str = ""
    isolated: bool = False
    isolation: str = ""
    """What keeps compilers apart from the machine, or that nothing does, as a sentence; empty where not asked."""


def checks(machine: Machine) -> list[Check]:
    """Every finding about PyTorch, driver and compilers."""
    found = [_torch(machine), _gpus(machine), *_compilers(machine), *_tools(machine)]
    if machine.isolation:
        found.append(Check(
            name="isolation", status="ok" if machine.isolated else "warn", text=machine.isolation,
            fix="" if machine.isolated else "Use Linux 5.13 or later with Landlock, or install bubblewrap.",
        ))  # fmt: skip
    return found + (_versions(machine) if machine.gpus else [])


def _torch(m: Machine) -> Check:
    if not m.torch:
        return Check(name="PyTorch", status="fail", text=f"PyTorch cannot be imported: {m.torch_error}.",
                     fix="Install it: pip install torch.")  # fmt: skip
    build = f"built for CUDA {m.torch_cuda}" if m.torch_cuda else "a CPU build"
    return Check(name="PyTorch", status="ok", text=f"{m.torch}, {build}.")


def _gpus(m: Machine) -> Check:
    if m.gpus:
        return Check(name="GPU", status="ok", text=f"{', '.join(m.gpus)}; driver {m.driver}, which serves CUDA up to "
                     f"{m.driver_cuda}.")  # fmt: skip
    return Check(name="GPU", status="note", text=f"No NVIDIA GPU: {m.gpu_error or 'NVML finds none'}. "
                 "The job runs on the CPU.")  # fmt: skip


def _compilers(m: Machine) -> list[Check]:
    cuda = m.device.startswith("cuda")
    gxx = (
        Check(name="g++", status="ok", text=f"{m.gxx}.") if m.gxx
        else Check(name="g++", status="note" if cuda else "fail", text=_what(m.gxx_error), fix=_todo(m.gxx_error))
    )  # fmt: skip
    nvcc = (
        Check(name="nvcc", status="ok", text=f"{m.nvcc}.") if m.nvcc
        else Check(name="nvcc", status="note", text="nvcc is not there." + (" NVRTC is used." if m.nvrtc else ""))
    )  # fmt: skip
    nvrtc = (
        Check(name="NVRTC", status="ok", text=f"{m.nvrtc}.") if m.nvrtc
        else Check(name="NVRTC", status="note", text="NVRTC is not there.")
    )  # fmt: skip
    if cuda and not m.nvcc and not m.nvrtc:
        nvcc = Check(name="nvcc", status="fail", text=_what(m.nvcc_error), fix=_todo(m.nvcc_error))
    return [gxx, nvcc, nvrtc]


def _tools(m: Machine) -> list[Check]:
    """What winners are run under before they count, and what reads counters; neither is needed."""
    found: list[Check] = []
    if m.device.startswith("cuda"):
        found.append(
            Check(name="compute-sanitizer", status="ok", text=f"{m.sanitizer} works on this GPU.") if m.sanitizer
            else Check(name="compute-sanitizer", status="note", text=f"Winners stay unsanitised. {m.sanitizer_error}")
        )  # fmt: skip
        found.append(
            Check(name="ncu", status="ok", text=f"{m.ncu} reads this GPU's counters.") if m.ncu
            else Check(name="ncu", status="note", text=f"check --ncu cannot be used. {m.ncu_error}")
        )  # fmt: skip
    elif m.gxx:
        found.append(
            Check(name="AddressSanitizer", status="note", text=f"Winners stay unsanitised. {m.cpu_sanitizer_error}")
            if m.cpu_sanitizer_error
            else Check(name="AddressSanitizer", status="ok", text="Works with this g++.")
        )  # fmt: skip
    return found


def _versions(m: Machine) -> list[Check]:
    """Driver against PyTorch's CUDA, and both against the compiler's."""
    found: list[Check] = []
    driver = version(m.driver_cuda)
    if m.torch:
        found += _torch_and_driver(m, driver)
    name, compiler = ("nvcc", version(m.nvcc)) if m.nvcc else ("NVRTC", version(m.nvrtc))
    if compiler and driver and compiler[0] > driver[0]:
        found.append(Check(
            name="compiler and driver", status="fail",
            text=f"{name} {_short(compiler)} makes code that the driver (CUDA {m.driver_cuda}) cannot load.",
            fix=f"Update the driver to one for CUDA {compiler[0]}, or install a CUDA {driver[0]} toolkit.",
        ))  # fmt: skip
    runtime = version(m.torch_cuda)
    if compiler and runtime and compiler[0] != runtime[0]:
        found.append(Check(
            name="compiler and PyTorch", status="warn",
            text=f"{name} is CUDA {_short(compiler)}, PyTorch was built for CUDA {m.torch_cuda}. Kernels are loaded "
                 "through the driver, so this works; extensions of PyTorch would not build.",
        ))  # fmt: skip
    return found


def _torch_and_driver(m: Machine, driver: tuple[int, ...]) -> list[Check]:
    name, runtime = "PyTorch and driver", version(m.torch_cuda)
    if not runtime:
        return [Check(name=name, status="fail" if m.device != "cpu" else "warn",
                      text=f"There is a GPU, but PyTorch {m.torch} is a CPU build.",
                      fix="Install a CUDA build of PyTorch, or name --device cpu.")]  # fmt: skip
    if driver and driver[0] < runtime[0]:
        return [Check(
            name=name, status="fail",
            text=f"The driver {m.driver} serves CUDA {m.driver_cuda} at most, PyTorch was built for CUDA "
                 f"{m.torch_cuda}: it is too old.",
            fix=f"Update the driver to one for CUDA {runtime[0]}, or install a PyTorch for CUDA {driver[0]}.",
        )]  # fmt: skip
    if not m.torch_sees_gpu and m.device != "cpu":
        return [Check(name=name, status="fail", text=f"PyTorch does not see the GPU: "
                      f"{m.torch_why or 'it does not say why'}.",
                      fix="Look at CUDA_VISIBLE_DEVICES and the container's GPU settings.")]  # fmt: skip
    if driver and driver < runtime[:2]:
        return [Check(name=name, status="note",
                      text=f"The driver serves CUDA {m.driver_cuda}, PyTorch was built for CUDA {m.torch_cuda}: "
                           "the same major version, so they work together.")]  # fmt: skip
    return [Check(name=name, status="ok", text=f"CUDA {m.torch_cuda} on a driver for up to {m.driver_cuda}.")]


def version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version; empty where there are none."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _short(parts: tuple[int, ...]) -> str:
    return ".".join(map(str, parts[:2]))


def _what(error: str) -> str:
    """The first sentence of a fault."""
    return error.partition("\n")[0]


def _todo(error: str) -> str:
    return error.partition("\n")[2]
