"""Outputs of a model against those of the original, and how far they may differ.

The limit is never a constant: it comes from how far the original's own outputs are from a run in higher precision, and
from how much they move between two equal runs. Where no such run is possible, it comes from the rounding of the dtype
and the depth of the model, and the text says why.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forge_tui.deploy.messages import Difference
from forge_tui.models.load import LoadedModel, seed_everything

_CHUNK = 1 << 24
_HIGHER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}

Leaf = Tensor | str | bool | int | None


@dataclass(frozen=True, slots=True)
class Limit:
    """How far one output may be from the original's."""

    max_abs: float
    rms: float
    mismatches: float = 0.0
    """Share of elements of a non-floating output that may differ."""


@dataclass(frozen=True, slots=True)
class Distance:
    """How far two tensors are apart, and how large the second one is."""

    max_abs: float
    rms: float
    mismatches: float
    size_max: float
    size_rms: float


@dataclass(frozen=True, slots=True)
class Tolerance:
    """One limit for each output, and the text for people."""

    limits: tuple[Limit, ...]
    text: str


def leaves(value: Any, path: str = "output", depth: int = 0) -> Iterator[tuple[str, Leaf]]:
    """(path, leaf) of everything comparable in an output: tensors as copies, floats as tensors, plain values."""
    if isinstance(value, Tensor):
        yield path, value.detach().clone()
    elif isinstance(value, float):
        yield path, torch.tensor(value, dtype=torch.float64)
    elif value is None or isinstance(value, (bool, int, str)):
        yield path, value
    elif depth > 8:
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}.{i}", depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield from leaves(getattr(value, item.name, None), f"{path}.{item.name}", depth + 1)
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        for key, item in vars(value).items():
            yield from leaves(item, f"{path}.{key}", depth + 1)


def run_outputs(loaded: LoadedModel, seed: int) -> list[tuple[str, Leaf]]:
    """The comparable leaves of one model call with seeded random numbers."""
    seed_everything(seed)
    return list(leaves(loaded.run()))


def incomparable(outputs: list[tuple[str, Leaf]]) -> str:
    """Why these outputs cannot show whether a kernel is right, or nothing."""
    tensors = [leaf for _, leaf in outputs if isinstance(leaf, Tensor) and leaf.numel()]
    if not tensors:
        return "the model call returns no tensor that could be compared"
    if not any(bool(torch.isfinite(t).any()) for t in tensors):
        return "every output of the original model is NaN or infinite"
    return ""


def distance(value: Tensor, base: Tensor) -> Distance:
    """Distance of `value` to `base`; equal infinities and NaNs in the same places count as equal."""
    top = squares = size_max = size_squares = 0.0
    wrong = 0
    if value.is_complex() or base.is_complex():
        value, base = torch.view_as_real(value.resolve_conj()), torch.view_as_real(base.resolve_conj())
    for a, b in zip(torch.split(value.reshape(-1), _CHUNK), torch.split(base.reshape(-1), _CHUNK), strict=True):
        b = b.double()
        a = a.to(b.device).double()
        same = (a == b) | (a.isnan() & b.isnan())
        gap = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
        finite = torch.where(b.isfinite(), b, 0.0)
        top = max(top, float(gap.max()))
        squares += float((gap * gap).sum())
        wrong += int((~same).sum())
        size_max = max(size_max, float(finite.abs().max()))
        size_squares += float((finite * finite).sum())
    n = max(1, base.numel())
    return Distance(top, math.sqrt(squares / n), wrong / n, size_max, math.sqrt(size_squares / n))


def difference(
    outputs: list[tuple[str, Leaf]], base: list[tuple[str, Leaf]], tolerance: Tolerance
) -> Difference:
    """The largest differences over all outputs, and whether each is within its limit."""
    if [path for path, _ in outputs] != [path for path, _ in base]:
        return Difference(max_abs=math.inf, rms=math.inf, within=False, why="the output has another structure")
    top = rms = 0.0
    why = ""
    for (path, value), (_, wanted), limit in zip(outputs, base, tolerance.limits, strict=True):
        if isinstance(value, Tensor) and isinstance(wanted, Tensor):
            if value.shape != wanted.shape or value.dtype != wanted.dtype:
                return Difference(max_abs=math.inf, rms=math.inf, within=False,
                                  why=f"{path} has another shape or dtype")  # fmt: skip
            if not value.numel():
                continue
            gap = distance(value, wanted)
            top, rms = max(top, gap.max_abs), max(rms, gap.rms)
            why = why or _beyond(path, gap, limit, wanted)
        elif type(value) is not type(wanted) or value != wanted:
            why = why or f"{path} is {value!r} instead of {wanted!r}"
    return Difference(max_abs=top, rms=rms, within=not why, why=why)


def _beyond(path: str, gap: Distance, limit: Limit, base: Tensor) -> str:
    if not (base.is_floating_point() or base.is_complex()):
        if gap.mismatches > limit.mismatches:
            return f"{gap.mismatches:.2%} of the elements of {path} differ (limit {limit.mismatches:.2%})"
        return ""
    if not gap.max_abs <= limit.max_abs:
        return f"{path} differs by up to {gap.max_abs:.3g} (limit {limit.max_abs:.3g})"
    if not gap.rms <= limit.rms:
        return f"{path} differs by {gap.rms:.3g} RMS (limit {limit.rms:.3g})"
    return ""


def find_tolerance(loaded: LoadedModel, base: list[tuple[str, Leaf]], seed: int) -> Tolerance:
    """Limits for every output of this model; runs the model once more, and once in higher precision."""
    again = run_outputs(loaded, seed)
    higher = higher_precision(loaded)
    reason = ""
    precise: list[tuple[str, Leaf]] | None = None
    if isinstance(higher, str):
        reason = higher
    else:
        try:
            precise = list(leaves(higher(seed)))
            reason = _unusable(precise, base)
        except Exception as error:  # noqa: BLE001 - whatever the model raises in another dtype, the other bound serves
            reason = f"its run in higher precision failed ({type(error).__name__})"
        if reason:
            precise = None
    del higher
    depth = sum(1 for m in loaded.module.modules() if not list(m.children()))
    limits = []
    for i, (_, wanted) in enumerate(base):
        other = precise[i][1] if precise is not None else None
        limits.append(_limit(wanted, again[i][1] if len(again) == len(base) else None, other, depth))
    if precise is None:
        text = f"rounding of the dtype times the square root of {depth} layers, because {reason}"
    else:
        text = "twice the RMS and four times the largest error of the original against a run in higher precision"
    first = next((limit for limit, (_, leaf) in zip(limits, base, strict=True) if _floating(leaf)), None)
    if first is not None:
        text += f": {first.rms:.2g} RMS, {first.max_abs:.2g} at most for the first output"
    return Tolerance(tuple(limits), text)


def _unusable(precise: list[tuple[str, Leaf]], base: list[tuple[str, Leaf]]) -> str:
    """Why a run in higher precision says nothing about the original's error, or nothing."""
    if [path for path, _ in precise] != [path for path, _ in base]:
        return "its run in higher precision has another structure"
    for (_, value), (_, wanted) in zip(precise, base, strict=True):
        if isinstance(wanted, Tensor) and (not isinstance(value, Tensor) or value.shape != wanted.shape):
            return "its run in higher precision has another structure"
        if isinstance(value, Tensor) and isinstance(wanted, Tensor) and value.is_floating_point() and not torch.equal(
            value.isfinite(), wanted.isfinite()
        ):
            return "its run in higher precision is infinite elsewhere"
    return ""


def _floating(leaf: Leaf) -> bool:
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _limit(wanted: Leaf, again: Leaf, precise: Leaf, depth: int) -> Limit:
    if not isinstance(wanted, Tensor) or not wanted.numel():
        return Limit(0.0, 0.0)
    usable = isinstance(again, Tensor) and again.shape == wanted.shape
    moved = distance(again, wanted) if usable else distance(wanted, wanted)  # type: ignore[arg-type]
    if not _floating(wanted):
        own = distance(precise, wanted).mismatches if isinstance(precise, Tensor) else 0.0
        return Limit(0.0, 0.0, 2 * own + 2 * moved.mismatches)
    eps = torch.finfo(wanted.dtype).eps
    # half types are rounded once at the end of a kernel; float32 sums are rounded at every step
    floor = (8 if eps < 1e-4 else 2) * eps
    if isinstance(precise, Tensor):
        own_error = distance(precise, wanted)
        return Limit(
            4 * own_error.max_abs + 2 * moved.max_abs + floor * moved.size_max,
            2 * own_error.rms + 2 * moved.rms + floor * moved.size_rms,
        )
    scale = max(floor, 4 * eps * math.sqrt(depth))
    return Limit(2 * scale * moved.size_max + 2 * moved.max_abs, scale * moved.size_rms + 2 * moved.rms)


def higher_precision(loaded: LoadedModel) -> Callable[[int], Any] | str:
    """A function from a seed to the outputs of a copy of the model in higher precision, or why there is none."""
    dtype = _main_dtype(loaded.module)
    higher = _HIGHER.get(dtype) if dtype is not None else None
    if higher is None:
        return "it has no higher precision to run in" if dtype is not None else "it has no floating parameters"
    needed = 4 * sum(t.numel() for t in [*loaded.module.parameters(), *loaded.module.buffers()]) * higher.itemsize
    if needed > _free_bytes(loaded.device):
        return f"memory does not suffice for a run in {str(higher).removeprefix('torch.')}"
    try:
        module = copy.deepcopy(loaded.module).to(higher)
    except Exception as error:  # noqa: BLE001 - user code may refuse to be copied in any way
        return f"it cannot be copied ({type(error).__name__})"

    def run(seed: int) -> Any:
        seed_everything(seed)
        outputs = {phase.name: phase.moved(loaded.device, higher).run(module) for phase in loaded.phases}
        return outputs if len(outputs) > 1 else next(iter(outputs.values()))

    return run


def _main_dtype(module: nn.Module) -> torch.dtype | None:
    count: dict[torch.dtype, int] = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            count[tensor.dtype] = count.get(tensor.dtype, 0) + tensor.numel()
    return max(count, key=lambda dtype: count[dtype]) if count else None


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 1 << 30
