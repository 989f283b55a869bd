"""Tracing a callable to a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import torch
from torch.nn import functional

from forge_tui.core.records import Graph, KernelInput, KernelOutput, Signature, TensorSpec
from forge_tui.models.trace import TraceError, references, trace_graph


def spec(tensor: torch.Tensor) -> TensorSpec:
    """The spec of a tensor."""
    return TensorSpec(shape=tuple(tensor.shape), dtype=str(tensor.dtype)[6:], strides=tuple(tensor.stride()))


def trace(call: Callable[..., Any], *inputs: torch.Tensor, outputs: int = 1) -> Graph:
    """The graph of a callable."""
    signature = Signature(
        inputs=tuple(KernelInput(name=f"x{n}", spec=spec(t), source="arg", path="x") for n, t in enumerate(inputs)),
        outputs=tuple(KernelOutput(name=f"out{n}", spec=spec(torch.empty(1))) for n in range(outputs)),
        scalars=(), call={}, result={},
    )  # fmt: skip

    def flat(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        result = call(*tensors)
        return list(result) if isinstance(result, tuple | list) else [result]

    return trace_graph(flat, signature, inputs)


def names(graph: Graph) -> list[str]:
    """Operations in order, without overloads."""
    return [node.op.split(".")[1] if "." in node.op else node.op for node in graph.nodes]


def test_pointwise_chain_is_written_down_with_shapes_dtypes_and_constants() -> None:
    """Every operation has its result's shape and dtype; Python numbers stand in the arguments."""
    graph = trace(lambda x, y: (x * 2.5 + y).to(torch.bfloat16), torch.randn(3, 4), torch.randn(4))
    assert graph.inputs == ["x0", "x1"]
    assert names(graph) == ["mul", "add", "_to_copy"]
    assert graph.nodes[0].args == [{"ref": "x0"}, 2.5]
    assert [node.shape for node in graph.nodes] == [(3, 4)] * 3
    assert [node.dtype for node in graph.nodes] == ["float32", "float32", "bfloat16"]
    assert graph.outputs == [graph.nodes[-1].name]


def test_graph_goes_through_json() -> None:
    """Infinity included, a graph is plain JSON and comes back equal."""
    mask = torch.tensor([True, False, True, False])
    graph = trace(lambda x, m: x.masked_fill(m, float("-inf")), torch.randn(4), mask)
    assert msgspec.json.decode(graph.to_json(), type=Graph) == graph
    assert "-inf" in graph.to_json()


@pytest.mark.parametrize(
    ("call", "inputs", "parts"),
    [
        (lambda x: functional.layer_norm(x, (6,)), (torch.randn(4, 6),), {"var_mean", "rsqrt"}),
        (lambda x: functional.group_norm(x, 2), (torch.randn(2, 4, 3, 3),), {"var_mean", "rsqrt"}),
        (lambda x: functional.softmax(x, -1), (torch.randn(4, 6),), {"amax", "exp", "sum"}),
        (lambda x, m, v: functional.batch_norm(x, m, v), (torch.randn(2, 3, 4), torch.zeros(3), torch.ones(3)),
         {"sub", "mul"}),
        (lambda x: functional.rms_norm(x, (6,)), (torch.randn(4, 6),), {"pow", "mean", "rsqrt"}),
        (functional.silu, (torch.randn(4),), {"sigmoid", "mul"}),
    ],
)  # fmt: skip
def test_norms_and_activations_are_taken_apart(call: Callable[..., Any], inputs: Any, parts: set[str]) -> None:
    """What a fused kernel would fuse appears as its parts, and only as core operations."""
    graph = trace(call, *inputs)
    assert parts <= set(names(graph))
    assert not any(node.op.startswith("prims") or "norm" in node.op for node in graph.nodes)


def test_vendor_operations_are_kept_whole() -> None:
    """Matrix products and convolutions stay nodes of their own."""
    assert "addmm" in names(trace(functional.linear, torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)))
    assert "convolution" in names(trace(functional.conv2d, torch.randn(1, 2, 4, 4), torch.randn(3, 2, 3, 3)))


def test_writes_in_place_inside_become_new_values() -> None:
    """A copy that is written in place leaves no in-place operation in the graph, and the input alone."""

    def call(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, 0] = 1.0
        y += 2
        return y

    x = torch.randn(3, 4)
    before = x.clone()
    graph = trace(call, x)
    assert not any(name.endswith("_") for name in names(graph))
    assert torch.equal(x, before)


def test_dead_operations_are_left_out() -> None:
    """What no output needs is not in the graph."""
    graph = trace(lambda x: (x.exp().sum(), x + 1)[1], torch.randn(3))
    assert names(graph) == ["add"]


def test_number_made_into_a_tensor_inside_is_a_constant() -> None:
    """`torch.tensor(3.0)` inside the callable is a fill, not a hidden input."""
    graph = trace(lambda x: torch.where(x > 0, x, torch.tensor(-3.0)), torch.randn(3))
    fill = next(node for node in graph.nodes if node.op == "aten.full.default")
    assert fill.args == [[], -3.0]


HIDDEN = torch.randn(3)


def test_hidden_tensor_is_refused() -> None:
    """A tensor that the signature does not know cannot be baked in."""
    with pytest.raises(TraceError, match=r"shape \[3\] that is neither an argument nor a parameter"):
        trace(lambda x: x * HIDDEN, torch.randn(3))


@pytest.mark.parametrize(
    "call", [lambda x: x if x.sum() > 0 else -x, lambda x: x * x.sum().item(), lambda x: x[x > 0]]
)
def test_dependence_on_data_is_refused(call: Callable[..., Any]) -> None:
    """Branches, numbers and shapes that come from data have no static graph; the reason says so."""
    with pytest.raises(TraceError, match=r"depend|data"):
        trace(call, torch.randn(3))


def test_changed_input_is_refused() -> None:
    """A callable that writes to its input is no target."""
    x = torch.zeros(3)
    with pytest.raises(TraceError, match="in place"):
        trace(lambda t: t.add_(1), x)
    assert torch.equal(x, torch.zeros(3))


def test_wrong_number_of_inputs_or_outputs_is_refused() -> None:
    """Signature and call must agree."""
    with pytest.raises(TraceError, match="1 output, the signature 2"):
        trace(lambda x: x + 1, torch.randn(3), outputs=2)


def test_error_of_the_callable_becomes_a_reason() -> None:
    """Whatever the callable raises under tracing is the reason, not a crash."""

    def call(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("gone")

    with pytest.raises(TraceError, match="KeyError"):
        trace(call, torch.randn(3))


def test_output_may_be_an_input_or_a_view() -> None:
    """Outputs name inputs where nothing was computed."""
    graph = trace(lambda x: (x, x.t()), torch.randn(3, 4), outputs=2)
    assert graph.outputs[0] == "x0"
    assert graph.nodes[-1].shape == (4, 3)


def test_references_finds_every_operand() -> None:
    """Names in nested argument lists, in order; a dict that is no reference is looked into."""
    assert list(references([{"ref": "a"}, [[{"ref": "b"}], 3], {"other": {"ref": "c"}}])) == ["a", "b", "c"]
