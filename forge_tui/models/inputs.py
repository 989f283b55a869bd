"""Input sets that a person gives: from a file of tensors, or from a function that yields one after another.

A set is the arguments of one call of the model. Several sets are several phases of weight 1, `set 1`, `set 2`, ...
"""

from __future__ import annotations

import inspect
import itertools
import pickle
import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from forge_tui.core.errors import ModelError, UsageError
from forge_tui.core.records import ModelSpec
from forge_tui.models.factories import placement, run
from forge_tui.models.faults import explain
from forge_tui.models.importing import import_model, module_name
from forge_tui.models.phases import Phase, move

MAX_SETS = 64
_POSITION = re.compile(r"arg(\d+)")
_FORM = "A set is a tuple of arguments, a dictionary of keyword arguments, or (args, kwargs)."


@dataclass(frozen=True, slots=True)
class InputSet:
    """The arguments of one call."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


class Entry:
    """A workload: a call of one of the module's methods that is not its forward."""

    def __init__(self, name: str, given: InputSet) -> None:
        self._name = name
        self._given = given

    def __call__(self, module: nn.Module) -> Any:
        """Make the call; whatever the model raises passes through."""
        return getattr(module, self._name)(*self._given.args, **self._given.kwargs)

    def moved(self, device: torch.device, dtype: torch.dtype | None) -> Entry:
        """The same with its tensors on the device; floating ones in the dtype."""
        args, kwargs = move(self._given.args, device, dtype), move(self._given.kwargs, device, dtype)
        return Entry(self._name, InputSet(args, kwargs))


def input_phases(spec: ModelSpec, module: nn.Module, entry: str, source: types.ModuleType) -> tuple[Phase, ...]:
    """The phases of the sets that the spec names; `entry` is the method that a model call is.

    Raises:
        UsageError: the file cannot be read, holds anything else, or its names are not those of the method.
        ModelError: the function raised, or yields anything else.
    """
    if spec.inputs:
        what, sets = spec.inputs, read_sets(Path(spec.inputs))
    else:
        what, sets = spec.vary, varied_sets(spec, source)
    several = len(sets) > 1
    phases = []
    for number, given in enumerate(sets, 1):
        name = f"set {number}" if several else ""
        _check(given, getattr(module, entry), f"{what}{f', {name},' if several else ''}", type(module).__name__, entry)
        if entry == "forward":
            phases.append(Phase(name, given.args, given.kwargs))
        else:
            phases.append(Phase(name, workload=Entry(entry, given)))
    return tuple(phases)


def read_sets(path: Path) -> list[InputSet]:
    """The sets in a `.safetensors` or `.pt` file; nothing of it is run.

    Raises:
        UsageError: it cannot be read, or holds no sets.
    """
    try:
        content = _tensors(path) if path.suffix == ".safetensors" else _pickled(path)
    except OSError as error:
        raise UsageError(f"The inputs {path} cannot be read: {error.strerror or error}.") from error
    if isinstance(content, Tensor):
        return [InputSet((content,))]
    if isinstance(content, dict):
        return _named_sets(content, path)
    if isinstance(content, list) and content and all(isinstance(item, (dict, list, tuple)) for item in content):
        return _limited([set_of(item, f"{path}, set {number},") for number, item in enumerate(content, 1)], str(path))
    return [set_of(content, str(path))]


def set_of(value: Any, what: str) -> InputSet:
    """One set from a tensor, a tuple or list of arguments, a dictionary of keyword arguments, or (args, kwargs).

    Raises:
        ModelError: it is none of these.
    """
    if isinstance(value, Tensor):
        return InputSet((value,))
    if isinstance(value, Mapping):
        return _from_names(value, what)
    if isinstance(value, (tuple, list)):
        if len(value) == 2 and isinstance(value[0], (tuple, list)) and isinstance(value[1], Mapping):
            named = _from_names(value[1], what)
            if not named.args:
                return InputSet(tuple(value[0]), named.kwargs)
        return InputSet(tuple(value))
    raise ModelError(f"{what} holds {type(value).__name__}, which is no set of inputs.", _FORM)


def varied_sets(spec: ModelSpec, source: types.ModuleType) -> list[InputSet]:
    """The sets that the function of `--vary` yields.

    Raises:
        ModelError: it is not there, raised, or yields none, too many, or something else.
    """
    file, _, name = spec.vary.rpartition(":")
    where = msgspec.structs.replace(spec, text=file, path=file, factory=name, hf=None)
    module = sys.modules.get(module_name(Path(file)))
    if module is None:
        module = source if getattr(source, "__file__", None) == file else import_model(where)
    function = getattr(module, name, None)
    if not callable(function):
        raise ModelError(f"{file} has no function {name}.", "Write --vary file.py:NAME.")
    dtype = getattr(torch, spec.dtype) if spec.dtype else None
    found: list[InputSet] = []
    versions: list[tuple[Tensor, int]] = []
    values = run(where, f"{name}()", lambda: function(**placement(function, torch.device("cpu"), dtype)))
    if isinstance(values, (Tensor, Mapping, str)) or not isinstance(values, Iterable):
        raise ModelError(f"{name}() in {file} returned {type(values).__name__}, not sets of inputs.",
                         "Let it yield one set after another.")  # fmt: skip
    try:
        for value in itertools.islice(values, MAX_SETS + 1):
            found.append(set_of(value, f"{name}() in {file}, set {len(found) + 1},"))
            leaves = pytree.tree_leaves((found[-1].args, found[-1].kwargs))
            versions += [(t, t._version) for t in leaves if isinstance(t, Tensor)]  # noqa: SLF001 - torch's own counter
    except BaseException as error:
        raise explain(error, where, f"{name}() failed") from error
    if any(t._version != version for t, version in versions):  # noqa: SLF001
        raise ModelError(
            f"{name}() in {file} writes into a tensor that it has yielded before, so two sets are one.",
            "Let it yield new tensors, such as x.clone().",
        )
    return _limited(found, f"{name}() in {file}")


def _limited(sets: list[InputSet], what: str) -> list[InputSet]:
    if not sets:
        raise ModelError(f"{what} gives no set of inputs.", _FORM)
    if len(sets) > MAX_SETS:
        raise ModelError(f"{what} gives more than {MAX_SETS} sets of inputs.", "Each is profiled: give fewer.")
    return sets


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(str(path)))
    except SafetensorError as error:
        raise UsageError(f"{path} is not a safetensors file: {error}.") from error


def _pickled(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"{path} holds more than tensors, numbers, texts, lists, tuples and dictionaries, which could run code; it "
            "is not loaded.",
            "Save it again with torch.save() of such values only.",
        ) from error
    except OSError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())[:200].rstrip(".")
        raise UsageError(f"{path} is not a file of torch.save(): {why or type(error).__name__}.") from error


def _named_sets(content: Mapping[Any, Any], path: Path) -> list[InputSet]:
    """One set by name, or several with names such as `0/input_ids`."""
    names = list(content)
    divided = [name for name in names if isinstance(name, str) and "/" in name]
    if not divided:
        return [_from_names(content, str(path))]
    if len(divided) < len(names):
        other = next(name for name in names if name not in divided)
        raise UsageError(f"{path} has names of sets ({divided[0]}) and others ({other}).", "Write SET/NAME throughout.")
    sets: dict[str, dict[str, Any]] = {}
    for name in names:
        key, _, rest = name.partition("/")
        sets.setdefault(key, {})[rest] = content[name]
    ordered = sorted(sets, key=lambda key: (not key.isdecimal(), int(key) if key.isdecimal() else 0, key))
    return _limited([_from_names(sets[key], f"{path}, set {key},") for key in ordered], str(path))


def _from_names(named: Mapping[Any, Any], what: str) -> InputSet:
    """Arguments by name; `arg0`, `arg1` are positions, and `a.b` is the entry `b` of a dictionary `a`."""
    args: dict[int, Any] = {}
    kwargs: dict[str, Any] = {}
    for name, value in named.items():
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"{what} names an input {name!r}, which no parameter can be called.", _FORM)
        position = _POSITION.fullmatch(name)
        if position:
            args[int(position[1])] = value
            continue
        *outer, last = name.split(".")
        holder = kwargs
        for part in outer:
            holder = holder.setdefault(part, {})
            if not isinstance(holder, dict):
                raise UsageError(f"{what} gives {part} both as a value and as a dictionary.", _FORM)
        holder[last] = value
    if sorted(args) != list(range(len(args))):
        raise UsageError(f"{what} has the positions {sorted(args)}.", "Count them from arg0, without gaps.")
    return InputSet(tuple(args[i] for i in range(len(args))), kwargs)


def _check(given: InputSet, method: Any, what: str, model: str, entry: str) -> None:
    """Whether a call with these arguments is possible at all."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return  # scripted modules have none
    try:
        signature.bind(*given.args, **given.kwargs)
    except TypeError as error:
        names: Sequence[str] = [n for n, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD]
        raise UsageError(
            f"The inputs of {what} do not fit {model}.{entry}: {error}.", f"It takes {', '.join(names) or 'nothing'}."
        ) from error
