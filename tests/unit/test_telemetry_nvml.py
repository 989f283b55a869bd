"""NVML through a module of our own making."""

# ruff: noqa: D103 - small helpers and checks say by their names what they do

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from forge_tui.telemetry.nvml import Nvml


class NVMLError(Exception):
    """As pynvml has it."""


def fake_pynvml(count: int = 1, *, broken: tuple[str, ...] = (), init: str = "") -> ModuleType:
    """A `pynvml` with `count` GPUs; the functions in `broken` raise."""
    module: Any = ModuleType("pynvml")
    module.NVMLError = NVMLError
    module.NVML_TEMPERATURE_GPU, module.NVML_CLOCK_SM, module.NVML_CLOCK_MEM = 0, 1, 2

    def answer(name: str, value: Any) -> None:
        def call(*args: Any) -> Any:
            if name in broken:
                raise NVMLError("Not Supported")
            return value(*args) if callable(value) else value

        setattr(module, name, call)

    def initialise() -> None:
        if init:
            raise NVMLError(init)

    module.nvmlInit = initialise
    answer("nvmlDeviceGetCount", count)
    answer("nvmlDeviceGetHandleByIndex", lambda index: index)
    answer("nvmlDeviceGetUUID", lambda handle: f"GPU-{handle}")
    answer("nvmlDeviceGetName", b"NVIDIA H200")
    answer("nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=97, memory=30))
    answer("nvmlDeviceGetMemoryInfo", SimpleNamespace(used=12 * 2**30, total=141 * 2**30))
    answer("nvmlDeviceGetPowerUsage", 350_500)
    answer("nvmlDeviceGetEnforcedPowerLimit", 700_000)
    answer("nvmlDeviceGetTemperature", lambda handle, kind: 45)
    answer("nvmlDeviceGetClockInfo", lambda handle, kind: 1980 if kind == 1 else 3201)
    answer("nvmlDeviceGetCurrentClocksEventReasons", 0x04 | 0x20)
    answer("nvmlDeviceGetComputeRunningProcesses", [SimpleNamespace(pid=11), SimpleNamespace(pid=12)])
    answer("nvmlDeviceGetProcessUtilization", lambda handle, since: [
        SimpleNamespace(pid=12, timeStamp=since + 5, smUtil=40), SimpleNamespace(pid=12, timeStamp=since + 9, smUtil=30)
    ])  # fmt: skip
    return module


def use(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)


def test_every_value_with_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Milliwatts become watts, bytes stay bytes, the reasons are words."""
    use(monkeypatch, fake_pynvml(2))
    samples = Nvml().sample()
    assert samples[1] == {
        "index": 1, "uuid": "GPU-1", "name": "NVIDIA H200", "util_percent": 97.0, "memory_used": 12 * 2**30,
        "memory_total": 141 * 2**30, "power_w": 350.5, "power_limit_w": 700.0, "temperature_c": 45.0,
        "sm_mhz": 1980.0, "memory_mhz": 3201.0, "throttle": ["power cap", "thermal slowdown"],
        "processes": {"11": 0.0, "12": 40.0},
    }  # fmt: skip
    assert len(samples) == 2


@pytest.mark.parametrize(
    ("broken", "missing"),
    [
        ("nvmlDeviceGetUtilizationRates", {"util_percent"}),
        ("nvmlDeviceGetMemoryInfo", {"memory_used", "memory_total"}),
        ("nvmlDeviceGetPowerUsage", {"power_w"}),
        ("nvmlDeviceGetClockInfo", {"sm_mhz", "memory_mhz"}),
        ("nvmlDeviceGetTemperature", {"temperature_c"}),
        ("nvmlDeviceGetCurrentClocksEventReasons", {"throttle"}),
        ("nvmlDeviceGetComputeRunningProcesses", {"processes"}),
    ],
)
def test_what_is_not_supported_is_none(monkeypatch: pytest.MonkeyPatch, broken: str, missing: set[str]) -> None:
    """A GPU that does not tell one thing still tells the others."""
    use(monkeypatch, fake_pynvml(broken=(broken,)))
    (sample,) = Nvml().sample()
    assert {key for key, value in sample.items() if value is None} == missing


def test_load_of_processes_is_that_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML is asked from the newest sample on; where it has none, every process is idle."""
    module: Any = fake_pynvml()
    asked: list[int] = []

    def load(_: Any, since: int) -> Any:
        asked.append(since)
        if since:
            raise NVMLError("Not Found")
        return [SimpleNamespace(pid=12, timeStamp=900, smUtil=40), SimpleNamespace(pid=13, timeStamp=700, smUtil=5)]

    module.nvmlDeviceGetProcessUtilization = load
    use(monkeypatch, module)
    nvml = Nvml()
    assert [nvml.sample()[0]["processes"] for _ in range(2)] == [
        {"11": 0.0, "12": 40.0, "13": 5.0}, {"11": 0.0, "12": 0.0}
    ]  # fmt: skip
    assert asked == [0, 900]


def test_an_old_driver_names_its_reasons_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the rename the same bits came from another function."""
    module: Any = fake_pynvml()
    module.nvmlDeviceGetCurrentClocksThrottleReasons = lambda _: 0x01
    del module.nvmlDeviceGetCurrentClocksEventReasons
    use(monkeypatch, module)
    assert Nvml().sample()[0]["throttle"] == ["idle"]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (None, "nvidia-ml-py is not installed"),
        (fake_pynvml(init="NVML Shared Library Not Found"), "NVML: NVML Shared Library Not Found"),
        (fake_pynvml(0), "NVML finds no GPU"),
        (fake_pynvml(1, broken=("nvmlDeviceGetHandleByIndex",)), "GPU 0: Not Supported"),
    ],
)
def test_no_gpu_says_why(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None, reason: str) -> None:
    """Without a module, a driver or a GPU there are no samples, and a reason."""
    use(monkeypatch, module)
    nvml = Nvml()
    assert nvml.sample() == []
    assert nvml.reason == reason
