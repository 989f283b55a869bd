"""Outputs against the original's: limits from the model's own error, never a constant."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn

from forge_tui.deploy.compare import (
    Limit,
    Tolerance,
    difference,
    distance,
    find_tolerance,
    incomparable,
    leaves,
    run_outputs,
)
from forge_tui.models.load import load_model
from forge_tui.models.spec import ModelRequest, parse_model


def load(tmp_path, text, name="model.py", dtype=None):
    """The model of a file with this text."""
    path = tmp_path / name
    path.write_text("import torch\nfrom torch import nn\n" + text)
    return load_model(parse_model(str(path), ModelRequest(dtype=dtype)), "cpu")


DEEP = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(64, 64), nn.Tanh())])
    def forward(self, x):
        return self.layers(x)
def build():
    torch.manual_seed(0)
    return Model(), (torch.randn(32, 64),), {}
"""


@pytest.mark.parametrize(("dtype", "low", "high"), [("float32", 1e-9, 1e-5), ("bfloat16", 1e-4, 0.1)])
def test_the_limit_follows_the_dtype(tmp_path, dtype, low, high):
    """The same model in float32 and bfloat16: limits apart by the ratio of their rounding, and both pass themselves."""
    loaded = load(tmp_path, DEEP, dtype=dtype)
    base = run_outputs(loaded, 0)
    tolerance = find_tolerance(loaded, base, 0)
    assert "against a run in higher precision" in tolerance.text
    assert low < tolerance.limits[0].rms < tolerance.limits[0].max_abs < high
    assert difference(run_outputs(loaded, 0), base, tolerance) == difference(base, base, tolerance)
    gap = difference(base, base, tolerance)
    assert (gap.max_abs, gap.rms, gap.within) == (0, 0, True)


def test_an_error_as_large_as_the_originals_own_passes_and_ten_times_that_does_not(tmp_path):
    """A kernel may round as the original rounds, not worse."""
    loaded = load(tmp_path, DEEP)
    base = run_outputs(loaded, 0)
    tolerance = find_tolerance(loaded, base, 0)
    exact = load(tmp_path, DEEP, "exact.py", dtype="float64")
    (_, precise), = run_outputs(exact, 0)  # fmt: skip
    own = distance(precise, base[0][1])
    mirrored = base[0][1].double() + (base[0][1].double() - precise)
    ok = difference([("output", mirrored.float())], base, tolerance)
    assert ok.within, ok.why
    worse = difference([("output", (base[0][1].double() + 10 * own.rms).float())], base, tolerance)
    assert not worse.within
    assert "output differs by" in worse.why
    assert "limit" in worse.why


def test_a_model_without_a_higher_precision_gets_the_rounding_bound_with_the_reason(tmp_path):
    """In float64 there is nothing above; the text says so."""
    loaded = load(tmp_path, DEEP, dtype="float64")
    tolerance = find_tolerance(loaded, run_outputs(loaded, 0), 0)
    assert tolerance.text.startswith(
        "rounding of the dtype times the square root of 12 layers, because it has no higher precision to run in")
    assert 0 < tolerance.limits[0].rms < 1e-13


def test_a_model_that_runs_in_one_dtype_only_gets_the_rounding_bound(tmp_path):
    """A table in float32 that meets float64 weights raises: the other bound serves."""
    loaded = load(tmp_path, """
TABLE = torch.randn(64, 64)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))
    def forward(self, x):
        return (x @ self.weight) @ TABLE
def build():
    return Model(), (torch.randn(8, 64),), {}
""")
    tolerance = find_tolerance(loaded, run_outputs(loaded, 0), 0)
    assert "because its run in higher precision failed (RuntimeError)" in tolerance.text
    assert tolerance.limits[0].max_abs > tolerance.limits[0].rms > 0


def test_a_model_that_moves_by_itself_gets_room_for_that(tmp_path):
    """Outputs that differ between equal runs cannot be held to less."""
    loaded = load(tmp_path, """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.count = 0
    def forward(self, x):
        self.count += 1
        return x * self.weight + (self.count % 2) * 0.125
def build():
    return Model(), (torch.ones(4),), {}
""")
    tolerance = find_tolerance(loaded, run_outputs(loaded, 0), 0)
    assert tolerance.limits[0].max_abs >= 0.25
    assert tolerance.limits[0].rms >= 0.25


def test_integer_outputs_must_be_equal(tmp_path):
    """The index of the largest logit is not a matter of rounding when the precise run agrees."""
    loaded = load(tmp_path, """
def build():
    torch.manual_seed(0)
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(16, 8)
        def forward(self, x):
            y = self.lin(x)
            return {"logits": y, "ids": y.argmax(-1), "name": "a", "scale": 0.5}
    return Model(), (torch.randn(10, 16),), {}
""")
    base = run_outputs(loaded, 0)
    assert [path for path, _ in base] == ["output.logits", "output.ids", "output.name", "output.scale"]
    tolerance = find_tolerance(loaded, base, 0)
    other = [(path, leaf.clone() if isinstance(leaf, torch.Tensor) else leaf) for path, leaf in base]
    other[1][1][3] += 1
    gap = difference(other, base, tolerance)
    assert not gap.within
    assert gap.why == "10.00% of the elements of output.ids differ (limit 0.00%)"
    other = [(path, "b" if path.endswith("name") else leaf) for path, leaf in base]
    assert difference(other, base, tolerance).why == "output.name is 'b' instead of 'a'"


class Pair(NamedTuple):
    """A named tuple as an output."""

    a: int
    b: None


@dataclass
class Output:
    """What libraries return."""

    logits: torch.Tensor
    cache: object = None


def test_leaves_of_every_structure_are_found_and_are_copies():
    """Dictionaries, named tuples, dataclasses, plain objects; a tensor changed later is not seen."""
    class Bag:
        def __init__(self):
            self.inner = torch.ones(2)

    t = torch.zeros(3)
    found = dict(leaves({"o": Output(t, Bag()), "p": Pair(1, None), "l": [2.5]}))
    assert set(found) == {"output.o.logits", "output.o.cache.inner", "output.p.0", "output.p.1", "output.l.0"}
    t += 1
    assert found["output.o.logits"].sum() == 0
    assert found["output.l.0"].dtype is torch.float64


def test_distance_knows_nan_infinity_complex_and_empty():
    """Equal special values are equal; a new NaN is infinitely far."""
    inf, nan = math.inf, math.nan
    special = torch.tensor([inf, -inf, nan, 1.0])
    assert distance(special, special).max_abs == 0
    assert distance(torch.tensor([nan]), torch.tensor([1.0])).max_abs == inf
    assert distance(torch.tensor([1.0]), torch.tensor([nan])).max_abs == inf
    assert distance(torch.tensor([inf]), torch.tensor([-inf])).max_abs == inf
    assert distance(torch.tensor([1 + 2j]), torch.tensor([1 + 4j])).max_abs == 2
    gap = distance(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 5.0]))
    assert (gap.max_abs, gap.mismatches, gap.size_max) == (3, 0.5, 5)
    assert gap.rms == pytest.approx(math.sqrt(4.5))
    empty = Tolerance((Limit(0, 0),), "")
    assert difference([("o", torch.empty(0))], [("o", torch.empty(0))], empty).within


def test_another_shape_dtype_or_structure_is_never_within():
    """Not even with an infinite limit."""
    wide = Tolerance((Limit(math.inf, math.inf),), "")
    base = [("o", torch.zeros(3))]
    assert "shape or dtype" in difference([("o", torch.zeros(4))], base, wide).why
    assert "shape or dtype" in difference([("o", torch.zeros(3).double())], base, wide).why
    assert "structure" in difference([("p", torch.zeros(3))], base, wide).why
    assert not difference([("o", None)], base, wide).within


def test_a_new_nan_is_not_within_any_limit_the_model_can_have():
    """Comparisons with NaN are false; the check must not pass by that."""
    wide = Tolerance((Limit(1e30, 1e30),), "")
    assert not difference([("o", torch.tensor([math.nan]))], [("o", torch.tensor([1.0]))], wide).within


def test_outputs_that_prove_nothing_are_refused():
    """No tensor, or nothing finite."""
    assert "returns no tensor" in incomparable([("o", 3), ("p", None)])
    assert "returns no tensor" in incomparable([("o", torch.empty(0))])
    assert "NaN or infinite" in incomparable([("o", torch.full((3,), math.nan))])
    assert incomparable([("o", torch.ones(3))]) == ""


def test_a_run_in_higher_precision_leaves_the_model_as_it_is(tmp_path):
    """Dtype, values and outputs are untouched."""
    loaded = load(tmp_path, DEEP)
    before = {k: v.clone() for k, v in loaded.module.state_dict().items()}
    find_tolerance(loaded, run_outputs(loaded, 0), 0)
    after = loaded.module.state_dict()
    assert all(torch.equal(after[k], v) and after[k].dtype is torch.float32 for k, v in before.items())
    assert isinstance(loaded.module, nn.Module)
