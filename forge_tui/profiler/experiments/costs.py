"""What a stand-in costs: outputs allocated, and a wait for the floor of the call."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from forge_tui.core.records import TensorSpec
from forge_tui.profiler.experiments.standins import Produce

_LIBRARY = "forge_what_if"
_numbers = itertools.count()


class Counter:
    """Calls that stand-ins served."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


def make_produce(
    outputs: list[TensorSpec], floor_us: float, device: torch.device, counter: Counter, launch_us: float = 0.0
) -> Produce:
    """A producer of these outputs that takes the floor's time, on the device's own clock.

    On CUDA one kernel waits, the host goes on, and a graph capture keeps it; `launch_us` is what an empty kernel costs
    anyway. On the CPU the thread spins. Integer and bool outputs are zero, since they may index something; floating
    ones are zero on the CPU only, where arbitrary memory can be slow to compute with, inside of the floor's time.
    """
    makers = [_allocator(spec, device) for spec in outputs]
    if device.type == "cuda":
        cycles = max(0, round((floor_us - launch_us) * cycles_per_us(device.index or 0)))
        return _on_cuda(makers, cycles, counter)
    return _on_cpu(makers, floor_us / 1e6, counter)


def _allocator(spec: TensorSpec, device: torch.device) -> Callable[[], Tensor]:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    shape, strides = tuple(spec.shape), tuple(spec.strides)
    empty = functools.partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)
    if device.type == "cuda" and dtype.is_floating_point:
        return empty
    return lambda: empty().zero_()


def _on_cuda(makers: list[Callable[[], Tensor]], cycles: int, counter: Counter) -> Produce:
    sleep: Callable[[int], None] = torch.cuda._sleep  # noqa: SLF001 - the only wait on the device that torch offers
    if len(makers) == 1:
        make = makers[0]

        def one(_: list[Tensor], __: int) -> Any:
            counter.calls += 1
            out = make()
            sleep(cycles)
            return out

        return one

    def several(_: list[Tensor], __: int) -> Any:
        counter.calls += 1
        outs = tuple([make() for make in makers])
        sleep(cycles)
        return outs

    return several


def _on_cpu(makers: list[Callable[[], Tensor]], floor_s: float, counter: Counter) -> Produce:
    now = time.perf_counter
    single = len(makers) == 1

    def produce(_: list[Tensor], __: int) -> Any:
        end = now() + floor_s
        counter.calls += 1
        outs = tuple([make() for make in makers])
        while now() < end:
            pass
        return outs[0] if single else outs

    return produce


@functools.cache
def cycles_per_us(index: int) -> float:
    """What `torch.cuda._sleep` counts in a microsecond, measured once for each device of this process."""
    sleep: Callable[[int], None] = torch.cuda._sleep  # noqa: SLF001
    with torch.cuda.device(index):
        start, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))  # type: ignore[no-untyped-call]
        sleep(200_000_000)  # a tenth of a second: clocks are up
        rates = []
        for _ in range(5):
            start.record()
            sleep(2_000_000)
            middle.record()
            sleep(6_000_000)
            end.record()
            end.synchronize()
            # the difference: what a launch and an event cost is in both
            rates.append(4_000_000 / ((middle.elapsed_time(end) - start.elapsed_time(middle)) * 1e3))
    return float(median(rates))


def opaque(produce: Produce, outputs: list[TensorSpec], device: torch.device) -> Produce:
    """The same producer behind an operator that torch.compile cannot look into, with a fake implementation.

    Its first argument keeps the call behind the operations that make its inputs; the site keeps two calls on the same
    tensors from being taken for one.
    """
    name = f"stand_in_{next(_numbers)}"
    library = _library()
    returns = "Tensor" if len(outputs) == 1 else f"({', '.join(['Tensor'] * len(outputs))})"
    tags = [torch.Tag.pt2_compliant_tag]
    if hasattr(torch.Tag, "needs_fixed_stride_order"):
        tags.append(torch.Tag.needs_fixed_stride_order)
    library.define(f"{name}(Tensor[] inputs, int site) -> {returns}", tags=tuple(tags))
    library.impl(name, produce, "CompositeExplicitAutograd")
    made = [(tuple(o.shape), tuple(o.strides), getattr(torch, o.dtype)) for o in outputs]

    def fake(_: list[Tensor], __: int) -> Any:
        outs = tuple([torch.empty_strided(shape, strides, dtype=d, device=device) for shape, strides, d in made])
        return outs[0] if len(outs) == 1 else outs

    torch.library.register_fake(f"{_LIBRARY}::{name}", fake, lib=library)
    operator: Produce = getattr(getattr(torch.ops, _LIBRARY), name).default
    return operator


@functools.cache
def _library() -> Any:
    """The operators live as long as the process does: compiled code refers to them."""
    return torch.library.Library(_LIBRARY, "FRAGMENT")  # type: ignore[no-untyped-call]
