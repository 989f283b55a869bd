"""NVIDIA GPUs through NVML. What a GPU or a driver does not tell is None, never an exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_REASONS = {
    0x04: "power cap", 0x08: "hardware slowdown", 0x10: "sync boost", 0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown", 0x80: "power brake", 0x02: "application clocks", 0x01: "idle",
}  # fmt: skip


class Nvml:
    """The GPUs of this machine. `reason` says why there are none."""

    def __init__(self) -> None:
        self.reason = ""
        self._handles: list[tuple[int, Any, dict[str, Any]]] = []
        self._ml: Any = None
        self._looked: dict[int, int] = {}
        try:
            import pynvml
        except ImportError:
            self.reason = "nvidia-ml-py is not installed"
            return
        self._ml = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.reason = f"NVML: {error}"
            return
        for index in range(count):
            self._open(index)
        if not self._handles:
            self.reason = self.reason or "NVML finds no GPU"

    def _open(self, index: int) -> None:
        ml = self._ml
        try:
            handle = ml.nvmlDeviceGetHandleByIndex(index)
        except ml.NVMLError as error:
            self.reason = f"GPU {index}: {error}"
            return
        fixed = {
            "uuid": self._text(ml.nvmlDeviceGetUUID, handle),
            "name": self._text(ml.nvmlDeviceGetName, handle),
        }
        self._handles.append((index, handle, fixed))

    def sample(self) -> list[dict[str, Any]]:
        """One record for each GPU: percent, bytes, watts, degrees Celsius, MHz."""
        return [{"index": index, **fixed, **self._values(handle)} for index, handle, fixed in self._handles]

    def _values(self, handle: Any) -> dict[str, Any]:
        ml = self._ml
        memory = self._ask(ml.nvmlDeviceGetMemoryInfo, handle)
        rates = self._ask(ml.nvmlDeviceGetUtilizationRates, handle)
        return {
            "util_percent": None if rates is None else float(rates.gpu),
            "memory_used": None if memory is None else int(memory.used),
            "memory_total": None if memory is None else int(memory.total),
            "power_w": self._scaled(ml.nvmlDeviceGetPowerUsage, handle),
            "power_limit_w": self._scaled(ml.nvmlDeviceGetEnforcedPowerLimit, handle),
            "temperature_c": self._number(ml.nvmlDeviceGetTemperature, handle, ml.NVML_TEMPERATURE_GPU),
            "sm_mhz": self._number(ml.nvmlDeviceGetClockInfo, handle, ml.NVML_CLOCK_SM),
            "memory_mhz": self._number(ml.nvmlDeviceGetClockInfo, handle, ml.NVML_CLOCK_MEM),
            "throttle": self._throttle(handle),
            "processes": self._processes(handle),
        }

    def _processes(self, handle: Any) -> dict[str, float] | None:
        """Per cent of the multiprocessors by process id, since the last look; 0 for those that only hold a context."""
        ml = self._ml
        list_running = getattr(ml, "nvmlDeviceGetComputeRunningProcesses", None)
        running = None if list_running is None else self._ask(list_running, handle)
        if running is None:
            return None
        found = {str(process.pid): 0.0 for process in running}
        key = id(handle)
        # NVML raises where there was no load
        list_load = getattr(ml, "nvmlDeviceGetProcessUtilization", None)
        samples = () if list_load is None else self._ask(list_load, handle, self._looked.get(key, 0)) or ()
        for sample in samples:
            self._looked[key] = max(self._looked.get(key, 0), int(sample.timeStamp))
            found[str(sample.pid)] = max(found.get(str(sample.pid), 0.0), float(sample.smUtil))
        return found

    def _throttle(self, handle: Any) -> list[str] | None:
        name = "nvmlDeviceGetCurrentClocksEventReasons"
        ask = getattr(self._ml, name, None) or getattr(self._ml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        bits = None if ask is None else self._ask(ask, handle)
        if bits is None:
            return None
        return [text for bit, text in _REASONS.items() if int(bits) & bit]

    def _ask(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except self._ml.NVMLError:
            return None

    def _number(self, call: Callable[..., Any], *args: Any) -> float | None:
        value = self._ask(call, *args)
        return None if value is None else float(value)

    def _scaled(self, call: Callable[..., Any], *args: Any) -> float | None:
        value = self._ask(call, *args)
        return None if value is None else float(value) / 1000.0

    def _text(self, call: Callable[..., Any], *args: Any) -> str:
        value = self._ask(call, *args)
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
