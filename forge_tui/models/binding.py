"""Arguments bound to a callable's Python signature, so that one call has one form."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from forge_tui.models.trees import NotEligible


def canonical(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any], list[str]]:
    """Arguments bound to the signature, plain defaults filled in; positional ones with their names.

    A callable without a signature (many torch functions in C) keeps the call as it was written.
    """
    signature = signature_of(fn)
    if signature is None:
        return list(args), dict(kwargs), [f"arg{i}" if len(args) > 1 else "x" for i in range(len(args))]
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise NotEligible(f"the call does not fit the signature: {error}") from None
    positional: list[Any] = []
    names: list[str] = []
    named: dict[str, Any] = {}
    gap = False
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            if gap and bound.get(name):
                raise NotEligible(f"its arguments cannot be bound past the default of {name}")
            positional += bound.get(name, ())
            names += [f"{name}.{i}" for i in range(len(bound.get(name, ())))]
        elif parameter.kind is parameter.VAR_KEYWORD:
            named |= bound.get(name, {})
        elif name not in bound and not is_plain(parameter.default):
            gap = True
        elif gap or parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = bound.get(name, parameter.default)
        else:
            positional.append(bound.get(name, parameter.default))
            names.append(name)
    return positional, named, names


def signature_of(fn: Callable[..., Any]) -> inspect.Signature | None:
    """The Python signature; of torch's boolean dispatchers (`max_pool2d`) that of the plain branch; None in C."""
    branch = _dispatched(fn)
    try:
        return inspect.signature(branch or fn)
    except (TypeError, ValueError):
        return None


def _dispatched(fn: Callable[..., Any]) -> Callable[..., Any] | None:
    code, cells = getattr(fn, "__code__", None), getattr(fn, "__closure__", None)
    if code is None or not cells or "if_false" not in code.co_freevars:
        return None
    branch = dict(zip(code.co_freevars, cells, strict=True))["if_false"].cell_contents
    return branch if callable(branch) else None


def is_plain(value: Any) -> bool:
    """Whether a default can stand in the tree as a constant."""
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype))
