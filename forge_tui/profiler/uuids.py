"""The UUID of a GPU, or of the MIG instance that a process was given, as `nvidia-smi -L` writes it."""

from __future__ import annotations

import ctypes
import re
import uuid

_PREFIXED = re.compile(r"(?:GPU|MIG)-", re.IGNORECASE)


def device_uuid(index: int, properties_uuid: str) -> str:
    """`MIG-...` for an instance, else `GPU-...`; empty where neither the driver nor torch says.

    The driver's first question for a UUID answers with the whole GPU's, the second with the instance's.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        library = None
    whole = _ask(library, "cuDeviceGetUuid", index)
    part = _ask(library, "cuDeviceGetUuid_v2", index)
    if whole and part and whole != part:
        return f"MIG-{part}"
    found = whole or properties_uuid
    return found if not found or _PREFIXED.match(found) else f"GPU-{found}"


def _ask(library: ctypes.CDLL | None, name: str, index: int) -> str:
    raw = (ctypes.c_ubyte * 16)()
    device = ctypes.c_int()
    try:
        if library is None or library.cuDeviceGet(ctypes.byref(device), index) or getattr(library, name)(raw, device):
            return ""
    except AttributeError:
        return ""
    return str(uuid.UUID(bytes=bytes(raw)))
