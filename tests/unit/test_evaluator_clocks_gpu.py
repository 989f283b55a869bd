"""The clocks of a timing on a real GPU: hidden work is seen, costs are what they are, L2 is cold."""

from __future__ import annotations

import contextlib

import pytest
import torch

from forge_tui.core.records import Launch, LaunchPlan
from forge_tui.evaluator import costs, second_clock, timing
from forge_tui.evaluator.verify import Dishonest

pytestmark = pytest.mark.gpu

#: what torch's kernel of an addition is called is not a plan's business: only its absence from a plan is
NOTHING = LaunchPlan()


@pytest.fixture(scope="module")
def place():
    """The device, and buffers of 64 MB."""
    device = torch.device("cuda:0")
    return device, [[torch.randn(16 << 20, device=device)] for _ in range(3)]


def eager(inputs):
    """Some 40 us on an H200."""
    return [inputs[0] + 1.0]


def clock_of(device):
    """The deciding clock."""
    return timing.CudaClock(device, torch.cuda.get_device_properties(device).L2_cache_size)


class Elsewhere:
    """A side that does its work on a stream of its own, which the caller's events do not see."""

    def __init__(self, device):
        self.stream = torch.cuda.Stream(device)

    def __call__(self, inputs):
        """Return at once."""
        with torch.cuda.stream(self.stream):
            out = inputs[0]
            for _ in range(5):
                out = out + 1.0
        return [out]


def test_work_on_another_stream_is_found_by_the_wall(place):
    """Its events say next to nothing, the clock on the wall says what it takes."""
    device, buffers = place
    with pytest.raises(Dishonest, match="behind the last event, or on another stream"):
        second_clock.check(Elsewhere(device), eager, buffers, NOTHING, 5.0, device)


def test_the_tracer_sees_other_streams_and_foreign_names(place):
    """What the wall may miss the tracer has by name: a kernel that no plan knows."""
    device, _ = place
    # each kernel long enough for the host, which the events see, not to count
    buffers = [[torch.randn(1 << 28, device=device)]]
    seen, events_us = second_clock._trace(Elsewhere(device), buffers, device)
    inside = second_clock.between_marks(seen)
    if inside is None:
        pytest.skip("this machine does not let the GPU be traced")
    assert len(inside) == 15
    assert second_clock.busy_us(inside) > 2 * events_us
    assert "which is not one of its kernels" in second_clock.odd(NOTHING, 3, inside, events_us)
    names = {item.name for item in inside}
    assert len(names) == 1
    own = LaunchPlan(launches=tuple(Launch(kernel=next(iter(names)), grid=(1, 1, 1), block=(1, 1, 1)) for _ in "12345"))
    assert "was busy for" in second_clock.odd(own, 3, inside, events_us)


def test_an_honest_side_passes_both_second_clocks(place):
    """A kernel that runs where and as often as it says."""
    device, buffers = place
    seen, _ = second_clock._trace(eager, buffers, device)
    inside = second_clock.between_marks(seen)
    if inside is None:
        pytest.skip("this machine does not let the GPU be traced")
    plan = LaunchPlan(launches=(Launch(kernel=inside[0].name, grid=(1, 1, 1), block=(1, 1, 1)),))
    said = second_clock.check(eager, eager, buffers, plan, 40.0, device)
    assert "3 pieces of work in 3 calls" in said


def test_costs_of_a_short_call(place):
    """A small kernel: its call costs the host's part, a replay does not; both are there for a side that is captured."""
    device, _ = place
    small = [[torch.randn(1024, device=device)] for _ in range(3)]
    clock = clock_of(device)
    us, _ = clock.sample(eager, [small[0]])
    found = costs.costs({"a": eager, "b": eager}, {"a": us, "b": us}, small, clock, device, graphs=frozenset("a"))
    assert found["a"].device_us is not None
    assert 0.2 < found["a"].device_us < found["a"].call_us
    assert found["b"].device_us is None


def test_what_cannot_be_captured_is_said(place):
    """A side that waits for the device has no graph, and the device works on."""
    device, buffers = place

    def waits(inputs):
        return [inputs[0] * float(inputs[0][0].item())]

    us, why = costs.graph_us(waits, buffers, 100.0, clock_of(device), device)
    assert us is None
    assert why.startswith("it cannot be captured in a CUDA graph")
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize(device)
    assert float(eager([torch.zeros(1, device=device)])[0]) == 1.0
    # the generator is out of the capture as well
    assert torch.randn(4, device=device).isfinite().all()


def test_every_sample_finds_an_empty_l2(place):
    """Reading 8 MB that fits L2 takes about as long right behind itself as at first: the flush works."""
    device, _ = place
    data = torch.randn(2 << 20, device=device)
    clock = clock_of(device)

    def reads(inputs):
        return [inputs[0].sum()]

    cold = sorted(clock.sample(reads, [[data]])[0] for _ in range(21))[10]
    warm = sorted(clock.sample(reads, [[data]] * 8)[0] for _ in range(21))[10]
    assert warm < cold


def test_persisting_l2_is_forgotten_before_every_sample(place, monkeypatch):
    """The limit and the lines are reset each time, not once."""
    from forge_tui.launch.cuda_driver import Driver

    calls = []
    reset = Driver.forget_persisting_l2
    monkeypatch.setattr(Driver, "forget_persisting_l2", lambda self: (calls.append(1), reset(self)))
    device, buffers = place
    clock = clock_of(device)
    for _ in range(4):
        clock.sample(eager, [buffers[0]])
    assert len(calls) >= 4
