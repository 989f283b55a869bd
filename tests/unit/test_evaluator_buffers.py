"""Guard zones, fences, and the file that outputs travel in."""

from __future__ import annotations

import stat

import pytest
import torch
from targets_fixture import make_target, spec

from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import TensorSpec
from forge_tui.evaluator import exchange
from forge_tui.evaluator.buffers import GUARD_BYTES, Guarded
from forge_tui.evaluator.scratch import Scratch

CPU = torch.device("cpu")
SPECS = [
    spec(5, 7), spec(7, 5, strides=(1, 7)), spec(3, 4, strides=(10, 2)), spec(4, 6, strides=(0, 1)),
    spec(3, 3, dtype="bool"), spec(2, 5, dtype="bfloat16"), TensorSpec(shape=(), dtype="float64", strides=()),
    spec(0, 4), TensorSpec(shape=(4, 5), dtype="float32", strides=(3, 1)),
]  # fmt: skip


def example(item: TensorSpec) -> torch.Tensor:
    """Some values in the form of a spec."""
    room = torch.arange(max(item.span, 1)).to(getattr(torch, item.dtype))[: item.span]
    return room.as_strided(item.shape, item.strides)


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("item", SPECS, ids=str)
def test_values_go_in_and_nothing_is_damaged(item, fenced):
    """The view has the values and strides; untouched, nothing counts as damage."""
    buffer = Guarded(item, 16, CPU, fenced=fenced)
    values = example(item)
    buffer.set_values(values, 0x7F)
    before = buffer.raw.clone()
    assert torch.equal(buffer.tensor, values)
    assert buffer.tensor.stride() == item.strides
    assert buffer.damage(before) == ""
    buffer.poison(0x4B)
    assert buffer.guard_damage(0x4B) == ""


@pytest.mark.parametrize("align", [4, 8, 16])
def test_alignment_is_as_promised_and_no_more(align):
    """The address is divisible by the alignment and not by twice that."""
    for _ in range(8):
        assert Guarded(spec(33), align, CPU).tensor.data_ptr() % (2 * align) == align


def test_a_fenced_buffer_ends_at_its_fence():
    """Less than the alignment lies between the last byte and the page that no access is allowed to."""
    buffer = Guarded(spec(33), 16, CPU, fenced=True)
    assert (buffer.tensor.data_ptr() + 33 * 4 + 15) // 16 * 16 % 4096 == 0
    assert buffer.tensor.data_ptr() % 16 == 0


def test_damage_is_found_where_it_is():
    """Before, behind and inside an input; before, behind and between the elements of an output."""
    buffer = Guarded(spec(3, 4, strides=(10, 2)), 16, CPU)
    for place, where in ((0, "before"), (buffer.start - 1, "before"), (buffer.start, "inside"), (-1, "behind"),
                         (buffer.start + buffer.span_bytes, "behind")):  # fmt: skip
        buffer.set_values(torch.zeros(3, 4), 0x7F)
        before = buffer.raw.clone()
        buffer.raw[place] ^= 1
        assert buffer.damage(before) == where
    places = ((GUARD_BYTES // 2, "before"), (-1, "behind"), (buffer.start + 4, "between"), (buffer.start, ""))
    for place, where in places:
        buffer.poison(0xFF)
        buffer.raw[place] = 3
        assert buffer.guard_damage(0xFF) == where


def signature():
    """Two outputs, one transposed, one of integers."""
    return make_target("f", [], [spec(4, 6, strides=(1, 4)), spec(5, dtype="int64"), spec(0, 3)]).signature


def test_outputs_come_back_from_the_file(tmp_path):
    """What is written to a slot is read from it, row-major, bit by bit."""
    path = tmp_path / "out.bin"
    file = exchange.OutputFile(path, signature(), 3)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    outputs = [torch.randn(6, 4).t(), torch.arange(5), torch.empty(0, 3)]
    outputs[0][2, 3] = float("nan")
    file.write(1, outputs)
    for got, want in zip(exchange.read(path, 1, signature(), "cpu"), outputs, strict=True):
        assert got.shape == want.shape
        assert got.is_contiguous()
        assert torch.equal(got.nan_to_num(7), want.nan_to_num(7))
    assert not bool(exchange.read(path, 0, signature(), "cpu")[1].any())
    with pytest.raises(EOFError):
        exchange.read(path, 10**6, signature(), "cpu")


def test_no_space_is_said_before_anything_runs(tmp_path):
    """A file larger than the disk is refused with a sentence, and does not stay behind."""
    huge = make_target("f", [], [spec(2**40)]).signature
    with pytest.raises(EnvironmentFault, match="no space for"):
        exchange.OutputFile(tmp_path / "out.bin", huge, 8)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fetch", [exchange._read, exchange._mapped])
def test_both_ways_of_reading_give_copies(tmp_path, fetch):
    """What is read stays as it was when the file is written again, whichever way it came."""
    path = tmp_path / "out.bin"
    file = exchange.OutputFile(path, signature(), 2)
    outputs = [torch.randn(6, 4).t(), torch.arange(5), torch.empty(0, 3)]
    file.write(1, outputs)
    got = fetch(path, 1, exchange.slot_bytes(signature()), signature(), "cpu")
    file.write(1, [torch.zeros(4, 6), torch.zeros(5, dtype=torch.int64), torch.empty(0, 3)])
    assert all(torch.equal(a, b) for a, b in zip(got, outputs, strict=True))
    with pytest.raises(EOFError):
        fetch(path, 900, 900 * exchange.slot_bytes(signature()), signature(), "cpu")


def test_a_file_is_used_again_only_where_that_is_asked_for(tmp_path):
    """Pages that are there are kept, a file too small grows, and none is taken over by accident."""
    path = tmp_path / "out.bin"
    exchange.OutputFile(path, signature(), 2)
    with pytest.raises(FileExistsError):
        exchange.OutputFile(path, signature(), 2)
    inode, size = path.stat().st_ino, path.stat().st_size
    exchange.OutputFile(path, signature(), 1, reuse=True)
    assert (path.stat().st_ino, path.stat().st_size) == (inode, size)
    grown = exchange.OutputFile(path, signature(), 60, reuse=True)
    assert path.stat().st_ino == inode
    assert path.stat().st_size > size
    outputs = [torch.ones(4, 6), torch.arange(5), torch.empty(0, 3)]
    grown.write(59, outputs)
    assert torch.equal(exchange.read(path, 59, signature(), "cpu")[0], outputs[0])
    (tmp_path / "link.bin").symlink_to(path)
    with pytest.raises(OSError, match="symbolic link"):
        exchange.OutputFile(tmp_path / "link.bin", signature(), 1, reuse=True)


def test_scratch_lends_files_again(tmp_path):
    """One at a time to each, kept ones again, others gone."""
    scratch = Scratch(tmp_path)
    try:
        with scratch.lent("a", keep=True) as first, scratch.lent("b", keep=True) as second:
            assert first != second
            first.write_bytes(b"1")
        assert (first.exists(), second.exists()) == (True, False)
        with scratch.lent("c", keep=True) as again:
            assert again == first
        with scratch.lent("d") as once:
            assert once != first
            once.write_bytes(b"1")
        assert not once.exists()
    finally:
        scratch.close()
    assert not first.exists()
