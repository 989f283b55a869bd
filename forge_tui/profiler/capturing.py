"""The capture pass: inputs of chosen calls copied before the call, and the outputs of the first one behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from forge_tui.models.callables import closure_tensors
from forge_tui.models.calls import NotEligible, describe_result
from forge_tui.models.load import LoadedModel
from forge_tui.models.strided import from_flat, to_flat
from forge_tui.profiler.observe import Group, describe_site_call, group_key
from forge_tui.profiler.sites import Site, Sites


@dataclass(slots=True)
class Captured:
    """What was copied of one group; tensors on the CPU, with the strides they had."""

    calls: list[list[Tensor]] = field(default_factory=list)
    instances: list[str] = field(default_factory=list)
    """Module path of each call."""
    outputs: list[Tensor] = field(default_factory=list)
    """Of the first captured call."""


def choose_calls(group: Group, count: int) -> list[int]:
    """Numbers of the calls to capture: one of each instance first, then the others, in order."""
    firsts = sorted(numbers[0] for numbers in group.instances.values())
    rest = sorted(n for numbers in group.instances.values() for n in numbers[1:])
    return sorted((firsts + rest)[:count])


class Capturer:
    """The listener of the capture pass."""

    def __init__(self, loaded: LoadedModel, wanted: Mapping[str, tuple[Group, int]]) -> None:
        self.captured: dict[str, Captured] = {key: Captured() for key in wanted}
        self._loaded = loaded
        self._chosen = {key: set(choose_calls(group, count)) for key, (group, count) in wanted.items()}
        self._closures = {
            group.site.qualname: {i.path for i in group.description.inputs if i.source == "closure"}
            for group, _ in wanted.values()
            if group.site.kind == "function" and group.description is not None
        }
        self._qualnames = {group.site.qualname for group, _ in wanted.values()}
        self._seen: dict[str, int] = {}
        self._open: dict[int, tuple[str, list[Tensor]]] = {}
        self._count = 0

    def run(self, sites: Sites) -> dict[str, Captured]:
        """What was captured in one model call, by group."""
        with sites.heard(self):
            self._loaded.run()
        return self.captured

    def enter(self, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Copy the inputs if this call is one of the chosen."""
        self._count += 1
        if site.qualname not in self._qualnames:
            return self._count
        wanted = self._closures.get(site.qualname, set())
        closure = {name: t for name, t in closure_tensors(site.fn).items() if name in wanted} if wanted else None
        try:
            description = describe_site_call(site, args, kwargs, closure)
        except NotEligible:
            return self._count
        key = group_key(site, description)
        number = self._seen[key] = self._seen.get(key, -1) + 1
        if number in self._chosen.get(key, ()):
            captured = self.captured[key]
            captured.calls.append([copy_to_cpu(t) for t in description.tensors])
            captured.instances.append(site.path)
            if len(captured.calls) == 1:
                self._open[self._count] = (key, description.tensors)
        return self._count

    def leave(self, token: int, result: Any) -> None:
        """Copy the outputs of the first call of a group."""
        if token in self._open:
            key, inputs = self._open.pop(token)
            self.captured[key].outputs = [copy_to_cpu(t) for t in describe_result(result, inputs).tensors]

    def abandon(self, token: int) -> None:
        """A call that raised keeps no outputs."""
        self._open.pop(token, None)


def copy_to_cpu(tensor: Tensor) -> Tensor:
    """A copy on the CPU with the same strides."""
    return from_flat(to_flat(tensor).cpu(), tensor.shape, tensor.stride())
