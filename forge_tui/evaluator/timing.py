"""The timing stage: candidate and baseline interleaved on changing inputs, in the process that runs the kernel.

Before every sample the buffers of its last call get other data, and the memory that its output will likely land in is
overwritten, so that neither a cached nor a left-over result passes. Candidate and baseline of a pair see different
data, so that what one leaves behind is no answer for the other. Outputs of timed calls chosen at random are kept for
the judge.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from forge_tui.core.records import Signature
from forge_tui.evaluator import stats
from forge_tui.launch.kernel import Kernel

Side = Callable[[list[Tensor]], list[Tensor]]
#: outputs of timed calls that are kept at least; of a candidate that computes every other call half are right
KEPT = 4
_MOST_KEPT = 16
_KEPT_BYTES = 32 << 20
_BUFFERS = 3
_SHORTEST_US = 30.0
_MAX_INNER = 64
_WARM_UP_S = 0.25
_MAX_BLOCKS = 250
#: times the budget after which a single block is enough: the candidate is hopelessly slow
_OVERRUN = 6


class Clock(Protocol):
    """Times a few calls in a row; returns microseconds a call and what the last one returned."""

    def sample(self, side: Side, calls: Sequence[list[Tensor]]) -> tuple[float, list[Tensor]]:
        """Time the side on each of the input lists, in order."""


class CpuClock:
    """Wall time."""

    def sample(self, side: Side, calls: Sequence[list[Tensor]]) -> tuple[float, list[Tensor]]:
        """See `Clock`."""
        out: list[Tensor] = []
        start = time.perf_counter_ns()
        for inputs in calls:
            out = []  # the block of the call before is free for the next, as it is in a model
            out = side(inputs)
        end = time.perf_counter_ns()
        return (end - start) / 1000 / len(calls), out


class CudaClock:
    """Device time by events on the current stream, L2 flushed before every sample."""

    def __init__(self, device: torch.device, l2_bytes: int) -> None:
        from forge_tui.launch.cuda_driver import driver

        driver().forget_persisting_l2()
        self._flush = torch.empty(max(4 * l2_bytes, 256 * 2**20), dtype=torch.uint8, device=device)
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def sample(self, side: Side, calls: Sequence[list[Tensor]]) -> tuple[float, list[Tensor]]:
        """See `Clock`; the host queues behind the flush, so the device does not wait for it where calls are short."""
        out: list[Tensor] = []
        self._flush.zero_()
        self._start.record()
        for inputs in calls:
            out = []
            out = side(inputs)
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) * 1000 / len(calls), out


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to sample. `shortest_us` is what one sample should take at least."""

    budget_s: float = 1.0
    kept: int = KEPT
    """Outputs that are kept for the judge; a quarter of them of calls right behind others."""
    shortest_us: float = _SHORTEST_US
    max_inner: int = _MAX_INNER


def kept_outputs(nbytes: int) -> int:
    """How many outputs of this size are kept for the judge."""
    return max(KEPT, min(_MOST_KEPT, _KEPT_BYTES // max(1, nbytes)))


@dataclass(slots=True)
class Kept:
    """A timed call whose output was written down: which data it had, and the patch on it."""

    slot: int
    data: int
    patch: int


@dataclass(slots=True)
class Timing:
    """Samples and what was kept of them."""

    pairs: list[stats.Pair]
    inner: int
    kept: list[Kept] = field(default_factory=list)


@dataclass(slots=True)
class _Buffer:
    tensors: list[Tensor]
    data: int
    patch: int = 0


class Timer:
    """Times a candidate against a baseline on several data sets of one signature."""

    def __init__(
        self, candidate: Side, baseline: Side, data: Sequence[list[Tensor]], clock: Clock, scrub: Callable[[int], None],
        patch: Callable[[list[Tensor], int], None], write: Callable[[int, list[Tensor]], None], rng: random.Random,
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        """Take two sides and at least two data sets.

        `scrub` overwrites free memory of the outputs' size and the workspace with something that depends on its
        argument; `patch` changes single elements of inputs by a seed; `write` writes outputs into a slot.
        """
        assert len(data) >= 2, "one data set cannot tell a cached result from a computed one"
        self._sides = (candidate, baseline)
        self._data = data
        self._clock = clock
        self._scrub = scrub
        self._patch = patch
        self._write = write
        self._rng = rng
        self._limits = limits or Limits()
        self._buffers = [
            _Buffer([_copy(t) for t in data[i % len(data)]], i % len(data)) for i in range(_BUFFERS)
        ]
        self._drawn = self._limits.kept - max(1, self._limits.kept // 4)
        """Slots for calls drawn from all samples."""
        self._turn = 0
        self._inner = 1

    def run(self) -> Timing:
        """Warm up, then sample in blocks of candidate, baseline, baseline, candidate, and the other way round."""
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self._warm_up()
            return self._sample_blocks()
        finally:
            if was_enabled:
                gc.enable()

    def _sample_blocks(self) -> Timing:
        found = Timing([], self._inner)
        started = time.monotonic()
        seen = 0
        while True:
            # what comes first in a block comes after a pause, with colder caches and threads asleep: both do in turn,
            # behind a sample that does not count
            order = (0, 1, 1, 0) if len(found.pairs) % 4 == 0 else (1, 0, 0, 1)
            times: tuple[list[float], list[float]] = ([], [])
            for number, which in enumerate((1 - order[0], *order)):
                us, out, had = self._sample(which)
                if number:
                    times[which].append(us)
                if which == 0:
                    self._keep(found, seen, out, had)
                    seen += 1
                # an answer of the baseline must not lie in memory that the candidate gets
                for tensor in out:
                    _spoil(tensor, self._rng.randrange(256))
                del out
            found.pairs += zip(*times, strict=True)
            if stats.enough(found.pairs):
                break
            blocks = len(found.pairs) // 2
            spent = (time.monotonic() - started) / self._limits.budget_s
            if blocks >= _MAX_BLOCKS or (spent > 1 and blocks >= stats.EARLY_BLOCKS) or spent > _OVERRUN:
                break
        for slot in range(self._drawn, self._limits.kept):
            # nothing is overwritten between the calls of a sample: what one of them left must not be the next one's
            _, out, had = self._sample(0, least=2)
            self._write(slot, out)
            found.kept.append(Kept(slot, had.data, had.patch))
        return found

    def _keep(self, found: Timing, seen: int, out: list[Tensor], had: _Buffer) -> None:
        """A uniform choice among all timed calls, made as they come; the last slots are for calls behind others."""
        slot = seen if seen < self._drawn else self._rng.randrange(seen + 1)
        if slot < self._drawn:
            self._write(slot, out)
            found.kept = [k for k in found.kept if k.slot != slot] + [Kept(slot, had.data, had.patch)]

    def _sample(self, which: int, least: int = 1) -> tuple[float, list[Tensor], _Buffer]:
        """One sample; returns microseconds a call, the last call's outputs, and the buffer that call had."""
        # the number of calls varies, so that none can be told to be the last
        count = self._inner if self._inner == 1 else self._inner + self._rng.randrange(2)
        if count < least:
            count = least + self._rng.randrange(_BUFFERS - least + 1)
        order = [self._buffers[(self._turn + i) % len(self._buffers)] for i in range(count)]
        self._turn += count
        last = order[-1]
        for buffer in self._buffers if least > 1 else [last]:
            self._refill(buffer)
        self._scrub(self._rng.randrange(1 << 30))
        us, out = self._clock.sample(self._sides[which], [b.tensors for b in order])
        return us, out, last

    def _refill(self, buffer: _Buffer) -> None:
        """Give a buffer other data than it has, at the same addresses."""
        buffer.data = (buffer.data + 1 + self._rng.randrange(len(self._data) - 1)) % len(self._data)
        for to, source in zip(buffer.tensors, self._data[buffer.data], strict=True):
            _run_of(to).copy_(_run_of(source))
        buffer.patch = self._rng.randrange(1, 1 << 53)
        self._patch(buffer.tensors, buffer.patch)

    def _warm_up(self) -> None:
        """Call both until their times settle, and find how many calls a sample takes."""
        deadline = time.monotonic() + _WARM_UP_S
        fastest = math.inf
        last = [math.inf, math.inf]
        for number in range(20):
            settled = True
            for which in (0, 1):
                us, _, _ = self._sample(which)
                settled = settled and abs(us - last[which]) <= 0.1 * us
                last[which] = us
                fastest = min(fastest, us)
            if (settled and number >= 2) or (time.monotonic() > deadline and number >= 1):
                break
        wanted = math.ceil(self._limits.shortest_us / max(fastest, 0.1))
        self._inner = max(1, min(self._limits.max_inner, wanted))


def candidate_side(kernel: Kernel, signature: Signature, device: torch.device, workspace: Tensor | None) -> Side:
    """The kernel as a side: outputs are allocated at every call, as eager does."""
    specs = [(o.spec.shape, o.spec.strides, getattr(torch, o.spec.dtype)) for o in signature.outputs]
    launch, empty = kernel.launch, torch.empty_strided

    def call(inputs: list[Tensor]) -> list[Tensor]:
        outputs = [empty(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in specs]
        launch(inputs, outputs, workspace)
        return outputs

    return call


def scrubber(signature: Signature, device: torch.device, workspace: Tensor | None) -> Callable[[int], None]:
    """Overwrites the memory that outputs will get, by taking it from the allocator and giving it back."""
    specs = [(o.spec.shape, o.spec.strides, getattr(torch, o.spec.dtype)) for o in signature.outputs]

    def scrub(seed: int) -> None:
        # sometimes NaN, sometimes numbers that could be results: a kernel must not learn that it is watched
        byte = 0xFF if seed % 3 == 0 else seed // 3 % 256
        taken = [torch.empty_strided(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in specs]
        for tensor in taken:
            _spoil(tensor, byte)
        if workspace is not None:
            workspace.fill_(byte)

    return scrub


def _spoil(tensor: Tensor, byte: int) -> None:
    if tensor.numel():
        _run_of(tensor).view(torch.uint8).fill_(byte)


def _run_of(tensor: Tensor) -> Tensor:
    """All of a tensor's memory from its first to its last element, as one run."""
    span = 0
    if tensor.numel():
        span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,))


def _copy(tensor: Tensor) -> Tensor:
    run = _run_of(tensor).clone()
    return run.as_strided(tensor.shape, tensor.stride())
