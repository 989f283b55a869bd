"""The `Device` record of the machine: what it is, and what its timings may be compared with."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from pathlib import Path

import msgspec
import torch

from forge_tui.core.paths import cache_root
from forge_tui.core.records import Device
from forge_tui.models.devices import resolve_device
from forge_tui.profiler.ceilings import measure_ceilings
from forge_tui.profiler.known import ceilings_of
from forge_tui.profiler.uuids import device_uuid

#: compute capabilities with an architecture-specific target (`sm_90` does not assemble `wgmma`)
_SPECIFIC = {(9, 0), (10, 0), (10, 1), (10, 3), (11, 0), (12, 0), (12, 1)}
_CU_SHARED_OPTIN = 97
_CU_L2_BYTES = 38


def describe(name: str, *, ceilings: bool = True) -> Device:
    """The device of this name, with its ceilings: measured, or known from earlier.

    Raises:
        UsageError: the name is malformed.
        EnvironmentFault: there is no such device.
    """
    device = resolve_device(name)
    found = _cuda(device) if device.type == "cuda" else _cpu()
    if not ceilings:
        return found
    # another set of cores has other ceilings
    identity = f"{found.identity}|{found.cores}"
    known = ceilings_of(identity, cache_root() / "ceilings", lambda: measure_ceilings(device))
    return msgspec.structs.replace(found, ceilings=known)


def _cpu() -> Device:
    info = _cpuinfo(Path("/proc/cpuinfo"))
    flags = sorted((info.get("flags") or info.get("Features") or "").split())
    return Device(
        name="cpu",
        model=info.get("model name") or info.get("Processor") or platform.processor() or platform.machine(),
        arch=cpu_arch(platform.machine(), flags),
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        torch_version=str(torch.__version__),
    )


def cpu_arch(machine: str, flags: list[str]) -> str:
    """A short readable level and a hash of all feature flags: equal only where `-march=native` means the same."""
    have = set(flags)
    level = machine
    for name in ("amx_tile", "avx512f", "avx2", "avx", "sve", "asimd"):
        if name in have:
            level = f"{machine}-{name.removesuffix('_tile').removesuffix('f')}"
            break
    return f"{level}-{hashlib.sha256(' '.join(flags).encode()).hexdigest()[:10]}"


def _cpuinfo(path: Path) -> dict[str, str]:
    """The first processor's lines."""
    found: dict[str, str] = {}
    try:
        for line in path.read_text().splitlines():
            key, colon, value = line.partition(":")
            if not colon and found:
                break
            found.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return found


def _cuda(device: torch.device) -> Device:
    index = device.index or 0
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    return Device(
        name=f"cuda:{index}",
        model=properties.name,
        arch=cuda_arch(*capability),
        uuid=device_uuid(index, str(getattr(properties, "uuid", ""))),
        sms=properties.multi_processor_count,
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        smem_optin=int(getattr(properties, "shared_memory_per_block_optin", 0)) or _attribute(_CU_SHARED_OPTIN, index),
        l2_bytes=int(getattr(properties, "L2_cache_size", 0)) or _attribute(_CU_L2_BYTES, index),
        torch_version=str(torch.__version__),
        runtime_version=torch.version.cuda or "",
        driver_version=_driver_version(),
    )


def cuda_arch(major: int, minor: int) -> str:
    """`sm_90a` where the architecture-specific target exists, else `sm_86`."""
    return f"sm_{major}{minor}{'a' if (major, minor) in _SPECIFIC else ''}"


def _driver_version() -> str:
    """The driver's release, or the newest CUDA it knows where the kernel module does not say."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        pass
    try:
        version = ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return ""
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def _attribute(number: int, index: int) -> int:
    try:
        value = ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute(ctypes.byref(value), number, index)
    except (OSError, AttributeError):
        return 0
    return value.value
