"""Captured calls come back as they were: values, strides, alignment, common memory; and overlaps are found."""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge_tui.core.errors import StoreError
from forge_tui.models import capture
from forge_tui.models.snapshot import Copier
from forge_tui.models.strided import clone_strided, overlaps_itself, real_elements, span, views_meet

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8,
          torch.uint8, torch.bool)  # fmt: skip
RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def tensors(draw, dtypes=DTYPES) -> torch.Tensor:
    """Tensors of every dtype, with permuted, sliced, expanded, windowed and empty layouts."""
    shape = draw(st.lists(st.integers(0, 5), min_size=0, max_size=4))
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    base = torch.randint(0, 100, [n * 2 + 1 for n in shape], generator=generator).to(dtype)
    index = tuple(slice(draw(st.integers(0, 1)), None, draw(st.integers(1, 2))) for _ in shape)
    tensor = base[index][tuple(slice(0, n) for n in shape)]
    if shape and draw(st.booleans()):
        tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    how = draw(st.sampled_from(("as it is", "contiguous", "expanded", "windows")))
    if how == "contiguous":
        tensor = tensor.contiguous()
    elif how == "expanded":
        tensor = tensor.unsqueeze(0).expand(draw(st.integers(0, 3)), *tensor.shape)
    elif how == "windows" and tensor.dim() and tensor.shape[0] >= 2:
        tensor = tensor.unfold(0, 2, 1)
    return tensor


@given(calls=st.lists(st.lists(tensors(), max_size=3), min_size=1, max_size=3))
@RELAXED
def test_saved_and_loaded(tmp_path_factory, calls):
    """What is saved is loaded: values, dtype, shape and strides, on storage of its own."""
    root = tmp_path_factory.mktemp("captures")
    name = capture.save_by_content(root, calls)
    assert [p.name for p in root.iterdir()] == [name], "nothing temporary stays"
    assert capture.count(root / name) == len(calls)
    for i, call in enumerate(calls):
        back = capture.load(root / name, i, "cpu")
        for have, want in zip(back, call, strict=True):
            assert (have.dtype, have.shape, have.stride()) == (want.dtype, want.shape, want.stride())
            assert torch.equal(have, want)
        storages = [t.untyped_storage().data_ptr() for t in back if t.numel()]
        assert len(set(storages)) == len(storages)
    assert capture.save_by_content(root, calls) == name, "the name is the content's"


@given(tensor=tensors())
@RELAXED
def test_clone_is_apart(tensor):
    """A clone has the same values and strides, no more memory than the span, and shares nothing."""
    before = tensor.clone()
    copy = clone_strided(tensor)
    assert (copy.shape, copy.stride()) == (tensor.shape, tensor.stride())
    assert torch.equal(copy, tensor)
    assert copy.untyped_storage().nbytes() <= max(span(tensor.shape, tensor.stride()), 0) * tensor.element_size()
    if not overlaps_itself(copy) and copy.numel():
        copy.zero_()
        assert torch.equal(tensor, before)


def element_addresses(tensor: torch.Tensor) -> list[int]:
    """Address of every element, by brute force."""
    found = []
    for flat in range(tensor.numel()):
        address, rest = tensor.storage_offset(), flat
        for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
            address += rest % size * stride
            rest //= size
        found.append(address)
    return found


@given(tensor=tensors())
@RELAXED
def test_overlap_and_real_elements(tensor):
    """Overlap is never missed, and the memory counted is what the elements take."""
    addresses = element_addresses(tensor)
    if len(set(addresses)) < len(addresses):
        assert overlaps_itself(tensor)
    assert real_elements(tensor.shape, tensor.stride()) >= len(set(addresses))
    if not overlaps_itself(tensor):
        assert real_elements(tensor.shape, tensor.stride()) == tensor.numel()


@given(data=st.data())
@RELAXED
def test_views_that_meet(data):
    """Two views of one buffer that share an element are found out."""
    base = torch.randn(6, 6)
    views = []
    for _ in range(2):
        rows, columns = (slice(data.draw(st.integers(0, 4)), None, data.draw(st.integers(1, 2))) for _ in range(2))
        views.append(base[rows, columns])
    if set(element_addresses(views[0])) & set(element_addresses(views[1])):
        assert views_meet(*views)


@st.composite
def related(draw) -> list[torch.Tensor]:
    """Some tensors of one call: views of a few buffers (same ones, chunks, other dtypes) among strangers."""
    kinds = ((48, torch.float32), (40, torch.int16), (24, torch.int64))
    buffers = [torch.randint(0, 100, (n,)).to(dtype) for n, dtype in kinds]
    found: list[torch.Tensor] = []
    for _ in range(draw(st.integers(1, 6))):
        how = draw(st.sampled_from(("stranger", "again", "view", "chunk", "bits")))
        buffer = draw(st.sampled_from(buffers))
        if how == "again" and found:
            found.append(draw(st.sampled_from(found)))
        elif how == "view":
            rows, columns = draw(st.integers(0, 3)), draw(st.integers(0, 4))
            strides = draw(st.sampled_from(((0, 1), (1, 1), (5, 1), (1, 4), (2, 3), (1, 0))))
            found.append(buffer.as_strided((rows, columns), strides, draw(st.integers(0, 5))))
        elif how == "chunk":
            found.append(buffer[:24].view(2, 12)[:, 4 * (at := draw(st.integers(0, 2))) : 4 * at + 4])
        elif how == "bits":
            found.append(buffer[: buffer.numel() // 8 * 8].view(draw(st.sampled_from((torch.int32, torch.bfloat16)))))
        else:
            found.append(draw(tensors()))
    return found


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as bytes, NaN being itself."""
    return tensor.contiguous().flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def byte_addresses(tensor: torch.Tensor) -> list[int]:
    """Address of every byte, by brute force."""
    size, first = tensor.element_size(), tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()
    return [first + a * size + i for a in element_addresses(tensor) for i in range(size)]


@given(call=related())
@RELAXED
def test_common_memory_is_kept(tmp_path_factory, call):
    """Tensors that shared bytes share the same ones again, at the same alignment; what did not, does not."""
    root = tmp_path_factory.mktemp("aliases")
    back = capture.load(root / capture.save_by_content(root, [call]), 0, "cpu")
    was, now = ([byte_addresses(t) for t in found] for found in (call, back))
    for i, (have, want) in enumerate(zip(back, call, strict=True)):
        assert (have.dtype, have.shape, have.stride()) == (want.dtype, want.shape, want.stride())
        assert torch.equal(bits(have), bits(want))
        if want.numel():
            assert have.data_ptr() % 16 == want.data_ptr() % 16
        for j in range(i):
            assert (back[j] is have) == (call[j] is want)
            common = sorted((was[i].index(a), was[j].index(a)) for a in set(was[i]) & set(was[j]))
            assert common == sorted((now[i].index(a), now[j].index(a)) for a in set(now[i]) & set(now[j]))


@given(call=related())
@RELAXED
def test_snapshots_do_not_change(call):
    """What is written into the tensors later is not in the snapshot, nor what is written into restored ones."""
    before = [t.clone() for t in call]
    snapshot = Copier().take(call)
    kept = snapshot.tensors("cpu")
    for tensor in [*call, *kept]:
        if not overlaps_itself(tensor):
            tensor.zero_()
    for have, want in zip(snapshot.tensors("cpu"), before, strict=True):
        assert torch.equal(bits(have), bits(want))


@given(call=related())
@RELAXED
def test_stored_bytes_are_an_upper_bound(call):
    """The bytes that a snapshot is said to take at most are not passed, and equal tensors are held once."""
    copier = Copier()
    size = copier.stored_bytes(call)
    one, other = copier.take(call), copier.take([t.clone(memory_format=torch.preserve_format) for t in call])
    assert capture.flats_bytes(one.flats.values()) <= size
    for key, flat in one.flats.items():
        assert other.flats.get(key, flat) is flat


def test_size_cap_and_damage(tmp_path: Path):
    """Calls past the cap are refused unwritten; a missing or damaged folder is a sentence."""
    with pytest.raises(capture.TooLarge, match=r"4\.0 MB of inputs, more than the 1\.0 MB"):
        capture.save_by_content(tmp_path, [[torch.zeros(1_000_000)]], max_bytes=1_000_000)
    assert list(tmp_path.iterdir()) == []
    expanded = torch.zeros(1).expand(1_000_000)
    name = capture.save_by_content(tmp_path, [[expanded]], max_bytes=100)
    assert capture.load(tmp_path / name, 0, "cpu")[0].untyped_storage().nbytes() == 4
    (tmp_path / name / "tensors.safetensors").write_bytes(b"damaged")
    with pytest.raises(StoreError, match=r"cannot be read.*Profile again\."):
        capture.load(tmp_path / name, 0, "cpu")
    with pytest.raises(StoreError, match="There are no captured inputs"):
        capture.count(tmp_path / "nowhere")
    with pytest.raises(IndexError):
        capture.load(tmp_path / name, 1, "cpu")
