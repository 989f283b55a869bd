"""The part of the CUDA driver API that launches kernels, through ctypes on `libcuda.so.1`.

Structures follow cuda.h of CUDA 11.8 to 13; their sizes are checked at import. Nothing here needs torch, but a context
must be current on the calling thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from typing import Any

from forge_tui.launch.errors import DriverMissing, LaunchError

CUDA_ERROR_INVALID_CONTEXT = 201
_FUNC_SHARED_SIZE_BYTES = 1
_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
_LAUNCH_COOPERATIVE = 2
_LAUNCH_CLUSTER_DIMENSION = 4
LIMIT_PERSISTING_L2_CACHE_SIZE = 6
#: static and dynamic shared memory that a block gets without asking
DEFAULT_SHARED_BYTES = 48 * 1024


class _ClusterDim(ctypes.Structure):
    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint))


class _AttributeValue(ctypes.Union):
    _fields_ = (("pad", ctypes.c_char * 64), ("cluster", _ClusterDim), ("cooperative", c_int))


class LaunchAttribute(ctypes.Structure):
    """`CUlaunchAttribute`."""

    _fields_ = (("id", c_int), ("pad", ctypes.c_char * 4), ("value", _AttributeValue))


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        ("grid_x", c_uint), ("grid_y", c_uint), ("grid_z", c_uint),
        ("block_x", c_uint), ("block_y", c_uint), ("block_z", c_uint),
        ("shared_bytes", c_uint), ("stream", c_void_p), ("attributes", POINTER(LaunchAttribute)), ("count", c_uint),
    )  # fmt: skip


assert ctypes.sizeof(_AttributeValue) == 64
assert (ctypes.sizeof(LaunchAttribute), LaunchAttribute.value.offset) == (72, 8)
assert (ctypes.sizeof(LaunchConfig), LaunchConfig.stream.offset, LaunchConfig.attributes.offset,
        LaunchConfig.count.offset) == (56, 32, 40, 48)  # fmt: skip

_PROTOTYPES: dict[str, list[Any]] = {
    "cuGetErrorName": [c_int, POINTER(c_char_p)],
    "cuGetErrorString": [c_int, POINTER(c_char_p)],
    "cuCtxGetCurrent": [POINTER(c_void_p)],
    "cuCtxSetCurrent": [c_void_p],
    "cuCtxSetLimit": [c_int, c_size_t],
    "cuCtxSynchronize": [],
    "cuModuleLoadDataEx": [POINTER(c_void_p), c_char_p, c_uint, POINTER(c_int), POINTER(c_void_p)],
    "cuModuleUnload": [c_void_p],
    "cuModuleGetFunction": [POINTER(c_void_p), c_void_p, c_char_p],
    "cuFuncGetAttribute": [POINTER(c_int), c_int, c_void_p],
    "cuFuncSetAttribute": [c_void_p, c_int, c_int],
    "cuMemsetD8Async": [c_void_p, ctypes.c_ubyte, c_size_t, c_void_p],
    "cuLaunchKernel": [c_void_p, *[c_uint] * 7, c_void_p, POINTER(c_void_p), POINTER(c_void_p)],
}
#: absent in older drivers
_OPTIONAL: dict[str, list[Any]] = {
    "cuLaunchKernelEx": [POINTER(LaunchConfig), c_void_p, POINTER(c_void_p), POINTER(c_void_p)],
    "cuCtxResetPersistingL2Cache": [],
}


class Driver:
    """The driver's functions, each result checked."""

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, argtypes in (_PROTOTYPES | _OPTIONAL).items():
            try:
                function = getattr(library, name)
            except AttributeError:
                if name in _OPTIONAL:
                    continue
                raise DriverMissing(f"The CUDA driver has no {name}.", "Install a newer NVIDIA driver.") from None
            function.argtypes = argtypes
            function.restype = c_int

    def function(self, name: str) -> Any:
        """The raw function, or None where the driver is too old for it."""
        return getattr(self._library, name, None)

    def error_name(self, code: int) -> str:
        """`CUDA_ERROR_ILLEGAL_ADDRESS`."""
        return self._text("cuGetErrorName", code) or f"CUDA error {code}"

    def check(self, code: int, doing: str) -> None:
        """Raise LaunchError for a result other than success."""
        if code:
            name = self.error_name(code)
            text = self._text("cuGetErrorString", code)
            raise LaunchError(f"{doing} failed: {name}{f' ({text})' if text else ''}.", code=name)

    def _text(self, name: str, code: int) -> str:
        text = c_char_p()
        found = getattr(self._library, name)(code, byref(text))
        return text.value.decode(errors="replace") if not found and text.value else ""

    def current_context(self) -> int:
        """The calling thread's context, 0 if it has none."""
        context = c_void_p()
        self.check(self._library.cuCtxGetCurrent(byref(context)), "Asking for the CUDA context")
        return context.value or 0

    def set_current(self, context: int) -> None:
        """Make a context the calling thread's."""
        self.check(self._library.cuCtxSetCurrent(context), "Setting the CUDA context")

    def load_module(self, image: bytes) -> int:
        """Load a cubin into the current context; returns the module's handle."""
        module = c_void_p()
        self.check(self._library.cuModuleLoadDataEx(byref(module), image, 0, None, None), "Loading the kernel file")
        return module.value or 0

    def unload_module(self, module: int) -> None:
        """Give a module back."""
        self.check(self._library.cuModuleUnload(module), "Unloading the kernel file")

    def get_function(self, module: int, name: str) -> int:
        """A kernel's handle by its name."""
        function = c_void_p()
        found = self._library.cuModuleGetFunction(byref(function), module, name.encode())
        self.check(found, f"Looking up the kernel {name}")
        return function.value or 0

    def allow_shared_bytes(self, function: int, dynamic_bytes: int, name: str) -> None:
        """Raise a kernel's limit of dynamic shared memory where static and dynamic together pass the default."""
        static = c_int()
        found = self._library.cuFuncGetAttribute(byref(static), _FUNC_SHARED_SIZE_BYTES, function)
        self.check(found, f"Asking for the shared memory of {name}")
        if static.value + dynamic_bytes > DEFAULT_SHARED_BYTES:
            found = self._library.cuFuncSetAttribute(function, _FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_bytes)
            self.check(found, f"Giving {name} {dynamic_bytes} bytes of dynamic shared memory")

    def synchronize(self) -> None:
        """Wait for all work of the current context; errors of earlier launches surface here."""
        self.check(self._library.cuCtxSynchronize(), "Waiting for the kernel")

    def forget_persisting_l2(self) -> None:
        """Let no cache line persist in L2 over a flush; a device without that feature is left alone."""
        self._library.cuCtxSetLimit(LIMIT_PERSISTING_L2_CACHE_SIZE, 0)
        reset = self.function("cuCtxResetPersistingL2Cache")
        if reset is not None:
            reset()


def launch_attributes(cluster: Sequence[int] | None, *, cooperative: bool) -> list[LaunchAttribute]:
    """The attributes of a launch, in the form of `CUlaunchConfig.attrs`."""
    found: list[LaunchAttribute] = []
    if cluster is not None:
        item = LaunchAttribute(id=_LAUNCH_CLUSTER_DIMENSION)
        item.value.cluster.x, item.value.cluster.y, item.value.cluster.z = cluster
        found.append(item)
    if cooperative:
        item = LaunchAttribute(id=_LAUNCH_COOPERATIVE)
        item.value.cooperative = 1
        found.append(item)
    return found


@cache
def driver() -> Driver:
    """The driver of this machine.

    Raises:
        DriverMissing: there is no libcuda.
    """
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except OSError as error:
        raise DriverMissing("There is no CUDA driver (libcuda.so.1) here.", "Install the NVIDIA driver.") from error
