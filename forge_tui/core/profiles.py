"""What a profile holds: the call tree, the phases, baselines, and what would happen if a target cost its floor."""

from __future__ import annotations

from typing import Literal

import msgspec

from forge_tui.core.records import Device, Record, Target

HotspotKind = Literal["model", "phase", "module", "function", "torch"]
#: ways to run a model
Mode = Literal["eager", "compile", "graph"]


class KernelTime(Record, frozen=True, kw_only=True):
    """A device kernel by name."""

    name: str
    launches: int
    total_ms: float

    @property
    def short_name(self) -> str:
        """See `short_kernel`."""
        return short_kernel(self.name)


def short_kernel(name: str) -> str:
    """A C++ kernel's name without return type, argument list and the namespaces of PyTorch."""
    text = name.removeprefix("void ")
    depth = 0
    for at, char in enumerate(text):
        if char == "<":
            depth += 1
        elif char == ">" and text[at - 1 : at] != "-":
            depth -= 1
        elif char == "(" and depth <= 0 and at and not text.startswith("(anonymous namespace)", at):
            text = text[:at].rstrip()  # the list of arguments
            break
    for noise in ("at::native::", "(anonymous namespace)::", "at::cuda::", "c10::"):
        text = text.replace(noise, "")
    return text or name


class Hotspot(Record, frozen=True, kw_only=True):
    """A node of the profiled call tree. Times and calls are those of one model call, weighted by phase."""

    id: int
    parent: int | None
    name: str
    kind: HotspotKind
    path: str
    calls: int
    total_ms: float
    """Device time, children included; wall time on the CPU."""
    self_ms: float
    """Device time of what its own code launched, outside of the children."""
    share: float
    """`total_ms` over that of the whole model, 0 to 1."""
    headroom_ms: float = 0.0
    target_id: str | None = None
    reason: str = ""
    """Why it is not offered as a target."""
    floor_ms: float = 0.0
    """What its calls cost at least on this device; 0 where unknown."""
    bound: Literal["", "memory", "compute", "launch"] = ""
    """What sets the floor; empty where it is unknown."""
    host_ms: float = 0.0
    """Host time of the calls, children included; on the CPU the same as `total_ms`."""
    launches: int = 0
    """Device kernels, children included."""
    signature: str = ""
    """Tensors in and out of one call, where there is one signature."""
    kernels: tuple[KernelTime, ...] = ()
    """Longest device kernels that its own code launched (Triton, libraries, custom operators among them)."""


class PhaseTime(Record, frozen=True, kw_only=True):
    """One phase of the model (prefill, decode, an input set)."""

    name: str
    weight: float
    """Calls of it that count as one model call."""
    ms: float
    """Median time of one call, unprofiled, on the device's clock from the first to the last operation."""
    busy_ms: float
    """Device time of one call in which a kernel ran; on the CPU the same as `ms`."""
    launches: int = 0
    """Device kernels of one call."""


class Baseline(Record, frozen=True, kw_only=True):
    """One way to run what is there already."""

    name: str
    """`eager`, `compile`, `compile max-autotune-no-cudagraphs`, `graph`, or a standard configuration in words."""
    ms: float | None
    """Median; None where it failed."""
    failure: str = ""
    setup_s: float = 0.0
    """Seconds to compile or capture."""
    max_abs_error: float | None = None
    """Against eager."""


class TargetBaselines(Record, frozen=True, kw_only=True):
    """The baselines of one target's call, in the same order as the model's."""

    target_id: str
    baselines: tuple[Baseline, ...]


class WhatIf(Record, frozen=True, kw_only=True):
    """The whole model with some targets replaced by operators that cost their floor."""

    mode: Mode
    target_ids: tuple[str, ...]
    """One target, or several together; empty for the model as it is."""
    ms: float | None
    base_ms: float | None
    """The model as it is, in the same mode and interleaved."""
    failure: str = ""
    calls: float = 0.0
    """Calls that were replaced in one model call."""

    @property
    def gain_ms(self) -> float:
        """What the replacement saves in one model call; 0 where it failed or loses."""
        return max(0.0, self.base_ms - self.ms) if self.ms is not None and self.base_ms is not None else 0.0


#: load of others, in cores beyond the free ones, that times do not show
_OTHERS = 0.3


class Profile(Record, frozen=True, kw_only=True):
    """One profile of a model: one pass over real inputs, and what was measured beside it."""

    device: Device
    model_ms: float
    """Median time of one model call, unprofiled: the sum over phases of weight times time."""
    overhead: float
    """Profiled over unprofiled time."""
    hotspots: tuple[Hotspot, ...]
    targets: tuple[Target, ...]
    warnings: tuple[str, ...] = ()
    phases: tuple[PhaseTime, ...] = ()
    busy_ms: float = 0.0
    """Device time of one model call in which a kernel ran; on the CPU the same as `model_ms`."""
    launches: int = 0
    """Device kernels of one model call."""
    agreement: float = 1.0
    """Share of the ten longest callables that two passes have in common: 1 is repeatable."""
    others: float = 0.0
    """On the CPU, how many cores other processes kept busy while the model was timed."""
    baselines: tuple[Baseline, ...] = ()
    target_baselines: tuple[TargetBaselines, ...] = ()
    what_ifs: tuple[WhatIf, ...] = ()
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    """Files that the model was built from, with the state of each: the profile is of this state."""

    @property
    def disturbed(self) -> bool:
        """Whether others took cores that the model wanted: its times are too long then."""
        free = max(0, self.device.cores - self.device.threads) if self.device.threads else 0
        return self.others > free + _OTHERS

    @property
    def idle_share(self) -> float:
        """Share of the model's time in which the device waits for the next launch, 0 to 1."""
        return min(1.0, max(0.0, 1.0 - self.busy_ms / self.model_ms)) if self.model_ms and self.busy_ms else 0.0
