"""Where functions are looked up: the dictionaries that hold them, so that a wrapper or a kernel can take their place.

Namespaces of Python modules, attributes of objects, and tables of functions (an attention implementation by its name).
Not reached are class bodies, closures, default arguments, lists, tuples and `functools.partial`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """One entry of a dictionary that holds a function."""

    holder: dict[Any, Any]
    key: Any


def places_of(functions: Iterable[Callable[..., Any]]) -> dict[int, list[Place]]:
    """Every place of each function, by its `id`; module namespaces first.

    The garbage collector's view of the heap is read, which takes tenths of a second in a process with torch loaded.
    """
    wanted = {id(f): f for f in functions}
    found: dict[int, list[Place]] = {key: [] for key in wanted}
    if not wanted:
        return found
    seen: set[int] = {id(wanted)}
    for holder in [*_namespaces(), *_tables(list(wanted.values()), seen)]:
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for key, value in list(holder.items()):
            if id(value) in wanted and key != "__wrapped__":
                found[id(value)].append(Place(holder, key))
    return found


def _namespaces() -> list[dict[Any, Any]]:
    return [vars(module) for module in list(sys.modules.values()) if isinstance(module, ModuleType)]


def _tables(functions: list[Callable[..., Any]], ours: Collection[int]) -> list[dict[Any, Any]]:
    """Dictionaries beside module namespaces that hold one of the functions and are held by an object or a class."""
    dicts = [r for r in gc.get_referrers(*functions) if type(r) is dict and id(r) not in ours]
    holders = _holders(dicts)
    return [table for table in dicts if _is_table(table, holders[id(table)])]


def _holders(tables: list[dict[Any, Any]]) -> dict[int, list[Any]]:
    """What holds each of the tables, by its `id`; the heap is read once for all of them, as it may be large."""
    found: dict[int, list[Any]] = {id(table): [] for table in tables}
    if not tables:
        return found
    for holder in gc.get_referrers(*tables):
        if holder is not tables and not isinstance(holder, FrameType):
            for key in {id(r) for r in gc.get_referents(holder)} & found.keys():
                found[key].append(holder)
    return found


def _is_table(table: dict[Any, Any], holders: list[Any]) -> bool:
    # our own objects keep originals to call and to put back
    if any(type(h).__module__.startswith("forge_tui.") for h in holders):
        return False
    # a class reads its dictionary through a cache: what is changed behind its back is not seen
    if any(isinstance(h, type) and _is_body(h, table) for h in holders):
        return False
    return any(not isinstance(h, (list, tuple)) for h in holders)


def _is_body(kind: type, table: dict[Any, Any]) -> bool:
    body = vars(kind)
    return len(body) == len(table) and all(body.get(name, body) is value for name, value in table.items())
