"""Functions that take and give tensors are found while the model runs, wherever they are defined in its packages."""

import cProfile
import sys
from pathlib import Path

import pytest

from forge_tui.models.load import LoadedModel, load_model
from forge_tui.models.spec import parse_model
from forge_tui.profiler.discover import discover, own_folders
from forge_tui.profiler.sites import Sites

OPS = """
import functools, torch
from dataclasses import dataclass
def timed(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        return f(*args, **kwargs)
    return wrapper
def bare(f):
    def wrapper(*args):
        return f(*args)
    return wrapper
@dataclass
class Pair:
    a: object
    b: object
@timed
def decorated(x):
    return x + 1
@bare
def hidden(x):
    return x + 2
@timed
def decorated_but_unused(x):
    return x
def takes_list(xs):
    return [xs[0], xs[1]]
def gives_pair(x):
    return Pair(x, x * 2)
def number(x):
    return float(x.sum())
def from_nothing():
    return torch.ones(2)
def many(*xs):
    return xs[0] * 1
def unused(x):
    return x
def gen(x):
    yield x
def raises(x):
    raise ValueError("caught by the model")
TABLE = {"relu": takes_list}
"""
MODEL = """
import torch
from torch import nn
from {package} import ops as o
from {package}.ops import gives_pair as renamed
class Net(nn.Module):
    def helper(self, x):
        return x * 3
    def forward(self, x):
        def local(y):
            return y - 1
        y = o.decorated(x) + o.hidden(x) + o.TABLE["relu"]([x, x])[0] + renamed(x).b
        o.number(x); o.from_nothing(); list(o.gen(x))
        try:
            o.raises(x)
        except ValueError:
            pass
        return local(self.helper(y)) + o.many(x, x)
def build():
    return Net(), (torch.ones(2, 2),)
"""


NAMES = {"decorated", "hidden", "takes_list", "gives_pair", "many"}


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedModel:
    """A model whose functions lie in a package of its own, beside it."""
    package = f"pack_{tmp_path.name.replace('-', '_')}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / package / "ops.py").write_text(OPS)
    (tmp_path / "net.py").write_text(MODEL.format(package=package))
    return load_model(parse_model(str(tmp_path / "net.py")), "cpu")


def test_what_is_found(loaded):
    """Decorated functions, functions of a table, and those that take or give containers of tensors are found.

    Not found: methods, local functions, generators, what takes or gives no tensor, what raised, what was not called.
    """
    assert {f.name for f in discover(loaded)} == NAMES


def test_functions_are_seen_wherever_they_are_called_from(loaded):
    """Imported under another name or held in a table: the wrapper is what is called, and all is undone behind it."""
    found = discover(loaded)
    sites = Sites(loaded, found)
    seen = []

    class Listener:
        def enter(self, site, args, kwargs):
            seen.append((site.kind, site.name))
            return 0

        def leave(self, token, result):
            pass

        def abandon(self, token):
            pass

    ops = sys.modules[found[0].function.__module__]
    before = dict(vars(ops)), dict(ops.TABLE), dict(vars(loaded.source))
    want = loaded.run()
    with sites.heard(Listener()):
        assert loaded.run().equal(want)
    names = {name for kind, name in seen if kind == "function"}
    assert names == NAMES
    assert (dict(vars(ops)), dict(ops.TABLE), dict(vars(loaded.source))) == before


def test_the_interpreters_hook_is_put_back(loaded):
    """A debugger's profile hook is there again, also when the model raises."""
    def hook(frame, event, arg):
        return None

    sys.setprofile(hook)
    try:
        discover(loaded)
        assert sys.getprofile() is hook
        loaded.module.forward = lambda *_: 1 / 0
        with pytest.raises(ZeroDivisionError):
            discover(loaded)
        assert sys.getprofile() is hook
    finally:
        sys.setprofile(None)


def test_under_a_profiler_written_in_c(loaded):
    """The hook of cProfile cannot be put back, so it is not touched: the functions of the model's modules are taken."""
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        names = {f.name for f in discover(loaded)}
        assert sys.getprofile() is profiler
    finally:
        profiler.disable()
    assert names > NAMES
    assert "unused" in names


def test_own_folders():
    """An example's file is the model's, not the whole of this package; torch never is."""
    example = load_model(parse_model("example:resnet"), "cpu")
    assert [Path(f).name for f in own_folders(example)] == ["resnet.py"]
