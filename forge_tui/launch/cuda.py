"""A loaded cubin and its launches in order, with as little host time a call as Python allows."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from ctypes import byref
from typing import Any

import torch
from torch import Tensor

from forge_tui.core.records import Launch, LaunchPlan, Signature
from forge_tui.launch.cuda_driver import (
    CUDA_ERROR_INVALID_CONTEXT,
    Driver,
    LaunchAttribute,
    LaunchConfig,
    driver,
    launch_attributes,
)
from forge_tui.launch.errors import LaunchError


class CudaKernel:
    """Kernels of one cubin on one device.

    Work goes to the caller's stream and is not waited for. Launches with a zero grid are skipped.
    """

    def __init__(self, image: bytes, plan: LaunchPlan, signature: Signature, device: torch.device) -> None:
        self._driver = driver()
        self._plan = plan
        self._index = device.index if device.index is not None else torch.cuda.current_device()
        self._inputs, self._outputs = len(signature.inputs), len(signature.outputs)
        self._lock = threading.Lock()
        with torch.cuda.device(self._index):
            torch.empty(1, device=f"cuda:{self._index}")  # makes torch's context current on this thread
            self._context = self._driver.current_context()
            if not self._context:
                raise LaunchError(f"There is no CUDA context on cuda:{self._index}.")
            self._module = self._driver.load_module(image)
            # one array of arguments serves every launch: the values are replaced in place at each call
            self._arguments = self._inputs + self._outputs + 2
            self._values = (ctypes.c_uint64 * (self._arguments - 1 + max(1, len(plan.dims))))()
            # the last argument is a struct by value: its fields follow one another
            self._values[self._arguments - 1 :] = list(plan.dims) or [0]
            start = ctypes.addressof(self._values)
            self._slots = (ctypes.c_void_p * self._arguments)(*[start + 8 * i for i in range(self._arguments)])
            self._launches = [
                _Prepared(self._driver, self._module, item, self._slots) for item in plan.launches if 0 not in item.grid
            ]
            self._allow_shared(plan.launches)

    @property
    def plan(self) -> LaunchPlan:
        """What is launched."""
        return self._plan

    def launch(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], workspace: Tensor | None, stream: int | None = None
    ) -> None:
        """Launch on a stream (a raw handle), by default the current one of the device.

        Raises:
            LaunchError: a launch was refused, or an earlier one failed.
        """
        if stream is None:
            stream = _raw_stream(self._index)
        pointers = [t.data_ptr() for t in inputs]
        pointers += [t.data_ptr() for t in outputs]
        pointers.append(workspace.data_ptr() if workspace is not None else 0)
        if len(pointers) != self._arguments - 1:
            raise LaunchError(f"The kernel takes {self._inputs} inputs and {self._outputs} outputs.")
        if torch.cuda.current_device() == self._index:
            self._run(pointers, stream)
            return
        with torch.cuda.device(self._index):
            self._driver.set_current(self._context)
            self._run(pointers, stream)

    def allocate_workspace(self) -> Tensor | None:
        """Workspace for one call, contents undefined; None where the kernel asks for none."""
        if not self._plan.workspace_bytes:
            return None
        return torch.empty(self._plan.workspace_bytes, dtype=torch.uint8, device=f"cuda:{self._index}")

    def synchronize(self) -> None:
        """Wait for all work on the device.

        Raises:
            LaunchError: a launch failed while it ran; the process's context is then of no more use.
        """
        with torch.cuda.device(self._index):
            self._driver.set_current(self._context)
            self._driver.synchronize()

    def close(self) -> None:
        """Unload the module; nothing of it may be running."""
        module, self._module = self._module, 0
        if module:
            with torch.cuda.device(self._index):
                self._driver.set_current(self._context)
                self._driver.unload_module(module)

    def _run(self, pointers: list[int], stream: int) -> None:
        with self._lock:
            self._values[: self._arguments - 1] = pointers  # type: ignore[assignment]
            if self._plan.workspace_zero and pointers[-1]:
                self._zero(pointers[-1], stream)
            for item in self._launches:
                code = item.launch(stream)
                if code == CUDA_ERROR_INVALID_CONTEXT:
                    # a thread that torch has not used yet has no context
                    self._driver.set_current(self._context)
                    code = item.launch(stream)
                if code:
                    self._driver.check(code, f"Launching {item.name}")

    def _zero(self, workspace: int, stream: int) -> None:
        memset = self._driver.function("cuMemsetD8Async")
        code = memset(workspace, 0, self._plan.workspace_bytes, stream)
        if code == CUDA_ERROR_INVALID_CONTEXT:
            self._driver.set_current(self._context)
            code = memset(workspace, 0, self._plan.workspace_bytes, stream)
        self._driver.check(code, "Zeroing the workspace")

    def _allow_shared(self, launches: Sequence[Launch]) -> None:
        """The limit belongs to the kernel, not to the launch: the largest of its launches counts."""
        largest: dict[str, int] = {}
        for item in launches:
            largest[item.kernel] = max(largest.get(item.kernel, 0), item.smem)
        for name, size in largest.items():
            if size:
                self._driver.allow_shared_bytes(self._driver.get_function(self._module, name), size, name)


class _Prepared:
    """One launch with everything but the stream filled in."""

    def __init__(self, api: Driver, module: int, plan: Launch, slots: Any) -> None:
        self.name = plan.kernel
        function = api.get_function(module, plan.kernel)
        found = launch_attributes(plan.cluster, cooperative=plan.cooperative)
        extended = api.function("cuLaunchKernelEx")
        if extended is None:
            if found:
                raise LaunchError(f"The NVIDIA driver is too old for the launch attributes of {plan.kernel}.")
            plain = api.function("cuLaunchKernel")
            numbers = (*plan.grid, *plan.block, plan.smem)
            self._call: Callable[[int], Any] = lambda stream: plain(function, *numbers, stream, slots, None)
            return
        # both are kept by this object: the configuration holds a bare pointer to the attributes
        self._attributes = (LaunchAttribute * len(found))(*found) if found else None
        self._config = LaunchConfig(*plan.grid, *plan.block, plan.smem, None, self._attributes, len(found))
        config, reference, handle = self._config, byref(self._config), ctypes.c_void_p(function)

        def call(stream: int) -> Any:
            config.stream = stream
            return extended(reference, handle, slots, None)

        self._call = call

    def launch(self, stream: int) -> int:
        """Launch on a raw stream; returns the driver's result."""
        return int(self._call(stream))


def _raw_stream(index: int) -> int:
    """The current stream's handle; torch's quick way where there is one."""
    quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # noqa: SLF001 - a tenth of the public way's time
    return int(quick(index)) if quick is not None else int(torch.cuda.current_stream(index).cuda_stream)
