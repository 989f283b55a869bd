"""Sampling on a made-up clock: what is interleaved, what is changed between samples, what is kept."""

from __future__ import annotations

import random

import pytest
import torch
from evaluator_support import same
from targets_fixture import softmax_target

from forge_tui.evaluator import stats, timing
from forge_tui.evaluator.inputs import patch

CPU = torch.device("cpu")
SIGNATURE = softmax_target(4, 8).signature


class FakeClock:
    """Runs the sides and charges a fixed time for each call of each."""

    def __init__(self, cost_us: dict[object, float]) -> None:
        self.cost_us = cost_us
        self.order: list[object] = []
        self.sizes: list[int] = []
        self.ids: list[list[int]] = []

    def sample(self, side, calls):
        """As `timing.Clock`."""
        out = [side(inputs) for inputs in calls][-1]
        self.order.append(side)
        self.sizes.append(len(calls))
        self.ids.append([inputs[0].data_ptr() for inputs in calls])
        return self.cost_us[side], out


def timer(candidate, baseline, cost_us, seed: int = 1, **limits):
    """A timer on the fake clock, with what it kept."""
    clock = FakeClock(cost_us)
    kept: dict[int, list[torch.Tensor]] = {}
    data = [[torch.randn(4, 8)] for _ in range(3)]
    made = timing.Timer(
        candidate, baseline, data, clock, timing.scrubber(SIGNATURE, CPU, None), patch,
        lambda slot, out: kept.__setitem__(slot, [t.clone() for t in out]), random.Random(seed),
        timing.Limits(**limits),
    )  # fmt: skip
    return made, clock, kept, data


def right(inputs):
    """The candidate: the right answer."""
    return [torch.softmax(inputs[0], -1)]


def eager(inputs):
    """The baseline."""
    return [inputs[0].softmax(-1)]


def test_samples_are_interleaved_and_paired():
    """Blocks begin with each side in turn, behind a sample of the other that does not count."""
    made, clock, _, _ = timer(right, eager, {right: 40.0, eager: 100.0})
    found = made.run()
    assert set(found.pairs) == {(40.0, 100.0)}
    count = len(found.pairs) // 2
    both = [eager, right, eager, eager, right, right, eager, right, right, eager]
    assert clock.order[-1 - 5 * count : -1] == (both * count)[: 5 * count]
    assert stats.summarise(found.pairs).ratio == 2.5


def test_equal_times_end_after_the_fewest_blocks():
    """Where every sample is the same there is nothing to wait for."""
    made, _, _, _ = timer(right, eager, {right: 50.0, eager: 100.0})
    assert len(made.run().pairs) == 2 * stats.MIN_BLOCKS
    made, _, _, _ = timer(right, eager, {right: 300.0, eager: 100.0})
    assert len(made.run().pairs) == 2 * stats.EARLY_BLOCKS


def test_short_calls_are_batched_over_several_buffers():
    """A sample takes at least about its shortest time, its calls rotate, and their number varies."""
    made, clock, _, _ = timer(right, eager, {right: 2.0, eager: 4.0}, shortest_us=30.0)
    found = made.run()
    assert found.inner == 15
    assert set(clock.sizes[-20:]) == {15, 16}
    assert all(len(set(ids)) == len(ids) for ids in clock.ids[-20:])


def test_large_inputs_are_not_batched_further_than_their_buffers():
    """Every call of a sample has data of its own, and memory for that is limited."""
    made, clock, _, _ = timer(right, eager, {right: 2.0, eager: 4.0}, shortest_us=30.0)
    made._data = [[torch.randn(4, 1 << 18)] for _ in range(3)]
    made._buffers = []
    made._add_buffers(3)
    found = made.run()
    assert found.inner == 2
    assert set(clock.sizes[-20:-timing.KEPT]) == {2, 3}


def test_what_was_computed_for_parts_of_earlier_inputs_is_of_no_use():
    """Hardly an element is where it was in another counted call, although the data sets are only three."""
    seen: list[torch.Tensor] = []

    def watching(inputs):
        seen.append(inputs[0].flatten().clone())
        return right(inputs)

    made, _, _, _ = timer(watching, eager, {watching: 2.0, eager: 100.0})
    made.run()
    calls = torch.stack(seen[:200])
    known = [int((calls[:i] == call).any(0).sum()) for i, call in enumerate(calls)]
    assert len(calls) == 200
    assert max(known) <= 2


def test_kept_outputs_are_right_for_their_data():
    """The data and the patch of a kept call give its output; the last call is always kept."""
    for seed in range(5):
        made, _, kept, data = timer(right, eager, {right: 40.0, eager: 100.0}, seed)
        found = made.run()
        assert sorted(k.slot for k in found.kept) == list(range(timing.KEPT)) == sorted(kept)
        for item in found.kept:
            inputs = [t.clone() for t in data[item.data]]
            assert item.patch
            patch(inputs, item.patch)
            assert same(kept[item.slot], right(inputs))


def test_inputs_change_before_every_sample_at_the_same_addresses():
    """No buffer holds the same values in two samples, although there are only three of them."""
    seen: list[tuple[int, int]] = []

    def watching(inputs):
        seen.append((inputs[0].data_ptr(), hash(inputs[0].numpy().tobytes())))
        return right(inputs)

    made, _, _, _ = timer(watching, eager, {watching: 40.0, eager: 100.0})
    made.run()
    assert len({address for address, _ in seen}) == 3
    assert len({content for _, content in seen}) == len(seen)


def test_what_a_call_leaves_in_its_workspace_is_no_answer_for_the_next():
    """A candidate that repeats its last answer is seen, although every timed sample is a single call of it."""
    last: list[torch.Tensor] = []

    def repeats(inputs):
        out = last.pop() if last else right(inputs)[0]
        last.append(out.clone())
        return [out]

    made, _, kept, data = timer(repeats, eager, {repeats: 40.0, eager: 100.0})
    made._scrub = lambda _: last.clear()
    found = made.run()
    wrong = []
    for item in found.kept:
        inputs = [t.clone() for t in data[item.data]]
        patch(inputs, item.patch)
        wrong.append(not same(kept[item.slot], right(inputs)))
    assert wrong == [False] * (timing.KEPT - 1) + [True]


@pytest.mark.parametrize(("nbytes", "count"), [(1, 16), (2 << 20, 16), (4 << 20, 8), (1 << 30, 4), (0, 16)])
def test_more_outputs_are_kept_of_small_ones(nbytes, count):
    """Sixteen of what is small, four at least."""
    assert timing.kept_outputs(nbytes) == count


def test_a_candidate_that_writes_nothing_finds_no_answer():
    """Neither the baseline's result nor an old one lies in the memory that an output gets."""
    wrong = 0

    def lazy(inputs):
        return [torch.empty_strided((4, 8), (8, 1))]

    made, _, kept, data = timer(lazy, eager, {lazy: 1.0, eager: 100.0}, shortest_us=1.0)
    found = made.run()
    for item in found.kept:
        inputs = [t.clone() for t in data[item.data]]
        patch(inputs, item.patch)
        wrong += not torch.allclose(kept[item.slot][0], right(inputs)[0])
    assert wrong == len(found.kept)


def test_a_hopeless_candidate_is_not_sampled_for_long():
    """One block is enough where the budget is passed many times over."""
    made, _, _, _ = timer(right, eager, {right: 150.0, eager: 100.0}, budget_s=1e-9)
    assert len(made.run().pairs) == 2


def test_one_data_set_is_not_enough():
    """With one data set a cached result could not be told from a computed one."""
    with pytest.raises(AssertionError, match="cached"):
        timing.Timer(right, eager, [[torch.ones(1)]], FakeClock({}), lambda _: None, patch, lambda *_: None,
                     random.Random(1))  # fmt: skip


def test_the_clock_of_the_cpu_measures():
    """A loop of known length takes about that long a call, and the last output is given back."""
    import time

    def sleepy(inputs):
        time.sleep(0.002)
        return [inputs[0] + 1]

    us, out = timing.CpuClock().sample(sleepy, [[torch.zeros(1)], [torch.ones(1)]])
    assert us >= 2000
    assert out[0].item() == 2


def test_the_scrubber_spoils_free_memory_and_workspace():
    """A workspace is filled, with different bytes for different seeds."""
    workspace = torch.zeros(64, dtype=torch.uint8)
    scrub = timing.scrubber(SIGNATURE, CPU, workspace)
    scrub(0)
    assert bool((workspace == 0xFF).all())
    scrub(3 * 17 + 1)
    assert bool((workspace == 17).all())
