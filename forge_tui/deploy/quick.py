"""The tensors of a call compared with those of an earlier one in a single call into torch's C++.

torch.compile guards its code with `TensorGuards`; it is not a public interface, so it is tried out before it is
trusted, and where it is missing or answers otherwise than expected the guard does all its checks in Python.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Check = Callable[..., bool]


def same_kind(tensors: Sequence[Tensor]) -> Check | None:
    """A check that is true only for tensors with types, dtypes, devices, shapes, strides and grad flags as these have.

    It may be false for equal ones too (the same tensor twice, another inference mode). None where torch has none.
    """
    return _make(tensors) if _trusted() else None


def _make(tensors: Sequence[Tensor]) -> Check | None:
    try:
        from torch._C._dynamo.guards import TensorGuards

        make: Any = TensorGuards
        sizes = [list(t.shape) for t in tensors]
        strides = [list(t.stride()) for t in tensors]
        check: Check = make(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        return check
    except Exception:  # noqa: BLE001 - whatever a private interface of another version raises
        return None


@functools.cache
def _trusted() -> bool:
    """Whether this version's check tells apart what it must."""
    with torch.inference_mode(mode=False), torch.no_grad():
        x, w = torch.zeros(4, 8), torch.zeros(8)
        check = _make([x, w])
        if check is None:
            return False
        others: list[Any] = [
            torch.zeros(5, 8), torch.zeros(4, 9), torch.zeros(32), torch.zeros(8, 4).t(), torch.zeros(4, 16)[:, ::2],
            torch.zeros(1, 8).expand(4, 8), x.double(), x.int(), x.bfloat16(), torch.zeros(4, 8, device="meta"),
            torch.zeros(4, 8, requires_grad=True), torch._neg_view(x), x.to_sparse(), torch._efficientzerotensor(4, 8),  # noqa: SLF001
            x.as_subclass(type("Subclass", (Tensor,), {})),
        ]  # fmt: skip
        try:
            return check(torch.zeros(4, 8), torch.ones(8)) and not any(check(other, w) for other in others)
        except Exception:  # noqa: BLE001 - as above
            return False
