"""Captured calls replay to the same output; callables that cannot be replayed are refused with the reason."""

import dataclasses
import math
import random
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from forge_tui.core.records import ModelSpec, Target
from forge_tui.models import capture
from forge_tui.models.held import origins_of
from forge_tui.models.load import LoadedModel
from forge_tui.models.phases import Phase
from forge_tui.models.resolve import caller
from forge_tui.profiler.capturing import Captured, Capturer
from forge_tui.profiler.discover import Found
from forge_tui.profiler.observe import Group, Observer
from forge_tui.profiler.sites import Sites
from forge_tui.profiler.verify import difference, replay_fault

RELAXED = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
TABLE = torch.arange(6.0)
STEPS = [0]
NOISE = {"seen": 0}


class Root(nn.Module):
    """Calls one thing, which is a child module or a function of this file, with the arguments of each call."""

    def __init__(self, what: Any, calls: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> None:
        super().__init__()
        self.what = what if isinstance(what, nn.Module) else None
        self.name = "" if self.what is not None else what.__name__
        self.calls = calls

    def forward(self) -> list[Any]:
        """Results of all calls."""
        found = []
        for args, kwargs in self.calls:
            fn = self.what
            if fn is None:
                fn = getattr(F, self.name) if hasattr(F, self.name) else globals()[self.name]
            found.append(fn(*args, **kwargs))
        return found


def observed(what: Any, *calls: tuple[tuple[Any, ...], dict[str, Any]], training: nn.Module | None = None):
    """The model with these calls, and the groups of the callable itself, without what happens inside of it."""
    root = Root(what, list(calls)).eval().requires_grad_(False)
    if training is not None:
        training.train()
    module = sys.modules[__name__]
    loaded = LoadedModel(ModelSpec(text="", path=""), root, (Phase(),), torch.device("cpu"), module, (__name__,),
                         origins_of(root, (__name__,)))  # fmt: skip
    ours = getattr(what, "__module__", "") == __name__ and not isinstance(what, nn.Module)
    sites = Sites(loaded, [Found(what.__name__, what)] if ours else [])
    with torch.no_grad():
        observer = Observer(loaded)
        seen = observer.run(loaded.phases[0], sites)
    groups = [g for g in observer.groups.values()
              if g.site.fn is getattr(what, "forward", what) or g.site.module is what]  # fmt: skip
    reasons = [reason for i, reason in observer.reason_of.items() if seen[i].parent == 0]
    return loaded, sites, groups, reasons


def captured(loaded: LoadedModel, sites: Sites, groups: list[Group], most: int = 4) -> dict[str, Captured]:
    """The calls of the groups, captured."""
    return Capturer(loaded, {g.key: (g, most) for g in groups}).run(sites)


def as_target(group: Group) -> Target:
    """The group as a target, its signature through JSON."""
    signature = group.signature(torch.device("cpu"))
    return Target(id="t", name=group.site.name, kind=group.site.kind, qualname=group.site.qualname,
                  instances=tuple(group.instances) if group.site.kind == "module" else (),
                  signature=type(signature)(**{f: getattr(signature, f) for f in signature.__struct_fields__}),
                  calls=1, time_us=1, share=1, floor_us=1, bound="memory", headroom_ms=1, bytes_moved=1,
                  flops=0)  # fmt: skip


def refusal(what: Any, *args: Any, **kwargs: Any) -> str:
    """Why this call is no target, after all that a profile does; empty if it is one."""
    loaded, sites, groups, reasons = observed(what, (args, kwargs))
    if reasons:
        return reasons[0]
    (group,) = groups
    if group.reason:
        return group.reason
    (found,) = captured(loaded, sites, groups).values()
    return found.refused or replay_fault(loaded, as_target(group), found)


# ---- what can be replayed


def two_outputs(a, b, *, keep=True):
    """Results of every kind."""
    return a + b, {"diff": [a - b], "a": a, "n": None, "keep": keep}


def reads_table(x, start=0):
    """A tensor of the file."""
    return x * TABLE[start : start + 3]


def nested(pair, table, *rest, scale=1.0, **named):
    """Lists, dictionaries, tuples, None, and arguments without names of their own."""
    y = pair[0] * scale + pair[1][0]
    for t in (table["x"], table["deep"][0], *rest, *named.values()):
        y = y if t is None else y + t.sum()
    return [y, {"same": pair[0]}]


def packed(q, k, v):
    """Chunks of one buffer."""
    return (q * k.flip(-1)) + v


def identical(a, b):
    """Another way where both are one object."""
    return a * 2 if a is b else a + b


class Affine(nn.Module):
    """Parameter, buffer, attribute, stray tensor and child."""

    def __init__(self, factor: float):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.register_buffer("offset", torch.arange(3.0))
        self.stray = torch.randn(3)
        self.factor = factor
        self.inner = nn.LayerNorm(3)

    def forward(self, x, add=None):
        """Affine, normalised, scaled."""
        y = self.inner(x * self.weight + self.offset) * self.factor + self.stray
        return y if add is None else y + add


class Tied(nn.Module):
    """One parameter in two places, and a view of it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        """Logits of the ids."""
        return self.head(self.embed(ids))


def batch(draw, *shape):
    """A batch of some size: contiguous, permuted, expanded, at an odd address or with gaps."""
    lead = draw(st.integers(0, 4))
    match draw(st.sampled_from(("plain", "permuted", "expanded", "odd", "gaps"))):
        case "permuted":
            return torch.randn(*shape, lead).movedim(-1, 0)
        case "expanded":
            return torch.randn(1, *shape).expand(lead, *shape)
        case "odd":
            return torch.randn(lead * math.prod(shape) + 1)[1:].view(lead, *shape)
        case "gaps":
            return torch.randn(lead, *shape[:-1], 2 * shape[-1])[..., ::2]
    return torch.randn(lead, *shape)


def chunks(draw):
    """Three views of one buffer."""
    return torch.randn(draw(st.integers(1, 3)), 12).chunk(3, dim=draw(st.sampled_from((-1,))))


SAME = torch.ones(3)
ZOO: dict[str, Any] = {
    "softmax": lambda draw: (F.softmax, (batch(draw, 3),), {"dim": -1}),
    "layer_norm": lambda draw: (F.layer_norm, (batch(draw, 3), (3,)), {"eps": draw(st.sampled_from((1e-5, 0.1)))}),
    "gelu": lambda draw: (F.gelu, (batch(draw, 3),), {"approximate": "tanh"}),
    "max_pool": lambda draw: (F.max_pool2d, (torch.randn(1, 2, 4, 4), 2), {}),
    "pad": lambda draw: (F.pad, (batch(draw, 3), [1, 2]), {"value": math.inf}),
    "zero_dim": lambda draw: (F.relu, (torch.tensor(-1.0),), {}),
    "int8": lambda draw: (F.relu, (torch.tensor([1, -2, 3], dtype=torch.int8),), {}),
    "mse": lambda draw: (F.mse_loss, (torch.randn(3), torch.randn(3)), {"reduction": "none"}),
    "linear": lambda draw: (F.linear, (batch(draw, 3), torch.randn(2, 3)), {}),
    "two_outputs": lambda draw: (two_outputs, (batch(draw, 3), torch.randn(3)), {"keep": draw(st.booleans())}),
    "same_twice": lambda draw: (two_outputs, (torch.ones(3),) * 2, {}),
    "identical": lambda draw: (identical, (SAME, SAME if draw(st.booleans()) else SAME.clone()), {}),
    "table": lambda draw: (reads_table, (batch(draw, 3), draw(st.integers(0, 3))), {}),
    "table_itself": lambda draw: (two_outputs, (TABLE[: draw(st.integers(1, 6))], TABLE[:1]), {}),
    "packed": lambda draw: (packed, chunks(draw), {}),
    "nested": lambda draw: (
        nested,
        ((batch(draw, 2), [torch.randn(2)]), {"x": torch.arange(2), "deep": (torch.tensor(True), 3)},
         draw(st.sampled_from((None, torch.zeros(0))))),
        {"scale": draw(st.sampled_from((1, 2.0))), "more": torch.ones((), dtype=torch.int32)},
    ),
    "module": lambda draw: (Affine(draw(st.sampled_from((1.0, -2.0)))), (batch(draw, 3),), {}),
    "module_add": lambda draw: (Affine(2.0), (batch(draw, 3),), {"add": torch.randn(3)}),
    "tied": lambda draw: (Tied(), (torch.arange(draw(st.integers(0, 4))),), {}),
    "batch_norm": lambda draw: (nn.BatchNorm1d(3), (batch(draw, 3),), {}),
    "conv": lambda draw: (nn.Conv2d(2, 3, 3, padding=1), (torch.randn(1, 2, 4, 4).contiguous(
        memory_format=torch.channels_last),), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ZOO)
@given(data=st.data())
@RELAXED
def test_replay(tmp_path_factory, name, data):
    """A call that was captured, written, read and made again through its signature gives the same output."""
    what, args, kwargs = ZOO[name](data.draw)
    loaded, sites, groups, reasons = observed(what, (args, kwargs))
    assert (reasons, len(groups), groups[0].reason) == ([], 1, "")
    (found,) = captured(loaded, sites, groups).values()
    target = as_target(groups[0])
    assert found.refused == ""
    assert replay_fault(loaded, target, found) == ""
    root = tmp_path_factory.mktemp("replay")
    folder = root / capture.save_by_content(root, found.calls)
    tensors = capture.load(folder, 0, "cpu", loaded)
    for have, want in zip(tensors, target.signature.inputs, strict=True):
        assert (tuple(have.shape), tuple(have.stride())) == (want.spec.shape, want.spec.strides)
        assert have.data_ptr() % want.align == 0
    before = {k: v.clone() for k, v in loaded.module.state_dict().items()}
    outputs = caller(target, loaded, found.instances[0] or None)(tensors)
    assert difference(outputs, found.outputs) == ""
    # what counts is the given weights, not those that stand in the module
    moved = [t + 1 if i.source == "param" else t for t, i in zip(tensors, target.signature.inputs, strict=True)]
    caller(target, loaded, found.instances[0] or None)(moved)
    for key, value in loaded.module.state_dict().items():
        assert torch.equal(value, before[key]), "the module has its own weights back"


# ---- what cannot


def adds(x):
    """In place."""
    return x.add_(1) * 2


def copies(x, y):
    """Into the other argument."""
    y.copy_(x)
    return x * 1


def out_argument(x, y):
    """A result put into an argument."""
    return torch.mul(x, 2, out=y) + 1


def sets_index(x):
    """One element."""
    x[0] = 7
    return x * 1


def writes_a_view(x):
    """Through a view of a view."""
    x.t()[1:].unsqueeze(0).zero_()
    return x + 1


def through_numpy(x):
    """Memory that PyTorch does not watch."""
    x.numpy()[...] += 1
    return x * 2


def through_data(x):
    """Past the counters of autograd."""
    x.data.mul_(2)
    return x + 1


def statistics(x, mean, var):
    """Running statistics of a batch norm."""
    return F.batch_norm(x, mean, var, training=True)


def writes_table(x):
    """Into a tensor of the file."""
    TABLE[0] = 0.0
    return x * TABLE[:3]


def drops(x):
    """Random numbers of PyTorch."""
    return F.dropout(x, 0.5, training=True)


def python_random(x):
    """Random numbers of Python."""
    return x * random.random()


def numpy_random(x):
    """Random numbers of NumPy."""
    return x * float(np.random.rand())


def returns_view(x):
    """A view of an input."""
    return x[1:], x * 2


def returns_table(x):
    """A view of a tensor of the file."""
    return TABLE[: x.shape[0]], x * 2


def appends(x, kept):
    """Into a list of the caller."""
    kept.append(x)
    return x * 2


def fills(x, kept):
    """Into a dictionary of the caller."""
    kept["x"] = x * 3
    return x * 2


def fills_deep(x, kept):
    """Into a list within a tuple."""
    kept[0][0] = x.shape[0] + len(kept)
    return x * 2


def counts_steps(x):
    """A list of the file."""
    STEPS[0] += 1
    return x * 2


def counts_itself(x):
    """An attribute of the function."""
    counts_itself.calls = getattr(counts_itself, "calls", 0) + 1
    return x * 2


def helper_counts(x):
    """A function that is called inside does it."""
    return bump(x) + 1


def bump(x):
    """The helper."""
    NOISE["seen"] += 1
    return x * 2


def keeps_in_default(x, seen=[]):  # noqa: B006 - what is tested
    """A list that is a default argument."""
    seen.append(x.shape)
    return x * 2


class CountsGlobally(nn.Module):
    """A module that changes a list of the file."""

    def forward(self, x):
        """One more."""
        STEPS.append(1)
        return x * 2


def by_value(x):
    """A branch on a tensor."""
    return x * 2 if x.sum() > 0 else x


def nonzero(x):
    """A shape that depends on values."""
    return x[x > 0]


class Remembers(nn.Module):
    """Keeps its last result."""

    def forward(self, x):
        """The result is kept."""
        self.last = x * 2
        return self.last + 1


class Accumulates(nn.Module):
    """Keeps a list in a child."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()
        self.inner.seen = []

    def forward(self, x):
        """The shape is kept."""
        self.inner.seen.append(tuple(x.shape))
        return x * 2


class Pair(NamedTuple):
    """A named tuple."""

    a: torch.Tensor
    b: int


@dataclasses.dataclass
class Cache:
    """A dataclass."""

    key: torch.Tensor


class Bag(dict):
    """A dictionary with a name."""


def first_of(pair):
    """Of anything with a tensor first."""
    held = pair.key if isinstance(pair, Cache) else pair["key"] if isinstance(pair, dict) else pair[0]
    return held.clone()


def first_of_set(x):
    """Of a set."""
    return next(iter(x)) * 2


WRITES = "it writes into one of its inputs"
LIST = "it changes a list or dictionary among its arguments"
REFUSED: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "add_": (adds, (torch.ones(3),), WRITES),
    "copy_": (copies, (torch.ones(3), torch.zeros(3)), WRITES),
    "out": (out_argument, (torch.ones(3), torch.zeros(3)), WRITES),
    "index": (sets_index, (torch.ones(3),), WRITES),
    "view": (writes_a_view, (torch.ones(3, 3),), WRITES),
    "numpy": (through_numpy, (torch.ones(3),), WRITES),
    "data": (through_data, (torch.ones(3),), WRITES),
    "F.relu inplace": (F.relu, (-torch.ones(3), True), WRITES),
    "statistics": (statistics, (torch.randn(4, 3), torch.zeros(3), torch.ones(3)), WRITES),
    "table": (writes_table, (torch.ones(3),), "it writes into a tensor that it did not make"),
    "dropout": (drops, (torch.ones(30),), "it draws random numbers"),
    "python random": (python_random, (torch.ones(3),), "it draws random numbers"),
    "numpy random": (numpy_random, (torch.ones(3),), "it draws random numbers"),
    "view of input": (returns_view, (torch.ones(3),), "the result.0 is a view of an input"),
    "view of table": (returns_table, (torch.ones(3),), "the result.0 is a view of an input"),
    "append": (appends, (torch.ones(3), []), LIST),
    "dictionary": (fills, (torch.ones(3), {"x": torch.ones(3)}), LIST),
    "deep": (fills_deep, (torch.ones(3), ([0], 1)), LIST),
    "global list": (counts_steps, (torch.ones(3),), "it changes STEPS, which outlives the call"),
    "function": (counts_itself, (torch.ones(3),), "it changes counts_itself, which outlives the call"),
    "default": (keeps_in_default, (torch.ones(3),), "it changes the default of seen, which outlives the call"),
    "module and file": (CountsGlobally(), (torch.ones(3),), "it changes STEPS, which outlives the call"),
    "remembers": (Remembers(), (torch.ones(3),), "it changes its attribute last"),
    "accumulates": (Accumulates(), (torch.ones(3),), "it changes its attribute inner.seen"),
    "value": (by_value, (torch.ones(3),), "Python code in it depends on the values of a tensor"),
    "one_hot": (F.one_hot, (torch.arange(3), 5), "Python code in it depends on the values of a tensor"),
    "shape": (nonzero, (torch.ones(3),), "the shape of a result depends on values"),
    "complex": (first_of, ([torch.ones(3, dtype=torch.complex64)],),
                "pair.0 has the dtype complex64, which the kernel contract lacks"),
    "float8": (first_of, ([torch.ones(3).to(torch.float8_e4m3fn)],),
               "pair.0 has the dtype float8_e4m3fn, which the kernel contract lacks"),
    "sparse": (first_of, ([torch.eye(3).to_sparse()],), "pair.0 has the layout torch.sparse_coo"),
    "named tuple": (first_of, (Pair(torch.ones(3), 1),), "pair is of type Pair, a named tuple"),
    "dataclass": (first_of, (Cache(torch.ones(3)),), "pair is of type Cache, a dataclass"),
    "kind of dict": (first_of, (Bag(key=torch.ones(3)),), "pair is of type Bag, a kind of dict"),
    "keys": (first_of, ({"key": torch.ones(3), 1: None},), "pair is a dictionary with keys that are not strings"),
    "set": (first_of_set, ({torch.ones(3)},), "x is of type set"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_replayed_says_why(name):
    """Writes, random numbers, views, state outside of the call and odd arguments are each caught by their name."""
    what, args, why = REFUSED[name]
    assert refusal(what, *args) == why


def test_training_mode():
    """A module with a child in training mode is no target."""
    what = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    _, _, groups, reasons = observed(what, ((torch.ones(1, 3),), {}), training=what[1])
    assert (groups, reasons) == ([], ["it is in training mode"])


def test_effects_of_a_helper_count_for_its_callers():
    """A function is refused for what a function that it calls does outside of the two."""
    assert bump.__name__ in helper_counts.__code__.co_names
    root = Root(helper_counts, [((torch.ones(3),), {})]).eval()
    loaded = LoadedModel(ModelSpec(text="", path=""), root, (Phase(),), torch.device("cpu"), sys.modules[__name__],
                         (__name__,), None)  # fmt: skip
    sites = Sites(loaded, [Found("helper_counts", helper_counts), Found("bump", bump)])
    observer = Observer(loaded)
    observer.run(loaded.phases[0], sites)
    reasons = {g.site.name: g.reason for g in observer.groups.values() if g.site.kind == "function"}
    assert reasons == dict.fromkeys(("helper_counts", "bump"), "it changes NOISE, which outlives the call")


def harmless(x, kept):
    """Reads containers and sets an attribute to what it is."""
    harmless.scale = 2.0
    held = list(kept)
    held.append(x)
    return held[-1] * float("2.5") + len(kept)


def test_equal_constants_and_own_containers_are_no_effects():
    """What is set to the same constant again, or made inside, is no change."""
    harmless.scale = float("2.0")
    assert refusal(harmless, torch.ones(3), [1, 2]) == ""


def test_lazy_tensors_replay_in_a_fresh_model(tmp_path: Path):
    """A tensor that a module makes at its first call is stored, and stands in a model that was not run yet."""
    torch.manual_seed(0)
    loaded, sites, groups, _ = observed(Lazy(), ((torch.ones(2, 3),), {}), ((torch.ones(2, 3),), {}))
    groups = [g for g in groups if not g.reason and "table" in [i.path for i in g.description.inputs]]
    (found,) = captured(loaded, sites, groups).values()
    assert [part.held for part in found.calls[0].parts] == [None, None]
    name = capture.save_by_content(tmp_path, found.calls)
    fresh = LoadedModel(loaded.spec, Root(Lazy(), []).eval(), (Phase(),), loaded.device, loaded.source)
    call = caller(as_target(groups[0]), fresh)
    outputs = call(capture.load(tmp_path / name, 0, "cpu", fresh))
    assert outputs[0].tolist() == [[1.0, 2.0, 3.0]] * 2
    assert fresh.module.what.table is None, "and is gone behind the call"


class Lazy(nn.Module):
    """Makes a table at its first call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", None, persistent=False)

    def forward(self, x):
        """Times the table."""
        if self.table is None:
            self.table = torch.arange(1.0, 4.0)
        return x * self.table
