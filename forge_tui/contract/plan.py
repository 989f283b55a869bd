"""From directives to numbers: what the harness launches, within what the hardware takes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from forge_tui.contract import dims, directives, exprs, header
from forge_tui.core.errors import ContractError
from forge_tui.core.records import Device, Launch, LaunchPlan, Target

MAX_WORKSPACE = 4 * 2**30
#: shared memory a block may have on every CUDA device without asking
_DEFAULT_SMEM = 48 * 1024
_GRID_LIMITS = (2**31 - 1, 65535, 65535)
_BLOCK_LIMITS = (1024, 1024, 64)
_MAX_BLOCK = 1024
#: clusters of up to 8 blocks run on every device that has clusters
_MAX_CLUSTER = 8
_MAX_BLOCKS_PER_SM = 32


def make(
    source: str, target: Target, device: Device, tunables: dict[str, int], sibling: Target | None = None
) -> LaunchPlan:
    """Work out launches and workspace of a source for a target on a device, at its own sizes or those of a sibling.

    Raises:
        ContractError: a directive is wrong, or asks for more than the device or the contract allow.
    """
    read = directives.parse(source)
    names = header.names(target, device, read.chosen(tunables), sibling)
    varying = dims.values(target, sibling)
    workspace_bytes, zero = 0, False
    if read.workspace is not None:
        workspace_bytes, zero = _at(read.workspace.line, read.workspace.bytes, names), read.workspace.zero
        if not 0 <= workspace_bytes <= MAX_WORKSPACE:
            raise ContractError(
                f"Line {read.workspace.line}: the workspace has {workspace_bytes} bytes; 0 to {MAX_WORKSPACE} (4 GiB) "
                "are allowed."
            )
    if device.language == "cpp":
        if read.launches:
            raise ContractError(f"Line {read.launches[0].line}: a CPU kernel has no `//@launch`; it has forge_launch.")
        return LaunchPlan(workspace_bytes=workspace_bytes, workspace_zero=zero, dims=varying)
    if not read.launches:
        raise ContractError("The source has no `//@launch` directive, so nothing would run.")
    launches = tuple(_launch(spec, names, device) for spec in read.launches)
    return LaunchPlan(launches=launches, workspace_bytes=workspace_bytes, workspace_zero=zero, dims=varying)


def make_all(source: str, target: Target, device: Device, tunables: dict[str, int]) -> dict[str, LaunchPlan]:
    """The plans at the sizes of every sibling, by its id.

    Raises:
        ContractError: as `make`, with the sizes in front.
    """
    found: dict[str, LaunchPlan] = {}
    for sibling in target.siblings:
        try:
            found[sibling.id] = make(source, target, device, tunables, sibling)
        except ContractError as error:
            raise ContractError(f"At {dims.words(target, sibling)}: {error.what}") from None
    return found


def _launch(spec: directives.LaunchSpec, names: Mapping[str, int], device: Device) -> Launch:
    where = f"Line {spec.line}: the launch of `{spec.kernel}`"
    grid = _three(spec.grid, spec.line, names)
    block = _three(spec.block, spec.line, names)
    for axis, size, limit in zip("xyz", grid, _GRID_LIMITS, strict=True):
        if not 0 <= size <= limit:
            raise ContractError(f"{where} has {size} blocks in {axis}; 0 to {limit} are allowed.")
    for axis, size, limit in zip("xyz", block, _BLOCK_LIMITS, strict=True):
        if not 1 <= size <= limit:
            raise ContractError(f"{where} has {size} threads in {axis}; 1 to {limit} are allowed.")
    if math.prod(block) > _MAX_BLOCK:
        raise ContractError(f"{where} has {math.prod(block)} threads in a block; {_MAX_BLOCK} are allowed.")
    smem = _at(spec.line, spec.smem, names)
    smem_limit = device.smem_optin or _DEFAULT_SMEM
    if not 0 <= smem <= smem_limit:
        raise ContractError(f"{where} asks for {smem} bytes of shared memory; 0 to {smem_limit} are allowed.")
    cluster = _cluster(spec, grid, names, device)
    if spec.cooperative and device.sms and math.prod(grid) > device.sms * _MAX_BLOCKS_PER_SM:
        raise ContractError(
            f"{where} is cooperative with {math.prod(grid)} blocks, which cannot all be resident on {device.sms} SMs."
        )
    return Launch(
        kernel=spec.kernel, grid=grid, block=block, smem=smem, cluster=cluster, cooperative=spec.cooperative
    )


def _cluster(
    spec: directives.LaunchSpec, grid: tuple[int, int, int], names: Mapping[str, int], device: Device
) -> tuple[int, int, int] | None:
    if spec.cluster is None:
        return None
    where = f"Line {spec.line}: the launch of `{spec.kernel}`"
    if _capability(device) < 90:
        raise ContractError(f"{where} has clusters, which {device.arch} does not have.")
    cluster = _three(spec.cluster, spec.line, names)
    if min(cluster) < 1 or math.prod(cluster) > _MAX_CLUSTER:
        raise ContractError(f"{where} has clusters of {math.prod(cluster)} blocks; 1 to {_MAX_CLUSTER} are allowed.")
    for axis, blocks, size in zip("xyz", grid, cluster, strict=True):
        if blocks % size:
            raise ContractError(f"{where} has {blocks} blocks in {axis}, which clusters of {size} do not divide.")
    return cluster


def _capability(device: Device) -> int:
    """90 for `sm_90a`; an architecture of another form is taken for the newest."""
    match = re.fullmatch(r"sm_(\d+)[a-z]?", device.arch)
    return int(match[1]) if match else 1000


def _three(parts: tuple[str, ...], line: int, names: Mapping[str, int]) -> tuple[int, int, int]:
    values = [_at(line, part, names) for part in parts]
    x, y, z = [*values, 1, 1][:3]
    return x, y, z


def _at(line: int, text: str, names: Mapping[str, int]) -> int:
    try:
        return exprs.evaluate(text, names)
    except ContractError as error:
        raise ContractError(f"Line {line}: {error.what}") from None
