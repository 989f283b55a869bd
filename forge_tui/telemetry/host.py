"""CPU and memory of this machine through psutil."""

from __future__ import annotations

import os
from typing import Any

import psutil


class Host:
    """Takes samples; the first CPU percentage covers the time since the object was made."""

    def __init__(self) -> None:
        psutil.cpu_percent(interval=None)

    def sample(self) -> dict[str, Any]:
        """`cpu_percent` of all cores, `memory_used` and `memory_total` in bytes, `load` over a minute, `cores`."""
        memory = psutil.virtual_memory()
        return {
            "cpu_percent": float(psutil.cpu_percent(interval=None)),
            "memory_used": int(memory.total - memory.available),
            "memory_total": int(memory.total),
            "load": float(os.getloadavg()[0]),
            "cores": int(psutil.cpu_count() or 1),
        }
