"""A built file as something to call with tensors: verified by its hash, loaded, launched."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from forge_tui.core.records import Built, LaunchPlan, Signature
from forge_tui.launch.errors import DriverMissing, LaunchError, WrongFile

__all__ = ["DriverMissing", "Kernel", "LaunchError", "WrongFile", "allocate_outputs", "load_kernel"]


class Kernel(Protocol):
    """A loaded kernel. Tensors must be as the signature says; that is the caller's to check, this is the fast path."""

    @property
    def plan(self) -> LaunchPlan:
        """Launches and workspace."""

    def launch(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], workspace: Tensor | None, stream: int | None = None
    ) -> None:
        """Run it: on CUDA queued on the stream (a raw handle; by default torch's current one), on the CPU to its end.

        A workspace that the kernel wants zeroed is zeroed here, at every call.

        Raises:
            LaunchError: the driver refused, or the kernel returned another value than 0.
        """

    def allocate_workspace(self) -> Tensor | None:
        """Workspace for one call, contents undefined; None where the kernel asks for none."""

    def synchronize(self) -> None:
        """Wait for the work; raises LaunchError where it failed."""

    def close(self) -> None:
        """Let go of what was loaded, as far as that is possible."""


def load_kernel(built: Built, signature: Signature, device: str) -> Kernel:
    """Load a built file on a device, after its hash is checked.

    Raises:
        WrongFile: the file is missing or another one than was built.
        LaunchError: it cannot be loaded.
        DriverMissing: there is no CUDA driver.
    """
    path = Path(built.path)
    try:
        image = path.read_bytes()
    except OSError as error:
        raise WrongFile(f"The kernel file {path.name} cannot be read: {error.strerror or error}.") from error
    found = hashlib.sha256(image).hexdigest()
    if found != built.sha256:
        raise WrongFile(f"The kernel file {path.name} is not the one that was built (its sha256 differs).")
    where = torch.device(device)
    if (where.type == "cuda") != (built.language == "cuda"):
        raise LaunchError(f"A kernel in {built.language} cannot run on {device}.")
    if where.type == "cuda":
        from forge_tui.launch.cuda import CudaKernel

        return CudaKernel(image, built.plan, signature, where)
    from forge_tui.launch.cpu import CpuKernel

    return CpuKernel(path, built.plan, signature)


def allocate_outputs(signature: Signature, device: str | torch.device) -> list[Tensor]:
    """Uninitialised outputs with the signature's shapes and strides."""
    return [
        torch.empty_strided(o.spec.shape, o.spec.strides, dtype=getattr(torch, o.spec.dtype), device=device)
        for o in signature.outputs
    ]
