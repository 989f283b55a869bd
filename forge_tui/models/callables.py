"""Functions found by name, their Python source, and the tensors that they read beside their arguments."""

from __future__ import annotations

import gc
import importlib
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from forge_tui.core.errors import ModelError

#: where one tensor sits: how it is read and how it is written
Slot = tuple[Callable[[], Any], Callable[[Any], None]]
_PARSES = 3


def find_function(qualname: str) -> Callable[..., Any]:
    """The function that `module:qualname` names.

    Raises:
        ModelError: there is none (the file changed since it was profiled).
    """
    name, _, path = qualname.partition(":")
    value: Any = None
    try:
        value = sys.modules.get(name) or importlib.import_module(name)
        for part in path.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise ModelError(f"There is no function {path} in {name}.", "Profile the model again.") from error
    if not callable(value):
        raise ModelError(f"{path} in {name} is not a function.", "Profile the model again.")
    return value  # type: ignore[no-any-return]


def closure_tensors(fn: Callable[..., Any]) -> dict[str, Tensor]:
    """Tensors that a function may read from enclosing functions or from its module, by name."""
    if not isinstance(fn, FunctionType):
        return {}
    found = {name: cell.cell_contents for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
             if _filled(cell)}  # fmt: skip
    for name in fn.__code__.co_names:
        if name in fn.__globals__:
            found.setdefault(name, fn.__globals__[name])
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def function_slot(fn: Callable[..., Any], name: str) -> Slot:
    """Where a function's closure tensor of this name sits.

    Raises:
        ModelError: the function has none.
    """
    if isinstance(fn, FunctionType):
        if name in fn.__code__.co_freevars:
            cell = (fn.__closure__ or ())[fn.__code__.co_freevars.index(name)]
            return (lambda: cell.cell_contents), (lambda value: setattr(cell, "cell_contents", value))
        if name in fn.__globals__:
            return item_slot(fn.__globals__, name)
    raise ModelError(f"The function no longer reads {name}.", "Profile the model again.")


def item_slot(holder: dict[str, Any], name: str) -> Slot:
    """The slot of a dictionary's item."""
    return (lambda: holder[name]), (lambda value: holder.__setitem__(name, value))


#: packages whose source is no news to a model, nor anybody's secret
_KNOWN = ("torch", "builtins")


def source_of(value: Any, longest: int = 8192) -> str:
    """Python source of a callable (the class, for a module), or nothing where there is none."""
    subject = type(value) if isinstance(value, nn.Module) else value
    text = ""
    for _ in range(_PARSES):
        try:
            text = inspect.getsource(subject)
            break
        except (OSError, TypeError):
            return ""
        except SystemError:
            # CPython 3.11 loses count of its recursion now and then when it parses a file amid a collection (gh-106905)
            gc.collect()
    return text if len(text) <= longest else f"{text[:longest]}\n# ... cut\n"


def module_source_of(value: Any, longest: int = 32_768) -> str:
    """Python source of the file that a callable stands in; nothing for PyTorch's own, which everybody knows."""
    subject = type(value) if isinstance(value, nn.Module) else value
    module = inspect.getmodule(subject)
    if module is None or module.__name__.partition(".")[0] in _KNOWN:
        return ""
    return source_of(module, longest)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
