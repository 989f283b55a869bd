"""The timing stage: candidate and baselines interleaved on changing inputs, in the process that runs the kernel.

Before every sample the buffers of its calls get other data, such that hardly an element is one that a call has seen,
and the memory that its output will likely land in is overwritten, so that neither a cached nor a left-over result
passes, and what was kept of parts of them saves nothing. Calls that do not count follow, on data that differ in one
element. Candidate and baseline of a pair see different data, so that what one leaves behind is no answer for the other.
Outputs of timed calls chosen at random are kept for the judge.
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
from forge_tui.evaluator.inputs import run_of
from forge_tui.launch.kernel import Kernel

Side = Callable[[list[Tensor]], list[Tensor]]
#: outputs of timed calls that are kept at least; of a candidate that computes every other call half are right
KEPT = 4
_MOST_KEPT = 16
_KEPT_BYTES = 32 << 20
_BUFFERS = 3
#: so many bytes of inputs may more buffers take, so that every call of a sample has data of its own
_MORE_BYTES = 8 << 20
_SHORTEST_US = 30.0
_MAX_INNER = 16
_WARM_UP_S = 0.25
#: the last so many samples of every side must lie this near together before what is measured counts
_SETTLED_SAMPLES = 4
_SETTLED = 1.1
_MAX_BLOCKS = stats.LOOKS[-1]
#: times the budget after which a single block is enough: the candidate is hopelessly slow
_OVERRUN = 6


#: how much longer than the host takes to queue a sample the device is kept busy before it, at most so long, and how
#: slowly that is forgotten
_LEAD = 1.25
_MOST_LEAD_US = 1500.0
_LEAD_FADES = 0.98
#: one flush takes at least so long on the fastest of GPUs
_FLUSH_US = 40.0


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
    """Device time by events on the current stream; before every sample L2 is emptied and nothing may persist in it."""

    def __init__(self, device: torch.device, l2_bytes: int) -> None:
        from forge_tui.launch.cuda_driver import driver

        self._forget = driver().forget_persisting_l2
        self._flush = torch.zeros(max(4 * l2_bytes, 256 * 2**20) // 8, dtype=torch.int64, device=device)
        self._sum = torch.zeros((), dtype=torch.int64, device=device)
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._lead_us = 0.0

    def sample(self, side: Side, calls: Sequence[list[Tensor]]) -> tuple[float, list[Tensor]]:
        """See `Clock`; the host queues while the device flushes, so the device does not wait for it."""
        out: list[Tensor] = []
        self._forget()
        for _ in range(1 + int(self._lead_us / _FLUSH_US)):
            # read, not written: dirty lines would be written back inside of the timed window
            torch.sum(self._flush, dim=0, out=self._sum)
        begun = time.perf_counter_ns()
        self._start.record()
        for inputs in calls:
            out = []
            out = side(inputs)
        self._end.record()
        queued_us = (time.perf_counter_ns() - begun) / 1e3
        self._end.synchronize()
        # the slowest of late to queue decides for all sides, so that none has an advantage
        self._lead_us = min(_MOST_LEAD_US, max(_LEAD * queued_us, self._lead_us * _LEAD_FADES))
        return self._start.elapsed_time(self._end) * 1000 / len(calls), out


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to sample. `shortest_us` is what one sample should take at least."""

    budget_s: float = 1.0
    kept: int = KEPT
    """Outputs that are kept for the judge; a quarter of them of calls right behind others."""
    shortest_us: float = _SHORTEST_US
    max_inner: int = _MAX_INNER
    warm_up_s: float = _WARM_UP_S
    blocks: int = 0
    """Sample just so many blocks; 0 samples until the ratio is known well enough, or the time is up."""


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
    """Samples and what was kept of them. `others` has the samples of the further baselines, one to a pair."""

    pairs: list[stats.Pair]
    inner: int
    kept: list[Kept] = field(default_factory=list)
    others: list[list[float]] = field(default_factory=list)
    settled: bool = True
    """Whether the times had settled when sampling began."""

    def samples(self) -> list[list[float]]:
        """Microseconds of every side: candidate, baseline, others; of one place in the lists are of one block."""
        return [[a for a, _ in self.pairs], [b for _, b in self.pairs], *self.others]


@dataclass(slots=True)
class _Buffer:
    tensors: list[Tensor]
    data: int
    patch: int = 0


class Timer:
    """Times a candidate against baselines on several data sets of one signature."""

    def __init__(
        self, candidate: Side, baseline: Side, data: Sequence[list[Tensor]], clock: Clock, scrub: Callable[[int], None],
        patch: Callable[[list[Tensor], int], None], write: Callable[[int, list[Tensor]], None], rng: random.Random,
        limits: Limits | None = None, others: Sequence[Side] = (),
    ) -> None:  # fmt: skip
        """Take two sides and at least two data sets; `others` are further baselines, timed in turns with the two.

        `scrub` overwrites free memory of the outputs' size and the workspace with something that depends on its
        argument; `patch` changes single elements of inputs by a seed; `write` writes outputs into a slot.
        """
        assert len(data) >= 2, "one data set cannot tell a cached result from a computed one"
        self._sides = (candidate, baseline, *others)
        self._data = data
        self._clock = clock
        self._scrub = scrub
        self._patch = patch
        self._write = write
        self._rng = rng
        self._limits = limits or Limits()
        self._buffers: list[_Buffer] = []
        self._add_buffers(_BUFFERS)
        self._drawn = self._limits.kept - max(1, self._limits.kept // 4)
        """Slots for calls drawn from all samples."""
        self._turn = 0
        self._inner = 1

    @property
    def buffers(self) -> list[list[Tensor]]:
        """The inputs that the calls have, in turns."""
        return [buffer.tensors for buffer in self._buffers]

    def run(self) -> Timing:
        """Warm up, then sample in blocks of candidate, baseline, baseline, candidate, and the other way round.

        With further baselines a block has every side there and back (A B C C B A), and begins with another one in turn.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            settled = self._warm_up()
            found = self._sample_blocks()
            found.settled = settled
            return found
        finally:
            if was_enabled:
                gc.enable()

    def _sample_blocks(self) -> Timing:
        count = len(self._sides)
        found = Timing([], self._inner, others=[[] for _ in range(count - 2)])
        started = time.monotonic()
        seen = 0
        while True:
            # what comes first in a block comes after a pause, with colder caches and threads asleep: all do in turn,
            # behind a sample that does not count
            first = len(found.pairs) // 2 % count
            there = [(first + i) % count for i in range(count)]
            times: list[list[float]] = [[] for _ in self._sides]
            for number, which in enumerate((there[1], *there, *reversed(there))):
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
            found.pairs += zip(times[0], times[1], strict=True)
            for kept, more in zip(found.others, times[2:], strict=True):
                kept += more
            blocks = len(found.pairs) // 2
            if blocks == self._limits.blocks or (not self._limits.blocks and stats.enough(found.pairs)):
                break
            spent = (time.monotonic() - started) / self._limits.budget_s
            if blocks >= _MAX_BLOCKS or (spent > 1 and blocks >= stats.MIN_BLOCKS) or spent > _OVERRUN:
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
        # a state that outlives a call is no use in the next one of a sample either
        for buffer in order[-len(self._buffers) :]:
            self._refill(buffer, renewed=least == 1)
        self._scrub(self._rng.randrange(1 << 30))
        us, out = self._clock.sample(self._sides[which], [b.tensors for b in order])
        return us, out, last

    def _refill(self, buffer: _Buffer, renewed: bool) -> None:
        """Give a buffer other data than it has, at the same addresses; else but for one element those of some call."""
        buffer.data = (buffer.data + 1 + self._rng.randrange(len(self._data) - 1)) % len(self._data)
        for to, source in zip(buffer.tensors, self._data[buffer.data], strict=True):
            run_of(to).copy_(run_of(source))
        buffer.patch = self._rng.randrange(1, 1 << 53) * (-1 if renewed else 1)
        self._patch(buffer.tensors, buffer.patch)

    def _warm_up(self) -> bool:
        """Call all sides until their times settle, and find how many calls a sample takes; whether they settled."""
        deadline = time.monotonic() + self._limits.warm_up_s
        times: list[list[float]] = [[] for _ in self._sides]
        settled = False
        while not settled and (len(times[0]) < 2 or time.monotonic() < deadline):
            for which, seen in enumerate(times):
                seen.append(self._sample(which)[0])
            last = [seen[-_SETTLED_SAMPLES:] for seen in times]
            settled = all(len(few) == _SETTLED_SAMPLES and max(few) <= _SETTLED * min(few) for few in last)
        wanted = math.ceil(self._limits.shortest_us / max(min(map(min, times)), 0.1))
        nbytes = sum(t.numel() * t.element_size() for t in self._data[0])
        # one more call than `_inner` may be in a sample
        fitting = max(_BUFFERS, _MORE_BYTES // max(1, nbytes)) - 1
        self._inner = max(1, min(self._limits.max_inner, wanted, fitting))
        self._add_buffers(self._inner + 1)
        return settled

    def _add_buffers(self, count: int) -> None:
        """Have so many buffers at least."""
        for i in range(len(self._buffers), count):
            which = i % len(self._data)
            self._buffers.append(_Buffer([_copy(t) for t in self._data[which]], which))


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
        run_of(tensor).view(torch.uint8).fill_(byte)


def _copy(tensor: Tensor) -> Tensor:
    run = run_of(tensor).clone()
    return run.as_strided(tensor.shape, tensor.stride())
