"""Calls and results become signatures and back; readers accept the call of the signature and no other."""

import math
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from forge_tui.core.records import Signature, Target
from forge_tui.models.calls import (
    CallMismatch,
    NotEligible,
    describe_call,
    describe_result,
    make_reader,
    read_inputs,
    rebuild_call,
    rebuild_result,
    take_outputs,
)


class Point(NamedTuple):
    """A structure that is not restored."""

    x: Any
    y: Any


def signature_of(fn, args, kwargs=None, module=None) -> tuple[Signature, list[torch.Tensor], Any]:
    """Signature, tensors and result of a call."""
    kwargs = kwargs or {}
    with torch.no_grad():
        call = describe_call(fn, args, kwargs, module)
        value = fn(*args, **kwargs)
        result = describe_result(value, call.tensors)
    signature = Signature(inputs=call.inputs, outputs=result.outputs, scalars=call.scalars, call=call.call,
                          result=result.result, device="cpu")  # fmt: skip
    return signature, call.tensors, value


def target_of(signature: Signature, qualname: str = "", kind: str = "function") -> Target:
    """A target with this signature."""
    return Target(id="t", name="t", kind=kind, qualname=qualname, instances=("",) if kind == "module" else (),
                  signature=signature, calls=1, time_us=1, share=1, floor_us=1, bound="memory", headroom_ms=1,
                  bytes_moved=1, flops=0)  # fmt: skip


def mixed(x, items, /, options, *rest, dim=-1, eps: float = 1e-5, mode="fast", **more):
    """Every kind of parameter."""
    return (x + items[0]).to(options["dtype"]) * eps


ARGS = (torch.ones(2, 3), [torch.zeros(3), (None, True)], {"dtype": torch.float32, "shift": torch.ones(1)})


def test_names_and_order():
    """Inputs are in pytree order with dotted paths and C names; numbers are scalars, defaults included."""
    signature, tensors, _ = signature_of(mixed, (*ARGS, torch.arange(2), 7), {"dim": 0, "double": 2.5})
    assert [(i.path, i.name, i.spec.dtype) for i in signature.inputs] == [
        ("x", "x", "float32"), ("items.0", "items_0", "float32"), ("options.shift", "options_shift", "float32"),
        ("rest.0", "rest_0", "int64"),
    ]  # fmt: skip
    assert [t is u for t, u in zip(tensors, (ARGS[0], ARGS[1][0], ARGS[2]["shift"]), strict=False)] == [True] * 3
    assert {s.path: s.value for s in signature.scalars} == {
        "items.1.1": True, "rest.1": 7, "dim": 0, "eps": 1e-5, "double": 2.5
    }  # fmt: skip


def test_one_form_for_one_call():
    """The same call by position, by keyword and with defaults spelled out has one signature."""
    x = torch.randn(2, 4)
    forms = [((x,), {"dim": -1}), ((x, -1), {}), ((), {"input": x, "dim": -1}), ((x, -1, 3, None), {})]
    trees = [describe_call(F.softmax, args, kwargs).call for args, kwargs in forms]
    assert all(tree == trees[0] for tree in trees)
    pools = [describe_call(F.max_pool2d, args, kwargs).call for args, kwargs in
             (((x, 2), {}), ((x,), {"kernel_size": 2, "stride": None, "padding": 0, "dilation": 1,
                                    "ceil_mode": False, "return_indices": False}))]  # fmt: skip
    assert pools[0] == pools[1]


def test_rebuild_round_trip():
    """A call put together again from its tree and tensors is the call that was taken apart."""
    x = torch.randn(3)
    args = ([x, {"a": (x, None, -1, 2.5, "s", torch.bfloat16)}], slice(1, None, 2), torch.Size([2, 3]), math.inf,
            torch.device("cpu"))  # fmt: skip

    def fn(*args):
        return x + 1

    call = describe_call(fn, args, {})
    assert len(call.inputs) == 2, "the same tensor passed twice is two inputs"
    signature = Signature(inputs=call.inputs, outputs=(), scalars=call.scalars, call=call.call, result={"value": None})
    signature = msgspec.json.decode(signature.to_json(), type=Signature)
    new = [torch.zeros(3), torch.ones(3)]
    back, kwargs = rebuild_call(signature, new)
    assert kwargs == {}
    assert back[0][0] is new[0]
    assert back[0][1]["a"][0] is new[1]
    assert back[0][1]["a"][1:] == (None, -1, 2.5, "s", torch.bfloat16)
    assert back[1:] == args[1:]
    assert type(back[2]) is torch.Size


def test_results():
    """Outputs, passed-through inputs, None, constants and a tensor returned twice are told apart and restored."""
    x = torch.ones(4)
    y = x + 1
    result = {"new": y, "again": [y], "same": x, "none": None, "n": (3, "k", math.nan)}
    found = describe_result(result, [x])
    assert [o.name for o in found.outputs] == ["out0"]
    assert found.result["dict"]["again"] == {"list": [{"out": 0}]}
    assert found.result["dict"]["same"] == {"in": 0}
    signature = Signature(inputs=(), outputs=found.outputs, scalars=(), call={"tuple": []}, result=found.result)
    new = torch.zeros(4)
    back = rebuild_result(signature, [x], [new])
    assert back["new"] is new
    assert back["again"][0] is new
    assert back["same"] is x
    assert back["none"] is None
    assert back["n"][:2] == (3, "k")
    assert math.isnan(back["n"][2])
    assert take_outputs(signature, result)[0] is y
    with pytest.raises(CallMismatch):
        take_outputs(signature, [y])


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ((Point(torch.ones(1), 1),), "x is of type Point"),
        (({1: torch.ones(1)},), "x is a dictionary with keys that are not strings"),
        ((torch.ones(2, dtype=torch.complex64),), "x has the dtype complex64"),
        ((torch.ones(2, 2).to_sparse(),), "x has the layout torch.sparse_coo"),
        ((object(),), "x is of type object"),
        ((torch.ones(1, device="meta"),), ""),
    ],
)
def test_refused_arguments(args, reason):
    """What no kernel can take is refused by name."""

    def fn(x):
        return torch.ones(1)

    if not reason:
        assert describe_call(fn, args, {}).inputs[0].spec.shape == (1,), "a device of its own is no fault by itself"
        with pytest.raises(NotEligible, match="x is a 0-dim tensor on cpu, not on meta"):
            describe_call(lambda x, y: x, (torch.tensor(1.0), args[0]), {})
        return
    with pytest.raises(NotEligible) as caught:
        describe_call(fn, args, {})
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda x: x[:2], "the result is a view of an input"),
        (lambda x: (x * 2, x.t()), "the result.1 is a view of an input"),
        (lambda x: x, "it returns no new tensor"),
        (lambda x: 3, "it returns no new tensor"),
        (lambda x: (x + 1)[:1].expand(4, 4), "the result is expanded or overlaps itself"),
        (lambda x: (lambda y: (y[0], y[:2]))(x + 1), "the result.1 shares elements with another output"),
        (lambda x: torch.max(x, dim=0), "the result is of type"),
        (lambda x: (x + 1).requires_grad_(), "the result needs a gradient"),
    ],
)
def test_refused_results(make, reason):
    """Views of inputs, overlapping outputs and results without a new tensor are refused with the reason."""
    x = torch.randn(4, 4)
    with torch.no_grad(), pytest.raises(NotEligible) as caught:
        describe_result(make(x), [x])
    assert str(caught.value).startswith(reason)


def test_chunks_of_one_buffer_are_outputs():
    """Interleaved chunks share a buffer but no element: each is an output with its strides."""
    found = describe_result((torch.randn(4, 6) + 1).chunk(3, dim=-1), [])
    assert [o.spec.strides for o in found.outputs] == [(6, 1)] * 3


class Tied(nn.Module):
    """A module with tied weights, a buffer, a stray tensor, child attributes and names that C does not allow."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4, bias=False)
        self.b = nn.Linear(4, 4, bias=False)
        self.b.weight = self.a.weight
        self.register_buffer("signed", torch.ones(4))
        self.stray = torch.full((4,), 2.0)
        self.sizes = (3, 4)
        self.limit = math.inf
        self.drop = nn.Dropout(0.5)

    def forward(self, x, out0=1):
        """Twice through the tied weight."""
        return self.b(self.a(x)) * self.signed * self.stray * out0


def test_module_tensors_and_names():
    """Parameters, buffers and stray tensors follow the arguments; tied ones come once; names are C identifiers."""
    module = Tied().eval()
    signature, tensors, _ = signature_of(module.forward, (torch.ones(2, 4),), {}, module)
    assert [(i.name, i.source) for i in signature.inputs] == [
        ("x", "arg"), ("a_weight", "param"), ("signed_", "buffer"), ("stray", "closure")
    ]  # fmt: skip
    assert tensors[1] is module.a.weight
    scalars = {s.name: s.value for s in signature.scalars}
    assert scalars["out0_"] == 1
    assert (scalars["sizes_0"], scalars["sizes_1"], scalars["drop_p"]) == (3, 4, 0.5)
    assert "limit" not in scalars, "infinity is no constant of a header"
    assert not any("training" in name for name in scalars)


def both(target, args, kwargs, module):
    """What the fast and the slow reader say; they must agree."""
    fast = make_reader(target, module)(args, kwargs)
    try:
        slow = read_inputs(target, args, kwargs, module)
    except CallMismatch:
        slow = None
    assert (fast is None) == (slow is None)
    if fast is not None:
        assert [a is b for a, b in zip(fast, slow, strict=True)] == [True] * len(slow)
    return fast


def test_reader_accepts_every_way_to_write_the_call():
    """Position, keyword and spelled-out defaults are read alike."""
    signature, (x,), _ = signature_of(F.softmax, (torch.randn(2, 4), -1))
    target = target_of(signature, "torch.nn.functional:softmax")
    for args, kwargs in (((x, -1), {}), ((x,), {"dim": -1}), ((), {"input": x, "dim": -1, "dtype": None})):
        assert both(target, args, kwargs, None)[0] is x


@pytest.mark.parametrize(
    "args",
    [
        (), (1,), (None, -1), (torch.randn(2, 5), -1), (torch.randn(2, 4).double(), -1),
        (torch.randn(4, 2).t(), -1), (torch.randn(2, 4), 0), (torch.randn(2, 4), True), (torch.randn(2, 4), -1.0),
        (torch.randn(2, 4), None), (torch.randn(2, 4), -1, 3, torch.float64), (torch.randn(2, 4), -1, 3, None, 1),
        (torch.randn(9)[1:].view(2, 4), -1), (torch.randn(2, 4).to_sparse(), -1),
    ],
)  # fmt: skip
def test_reader_refuses_other_calls(args):
    """Another structure, constant, type, shape, dtype, stride or alignment is another call."""
    signature, _, _ = signature_of(F.softmax, (torch.randn(2, 4), -1))
    assert both(target_of(signature, "torch.nn.functional:softmax"), args, {}, None) is None


def test_reader_of_a_c_function():
    """A callable without a Python signature is read as it was written when captured."""
    x = torch.randn(3)
    signature, _, _ = signature_of(F.gelu, (x,), {"approximate": "tanh"})
    target = target_of(signature, "torch.nn.functional:gelu")
    assert both(target, (x,), {"approximate": "tanh"}, None)[0] is x
    assert both(target, (x,), {"approximate": "none"}, None) is None
    assert both(target, (x,), {}, None) is None


def test_reader_follows_the_module():
    """New weights are read; changed attributes, broken ties, training mode, moved weights are other calls."""
    module = Tied().eval()
    x = torch.ones(2, 4)
    signature, _, _ = signature_of(module.forward, (x,), {}, module)
    target = target_of(signature, kind="module")
    read = make_reader(target, module)
    with torch.no_grad():
        assert [t is u for t, u in zip(read((x,), {}), (x, module.a.weight, module.signed, module.stray), strict=True)
                ] == [True] * 4  # fmt: skip
        module.a.weight = module.b.weight = nn.Parameter(torch.zeros(4, 4))
        assert read((x,), {})[1] is module.a.weight
        assert both(target, (x,), {}, module)[1] is module.a.weight

        def refused() -> bool:
            return read((x,), {}) is None

        module.b.weight = nn.Parameter(torch.zeros(4, 4))
        assert refused()
        module.b.weight = module.a.weight
        assert not refused()
        module.drop.p = 0.1
        assert refused()
        module.drop.p = 0.5
        module.sizes = (3, 5)
        assert refused()
        module.sizes = (3, 4)
        module.drop.train()
        assert refused()
        module.eval()
        module.half()
        assert refused()
        module.float()
        assert not refused()
        module.a = nn.Identity()
        assert refused()


def test_reader_and_gradients():
    """With gradients on, tensors that require one belong to the original; with gradients off they do not matter."""
    module = nn.Linear(4, 4).eval()
    x = torch.ones(2, 4)
    signature, _, _ = signature_of(module.forward, (x,), {}, module)
    target = target_of(signature, kind="module")
    assert both(target, (x,), {}, module) is None
    with torch.no_grad():
        assert both(target, (x,), {}, module) is not None
        with torch.autocast("cpu", torch.bfloat16):
            assert both(target, (x,), {}, module) is None
    module.requires_grad_(False)
    assert both(target, (x,), {}, module) is not None


def awkward(t0, /, m, *rest, default=ARGS, none=None, **more):
    """Parameters named as a careless reader names its own."""
    return t0 + m[0] + rest[0]


def test_reader_of_awkward_parameters():
    """Parameter kinds, names as the reader's own, and defaults that are no constants are handled."""
    a, b, c, d = (torch.full((2,), float(i)) for i in range(4))
    signature, tensors, _ = signature_of(awkward, (a, [b], c, 5), {"extra": d})
    assert [t is u for t, u in zip(tensors, (a, b, c, d), strict=True)] == [True] * 4
    target = target_of(signature, f"{__name__}:awkward")
    assert both(target, (a, [b], c, 5), {"extra": d}, None) is not None
    assert both(target, (a,), {"m": [b], "extra": d}, None) is None
    for args, kwargs in (
        ((a, [b], c, 6), {"extra": d}), ((a, (b,), c, 5), {"extra": d}), ((a, [b], c, 5), {}),
        ((a, [b], c, 5), {"other": d}), ((a, [b], c, 5, 5), {"extra": d}), ((a, [b], c, 5), {"extra": d, "none": 0}),
        ((a, [b], c, 5), {"extra": d, "default": 3}),
    ):  # fmt: skip
        assert make_reader(target, None)(args, kwargs) is None
