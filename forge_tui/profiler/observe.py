"""The observing pass: calls sorted into groups of one signature, each with what makes it a target or not."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from forge_tui.core.records import Signature
from forge_tui.models.attributes import fingerprint
from forge_tui.models.callables import closure_tensors
from forge_tui.models.calls import (
    CallDescription,
    NotEligible,
    ResultDescription,
    alignment,
    describe_call,
    describe_result,
)
from forge_tui.models.effects import Before
from forge_tui.models.held import version_of
from forge_tui.models.load import LoadedModel
from forge_tui.models.phases import Phase
from forge_tui.profiler.calltree import Call
from forge_tui.profiler.floor import real_bytes
from forge_tui.profiler.opaque import is_unseen
from forge_tui.profiler.passes import Recorder
from forge_tui.profiler.sites import Site, Sites, is_step
from forge_tui.profiler.watch import Frame, Watch, storage_of


@dataclass(slots=True)
class Group:
    """All calls of one callable with one signature."""

    key: str
    site: Site
    order: int
    """Position among the groups, by first call."""
    reason: str = ""
    description: CallDescription | None = None
    result: ResultDescription | None = None
    calls: int = 0
    """Over one call of every phase."""
    phases: Counter[str] = field(default_factory=Counter)
    """Calls in one call of each phase, by its name."""
    instances: dict[str, list[int]] = field(default_factory=dict)
    """Module path to the numbers of its calls within the group, in order; one empty path for functions."""
    aligns: list[int] = field(default_factory=list)
    flops: dict[str, int] = field(default_factory=dict)
    """Matrix work of one call by dtype."""
    matrix_calls: int = 0
    """Matrix products and convolutions in one call."""
    read_bytes: int = 0
    """What the first call read of its inputs, each element once."""

    def signature(self, device: torch.device) -> Signature:
        """The signature, with the alignment that all calls had."""
        assert self.description is not None
        assert self.result is not None
        inputs = tuple(
            msgspec.structs.replace(item, align=align)
            for item, align in zip(self.description.inputs, self.aligns, strict=True)
        )
        return Signature(inputs=inputs, outputs=self.result.outputs, scalars=self.description.scalars,
                         call=self.description.call, result=self.result.result, device=str(device))  # fmt: skip


def group_key(site: Site, description: CallDescription) -> str:
    """Equal for calls that one kernel can serve."""
    inputs = [
        (item.path, item.source, item.spec.shape, item.spec.dtype, item.spec.strides) for item in description.inputs
    ]
    scalars = [(s.path, type(s.value).__name__, repr(s.value)) for s in description.scalars]
    state = fingerprint(site.module) if site.module is not None else ""
    text = json.dumps([site.kind, site.qualname or site.name, inputs, scalars, description.call, state])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe_site_call(
    site: Site, args: Sequence[Any], kwargs: Mapping[str, Any], closure: Mapping[str, Tensor] | None = None
) -> CallDescription:
    """The description of a call of this site.

    Raises:
        NotEligible: with the reason.
    """
    try:
        return _described(site, args, kwargs, closure)
    except NotEligible:
        raise
    except Exception as error:  # an argument's class may raise whatever it is asked for
        raise NotEligible(f"the call cannot be described: {type(error).__name__}") from error


def _described(
    site: Site, args: Sequence[Any], kwargs: Mapping[str, Any], closure: Mapping[str, Tensor] | None
) -> CallDescription:
    module = site.module
    if torch._C._functorch.maybe_current_level() is not None:  # noqa: SLF001 - tensors there have no memory of their own
        raise NotEligible("it runs inside a transform of torch.func")
    if module is not None:
        if module.training or any(m.training for m in module.modules()):
            raise NotEligible("it is in training mode")
        if any(_has_hooks(child) for child in module.modules() if child is not module):
            raise NotEligible("a module inside it has hooks, which a kernel would skip")
    return describe_call(site.fn, args, kwargs, module, closure)


def _read_bytes(description: CallDescription, frame: Frame) -> int:
    """Bytes read, at most the size of the inputs; inputs on one storage share what is read of it."""
    sizes: dict[int, int] = {}
    for tensor, item in zip(description.tensors, description.inputs, strict=True):
        storage = storage_of(tensor)
        sizes[storage] = sizes.get(storage, 0) + real_bytes(item.spec)
    # what was read of a closure tensor was not counted: it was no input yet
    return sum(
        size if storage in frame.foreign else min(size, frame.touched[storage]) for storage, size in sizes.items()
    )


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)  # noqa: SLF001


@dataclass(slots=True)
class _Open:
    """A call that has begun."""

    site: Site
    frame: Frame
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    description: CallDescription | None
    reason: str
    versions: list[int]
    before: Before | None


class Observer:
    """The listener of the observing pass."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.groups: dict[str, Group] = {}
        self._loaded = loaded
        self._begin(Phase())

    def _begin(self, phase: Phase) -> None:
        self.recorder = Recorder()
        self.group_of: dict[int, str] = {}
        self.reason_of: dict[int, str] = {}
        """Why a call of the last phase has no group, by its position."""
        self._phase = phase
        self._watch = Watch()
        self._open: dict[int, _Open] = {}

    def run(self, phase: Phase, sites: Sites) -> list[Call]:
        """The calls of one call of a phase with their groups."""
        self._begin(phase)
        with self._watch, sites.heard(self):
            phase.run(self._loaded.module)
        calls, numbers = self.recorder.calls()
        for call, number in zip(calls, numbers, strict=True):
            call.group = self.group_of.get(number)
        self.reason_of = {
            new: self.reason_of[number] for new, number in enumerate(numbers) if number in self.reason_of
        }
        return calls

    def enter(self, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Describe the call before it runs."""
        number = self.recorder.push(site)
        description, reason = None, ""
        try:
            description = describe_site_call(site, args, kwargs)
        except NotEligible as error:
            reason = str(error)
        tensors = description.tensors if description else []
        frame = self._watch.open(tensors)
        versions = [version_of(t) for t in tensors]
        before = Before(site.fn, args, kwargs, site.module) if site.kind != "torch" else None
        self._open[number] = _Open(site, frame, args, kwargs, description, reason, versions, before)
        return number

    def abandon(self, token: int) -> None:
        """A call that raised is forgotten."""
        self._watch.close()
        self._open.pop(token)
        self.recorder.pop(token, False)

    def leave(self, token: int, result: Any) -> None:
        """Put the call into its group, or note why it has none."""
        self._watch.close()
        call = self._open.pop(token)
        if is_unseen(call.site.reason):
            self._watch.unseen((call.args, call.kwargs), result, f"it calls {call.site.name}, whose inside is not seen")
        effect = call.before.effect() if call.before is not None else None
        for frame in [call.frame, *(self._watch.frames if effect is not None and effect.wide else ())]:
            frame.refuse(effect.reason if effect is not None else "")
        keep = is_step(call.site, result)
        self.recorder.pop(token, keep)
        if not keep:
            return
        if call.description is None:
            self.reason_of[token] = (call.site.kind != "torch" and call.site.reason) or call.reason
            return
        description, reason = self._with_foreign(call, call.description)
        reason = reason or call.frame.reason
        if any(version_of(t) != v for t, v in zip(call.description.tensors, call.versions, strict=True)):
            reason = reason or "it writes into one of its inputs"
        found: ResultDescription | None = None
        try:
            found = describe_result(result, description.tensors)
            self._check_outputs(found)
        except NotEligible as error:
            reason = reason or str(error)
        self.group_of[token] = self._add(call, description, found, reason)

    def _with_foreign(self, call: _Open, description: CallDescription) -> tuple[CallDescription, str]:
        """The description with the closure tensors that were read; a reason if others were read too."""
        if not call.frame.foreign:
            return description, ""
        candidates = closure_tensors(call.site.fn) if call.site.kind == "function" else {}
        used = {name: t for name, t in candidates.items() if storage_of(t) in call.frame.foreign}
        if set(call.frame.foreign) - {storage_of(t) for t in used.values()}:
            return description, "it reads a tensor that is neither an argument nor a parameter"
        try:
            return describe_site_call(call.site, call.args, call.kwargs, used), ""
        except NotEligible as error:
            return description, str(error)

    def _check_outputs(self, found: ResultDescription) -> None:
        for tensor in found.tensors:
            if tensor.device != self._loaded.device:
                raise NotEligible(f"a result is on {tensor.device}, not on {self._loaded.device}")

    def _add(
        self, call: _Open, description: CallDescription, found: ResultDescription | None, reason: str
    ) -> str:
        key = group_key(call.site, description)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(key, call.site, len(self.groups), description=description, result=found)
            group.reason = call.site.reason
            group.flops, group.matrix_calls = dict(call.frame.flops), call.frame.matrix_calls
            group.read_bytes = _read_bytes(description, call.frame)
            group.aligns = [item.align for item in description.inputs]
        elif found is not None and group.result is not None and (
            (found.result, found.outputs) != (group.result.result, group.result.outputs)
        ):  # fmt: skip
            reason = reason or "calls with equal arguments give results of different form"
        group.reason = group.reason or reason
        group.aligns = [min(a, alignment(t)) for a, t in zip(group.aligns, description.tensors, strict=True)]
        group.instances.setdefault(call.site.path, []).append(group.calls)
        group.calls += 1
        group.phases[self._phase.name] += 1
        # the tensors of the first description are not kept: they would hold the model's memory
        if group.description is description:
            group.description = CallDescription(description.inputs, description.scalars, description.call, [])
            group.result = found and ResultDescription(found.outputs, found.result, [])
        return key


