"""A wrong output in words that tell an author what to look at."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forge_tui.evaluator.tolerance import Bound, Difference

_MANY = 0.999
#: an rms error of less than this part of the values looks like lost precision
_CLOSE = 0.03


def explain(
    name: str, output: Tensor, limit: Bound, difference: Difference, poison: int, inputs: Sequence[tuple[str, Tensor]]
) -> str:
    """One or two sentences on how an output differs from the reference; `poison` filled it before the run."""
    if difference.wrong is None:
        factor = difference.rms_error / limit.eager_rms if limit.eager_rms else 0.0
        return (
            f"{name} is less exact than allowed in the mean: rms error {difference.rms_error:.3g}, allowed "
            f"{limit.rms_limit:.3g}{f' (eager has {limit.eager_rms:.3g})' if factor else ''}; {_precision(limit)}."
        )
    wrong = difference.wrong
    share = float(wrong.double().mean())
    index = _first(wrong)
    got, expected = output[index], limit.expected[index]
    where = f" at {list(index)}" if index else ""
    count = "everywhere" if share > _MANY else f"at {_percent(share)} of its elements"
    text = (
        f"{name} differs {count}, first{where}: got {_number(got)}, expected {_number(expected)}"
        f"{_allowed(limit, index)}."
    )
    hints = _hints(output, limit, difference, poison, inputs)
    return f"{text} {hints}" if hints else text


def _hints(
    output: Tensor, limit: Bound, difference: Difference, poison: int, inputs: Sequence[tuple[str, Tensor]]
) -> str:
    assert difference.wrong is not None
    wrong = difference.wrong
    unwritten = wrong & _poisoned(output, poison)
    part = float(unwritten.double().sum() / wrong.double().sum())
    if part > 0.5:
        what = "It was never written" if part > _MANY else f"{_percent(part)} of the wrong elements were never written"
        return _sentence(f"{what}{_rows(unwritten)}")
    if bool((output == 0).all()):
        return "It is all zeros."
    if output.is_floating_point():
        bad = output.isnan() & wrong
        if bool(bad.any()):
            return _sentence(f"It has NaN where there should be numbers{_rows(bad)}")
    if output.numel() > 1 and bool((output == output.reshape(-1)[0]).all()):
        return "It is the same number everywhere."
    for name, tensor in inputs:
        if tensor.shape == output.shape and tensor.dtype == output.dtype and torch.equal(tensor, output):
            return f"It is a copy of {name}."
    if difference.special_differs:
        return "Infinities or NaN are not where the original has them."
    # close, but not close enough
    scale = float(limit.expected.double().nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt())
    if output.is_floating_point() and limit.eager_max and difference.rms_error < _CLOSE * scale:
        times = difference.max_error / limit.eager_max
        return f"The largest error is {times:.3g} times eager's own; {_precision(limit)}."
    rows = _rows(wrong)
    return _sentence(f"The wrong elements are{rows}") if rows else ""


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def _precision(limit: Bound) -> str:
    if limit.dtype is torch.float64:
        return "compute and accumulate in float64"
    return "compute and accumulate in float32, and round once at the end"


def _poisoned(output: Tensor, poison: int) -> Tensor:
    """Elements all of whose bytes still hold the poison."""
    raw = output.contiguous().view(-1).view(torch.uint8) if output.numel() else output.reshape(-1).view(torch.uint8)
    return (raw.view(-1, output.element_size()) == poison).all(-1).view(output.shape)


def _rows(marked: Tensor) -> str:
    """` in rows 64 to the end` and the like, where the marked elements lie in a pattern; else nothing."""
    if marked.ndim == 0 or bool(marked.all()):
        return ""
    columns = marked.reshape(-1, marked.shape[-1])
    rows = columns.any(-1)
    if not bool(rows.all()):
        places = rows.nonzero().reshape(-1)
        first, last = int(places[0]), int(places[-1])
        if places.numel() == last - first + 1:
            total = rows.numel()
            if first == last:
                return f" in row {first} of {total}"
            if last == total - 1:
                return f" in rows {first} to the end of {total}: is the tail handled?"
            return f" in rows {first} to {last} of {total}"
        return f" in {places.numel()} of {rows.numel()} rows, the first of them {first}"
    across = columns.any(0).nonzero().reshape(-1)
    first, last = int(across[0]), int(across[-1])
    if first == last and marked.shape[-1] > 1:
        return f" {'at place' if marked.ndim == 1 else 'in column'} {first} of {marked.shape[-1]}"
    if across.numel() == last - first + 1 and across.numel() < marked.shape[-1]:
        tail = ": is the tail handled?" if last == marked.shape[-1] - 1 else ""
        what = "places" if marked.ndim == 1 else "columns"
        return f" in {what} {first} to {last} of {marked.shape[-1]}{tail}"
    return ""


def _first(marked: Tensor) -> tuple[int, ...]:
    if not marked.ndim:
        return ()
    position = int(marked.reshape(-1).to(torch.uint8).argmax())
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(position), marked.shape))


def _allowed(limit: Bound, index: tuple[int, ...]) -> str:
    if limit.exact or limit.atol is None:
        return ""
    atol = limit.atol[(*index[:-1], 0)] if index else limit.atol
    allowed = float(limit.expected[index].abs() * limit.rtol + atol)
    return f" (tolerance {allowed:.2g})"


def _number(value: Tensor) -> str:
    item = value.item()
    return f"{item:.6g}" if isinstance(item, float) else str(item)


def _percent(share: float) -> str:
    if share < 0.001:
        return "less than 0.1%"
    return f"{100 * share:.0f}%" if share >= 0.1 else f"{100 * share:.1f}%"
