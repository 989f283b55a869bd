"""A signature's parameters and numbers under the names that kernels and directives use."""

from __future__ import annotations

from collections.abc import Iterator

from forge_tui.contract.identifiers import unique
from forge_tui.core.records import Signature, TensorSpec

#: alignment of outputs and workspace in bytes, which the harness sees to
ALLOCATION_ALIGN = 16
INT64 = 2**63


def parameters(signature: Signature) -> list[tuple[str, TensorSpec, bool]]:
    """Kernel parameters in order, as (name, spec, is output); workspace and dims come behind them."""
    tensors = [(i.name, i.spec, False) for i in signature.inputs] + [(o.name, o.spec, True) for o in signature.outputs]
    outputs = [name for name, _, is_output in tensors if is_output]
    inputs = unique([name for name, _, is_output in tensors if not is_output], taken=outputs)
    return [(name, spec, is_output) for name, (_, spec, is_output) in zip(inputs + outputs, tensors, strict=True)]


def integers(signature: Signature) -> Iterator[tuple[str, int]]:
    """Sizes, strides, counts and alignments by name."""
    aligns = [i.align for i in signature.inputs] + [ALLOCATION_ALIGN] * len(signature.outputs)
    for (name, spec, _), align in zip(parameters(signature), aligns, strict=True):
        for dim, (size, stride) in enumerate(zip(spec.shape, spec.strides, strict=True)):
            yield f"{name}_shape_{dim}", size
            yield f"{name}_stride_{dim}", stride
        yield f"{name}_numel", spec.numel
        yield f"{name}_align", align


def scalars(signature: Signature) -> list[tuple[str, bool | int | float]]:
    """Scalars under clean names, apart from integers that no 64 bits hold."""
    usable = [s for s in signature.scalars if isinstance(s.value, float) or -INT64 <= s.value < INT64]
    tensors = {name for name, _, _ in parameters(signature)}
    taken = tensors | {name for name, _ in integers(signature)}
    return list(zip(unique([scalar.name for scalar in usable], taken), [s.value for s in usable], strict=True))
