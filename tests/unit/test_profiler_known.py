"""A device's ceilings are measured a few times, and then known."""

from pathlib import Path

import pytest

from forge_tui.core.records import Ceilings
from forge_tui.profiler.known import best_of, ceilings_of


def ceilings(gbps: float, launch_us: float = 2.0) -> Ceilings:
    """Made-up ceilings."""
    return Ceilings(copy_gbps=gbps, matmul_tflops={"float32": gbps / 10}, launch_us=launch_us)


def test_the_best_of_three_measurements_is_believed(tmp_path: Path):
    """Three measurements are made, whatever they say; the best figures stay and nothing is measured again."""
    values = iter([ceilings(100.0, 3.0), ceilings(300.0), ceilings(200.0, 1.5)])
    found = [ceilings_of("this card", tmp_path / "kept", lambda: next(values)) for _ in range(5)]
    assert [c.copy_gbps for c in found] == [100.0, 300.0, 300.0, 300.0, 300.0]
    assert [c.launch_us for c in found] == [3.0, 2.0, 1.5, 1.5, 1.5]
    assert found[-1].matmul_tflops == {"float32": 30.0}


def test_another_device_is_measured_by_itself(tmp_path: Path):
    """What is known of one device says nothing of another."""
    for _ in range(3):
        ceilings_of("one", tmp_path, lambda: ceilings(100.0))
    assert ceilings_of("other", tmp_path, lambda: ceilings(7.0)).copy_gbps == 7.0


@pytest.mark.parametrize("text", ["", "{", '{"version": 1}', '{"version": 0, "identity": "d", "measured": 9}'])
def test_a_damaged_file_costs_a_measurement(tmp_path: Path, text: str):
    """A file that says nothing is written anew."""
    ceilings_of("d", tmp_path, lambda: ceilings(1.0))
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert ceilings_of("d", tmp_path, lambda: ceilings(5.0)).copy_gbps == 5.0
    assert ceilings_of("d", tmp_path, lambda: ceilings(4.0)).copy_gbps == 5.0


def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path: Path):
    """Without a place to keep them, ceilings are measured each time."""
    (tmp_path / "file").write_text("")
    values = iter([1.0, 2.0])
    found = [ceilings_of("d", tmp_path / "file", lambda: ceilings(next(values))).copy_gbps for _ in range(2)]
    assert found == [1.0, 2.0]


def test_rates_of_dtypes_are_joined():
    """A dtype that one measurement lacks keeps the other's rate."""
    one = Ceilings(copy_gbps=1, matmul_tflops={"float32": 2.0}, launch_us=1, cached_copy_gbps=5, cache_bytes=10)
    other = Ceilings(copy_gbps=2, matmul_tflops={"bfloat16": 8.0}, launch_us=2)
    assert best_of(one, other) == Ceilings(copy_gbps=2, matmul_tflops={"bfloat16": 8.0, "float32": 2.0}, launch_us=1,
                                           cached_copy_gbps=5, cache_bytes=10)  # fmt: skip
