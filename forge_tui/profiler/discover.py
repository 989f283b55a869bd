"""Which Python functions of the model's own packages run and give tensors: found by watching one model call.

The interpreter's profile hook (`sys.setprofile`) tells of every Python call; code outside of the model's packages is
left out by its file name, once for each code object.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

from forge_tui.models.load import LoadedModel
from forge_tui.models.tensors import has_tensor

#: packages that are not the model's, even where a model's classes come from them
_FOREIGN = {"torch", "forge_tui", "builtins", "functools", "contextlib", "typing", "abc", "collections"}


class Found(NamedTuple):
    """A function and the name by which its module has it."""

    name: str
    function: FunctionType


def own_folders(loaded: LoadedModel) -> tuple[str, ...]:
    """Folders and files whose code counts as the model's: its own modules, and the packages that they belong to."""
    found: set[str] = set()
    for name in loaded.own_modules:
        root = name.partition(".")[0]
        if root in _FOREIGN and not name.startswith("forge_tui.examples."):
            continue
        package = sys.modules.get(root)
        file = getattr(sys.modules.get(name), "__file__", None)
        if root != name and not name.startswith("forge_tui.") and getattr(package, "__path__", None):
            assert package is not None
            found |= {f"{Path(folder).resolve()}/" for folder in package.__path__}
        elif file:
            found.add(str(file))
    return tuple(sorted(found))


def discover(loaded: LoadedModel) -> list[Found]:
    """Functions of the model's packages that took and gave tensors in one model call, in order of their first return.

    Methods, local functions and generators are left out: nothing can take their place. A profile hook that is
    installed already (a debugger's) is put back; where that is not possible (cProfile's is no Python object) the
    functions of the model's own modules are given, called or not.
    """
    before: Any = sys.getprofile()
    if before is not None and not callable(before):
        spaces = [vars(sys.modules[name]) for name in loaded.own_modules if name in sys.modules]
        return [found for space in spaces for same in by_code(space).values() for found in same]
    watch = _Watch(own_folders(loaded))
    sys.setprofile(watch)
    try:
        loaded.run()
    finally:
        sys.setprofile(before)
    return watch.functions


class _Watch:
    """The profile hook."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self.functions: list[Found] = []
        self._folders = folders
        self._own: dict[CodeType, list[Found]] = {}
        self._spaces: dict[int, dict[CodeType, list[Found]]] = {}
        self._takes: dict[int, bool] = {}

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if code not in self._own:
            self._own[code] = self._functions(frame)
        functions = self._own[code]
        if not functions:
            return
        if event == "call":
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            rest = code.co_varnames[len(names) : len(names) + bool(code.co_flags & inspect.CO_VARARGS)]
            values = frame.f_locals
            self._takes[id(frame)] = any(has_tensor(values.get(name)) for name in (*names, *rest))
        elif self._takes.pop(id(frame), False) and value is not None and has_tensor(value):
            self.functions += [found for found in functions if found not in self.functions]
            self._own[code] = []

    def _functions(self, frame: FrameType) -> list[Found]:
        code = frame.f_code
        skipped = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
        if code.co_flags & skipped or not code.co_filename.startswith(self._folders):
            return []
        space = frame.f_globals
        if id(space) not in self._spaces:
            self._spaces[id(space)] = by_code(space)
        return self._spaces[id(space)].get(code, [])


def by_code(namespace: dict[str, Any]) -> dict[CodeType, list[Found]]:
    """Functions of a module by the code that they run, with their decorators around them.

    Where a decorator hides what it wraps, all functions that it made run one code, and all of them are given.
    """
    inner: dict[CodeType, list[Found]] = {}
    outer: dict[CodeType, list[Found]] = {}
    for name, held in list(namespace.items()):
        if not isinstance(held, FunctionType) or held.__module__ != namespace.get("__name__"):
            continue
        chain = [held]
        while isinstance(wrapped := vars(chain[-1]).get("__wrapped__"), FunctionType):
            chain.append(wrapped)
        inner.setdefault(chain[-1].__code__, []).append(Found(name, held))
        for function in chain[:-1]:
            outer.setdefault(function.__code__, []).append(Found(name, held))
    return {code: found for code, found in outer.items() if len(found) == 1} | inner
