"""A cubin launched without torch: context, memory and launches through the driver API alone.

For tools that slow every call of a process down (compute-sanitizer, ncu), where torch would take minutes to start.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

from forge_tui.core.records import Launch, LaunchPlan
from forge_tui.launch.cuda_driver import Driver, LaunchAttribute, LaunchConfig, driver, launch_attributes
from forge_tui.launch.errors import DriverMissing

_PROTOTYPES: dict[str, list[Any]] = {
    "cuInit": [c_uint],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuMemAlloc_v2": [POINTER(c_uint64), c_size_t],
    "cuMemFree_v2": [c_uint64],
    "cuMemcpyHtoD_v2": [c_uint64, c_char_p, c_size_t],
    "cuMemsetD8_v2": [c_uint64, c_ubyte, c_size_t],
}


class Alone:
    """One device, its primary context current on this thread.

    Raises:
        DriverMissing: there is no driver, or it lacks a function.
        LaunchError: a call failed.
    """

    def __init__(self, index: int) -> None:
        self.driver: Driver = driver()
        for name, argtypes in _PROTOTYPES.items():
            function = self.driver.function(name)
            if function is None:
                raise DriverMissing(f"The CUDA driver has no {name}.", "Install a newer NVIDIA driver.")
            function.argtypes, function.restype = argtypes, c_int
        self._call("cuInit", 0)
        device, context = c_int(), c_void_p()
        self._call("cuDeviceGet", byref(device), index)
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.driver.set_current(context.value or 0)

    def _call(self, name: str, *arguments: Any) -> None:
        self.driver.check(self.driver.function(name)(*arguments), name)

    def allocate(self, size: int) -> int:
        """Memory of exactly so many bytes, contents undefined; 0 for none."""
        if not size:
            return 0
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), size)
        return address.value

    def free(self, address: int) -> None:
        """Give memory back."""
        if address:
            self._call("cuMemFree_v2", address)

    def upload(self, address: int, data: bytes) -> None:
        """Copy bytes to the device."""
        if data:
            self._call("cuMemcpyHtoD_v2", address, data, len(data))

    def fill(self, address: int, byte: int, size: int) -> None:
        """Fill memory."""
        if size:
            self._call("cuMemsetD8_v2", address, byte, size)

    def launch(self, module: int, plan: LaunchPlan, arguments: Sequence[int]) -> None:
        """Launch a plan's kernels in order on the default stream and wait for them; `arguments` are 8 bytes each."""
        values = (c_uint64 * len(arguments))(*arguments)
        start = ctypes.addressof(values)
        slots = (c_void_p * len(arguments))(*[start + 8 * i for i in range(len(arguments))])
        largest: dict[str, int] = {}
        for item in plan.launches:
            largest[item.kernel] = max(largest.get(item.kernel, 0), item.smem)
        for name, size in largest.items():
            if size:
                self.driver.allow_shared_bytes(self.driver.get_function(module, name), size, name)
        for item in plan.launches:
            if 0 not in item.grid:
                self._launch(self.driver.get_function(module, item.kernel), item, slots)
        self.driver.synchronize()

    def _launch(self, function: int, item: Launch, slots: Any) -> None:
        found = launch_attributes(item.cluster, cooperative=item.cooperative)
        attributes = (LaunchAttribute * len(found))(*found) if found else None
        extended = self.driver.function("cuLaunchKernelEx")
        if extended is None or not found:
            code = self.driver.function("cuLaunchKernel")(
                function, *item.grid, *item.block, item.smem, None, slots, None
            )
        else:
            config = LaunchConfig(*item.grid, *item.block, item.smem, None, attributes, len(found))
            code = extended(byref(config), function, slots, None)
        self.driver.check(code, f"Launching {item.kernel}")
