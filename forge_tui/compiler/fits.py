"""Whether a launch can start at all with what the compiler gave its kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping

from forge_tui.core.records import Device, LaunchPlan

_REGISTERS_PER_SM = 65536


def too_much(resources: Mapping[str, Mapping[str, int]], plan: LaunchPlan, device: Device) -> str:
    """Why a launch could never start, or nothing: registers and shared memory of a block against the device's."""
    for launch in plan.launches:
        used = resources.get(launch.kernel, {})
        # registers are given out by warps, in steps of eight a thread
        threads = -(-math.prod(launch.block) // 32) * 32
        registers = -(-used.get("registers", 0) // 8) * 8
        if registers * threads > _REGISTERS_PER_SM:
            return (
                f"The kernel `{launch.kernel}` needs {registers} registers in each of {threads} threads, more than the "
                f"{_REGISTERS_PER_SM} there are: add __launch_bounds__({threads}) or launch smaller blocks."
            )
        smem = used.get("smem_bytes", 0) + launch.smem
        if device.smem_optin and smem > device.smem_optin:
            return (
                f"The kernel `{launch.kernel}` needs {smem} bytes of shared memory in a block; {device.smem_optin} are "
                "allowed."
            )
    return ""
