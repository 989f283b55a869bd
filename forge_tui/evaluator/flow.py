"""Which inputs of a callable reach its outputs at all, whatever their values, followed operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from forge_tui.evaluator.reference import Call

#: operations that read shape, dtype and device of a tensor and nothing of what is in it
_SHAPE_ONLY = frozenset({
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros", "new_ones",
    "new_full", "new_empty", "new_empty_strided",
})  # fmt: skip

_PRODUCTS = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "convolution", "cudnn_convolution", "cudnn_convolution_transpose",
    "_convolution", "cudnn_convolution_relu", "cudnn_convolution_add_relu", "_cudnn_rnn",
})  # fmt: skip

#: operations that take some values and leave others by what is in a tensor, or whose result only jumps now and then
_CHOICES = frozenset({
    "where", "masked_fill", "masked_fill_", "masked_scatter", "masked_select", "index", "_unsafe_index", "index_put",
    "index_put_", "_index_put_impl_", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce",
    "index_add", "index_add_", "index_copy", "index_copy_", "index_select", "index_fill", "embedding", "take", "topk",
    "sort", "max", "min", "amax", "amin", "maximum", "minimum", "clamp", "clamp_min", "clamp_max",
    "gt", "lt", "ge", "le", "eq", "ne", "argmax", "argmin", "sign", "floor", "ceil", "round", "trunc", "floor_divide",
    "remainder", "fmod", "bucketize", "searchsorted",
})  # fmt: skip


def operation(func: Any) -> str:
    """The name of a dispatched operation without library and overload: `add`, `cond`."""
    return str(func.name()).partition("::")[2].partition(".")[0] or str(func.name())


class _Flow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps, for each storage, the inputs whose values went into it."""

    supports_higher_order_operators = True

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._from: dict[int, frozenset[int]] = {}
        for number, tensor in enumerate(inputs):
            self._from[_storage(tensor)] = frozenset((number,))
        self.chosen: frozenset[int] = frozenset()
        """Inputs whose values went into an operation that chooses by data."""

    def of(self, tensor: Tensor) -> frozenset[int]:
        """The inputs that a tensor depends on."""
        return self._from.get(_storage(tensor), frozenset())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [v for v in pytree.tree_leaves((args, kwargs or {})) if isinstance(v, Tensor)]
        result = func(*args, **(kwargs or {}))
        name = operation(func)
        read: frozenset[int] = frozenset()
        if name not in _SHAPE_ONLY:
            read = frozenset().union(*(self.of(v) for v in given))
        if name in _CHOICES:
            self.chosen |= read
        known = {_storage(v) for v in given}
        schema = getattr(func, "_schema", None)
        if schema is None or schema.is_mutable:
            # what is written to; which of the arguments it is does not matter much
            for storage in known:
                self._from[storage] = self._from.get(storage, frozenset()) | read
        for made in pytree.tree_leaves(result):
            # a new storage may stand where another was: what was known of that is gone
            if isinstance(made, Tensor) and _storage(made) not in known:
                self._from[_storage(made)] = read
        return result


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001


def reaching(call: Call, inputs: Sequence[Tensor]) -> tuple[frozenset[int], frozenset[int]]:
    """Numbers of the inputs from which operations lead to an output, and of those that a choice by data is made among.

    All of them where it cannot be told.
    """
    copies = [t.clone() for t in inputs]
    flow = _Flow(copies)
    try:
        with torch.no_grad(), flow:
            outputs = call(copies)
    except Exception:  # noqa: BLE001 - an operation that takes no part in this
        return frozenset(range(len(inputs))), frozenset(range(len(inputs)))
    return frozenset().union(*(flow.of(t) for t in outputs)), flow.chosen


class _Narrowing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees operations that give half precision, or products that the GPU's tensor cores do in TF32."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in pytree.tree_leaves(result):
            if isinstance(made, Tensor):
                product = made.is_cuda and operation(func) in _PRODUCTS
                self.found |= made.dtype in (torch.float16, torch.bfloat16) or (product and _tf32())
        return result


def _tf32() -> bool:
    with suppress(RuntimeError):
        return bool(torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)
    # set in two ways at once, which torch does not answer
    return True


def reduces_precision(call: Call, inputs: Sequence[Tensor]) -> bool:
    """Whether the original itself computes in less than float32 somewhere; yes where it cannot be told."""
    seen = _Narrowing()
    try:
        with torch.no_grad(), seen:
            call([t.clone() for t in inputs])
    except Exception:  # noqa: BLE001 - an operation that takes no part in this
        return True
    return seen.found


class CheckedIndices(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at indices before a kernel does: beyond a dimension they would end a CUDA context, here they raise."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation(func)
        if name in ("embedding", "_embedding_bag", "_embedding_bag_forward_only"):
            _within(args[1], args[0].shape[0])
        elif name in ("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"):
            for dim, index in enumerate(args[1]):
                if index is not None and index.dtype is not torch.bool:
                    _within(index, args[0].shape[dim], signed=True)
        elif name in ("index_select", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "index_add",
                      "index_add_", "index_copy", "index_copy_", "index_fill", "scatter_reduce"):  # fmt: skip
            _within(args[2], args[0].shape[args[1]] if args[0].ndim else 1)
        elif name == "take":
            _within(args[1], args[0].numel(), signed=True)
        elif name in ("nll_loss_forward", "nll_loss2d_forward", "one_hot"):
            classes = args[0].shape[1 if args[0].ndim > 1 else 0] if name != "one_hot" else args[1]
            _within(args[1] if name != "one_hot" else args[0], classes)
        return func(*args, **(kwargs or {}))


def _within(index: Tensor, size: int, *, signed: bool = False) -> None:
    if index.numel() and (int(index.max()) >= size or int(index.min()) < (-size if signed else 0)):
        raise IndexError(f"an index lies beyond {size}")
