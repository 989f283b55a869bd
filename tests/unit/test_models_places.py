"""A function is found wherever a dictionary holds it, and nowhere that a change would not be seen."""

import sys
import types
from dataclasses import dataclass, field

from forge_tui.models.places import places_of


def make(value):
    """Functions that nothing else holds."""

    def fn():
        return value

    return fn


def test_namespaces_tables_and_attributes(monkeypatch):
    """Modules that imported it by any name, a table of functions in a class, a nested table: each is a place."""
    fn, other = make(1), make(2)
    home, user = types.ModuleType("forge_home"), types.ModuleType("forge_user")
    home.fn, home.other, user.renamed = fn, other, fn
    user.table = {"a": fn, "b": other, 3: fn}
    user.Registry = type("Registry", (), {"mapping": {"eager": fn}, "deep": {"x": {"y": fn}}})
    for module in (home, user):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found = places_of([fn])
    holders = [(id(p.holder), p.key) for p in found[id(fn)]]
    assert holders[:2] == [(id(vars(home)), "fn"), (id(vars(user)), "renamed")]
    assert set(holders[2:]) == {
        (id(user.table), "a"), (id(user.table), 3), (id(user.Registry.mapping), "eager"),
        (id(user.Registry.deep["x"]), "y"),
    }  # fmt: skip


def test_class_bodies_and_wrappers_are_no_places():
    """A method's own class, `__wrapped__`, lists and closures are left alone."""
    fn = make(1)
    wrapper = make(2)
    wrapper.__wrapped__ = fn
    kind = type("Kind", (), {"method": fn})
    kept = [fn, (fn,), lambda: fn, kind, wrapper]
    assert places_of([fn])[id(fn)] == []
    assert len(kept) == 5


def test_no_functions_no_places():
    """Nothing is asked of the heap where there is nothing to find."""
    assert places_of([]) == {}


@dataclass
class Holder:
    """An object with a table."""

    table: dict = field(default_factory=dict)


def test_a_table_of_an_object_can_be_changed():
    """What stands at a place is what the code that looks there calls."""
    fn = make("before")
    holder = Holder({"f": fn})
    (place,) = places_of([fn])[id(fn)]
    place.holder[place.key] = make("after")
    assert holder.table["f"]() == "after"
