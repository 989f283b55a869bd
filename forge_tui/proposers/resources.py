"""What the compiler said of a kernel's registers and memory, in sentences that say what it means."""

from __future__ import annotations

import math

from forge_tui.contract import plan
from forge_tui.core.errors import ContractError
from forge_tui.core.records import Device, Launch, LaunchPlan, Node, Target
from forge_tui.proposers.device_facts import capability, limits

#: below this share of an SM's threads a kernel that waits for memory is likely to be slow
_LOW = 0.5


def sentences(node: Node, target: Target, device: Device) -> list[str]:
    """One line for each kernel; none on the CPU, or where nothing is known."""
    used = node.evaluation.resources if node.evaluation else {}
    if device.kind != "cuda" or not used:
        return []
    try:
        return of(used, plan.make(node.source, target, device, node.tunables), device)
    except ContractError:
        return of(used, LaunchPlan(), device)


def of(used: dict[str, dict[str, int]], launched: LaunchPlan, device: Device) -> list[str]:
    """The same of a built file: registers, spills and shared memory by kernel, and its launches."""
    launches = {launch.kernel: launch for launch in launched.launches}
    return [_sentence(name, found, launches.get(name), device) for name, found in sorted(used.items())]


def _sentence(name: str, used: dict[str, int], launch: Launch | None, device: Device) -> str:
    registers, spilled = used.get("registers", 0), used.get("spill_bytes", 0)
    smem = used.get("smem_bytes", 0) + (launch.smem if launch else 0)
    text = f"`{name}`: {registers} registers a thread, {smem} bytes of shared memory a block"
    text += f", {spilled} bytes spilled to local memory, which costs time: use fewer live values" if spilled else \
        ", no spills"  # fmt: skip
    if launch is None or not registers:
        return text + "."
    share, what = occupancy(registers, smem, launch, device)
    text += f"; {math.prod(launch.grid)} blocks of {math.prod(launch.block)} threads, {share:.0%} of an SM's threads"
    if share < _LOW:
        text += f" at once, limited by {what}"
    if device.sms and math.prod(launch.grid) < device.sms:
        text += f"; only {math.prod(launch.grid)} of {device.sms} SMs have work"
    return text + "."


def occupancy(registers: int, smem: int, launch: Launch, device: Device) -> tuple[float, str]:
    """Share of an SM's threads that can be there at once, and what limits it.

    Registers are given out by warps in steps of eight a thread; a block takes 1 KiB of shared memory for itself.
    """
    one = limits(device)
    threads = -(-math.prod(launch.block) // 32) * 32
    per_block = smem + (1024 if capability(device) >= 80 else 0)
    most = {
        "registers": one.registers // (-(-registers // 8) * 8 * threads),
        "shared memory": one.smem // per_block if per_block else one.blocks,
        "the size of a block": one.threads // threads,
        "the number of blocks": one.blocks,
    }
    what = min(most, key=lambda key: most[key])
    return most[what] * threads / one.threads, what
