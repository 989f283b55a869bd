"""NaN and infinities in inputs that the captured ones do not have: what is asked of a kernel there, and what is not.

A model meets such values only when it has a fault already, so a kernel that is right on finite inputs may do with them
what its arithmetic does: `fmaxf` ignores a NaN where torch's maximum keeps it, an infinity may become a NaN in one way
to write a formula and not in another, a product with zero may carry a NaN to a neighbour. None of that is held against
it. One thing is: results that show no sign of it anywhere, where the original's must be NaN. Then a fault that the
original shows turns into plausible numbers. Such a result comes of arithmetic that clamps a NaN away (a polynomial
exponential between bounds, say), and one comparison mends it.

"Must be NaN" is what is NaN in the original, in float64, and in the original with maxima, minima, bounds and
comparisons that ignore NaN. Captured inputs that do have such values are another matter: there, and in sets drawn from
them, every NaN and infinity must be where the original has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from forge_tui.evaluator.flow import operation
from forge_tui.evaluator.reference import Call, in_float64

#: names of aten operations for which C++ and CUDA have forms that ignore a NaN, or that order it otherwise
_IGNORING = frozenset({
    "relu", "relu_", "clamp", "clamp_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_", "hardtanh", "hardtanh_",
    "hardsigmoid", "hardsigmoid_", "hardshrink", "softshrink", "threshold", "threshold_", "sign", "sgn", "maximum",
    "minimum", "fmax", "fmin", "max", "min", "amax", "amin", "aminmax", "cummax", "cummin", "sort", "topk", "kthvalue",
    "median", "nanmedian", "mode", "argsort", "max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "mkldnn_max_pool2d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "fractional_max_pool2d", "fractional_max_pool3d", "scatter_reduce", "index_reduce", "segment_reduce",
    "max_unpool2d", "nan_to_num", "renorm",
})  # fmt: skip
_COMPARISONS = frozenset({"gt", "lt", "ge", "le", "gt_", "lt_", "ge_", "le_"})
_NORMS = frozenset({"linalg_vector_norm", "norm"})


class _IgnoringNan(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Maxima and the like as `fmaxf` has them, and comparisons with NaN that are true instead of false."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = operation(func)
        if name in _IGNORING or (name in _NORMS and any(a in (float("inf"), float("-inf")) for a in args[1:2])):
            args, kwargs = pytree.tree_map(_without_nan, (args, kwargs))
        result = func(*args, **kwargs)
        if name in _COMPARISONS and isinstance(result, Tensor) and result.dtype is torch.bool:
            for value in args[:2]:
                if isinstance(value, Tensor) and value.is_floating_point():
                    result = result | value.isnan()
        return result


def _without_nan(value: Any) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return torch.where(value.isnan(), 0.0, value) if floating else value


def must_show(call: Call, inputs: Sequence[Tensor]) -> tuple[list[Tensor], str]:
    """For each output the elements that are NaN however it is computed; or why nothing can be asked for.

    Raises:
        Exception: whatever the original raises on these inputs.
    """
    eager = [t.detach().clone() for t in call([t.clone() for t in inputs])]
    if all(bool(t.isfinite().all()) for t in eager if t.is_floating_point()):
        return [], "the original gives finite results for them"
    try:
        wide, _ = in_float64(call, inputs)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a callable may not know float64
        return [], f"the original does not run in float64 ({type(error).__name__})"
    with _IgnoringNan():  # type: ignore[no-untyped-call]
        ignoring = call([t.clone() for t in inputs])
    if any(len({t.shape for t in runs}) > 1 for runs in zip(eager, wide, ignoring, strict=True)):
        return [], "the shape of the original's results depends on them"
    marked = [_nan(a) & _nan(b) & _nan(c) for a, b, c in zip(eager, wide, ignoring, strict=True)]
    if not any(bool(m.any()) for m in marked):
        return [], "a right kernel may ignore them"
    return marked, ""


def hidden(outputs: Sequence[Tensor], marked: Sequence[Tensor]) -> bool:
    """Whether not one element of those that must be NaN is NaN or infinite."""
    shown = (bool((m & ~o.isfinite()).any()) for o, m in zip(outputs, marked, strict=True) if o.is_floating_point())
    return not any(shown)


def _nan(tensor: Tensor) -> Tensor:
    return tensor.isnan() if tensor.is_floating_point() else torch.zeros_like(tensor, dtype=torch.bool)

