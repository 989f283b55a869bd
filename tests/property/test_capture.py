"""Captured calls come back as they were, and replay to the same output."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from forge_tui.core.errors import StoreError
from forge_tui.core.records import ModelSpec, Signature, Target
from forge_tui.models import capture
from forge_tui.models.calls import describe_call, describe_result
from forge_tui.models.load import LoadedModel
from forge_tui.models.phases import Phase
from forge_tui.models.resolve import caller
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


def two_outputs(a, b, *, keep=True):
    """Results of every kind."""
    return a + b, {"diff": [a - b], "a": a, "n": None, "keep": keep}


class Affine(nn.Module):
    """Parameter, buffer, attribute and child."""

    def __init__(self, factor: float):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.register_buffer("offset", torch.arange(3.0))
        self.factor = factor
        self.inner = nn.LayerNorm(3)

    def forward(self, x, add=None):
        """Affine, normalised, scaled."""
        y = self.inner(x * self.weight + self.offset) * self.factor
        return y if add is None else y + add


def batch(draw, *shape):
    """A batch of some size, contiguous, permuted or expanded."""
    lead = draw(st.integers(0, 4))
    x = torch.randn(lead, *shape) if draw(st.booleans()) else torch.randn(*shape, lead).movedim(-1, 0)
    return x.expand(lead, *shape) if not draw(st.booleans()) else torch.randn(1, *shape).expand(lead, *shape)


ZOO: dict[str, Any] = {
    "softmax": lambda draw: (F.softmax, (batch(draw, 3),), {"dim": -1}),
    "layer_norm": lambda draw: (F.layer_norm, (batch(draw, 3), (3,)), {"eps": draw(st.sampled_from((1e-5, 0.1)))}),
    "gelu": lambda draw: (F.gelu, (batch(draw, 3),), {"approximate": "tanh"}),
    "max_pool": lambda draw: (F.max_pool2d, (torch.randn(1, 2, 4, 4), 2), {}),
    "pad": lambda draw: (F.pad, (batch(draw, 3), [1, 2]), {"value": math.inf}),
    "one_hot": lambda draw: (F.one_hot, (torch.arange(draw(st.integers(0, 5))), 5), {}),
    "zero_dim": lambda draw: (F.relu, (torch.tensor(-1.0),), {}),
    "bool": lambda draw: (F.relu, (torch.tensor([1, -2, 3], dtype=torch.int8),), {}),
    "mse": lambda draw: (F.mse_loss, (torch.randn(3), torch.randn(3)), {"reduction": "none"}),
    "two_outputs": lambda draw: (two_outputs, (batch(draw, 3), torch.randn(3)), {"keep": draw(st.booleans())}),
    "same_twice": lambda draw: (two_outputs, (torch.ones(3),) * 2, {}),
    "module": lambda draw: (Affine(draw(st.sampled_from((1.0, -2.0)))).eval(), (batch(draw, 3),), {}),
    "module_add": lambda draw: (Affine(2.0).eval(), (batch(draw, 3),), {"add": torch.randn(3)}),
}  # fmt: skip


@pytest.mark.parametrize("name", ZOO)
@given(data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_replay(tmp_path_factory, name, data):
    """A call that was captured, written, read and made again through its signature gives the same output."""
    fn, args, kwargs = ZOO[name](data.draw)
    module = fn if isinstance(fn, nn.Module) else None
    forward = fn.forward if module is not None else fn
    with torch.no_grad():
        call = describe_call(forward, args, kwargs, module)
        copies = [clone_strided(t) for t in call.tensors]
        result = describe_result(fn(*args, **kwargs), call.tensors)
    signature = Signature(inputs=call.inputs, outputs=result.outputs, scalars=call.scalars, call=call.call,
                          result=result.result, device="cpu")  # fmt: skip
    signature = msgspec.json.decode(signature.to_json(), type=Signature)
    qualname = f"{__name__}:{name}" if module is not None else f"{fn.__module__}:{fn.__name__}"
    if forward.__module__ in ("torch._C._nn", None) or name in ("gelu", "one_hot", "pad"):
        qualname = f"torch.nn.functional:{fn.__name__}"
    if name == "max_pool":
        qualname = "torch.nn.functional:max_pool2d"
    target = Target(id="t", name=name, kind="module" if module is not None else "function", qualname=qualname,
                    instances=("",) if module is not None else (), signature=signature, calls=1, time_us=1, share=1,
                    floor_us=1, bound="memory", headroom_ms=1, bytes_moved=1, flops=0)  # fmt: skip
    folder = tmp_path_factory.mktemp("replay") / "call"
    capture.save(folder, [copies])
    spec = ModelSpec(text="", path="")
    loaded = LoadedModel(spec, module or nn.Identity(), (Phase(),), torch.device("cpu"), pytest)
    held = [t.clone() for t in module.parameters()] if module is not None else []
    if module is not None:
        for p in module.parameters():  # what counts is the given weights, not those that stand in the module now
            p.requires_grad_(False).add_(1.0)
    outputs = caller(target, loaded)(capture.load(folder, 0, "cpu"))
    assert len(outputs) == len(result.tensors)
    for have, want in zip(outputs, result.tensors, strict=True):
        assert (have.dtype, have.shape, have.stride()) == (want.dtype, want.shape, want.stride())
        assert torch.equal(have, want) or torch.allclose(have, want, equal_nan=True, rtol=1e-6, atol=1e-6)
    if module is not None:
        for p, before in zip(module.parameters(), held, strict=True):
            assert torch.equal(p, before + 1.0), "the module has its own weights back"


def test_size_cap_and_damage(tmp_path: Path):
    """Calls past the cap are refused unwritten; a missing or damaged folder is a sentence."""
    with pytest.raises(capture.TooLarge, match="4 MB of inputs, more than the 1 MB"):
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


def test_save_replaces(tmp_path: Path):
    """Saving to a folder again leaves the new calls only."""
    folder = tmp_path / "c"
    capture.save(folder, [[torch.zeros(2)], [torch.ones(2)]])
    capture.save(folder, [[torch.full((2,), 7.0)]])
    assert capture.count(folder) == 1
    assert capture.load(folder, 0, "cpu")[0].tolist() == [7.0, 7.0]
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
