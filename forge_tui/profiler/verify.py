"""Whether a captured call, made again on its own, gives what it gave inside the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forge_tui.core.records import Target
from forge_tui.models.load import LoadedModel
from forge_tui.models.resolve import caller
from forge_tui.profiler.capturing import Captured

#: largest difference over the largest value: the same code on the same values, perhaps another order of sums
_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def replay_fault(loaded: LoadedModel, target: Target, captured: Captured) -> str:
    """Why the call cannot be made again, or nothing if it gives the same outputs."""
    try:
        tensors = captured.tensors(0, loaded.device)
        outputs = caller(target, loaded, captured.instances[0] or None)(tensors)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the model's own code, called outside of the model
        return f"called on its own it raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return difference(outputs, captured.outputs)


def difference(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    """A reason where outputs differ in form or beyond rounding, else nothing."""
    for i, (have, want) in enumerate(zip(outputs, expected, strict=True)):
        if have.shape != want.shape or have.dtype != want.dtype or have.stride() != want.stride():
            return f"called on its own it gives another form of out{i}"
        one, other = have.cpu(), want
        if torch.equal(one, other):
            continue
        if one.dtype in _TOLERANCE:
            one, other = one.double(), other.double()
            same_holes = all(torch.equal(f(one), f(other)) for f in (torch.isnan, torch.isposinf, torch.isneginf))
            one, other = (t.nan_to_num(0.0, 0.0, 0.0) for t in (one, other))
            most = float(other.abs().max()) if other.numel() else 0.0
            worst = float((one - other).abs().max()) if other.numel() else 0.0
            if not same_holes or worst > _TOLERANCE[have.dtype] * max(most, 1e-30):
                return f"called on its own it gives other values: out{i} differs by {worst:.2g}"
        else:
            return f"called on its own it gives other values in out{i}"
    return ""
