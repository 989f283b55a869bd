"""What a believable time is."""

import msgspec
import pytest
from targets_fixture import cuda_device, make_target, spec

from forge_tui.evaluator.client import _least_us


@pytest.mark.parametrize(("size", "bound", "part"), [
    (1_600_000, "memory", 0.5),  # 6.4 MB in, 6.4 MB out, which L2 may hold back
    (1_600_000, "compute", 1.0),
    (100_000_000, "memory", 1.0),  # 400 MB out must reach memory
])  # fmt: skip
def test_outputs_that_l2_can_hold_need_not_reach_memory_in_time(size, bound, part):
    """A ReLU of a few megabytes may take half of its floor; one that exceeds L2 may not."""
    x = spec(size)
    target = msgspec.structs.replace(make_target("relu", [("x", x, "arg")], [x]), bytes_moved=8 * size, floor_us=100.0,
                                     bound=bound)  # fmt: skip
    device = msgspec.structs.replace(cuda_device(), l2_bytes=60_000_000)
    assert _least_us(target, device) == pytest.approx(0.7 * 100.0 * part)
