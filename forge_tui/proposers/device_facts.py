"""What a kernel's author should know of a device beyond its record: limits of its architecture, what it has."""

from __future__ import annotations

import re
from typing import Any

from forge_tui.core.records import Device, Record

SMEM_STATIC = 48 * 1024
REGISTERS = 65536


class Limits(Record, frozen=True, kw_only=True):
    """What one SM holds at a time."""

    threads: int
    blocks: int
    smem: int
    """Bytes; a block takes 1 KiB of them for itself from sm_80 on."""
    registers: int = REGISTERS


#: by compute capability
_LIMITS = {
    70: Limits(threads=2048, blocks=32, smem=96 << 10),
    75: Limits(threads=1024, blocks=16, smem=64 << 10),
    80: Limits(threads=2048, blocks=32, smem=164 << 10),
    86: Limits(threads=1536, blocks=16, smem=100 << 10),
    87: Limits(threads=1536, blocks=16, smem=164 << 10),
    89: Limits(threads=1536, blocks=24, smem=100 << 10),
    90: Limits(threads=2048, blocks=32, smem=228 << 10),
    100: Limits(threads=2048, blocks=32, smem=228 << 10),
    103: Limits(threads=2048, blocks=32, smem=228 << 10),
    120: Limits(threads=1536, blocks=24, smem=100 << 10),
    121: Limits(threads=1536, blocks=24, smem=100 << 10),
}

_WMMA = ("tensor cores by `mma.h` (`nvcuda::wmma`, 16x16x16) or `mma.sync` in PTX: {types}, accumulation in float; "
         "float32 inputs only as TF32, which the tolerance of float32 outputs does not allow")  # fmt: skip
_ASYNC = ("asynchronous copies of 4, 8 or 16 bytes from global to shared memory: `__pipeline_memcpy_async` of "
          "<cuda_pipeline_primitives.h>")  # fmt: skip
_BULK = ("bulk asynchronous copies of whole rows to shared memory, counted by an mbarrier: "
         "`cuda::device::memcpy_async_tx` of <cuda/barrier>, or `cp.async.bulk` in PTX; 16-byte aligned. Tensor maps "
         "(`cp.async.bulk.tensor`) are not available")  # fmt: skip
_CLUSTERS = ("thread block clusters by `cluster=n` (up to 8): blocks of one cluster read each other's shared memory "
             "by `cooperative_groups::this_cluster().map_shared_rank`, for reductions over several blocks")
_PACKED = "packed arithmetic on `__half2` and `__nv_bfloat162`; loads and stores of 16 bytes as `float4` or `uint4`"
_STREAM = "`__ldcs` and `__stcs` for data that is touched once, so that it does not push reused data out of the L2"


def limits(device: Device) -> Limits:
    """What one SM of the device holds; of an unknown architecture those of the nearest older one."""
    number = capability(device)
    known = max((n for n in _LIMITS if n <= number), default=70)
    return _LIMITS[known]


def capability(device: Device) -> int:
    """90 for `sm_90a`, 0 where it is not of that form."""
    match = re.fullmatch(r"sm_(\d+)[a-z]?", device.arch)
    return int(match[1]) if match else 0


def facilities(device: Device) -> list[str]:
    """One line for each thing that this architecture has and others lack."""
    return _of_gpu(device) if device.kind == "cuda" else _of_cpu(device.arch)


def _of_gpu(device: Device) -> list[str]:
    number = capability(device)
    if not number:
        return []
    types = ["float16"] + ["bfloat16", "TF32", "int8"] * (number >= 80) + ["FP8"] * (number >= 89)
    lines = [_PACKED, _STREAM] + [_WMMA.format(types=", ".join(types))] * (number >= 70)
    if number >= 80:
        lines += [_ASYNC]
    if number >= 90:
        lines += [_BULK]
    if 90 <= number < 120:
        lines += [_CLUSTERS]
    if device.arch == "sm_90a":
        lines += [("`wgmma.mma_async` in PTX: a warpgroup of 128 threads multiplies 64xNx16 tiles of shared memory, "
                   "the way to the full matrix rate; needs the 128-byte swizzled layout and `wgmma.fence`")]
    if device.arch in ("sm_100a", "sm_103a"):
        lines += ["`tcgen05.mma` in PTX with tensor memory takes the place of `wgmma`, which is not there"]
    return lines


def _of_cpu(arch: str) -> list[str]:
    if "amx" in arch:
        return [_vectors("AVX-512", 16),
                ("AMX tiles are there, but need a permission of the system that a kernel cannot ask for: leave them "
                 "alone; AVX-512 BF16 dot products (`_mm512_dpbf16_ps`) need none")]  # fmt: skip
    if "avx512" in arch:
        return [_vectors("AVX-512", 16)]
    if "avx2" in arch:
        return [_vectors("AVX2 with FMA", 8)]
    if "avx" in arch:
        return [_vectors("AVX", 8)]
    if "sve" in arch:
        return ["SVE: vectors whose length the compiler knows with `-march=native`; loops of unit stride suffice"]
    return [_vectors("NEON", 4)] if "asimd" in arch or "aarch64" in arch else []


def _vectors(name: str, lanes: int) -> str:
    return f"{name}: {lanes} floats or {lanes // 2} doubles per vector; give inner loops a multiple of {lanes}"


def values(device: Device) -> dict[str, Any]:
    """What the device sheet's template uses."""
    found = device.ceilings
    rates = sorted(found.matmul_tflops.items()) if found else []
    compiler = f"{'CUDA' if device.kind == 'cuda' else 'g++'} {device.runtime_version}"
    one = limits(device)
    return {
        "device": {
            "model": device.model, "arch": device.arch, "sms": device.sms, "cores": device.cores,
            "threads": device.threads or device.cores, "smem_optin": device.smem_optin, "l2_bytes": device.l2_bytes,
            "compiler": compiler if device.runtime_version else "", "measured": found is not None,
            "copy_gbps": found.copy_gbps if found else 0.0, "launch_us": found.launch_us if found else 0.0,
            "cached_copy_gbps": found.cached_copy_gbps if found else 0.0,
            "cache_bytes": found.cache_bytes if found else 0,
            "rates": ", ".join(f"{name} {rate:.3g}" for name, rate in rates),
        },
        "limits": {"threads": one.threads, "blocks": one.blocks, "smem": one.smem, "registers": one.registers,
                   "smem_static": SMEM_STATIC},
        "facilities": facilities(device),
    }  # fmt: skip
