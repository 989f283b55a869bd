"""Work on the device belongs to the innermost call that issued it."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forge_tui.profiler.activity import Kernel, Span, attribute, busy_us, read_events


def test_kernels_belong_to_the_innermost_call():
    """A kernel is the call's that was open when its operator began, however late it ran."""
    spans = [Span(1, 100, 500), Span(2, 150, 250), Span(3, 300, 400), Span(4, 600, 700)]
    kernels = [
        Kernel("a", 120, 9000, 9010), Kernel("b", 160, 9010, 9030), Kernel("c", 250, 9030, 9060),
        Kernel("d", 260, 9060, 9100), Kernel("a", 399, 9100, 9200), Kernel("e", 650, 9200, 9400),
        Kernel("f", 550, 9400, 9401), Kernel("g", -1, 9500, 9600),
    ]  # fmt: skip
    works = attribute(spans, kernels)
    assert {n: sorted(w.names.elements()) for n, w in works.items()} == {
        0: ["f", "g"], 1: ["a", "d"], 2: ["b", "c"], 3: ["a"], 4: ["e"],
    }  # fmt: skip
    assert works[1].us == pytest.approx(0.05)
    assert (works[2].launches, works[2].name_us) == (2, {"b": pytest.approx(0.02), "c": pytest.approx(0.03)})


@given(st.data())
def test_attribution_against_a_search(data):
    """On random nested calls: the innermost one open at the moment, as a plain search finds it; nothing is lost."""
    spans: list[Span] = []

    def grow(start: int, end: int, depth: int) -> None:
        while depth < 4 and end - start > 4 and data.draw(st.booleans()):
            a = data.draw(st.integers(start, end - 3))
            b = data.draw(st.integers(a + 1, end - 1))
            spans.append(Span(len(spans) + 1, a, b))
            grow(a + 1, b - 1, depth + 1)
            start = b + 1

    grow(0, 200, 0)
    kernels = [Kernel("k", at, 0, 1000 * (i + 1)) for i, at in enumerate(data.draw(st.lists(st.integers(-1, 210))))]
    works = attribute(spans, kernels)
    assert sum(w.launches for w in works.values()) == len(kernels)
    for kernel in kernels:
        inside = [s for s in spans if s.start <= kernel.issued <= s.end]
        want = min(inside, key=lambda s: s.end - s.start).number if inside else 0
        assert kernel.name in works[want].names


def test_busy_time_counts_an_instant_once():
    """Kernels of two streams that overlap are one busy time; gaps are none."""
    kernels = [Kernel("a", 0, 1000, 3000), Kernel("b", 0, 2000, 4000), Kernel("c", 0, 2500, 2600),
               Kernel("d", 0, 9000, 9500)]  # fmt: skip
    assert busy_us(kernels) == pytest.approx(3.5)
    assert busy_us([]) == 0.0


@dataclass
class FakeEvent:
    """A tracer's event."""

    text: str
    begin: int
    length: int
    own: int = 0
    linked: int = 0
    device: bool = False
    annotation: bool = False

    def name(self):
        return self.text

    def start_ns(self):
        return self.begin

    def duration_ns(self):
        return self.length

    def correlation_id(self):
        return self.own

    def linked_correlation_id(self):
        return self.linked

    def device_type(self):
        return torch.profiler.DeviceType.CUDA if self.device else torch.profiler.DeviceType.CPU

    def is_user_annotation(self):
        return self.annotation


def test_reading_a_trace():
    """Kernels are joined to operators by the operator's id; runtime calls, waits and annotations are no work."""
    events = [
        FakeEvent("forge#7", 10, 90, own=1), FakeEvent("aten::mul", 20, 30, own=2),
        FakeEvent("cudaLaunchKernel", 25, 5, own=2000, linked=2), FakeEvent("cudaStreamSynchronize", 60, 5, own=2),
        FakeEvent("mul_kernel", 500, 40, own=2000, linked=2, device=True),
        FakeEvent("Context Sync", 700, 40, own=2001, device=True),
        FakeEvent("forge#7", 500, 40, device=True), FakeEvent("block", 500, 90, device=True, annotation=True),
        FakeEvent("stray", 800, 10, own=2002, linked=99, device=True),
    ]  # fmt: skip
    spans, kernels = read_events(events)
    assert spans == [Span(7, 10, 100)]
    assert kernels == [Kernel("mul_kernel", 20, 500, 540), Kernel("stray", -1, 800, 810)]


@pytest.mark.gpu
def test_device_times_on_a_gpu(tmp_path):
    """On a real GPU the own times of all calls sum to the time in which the device is busy; launches are counted."""
    from forge_tui.models.load import load_model
    from forge_tui.models.spec import ModelRequest, parse_model
    from forge_tui.profiler.device import describe
    from forge_tui.profiler.profile import profile_model

    loaded = load_model(parse_model("example:vae-decoder", ModelRequest(dtype="bfloat16")), "cuda:0")
    profile = profile_model(loaded, describe("cuda:0"), tmp_path)
    assert sum(spot.self_ms for spot in profile.hotspots) == pytest.approx(profile.busy_ms, rel=0.05)
    assert profile.launches > 100
    assert profile.hotspots[0].launches == profile.launches
    assert profile.agreement >= 0.9
