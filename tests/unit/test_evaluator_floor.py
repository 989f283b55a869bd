"""What a believable time is."""

import msgspec
import pytest
from targets_fixture import cuda_device, make_target, spec

from forge_tui.core.records import Ceilings
from forge_tui.evaluator.conclude import least_us


def least(size: int, memory_us: float, **changes) -> float:
    """The least believable time of a ReLU over `size` floats, whose bytes take `memory_us`."""
    x = spec(size)
    target = msgspec.structs.replace(make_target("relu", [("x", x, "arg")], [x]), bytes_moved=8 * size, **changes)
    ceilings = Ceilings(copy_gbps=8 * size / (memory_us * 1e3), matmul_tflops={}, launch_us=1.0)
    return least_us(target, msgspec.structs.replace(cuda_device(), l2_bytes=60_000_000, ceilings=ceilings))


@pytest.mark.parametrize(("size", "part"), [
    (1_600_000, 0.5),  # 6.4 MB in, 6.4 MB out, which L2 may hold back
    (100_000_000, 0.925),  # 400 MB out, of which L2 holds 60 MB back
])  # fmt: skip
def test_outputs_that_l2_can_hold_need_not_reach_memory_in_time(size, part):
    """A ReLU of a few megabytes may take half of its floor; one that exceeds L2 must move the rest."""
    assert least(size, 100.0, floor_us=100.0, bound="memory") == pytest.approx(0.7 * 100.0 * part)


def test_work_may_be_saved_but_not_reading():
    """A floor of matrix work refuses nobody, since sums can be rewritten with less of it; its bytes still must move."""
    assert least(100_000_000, 40.0, floor_us=100.0, bound="compute") == pytest.approx(0.7 * 0.925 * 40.0)
    assert least(100_000_000, 1.0, floor_us=2.0, bound="launch") == pytest.approx(0.7 * 0.925 * 1.0)
