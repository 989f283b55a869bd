"""A built CPU kernel, loaded through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forge_tui.core.records import LaunchPlan, Signature
from forge_tui.launch.errors import LaunchError


def _dims(values: Sequence[int]) -> ctypes.Structure:
    """What varies at run time as the struct that a kernel takes by value; one unused field where nothing does."""

    class ForgeDims(ctypes.Structure):
        _fields_ = tuple((f"field{i}", ctypes.c_int64) for i in range(max(1, len(values))))

    return ForgeDims(*values)


class CpuKernel:
    """One shared library with `forge_launch`; a call returns when the results are there."""

    def __init__(self, path: Path, plan: LaunchPlan, signature: Signature) -> None:
        self._plan = plan
        self._inputs, self._outputs = len(signature.inputs), len(signature.outputs)
        self._library = _open(path)
        try:
            self._entry = self._library.forge_launch
        except AttributeError as error:
            raise LaunchError("The kernel file has no function forge_launch.") from error
        count = self._inputs + self._outputs + 1
        self._dims = _dims(plan.dims)
        self._entry.argtypes = [*[ctypes.c_void_p] * count, type(self._dims)]
        self._entry.restype = ctypes.c_int
        self._count = count

    @property
    def plan(self) -> LaunchPlan:
        """The workspace it asks for."""
        return self._plan

    def launch(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], workspace: Tensor | None, stream: int | None = None
    ) -> None:
        """Run the kernel to its end; `stream` has no meaning on the CPU.

        Raises:
            LaunchError: it returned something else than 0.
        """
        del stream
        pointers = [t.data_ptr() for t in inputs]
        pointers += [t.data_ptr() for t in outputs]
        pointers.append(workspace.data_ptr() if workspace is not None else 0)
        if len(pointers) != self._count:
            raise LaunchError(f"The kernel takes {self._inputs} inputs and {self._outputs} outputs.")
        if self._plan.workspace_zero and pointers[-1]:
            ctypes.memset(pointers[-1], 0, self._plan.workspace_bytes)
        returned = self._entry(*pointers, self._dims)
        if returned:
            raise LaunchError(f"forge_launch returned {returned}; 0 means success.", returned=returned)

    def allocate_workspace(self) -> Tensor | None:
        """Workspace for one call, contents undefined; None where the kernel asks for none."""
        return torch.empty(self._plan.workspace_bytes, dtype=torch.uint8) if self._plan.workspace_bytes else None

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Keep the library: threads of OpenMP may still hold its code."""


def _open(path: Path) -> Any:
    """The library; OpenMP's symbols come from the runtime that torch loaded, else from the system's."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        text = str(error)
        if not any(name in text for name in ("GOMP_", "omp_")):
            raise LaunchError(f"The kernel file cannot be loaded: {_without_path(text, path)}.") from error
    try:
        ctypes.CDLL(_loaded_gomp() or "libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise LaunchError(f"The kernel file cannot be loaded: {_without_path(str(error), path)}.") from error


def _loaded_gomp() -> str | None:
    """The libgomp already in this process: a second one would bring a second pool of threads."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    return next((line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line.rpartition("/")[2]), None)


def _without_path(text: str, path: Path) -> str:
    return text.replace(f"{path}: ", "").replace(str(path), path.name).rstrip(".")
