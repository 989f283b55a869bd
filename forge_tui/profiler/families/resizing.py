"""One kernel for several sizes: the siblings of a target whose dimensions vary at run time, some of them made.

Beside the sizes that calls had, a kernel is to be right at others up to the largest: 1, a few, an odd one in the
middle, a power of two, and one just below the largest. Inputs of such a size are the captured ones of the largest call,
cut; what the original gives for them is seen by calling it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from forge_tui.contract import exprs
from forge_tui.contract.identifiers import IDENTIFIER
from forge_tui.core.errors import ContractError
from forge_tui.core.records import DynamicDim, Signature, Target, TensorSpec
from forge_tui.models import capture
from forge_tui.models.calls import spec_of
from forge_tui.models.held import Holders
from forge_tui.models.load import LoadedModel
from forge_tui.models.resolve import caller, original
from forge_tui.models.snapshot import Copier
from forge_tui.profiler.families.layouts import Place
from forge_tui.profiler.families.siblings import Layout
from forge_tui.profiler.targets import target_id
from forge_tui.profiler.verify import difference

#: sizes that calls had and one kernel serves, those with the most work
MOST_SEEN = 16


class Unfit(Exception):
    """Why a size cannot be made; a clause for a sentence."""


def with_siblings(
    loaded: LoadedModel, targets: Mapping[str, Target], artifacts: Path, named: Sequence[str]
) -> tuple[dict[str, Target], list[str]]:
    """The targets, of each family with a named dimension the worthiest with its siblings; and what could not be made.

    Raises:
        StoreError: captured inputs cannot be read or written.
    """
    wanted = {text.partition("=")[0] for text in named}
    families: dict[str, list[str]] = defaultdict(list)
    for key, target in targets.items():
        if any(dim.name in wanted for dim in target.dynamic):
            families[target.family].append(key)
    found, warnings = dict(targets), list[str]()
    for keys in families.values():
        # by work, which is the same in every run, unlike times
        keys = sorted(keys, key=lambda k: (-targets[k].calls * targets[k].bytes_moved, k))[:MOST_SEEN]
        members = [targets[key] for key in keys]
        maker = _Maker(loaded, members, artifacts)
        made = [*maker.made(wanted)]
        warnings += maker.warnings
        # what nobody named may differ as well, but is no reason to join them
        varies = any(dim.name in wanted and len(dim.sizes) > 1 for dim in members[0].dynamic)
        if made or (varies and len(members) > 1):
            found[keys[0]] = _joined(members[0], [*members[1:], *made])
    return found, warnings


def _joined(target: Target, others: Sequence[Target]) -> Target:
    """The target with siblings, every one aligned as the least aligned of them."""
    every = (target, *others)
    least = [min(aligns) for aligns in zip(*((i.align for i in t.signature.inputs) for t in every), strict=True)]

    def aligned(item: Target) -> Target:
        inputs = tuple(
            msgspec.structs.replace(i, align=align) for i, align in zip(item.signature.inputs, least, strict=True)
        )
        return msgspec.structs.replace(item, signature=msgspec.structs.replace(item.signature, inputs=inputs))

    slim = tuple(msgspec.structs.replace(aligned(t), graph=None, source="") for t in others)
    return msgspec.structs.replace(aligned(target), siblings=slim)


class _Maker:
    """Makes members of one family at sizes that no call had."""

    def __init__(self, loaded: LoadedModel, members: Sequence[Target], artifacts: Path) -> None:
        self._loaded = loaded
        self._members = members
        self._artifacts = artifacts
        self._dims = members[0].dynamic
        self.warnings: list[str] = []

    def made(self, wanted: set[str]) -> Iterator[Target]:
        """One target for each size that could be made."""
        for dim in self._dims:
            if dim.name not in wanted:
                continue
            source = max(self._members, key=lambda m: (_size(m, dim), m.headroom_ms))
            for size in between(dim.sizes):
                try:
                    yield self._one(source, dim, size)
                except Unfit as why:
                    self.warnings.append(f"{source.name} is not verified at {dim.name}={size}: {why}.")

    def _one(self, source: Target, dim: DynamicDim, size: int) -> Target:
        sizes = self._sizes(source, dim, size)
        layout = Layout(self._members)
        try:
            signature = layout.at(source, sizes)
        except ValueError as error:
            raise Unfit(str(error)) from None
        captured = capture.load(self._artifacts / source.capture, 0, self._loaded.device, self._loaded)
        tensors = [_cut(t, i.spec) if i.source == "arg" else t
                   for t, i in zip(captured, signature.inputs, strict=True)]  # fmt: skip
        outputs = self._call(source, signature, tensors)
        seen = tuple(msgspec.structs.replace(o, spec=spec_of(t))
                     for o, t in zip(signature.outputs, outputs, strict=True))  # fmt: skip
        signature = msgspec.structs.replace(signature, outputs=seen)
        return msgspec.structs.replace(
            source, id=target_id(source.qualname, signature, "made"), signature=signature, made=True, calls=0,
            time_us=0.0, share=0.0, floor_us=0.0, headroom_ms=0.0, bytes_moved=0, flops=0, host_us=0.0, launches=0.0,
            graph=None, graph_reason="", capture=self._kept(source, tensors), captured_calls=1, phases=(),
        )  # fmt: skip

    def _sizes(self, source: Target, dim: DynamicDim, size: int) -> dict[Place, int]:
        """The new size of every place that changes, products and sums of dimensions included."""
        values = {d.name: _size(source, d) for d in self._dims if IDENTIFIER.fullmatch(d.name)} | {dim.name: size}
        parameters = {i.name for i in source.signature.inputs if i.source != "arg"}
        found: dict[Place, int] = {}
        for other in self._dims:
            try:
                value = exprs.evaluate(other.name, values)
            except ContractError as error:
                raise Unfit(error.what.rstrip(".")) from None
            for place in other.places:
                if value != _size(source, other):
                    found[place] = value
                    if place[0] in parameters:
                        raise Unfit(f"{other.name} is a size of {place[0]} too, which belongs to the model")
        return found

    def _call(self, source: Target, signature: Signature, tensors: Sequence[Tensor]) -> list[Tensor]:
        target = msgspec.structs.replace(source, signature=signature)
        call = caller(target, self._loaded)
        try:
            outputs = call(tensors)
            kept = [t.detach().cpu() for t in outputs]
            again = difference(call(tensors), kept)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the model's own code, at a size that it was not made for
            why = " ".join(str(error).split())[:200].rstrip(".")
            raise Unfit(f"the original raises {type(error).__name__} ({why})") from error
        if again:
            raise Unfit(again)
        forms = [(t.dtype, t.ndim) for t in outputs]
        wanted = [(getattr(torch, o.spec.dtype), len(o.spec.shape)) for o in signature.outputs]
        if forms != wanted:
            raise Unfit("the original gives results of another form")
        return outputs

    def _kept(self, source: Target, tensors: Sequence[Tensor]) -> str:
        functions = {} if source.kind == "module" else {source.qualname: original(source, self._loaded)}
        snapshot = Copier(Holders(self._loaded, functions)).take(tensors)
        return f"captures/{capture.save_by_content(self._artifacts / 'captures', [snapshot])}"


def between(sizes: Sequence[int]) -> list[int]:
    """Sizes to be made beside those seen: 1, an odd one in the middle, an odd one just below the largest.

    And a few, below what calls had, and a power of two, unless calls had a multiple: kernels may treat both apart.
    """
    low, high = min(sizes), max(sizes)
    middle = (low + high if low < high else high) // 2 | 1
    below = high - 1 if high % 2 == 0 else high - 2
    few = math.isqrt(low) | 1
    even = 1 << max(0, (high - 1).bit_length() - 1)
    if any(n % even == 0 for n in sizes):
        even = 1  # calls had it
    return sorted({n for n in (1, few, middle, even, below) if 1 <= n < high} - set(sizes))


def _size(target: Target, dim: DynamicDim) -> int:
    name, index = dim.places[0]
    specs = {i.name: i.spec for i in target.signature.inputs} | {o.name: o.spec for o in target.signature.outputs}
    return specs[name].shape[index]


def _cut(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """The first elements of a tensor along every dimension, laid out as the spec says."""
    for dim, size in enumerate(spec.shape):
        if size > tensor.shape[dim]:
            raise Unfit("a dimension that follows from it would grow")
        tensor = tensor.narrow(dim, 0, size)
    made = torch.empty(spec.span, dtype=tensor.dtype, device=tensor.device).as_strided(spec.shape, spec.strides)
    to, source, reach = made, tensor, 0
    for dim in sorted(range(len(spec.shape)), key=lambda d: spec.strides[d]):
        size, stride = spec.shape[dim], spec.strides[dim]
        if size > 1 and stride == 0:
            to, source = to.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
        elif size > 1:
            if stride <= reach:
                raise Unfit("an input overlaps itself")
            reach += stride * (size - 1)
    to.copy_(source)
    return made
