"""A callable traced on its captured inputs to a graph of core ATen operations, as a JSON-able record."""

from __future__ import annotations

import contextlib
import functools
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from forge_tui.core.errors import ForgeError
from forge_tui.core.records import ITEMSIZE, Graph, GraphNode, Signature
from forge_tui.core.words import count

#: operations that are taken apart although torch calls some of them core: their parts fuse with what is around them
_TAKEN_APART = (
    "native_batch_norm", "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit.no_stats", "cudnn_batch_norm", "_softmax", "_log_softmax", "silu",
    "rms_norm", "_fused_rms_norm", "linalg_vector_norm", "logsumexp", "glu", "addcmul", "addcdiv",
    "elu", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid", "mish", "softplus", "lerp", "masked_fill", "baddbmm",
    "stack", "triu", "tril", "t", "_unsafe_view",
)  # fmt: skip
#: operations that stay whole although torch can take them apart: the parts say less than the whole
_KEPT = (
    "upsample_nearest2d", "addmm", "convolution", "pixel_shuffle", "baddbmm", "max_pool2d_with_indices",
    "var", "var_mean", "lift_fresh", "lift_fresh_copy", "split", "split_with_sizes", "unbind",
)  # fmt: skip
_MAX_NODES = 5000


class TraceError(ForgeError):
    """The callable has no static graph; the message says why."""


def trace_graph(
    call: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
    signature: Signature,
    inputs: Sequence[torch.Tensor],
) -> Graph:
    """Trace `call` on `inputs` to core ATen operations with static shapes.

    Nothing is computed: the trace runs on fake tensors, so the inputs are neither read nor changed. Python numbers
    become constants (they are part of the signature). Inputs and outputs are in the order of the signature.

    Raises:
        TraceError: control flow depends on data, a tensor is read that is no input, an input is changed, or torch
            cannot trace the callable.
    """
    names = [item.name for item in signature.inputs]
    if len(names) != len(inputs):
        raise TraceError(f"The signature has {count(len(names), 'input')}, but "
                             f"{count(len(inputs), 'tensor was', 'tensors were')} captured.")
    module = _traced(call, inputs)
    return _Serialiser(names, len(signature.outputs)).graph(module)


def _traced(call: Callable[[Sequence[torch.Tensor]], Any], inputs: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    def flat(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [*call(tensors)]

    with _quiet(), torch.no_grad():
        try:
            module = _make_fx(flat, inputs)
            _bake_numbers(module)
            if any(_in_place(node) for node in module.graph.nodes):
                # only then, for functionalisation writes some views as `as_strided`, which says less
                module = _make_fx(torch.func.functionalize(module, remove="mutations"), inputs)
        except ForgeError:
            raise
        except Exception as error:
            raise TraceError(_why(error)) from error
    return module


def _make_fx(call: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    traced = make_fx(call, decomposition_table=_table(), tracing_mode="fake", _allow_non_fake_inputs=True)
    module: torch.fx.GraphModule = traced(*inputs)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


@functools.cache
def _table() -> dict[Any, Any]:
    """Decompositions by overload; what this version of torch lacks is left out."""
    aten = torch.ops.aten
    table = dict(core_aten_decompositions())
    wanted = []
    for name in _TAKEN_APART:
        packet = getattr(aten, name.partition(".")[0], None)
        overload = name.partition(".")[2]
        if packet is None:
            continue
        wanted.append(getattr(packet, overload) if overload in packet.overloads() else packet)
    table.update(get_decompositions(wanted))
    for name in _KEPT:
        packet = getattr(aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            table.pop(getattr(packet, overload), None)
    for name, ours in (("native_layer_norm", _layer_norm), ("native_group_norm", _group_norm)):
        table[getattr(aten, name).default] = ours
    table[aten.std.correction] = _std
    return table


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _layer_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`native_layer_norm` in parts that keep variance one operation; torch's own parts differ between versions."""
    dims = list(range(x.dim() - len(shape), x.dim()))
    wide = _wide(x)
    var, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
    rstd = torch.rsqrt(var + eps)
    out = (wide - mean) * rstd
    out = out * _wide(weight) if weight is not None else out
    out = out + _wide(bias) if bias is not None else out
    return out.to(x.dtype), mean, rstd


def _group_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
    batch: int, channels: int, inner: int, groups: int, eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """`native_group_norm` in parts."""
    wide = _wide(x).reshape(batch, groups, channels // groups, inner)
    var, mean = torch.var_mean(wide, [2, 3], correction=0, keepdim=True)
    rstd = torch.rsqrt(var + eps)
    out = ((wide - mean) * rstd).reshape(x.shape)
    shape = [1, channels] + [1] * (x.dim() - 2)
    out = out * _wide(weight).reshape(shape) if weight is not None else out
    out = out + _wide(bias).reshape(shape) if bias is not None else out
    return out.to(x.dtype), mean.reshape(batch, groups), rstd.reshape(batch, groups)


def _std(
    x: torch.Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> torch.Tensor:
    return torch.var(_wide(x), dim, correction=correction, keepdim=keepdim).sqrt().to(x.dtype)


def _bake_numbers(module: torch.fx.GraphModule) -> None:
    """Make a tensor that the callable built from one number (`torch.tensor(3.0)`) a constant of the graph."""
    for node in [node for node in module.graph.nodes if node.op == "get_attr"]:
        value = _attribute(module, node)
        built = all(user.op == "call_function" and "lift_fresh" in str(user.target) for user in node.users)
        if built and value.numel() == 1:
            with module.graph.inserting_before(node):
                full = module.graph.call_function(
                    torch.ops.aten.full.default, ([*value.shape], value.item()),
                    {"dtype": value.dtype, "device": value.device},
                )  # fmt: skip
            full.meta["val"] = value
            node.replace_all_uses_with(full)
            module.graph.erase_node(node)
    module.recompile()


def _attribute(module: torch.fx.GraphModule, node: torch.fx.Node) -> torch.Tensor:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    assert isinstance(value, torch.Tensor)
    return value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _in_place(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def _why(error: Exception) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    lowered = f"{type(error).__name__} {error}".lower()
    if "data-dependent" in lowered or "datadependent" in lowered or "tracing tensor" in lowered:
        return f"Its control flow or its shapes depend on the data: {text}"
    return f"torch could not trace it: {type(error).__name__}: {text}"


class _Serialiser:
    """Turns a traced module into a `Graph`; one use."""

    def __init__(self, inputs: list[str], outputs: int) -> None:
        self._inputs = inputs
        self._count = outputs
        self._names: dict[torch.fx.Node, str] = {}
        self._used = set(inputs)
        self._nodes: list[GraphNode] = []

    def graph(self, module: torch.fx.GraphModule) -> Graph:
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        for node, name in zip(placeholders, self._inputs, strict=True):
            self._names[node] = name
        outputs: list[str] = []
        for node in module.graph.nodes:
            if node.op == "get_attr":
                shape = list(_attribute(module, node).shape)
                raise TraceError(f"It reads a tensor of shape {shape} that is neither an argument nor a parameter.")
            if node.op == "call_function":
                self._operation(node, placeholders)
            elif node.op == "output":
                outputs = [self._output(value) for value in node.args[0]]
        if len(outputs) != self._count:
            raise TraceError(f"The trace has {count(len(outputs), 'output')}, the signature {self._count}.")
        if len(self._nodes) > _MAX_NODES:
            raise TraceError(f"The trace has {len(self._nodes)} operations, more than {_MAX_NODES}.")
        return Graph(inputs=list(self._inputs), nodes=_live(self._nodes, outputs), outputs=outputs)

    def _output(self, value: Any) -> str:
        if not isinstance(value, torch.fx.Node):
            raise TraceError("An output is no tensor.")
        name: str = self._names[value]
        return name

    def _name(self, node: torch.fx.Node) -> str:
        name = str(node.name)
        while name in self._used:
            name += "_"
        self._used.add(name)
        self._names[node] = name
        return name

    def _operation(self, node: torch.fx.Node, placeholders: list[torch.fx.Node]) -> None:
        if _in_place(node) or (str(node.target).startswith("aten.copy_") and node.args[0] in placeholders):
            raise TraceError(f"It changes a tensor in place ({node.target}).")
        op = "getitem" if node.target is operator.getitem else str(node.target)
        value = node.meta.get("val")
        shapes: list[tuple[int, ...]] = []
        shape: tuple[int, ...] = ()
        dtype = "float32"
        if isinstance(value, torch.Tensor):
            shape, dtype = _shape(value), _dtype_name(value.dtype)
        elif isinstance(value, list | tuple):
            tensors = [item for item in value if isinstance(item, torch.Tensor)]
            shapes = [_shape(item) for item in tensors]
            dtype = _dtype_name(tensors[0].dtype) if tensors else dtype
        else:
            raise TraceError(f"{op} gives {type(value).__name__}, not a tensor: its result depends on the data.")
        self._nodes.append(GraphNode(
            name=self._name(node), op=op, args=[self._plain(item) for item in node.args],
            kwargs={key: self._plain(item) for key, item in node.kwargs.items()},
            shape=shape, dtype=dtype, shapes=shapes,
        ))  # fmt: skip

    def _plain(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return {"ref": self._names[value]}
        if isinstance(value, list | tuple):
            return [self._plain(item) for item in value]
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return _number(value)
        if isinstance(value, torch.dtype):
            return str(value).removeprefix("torch.")
        if isinstance(value, torch.device):
            return value.type
        if isinstance(value, torch.layout | torch.memory_format):
            return str(value).removeprefix("torch.")
        raise TraceError(f"An argument of type {type(value).__name__} cannot be written down.")


def _number(value: float) -> float | int | bool | str:
    """JSON has no infinity: `inf`, `-inf` and `nan` become text."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value


def _shape(value: torch.Tensor) -> tuple[int, ...]:
    if not all(isinstance(size, int) for size in value.shape):
        raise TraceError("A shape inside it depends on the data.")
    return tuple(int(size) for size in value.shape)


def _dtype_name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in ITEMSIZE:
        raise TraceError(f"It computes in {name}, which kernels here do not know.")
    return name


def _live(nodes: list[GraphNode], outputs: list[str]) -> list[GraphNode]:
    """The nodes that an output needs, in order."""
    needed = set(outputs)
    kept: list[GraphNode] = []
    for node in reversed(nodes):
        if node.name in needed:
            kept.append(node)
            needed.update(references([node.args, node.kwargs]))
    return kept[::-1]


def references(value: Any) -> Iterator[str]:
    """Names that a JSON argument tree of a node refers to."""
    if isinstance(value, dict):
        if set(value) == {"ref"}:
            yield value["ref"]
        else:
            for item in value.values():
                yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)
