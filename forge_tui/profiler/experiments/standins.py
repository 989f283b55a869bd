"""Stand-ins: functions that take the calls of one target and give outputs of the right form without its work.

A stand-in is written out as a Python function with the callable's own parameters, so that it costs little on the host
and torch.compile traces through it: the shape checks become guards, the outputs come from one opaque operator.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from forge_tui.core.records import Signature
from forge_tui.models.binding import signature_of
from forge_tui.models.trees import Tree, rebuild

#: from the call's tensors and the number of the site to the output tensors: one, or a tuple of several
Produce = Callable[[list[Tensor], int], Any]


class Unreplaceable(Exception):
    """Nothing can stand in for this callable; the text is the reason."""


def make_stand_in(
    signature: Signature, original: Callable[..., Any], produce: Produce, *, site: int, device: torch.device,
    described: Callable[..., Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """A function that gives calls of this signature to `produce` and all others to `original`.

    A call is of the signature if its tensors have the shapes and dtypes and its constants the values; strides,
    addresses and attributes of modules are not looked at. `described` is the callable whose parameters the signature
    was bound to, where `original` is another stand-in for it.

    Raises:
        Unreplaceable: arguments or results hold tensors in a container that is not known here.
    """
    code = _Code(signature, device)
    parameters, onward = code.parameters(described or original)
    result = code.result(signature.result)
    inputs = ", ".join(code.reached[i] for i in sorted(code.reached))
    names = {"original": original, "produce": produce, "Tensor": Tensor, "rebuild": rebuild, "device": device}
    bound = {f"_forge_{name}": value for name, value in names.items()} | code.values
    source = (
        f"def _forge_make({', '.join(bound)}):\n"
        f"    def stand_in({parameters}):\n"
        f"        if {' or '.join(code.checks) or 'False'}:\n"
        f"            return _forge_original({onward})\n"
        f"        _forge_out = _forge_produce([{inputs}], {site})\n"
        f"        return {result}\n"
        f"    return stand_in\n"
    )
    namespace: dict[str, Any] = {"__name__": __name__}
    # the source is generated from a validated signature: identifiers of the callable's parameters and constants
    exec(compile(source, f"<forge stand-in {site}>", "exec"), namespace)  # noqa: S102
    made: Callable[..., Any] = namespace["_forge_make"](**bound)
    return made


class _Code:
    """The parts of one stand-in's text."""

    def __init__(self, signature: Signature, device: torch.device) -> None:
        self.signature = signature
        self.device = device
        self.checks: list[str] = []
        self.reached: dict[int, str] = {}
        """Expression of each input that is an argument."""
        self.values: dict[str, Any] = {}

    def parameters(self, fn: Callable[..., Any]) -> tuple[str, str]:
        """The parameter list, and the arguments that pass everything on; the checks are added."""
        positional, named = (next(iter(part.values())) for part in self.signature.call["tuple"])
        bound = signature_of(fn)
        if bound is None:
            self.checks.append(f"len(_forge_args) != {len(positional)} or len(_forge_kwargs) != {len(named)}")
            for i, item in enumerate(positional):
                self._check(item, f"_forge_args[{i}]")
            self._check_named(named, "_forge_kwargs")
            return "*_forge_args, **_forge_kwargs", "*_forge_args, **_forge_kwargs"
        return self._bound(bound, positional, dict(named))

    def _bound(
        self, bound: inspect.Signature, positional: Sequence[Tree], named: dict[str, Tree]
    ) -> tuple[str, str]:
        text: list[str] = []
        onward: list[str] = []
        position, last, starred = 0, None, False
        for name, parameter in bound.parameters.items():
            if last is parameter.POSITIONAL_ONLY and parameter.kind is not last:
                text.append("/")
            last = parameter.kind
            if parameter.kind is parameter.VAR_POSITIONAL:
                rest, position, starred = positional[position:], len(positional), True
                self.checks.append(f"len({name}) != {len(rest)}")
                for i, item in enumerate(rest):
                    self._check(item, f"{name}[{i}]")
                text.append(f"*{name}")
                onward.append(f"*{name}")
                continue
            if parameter.kind is parameter.VAR_KEYWORD:
                self.checks.append(f"len({name}) != {len(named)}")
                self._check_named(named, name)
                named = {}
                text.append(f"**{name}")
                onward.append(f"**{name}")
                continue
            if parameter.kind is parameter.KEYWORD_ONLY and not starred:
                starred = True
                text.append("*")
            default = "" if parameter.default is parameter.empty else self._put(parameter.default)
            text.append(f"{name}={default}" if default else name)
            onward.append(f"{name}={name}" if parameter.kind is parameter.KEYWORD_ONLY else name)
            if name in named:
                self._check(named.pop(name), name)
            elif parameter.kind is not parameter.KEYWORD_ONLY and position < len(positional):
                self._check(positional[position], name)
                position += 1
            elif default:  # not passed when captured: a default that is no constant
                self.checks.append(f"{name} is not {default}")
        if last is inspect.Parameter.POSITIONAL_ONLY:
            text.append("/")
        return ", ".join(text), ", ".join(onward)

    def _check_named(self, named: dict[str, Tree], at: str) -> None:
        for key, item in named.items():
            self.checks.append(f"{key!r} not in {at}")
            self._check(item, f"{at}[{key!r}]")

    def _check(self, tree: Tree, at: str) -> None:
        (kind, value), = tree.items()  # fmt: skip
        match kind:
            case "in":
                spec = self.signature.inputs[value].spec
                self.reached[value] = at
                self.checks.append(
                    f"not isinstance({at}, _forge_Tensor) or {at}.shape != {self._put(tuple(spec.shape))} "
                    f"or {at}.dtype is not {self._put(getattr(torch, spec.dtype))}"
                )
            case "value" if value is None or type(value) is bool:
                self.checks.append(f"{at} is not {value!r}")
            case "value":
                self.checks.append(f"type({at}) is not {type(value).__name__} or {at} != {self._put(value)}")
            case "float":
                number = float(value)
                same = f"{at} == {at}" if math.isnan(number) else f"{at} != {self._put(number)}"
                self.checks.append(f"type({at}) is not float or {same}")
            case "dtype":
                self.checks.append(f"{at} is not {self._put(getattr(torch, value))}")
            case "tuple" | "list":
                self.checks.append(f"type({at}) is not {kind} or len({at}) != {len(value)}")
                for i, item in enumerate(value):
                    self._check(item, f"{at}[{i}]")
            case "dict":
                self.checks.append(f"type({at}) is not dict or len({at}) != {len(value)}")
                self._check_named(value, at)
            case _ if _tensors(tree):
                raise Unreplaceable(f"it takes tensors inside of a {kind}")

    def result(self, tree: Tree) -> str:
        """The expression of the result, from `_forge_out` and the arguments."""
        (kind, value), = tree.items()  # fmt: skip
        match kind:
            case "out":
                return f"_forge_out[{int(value)}]" if len(self.signature.outputs) > 1 else "_forge_out"
            case "in" if value in self.reached:
                return self.reached[value]
            case "tuple":
                return "(" + "".join(f"{self.result(item)}, " for item in value) + ")"
            case "list":
                return "[" + ", ".join(self.result(item) for item in value) + "]"
            case "dict":
                return "{" + ", ".join(f"{key!r}: {self.result(item)}" for key, item in value.items()) + "}"
        found = _tensors(tree)
        if not found:
            return self._put(rebuild(tree, (), (), self.device))
        if any(kind == "in" and i not in self.reached for kind, i in found):
            raise Unreplaceable("it gives a tensor back that is no argument")
        inputs = [self.reached.get(i, "None") for i in range(len(self.signature.inputs))]
        outputs = "_forge_out" if len(self.signature.outputs) > 1 else "(_forge_out,)"
        return f"_forge_rebuild({self._put(tree)}, ({''.join(f'{i}, ' for i in inputs)}), {outputs}, _forge_device)"

    def _put(self, value: Any) -> str:
        """The name of a value that the code refers to."""
        name = f"_forge_{len(self.values)}"
        self.values[name] = value
        return name


def _tensors(tree: Any) -> list[tuple[str, int]]:
    """Every reference to an input or output below a tree, whatever its containers."""
    if isinstance(tree, dict):
        if len(tree) == 1:
            (kind, value), = tree.items()  # fmt: skip
            if kind in ("in", "out") and type(value) is int:
                return [(kind, value)]
        return [found for value in tree.values() for found in _tensors(value)]
    if isinstance(tree, (list, tuple)):
        return [found for value in tree for found in _tensors(value)]
    return []
