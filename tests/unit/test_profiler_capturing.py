"""Which calls are captured: the first ones, a fair choice of the later ones, and what the size cap leaves."""

import random
import sys
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from forge_tui.core.records import ModelSpec
from forge_tui.models.held import origins_of
from forge_tui.models.load import LoadedModel
from forge_tui.models.phases import Phase
from forge_tui.profiler.capturing import Budget, Captured, Capturer
from forge_tui.profiler.discover import Found
from forge_tui.profiler.observe import Observer
from forge_tui.profiler.reservoir import Reservoir
from forge_tui.profiler.sites import Sites

# ---- the choice


def chosen(instances: list[str], first: int, later: int, seed: int) -> list[int]:
    """Numbers kept of calls of these instances, with what is given up on the way checked."""
    reservoir = Reservoir(first, later, random.Random(seed))
    kept: set[int] = set()
    for number, instance in enumerate(instances):
        found, taken, given_up = reservoir.offer(instance)
        assert found == number
        if given_up is not None:
            kept.remove(given_up)
        if taken:
            kept.add(number)
        assert sorted(kept) == reservoir.kept
        assert len(kept) <= first + later
    return sorted(kept)


def test_later_calls_are_chosen_fairly():
    """Every later call has the same chance: chi-square over 4000 seeds below the 99.9% bound."""
    calls, first, later, seeds = 12, 2, 3, 4000
    counts = Counter(n for seed in range(seeds) for n in chosen([""] * calls, first, later, seed))
    assert (counts.pop(0), counts.pop(1)) == (seeds, seeds)
    expected = seeds * later / (calls - first)
    chi_square = sum((counts[n] - expected) ** 2 / expected for n in range(first, calls))
    # each seed draws 3 of 10 without putting back, which varies less than 3 free draws: by (10 - 3) / (10 - 1)
    assert chi_square / (7 / 9) < 27.9  # 9 degrees of freedom


def test_a_call_moved_by_a_new_instance_has_the_same_chance():
    """The second call of one instance makes room for a new instance, and is a later call like the others."""
    instances = ["a", "a", "a", "b", "a", "a"]
    counts = Counter(n for seed in range(3000) for n in chosen(instances, 2, 1, seed))
    assert (counts.pop(0), counts.pop(3)) == (3000, 3000)
    assert set(counts) == {1, 2, 4, 5}
    assert all(count == pytest.approx(750, abs=100) for count in counts.values())


@given(
    instances=st.lists(st.sampled_from("abcd"), max_size=40), first=st.integers(1, 4), later=st.integers(0, 3),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_first_calls_are_of_different_instances(instances, first, later, seed):
    """As many calls as there is room for; among them the first call of each of the first instances."""
    kept = chosen(instances, first, later, seed)
    assert len(kept) == min(len(instances), first + later)
    firsts = sorted({name: number for number, name in reversed(list(enumerate(instances)))}.values())
    assert set(firsts[:first]) <= set(kept)
    assert kept == chosen(instances, first, later, seed)


def test_shrinking_leaves_the_first_call():
    """Calls are given up one by one, the later ones before the first ones, and the last one stays."""
    reservoir = Reservoir(2, 2, random.Random(0))
    for _ in range(6):
        reservoir.offer("")
    given_up = []
    while (number := reservoir.shrink()) is not None:
        given_up.append(number)
        assert reservoir.offer("")[1] is False or len(given_up) < 2, "what is full stays full"
    assert len(given_up) == 3
    assert given_up[-1] == 1
    assert reservoir.kept == [0]
    reservoir.withdraw(0)
    assert reservoir.kept == []
    assert reservoir.offer("")[1] is True


# ---- the pass


def double(x):
    """Small."""
    return x * 2


def triple(x):
    """Another one."""
    return x * 3


STEP = [0]


def fragile(x):
    """Raises at the first step, which its caller expects."""
    if STEP[0] == 0:
        raise ValueError("not this one")
    return x + 1


class Scale(nn.Module):
    """A module with a weight."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))

    def forward(self, x):
        """Scaled."""
        return x * self.weight


class Net(nn.Module):
    """Calls everything above."""

    def __init__(self, size: int = 8, times: int = 6):
        super().__init__()
        self.scales = nn.ModuleList(Scale(size) for _ in range(3))
        self.times = times

    def forward(self, x):
        """A chain in which every call has other values."""
        for i in range(self.times):
            x = double(x) - i
            x = triple(x)
            try:
                STEP[0] = i
                x = fragile(x)
            except ValueError:
                x = x - 1
            x = self.scales[i % 3](x) / 7
        return x


def profiled(*phases: Phase, size: int = 8):
    """A model, its sites and the groups of the first functions and modules, by name."""
    torch.manual_seed(0)
    module = Net(size).eval().requires_grad_(False)
    loaded = LoadedModel(ModelSpec(text="", path=""), module, phases, torch.device("cpu"), sys.modules[__name__],
                         (__name__,), origins_of(module, (__name__,)))  # fmt: skip
    sites = Sites(loaded, [Found(f.__name__, f) for f in (double, triple, fragile)])
    observer = Observer(loaded)
    for phase in phases:
        observer.run(phase, sites)
    groups = {g.site.name: g for g in observer.groups.values() if g.site.kind != "torch"}
    return loaded, sites, groups


def run(loaded, sites, groups, names, most: int = 4, **options) -> dict[str, Captured]:
    """What is captured, by name; the order of the names is their worth."""
    found = Capturer(loaded, {groups[n].key: (groups[n], most) for n in names}, **options).run(sites)
    return {n: found[groups[n].key] for n in names}


def test_every_phase_is_seen():
    """Calls of a later phase are among the captured ones, since the choice is over all of them."""
    phases = (Phase("one", (torch.zeros(8),)), Phase("two", (torch.ones(8) * 1000,)))
    loaded, sites, groups = profiled(*phases)
    seen = set()
    for seed in range(8):
        (found,) = run(loaded, sites, groups, ["double"], later=3, most=9, seed=seed).values()
        assert len(found.calls) == 5
        seen |= {float(found.tensors(i, "cpu")[0].max()) > 100 for i in range(5)}
        assert found.outputs[0].equal(double(found.tensors(0, "cpu")[0]))
    assert seen == {False, True}


def test_captures_are_what_the_call_got():
    """Inputs are of before the call, of one call each, in the order of the calls; weights are referred to."""
    loaded, sites, groups = profiled(Phase("", (torch.arange(8.0),)))
    found = run(loaded, sites, groups, ["double", "Scale"], most=9, first=9)
    x, got = torch.arange(8.0), []
    for i in range(6):
        got.append(x)
        x = triple(double(x) - i)
        x = x - 1 if i == 0 else x + 1
        x = loaded.module.scales[i % 3](x) / 7
    for i, want in enumerate(got):
        assert found["double"].tensors(i, "cpu")[0].equal(want)
    assert found["Scale"].instances == [f"scales.{i % 3}" for i in range(6)]
    held = [snapshot.parts[1].held for snapshot in found["Scale"].calls]
    assert [h.name for h in held] == [f"scales.{i % 3}.weight" for i in range(6)]
    weights = [found["Scale"].tensors(i, "cpu")[1] for i in range(3)]
    assert [w.data_ptr() for w in weights] == [s.weight.data_ptr() for s in loaded.module.scales]


def test_instances_come_first():
    """With room for three calls they are of the three instances."""
    loaded, sites, groups = profiled(Phase("", (torch.ones(8),)))
    found = run(loaded, sites, groups, ["Scale"], most=3, first=3)["Scale"]
    assert found.instances == ["scales.0", "scales.1", "scales.2"]


def test_a_call_that_raised_is_not_kept():
    """The inputs of a call that the model's code expected to fail are dropped."""
    loaded, sites, groups = profiled(Phase("", (torch.ones(8),)))
    raising = next(g for g in groups.values() if g.site.name == "fragile")
    (found,) = Capturer(loaded, {raising.key: (raising, 5)}, first=5).run(sites).values()
    assert len(found.calls) == 5
    assert found.outputs[0].equal(found.tensors(0, "cpu")[0] + 1)


def test_only_calls_that_raise():
    """Where every kept call raised there is nothing, and no outputs."""
    loaded, sites, groups = profiled(Phase("", (torch.ones(8),)))
    loaded.module.times = 1
    raising = groups["fragile"]
    (found,) = Capturer(loaded, {raising.key: (raising, 2)}).run(sites).values()
    assert (found.calls, found.outputs, found.refused) == ([], [], "")


def stored(found: dict[str, Captured]) -> int:
    """Bytes of all targets, equal tensors of one target once."""
    return sum(
        flat.nbytes
        for item in found.values()
        for flat in {key: flat for call in item.calls for key, flat in call.flats.items()}.values()
    )


@pytest.mark.parametrize("total", [31, 32, 64, 95, 96, 128, 160, 1000])
def test_the_cap_is_kept_and_goes_by_worth(total):
    """Each target has its first call before any has a second, and the worthier ones have theirs first."""
    loaded, sites, groups = profiled(Phase("", (torch.ones(8),)))
    names = ["triple", "Scale", "double"]
    found = run(loaded, sites, groups, names, budget=Budget(total=total))
    assert stored(found) <= total
    calls = [len(found[name].calls) for name in names]
    fit = min(3, total // 32)
    assert [bool(n) for n in calls] == [True] * fit + [False] * (3 - fit)
    if total < 1000:
        assert sum(calls) in (total // 32, fit), "what is given up for another one is not taken again"
    else:
        assert calls == [4, 4, 4]
    text = f"its inputs of 32 bytes are over the size cap of {total} bytes; raise it with --capture-gb"
    assert [found[name].refused for name in names] == [""] * fit + [text] * (3 - fit)
    for name in names[:fit]:
        assert found[name].outputs, "the first call stays, with its outputs"


def wide(x, y):
    """Larger inputs than the others."""
    return x + y[:1]


class Mixed(nn.Module):
    """Small calls before a large one."""

    def forward(self, x, y):
        """All."""
        return wide(double(triple(x)), y)


def mixed(order: list[str], total: int) -> dict[str, Captured]:
    """Captures of `triple` and `double` (32 bytes) and `wide` (32 + 64 bytes)."""
    module = Mixed().eval()
    phase = Phase("", (torch.ones(8), torch.arange(16.0).view(2, 8)))
    loaded = LoadedModel(ModelSpec(text="", path=""), module, (phase,), torch.device("cpu"), sys.modules[__name__],
                         (__name__,), origins_of(module, (__name__,)))  # fmt: skip
    sites = Sites(loaded, [Found(f.__name__, f) for f in (double, triple, wide)])
    observer = Observer(loaded)
    observer.run(phase, sites)
    groups = {g.site.name: g for g in observer.groups.values()}
    return run(loaded, sites, groups, order, budget=Budget(total=total))


@pytest.mark.parametrize(
    ("order", "total", "kept"),
    [
        (["wide", "double"], 128, {"wide", "double"}),
        (["wide", "double"], 127, {"wide"}),
        (["wide", "double"], 95, {"double"}),
        (["double", "wide"], 127, {"double"}),
        (["double", "wide"], 128, {"wide", "double"}),
        (["triple", "wide", "double"], 127, {"triple", "double"}),
        (["triple", "wide", "double"], 128, {"triple", "wide"}),
    ],
)
def test_what_cannot_fit_pushes_nothing_out(order, total, kept):
    """A worthier target takes the room of others, but not where it does not fit even so."""
    found = mixed(order, total)
    assert {name for name, item in found.items() if item.calls} == kept
    assert {name for name, item in found.items() if item.refused} == set(order) - kept


def test_the_limit_of_one_target():
    """A target with several calls keeps as many as fit; its first call always."""
    loaded, sites, groups = profiled(Phase("", (torch.ones(8),)))
    for target, calls in ((1, 1), (32, 1), (64, 2), (127, 3), (128, 4)):
        found = run(loaded, sites, groups, ["double"], budget=Budget(target=target))["double"]
        assert (len(found.calls), found.refused) == (calls, "")


def test_memory_is_bounded():
    """Over thousands of calls no more copies are alive than are kept."""
    loaded, sites, groups = profiled(Phase("", (torch.ones(8),)))
    loaded.module.times = 400
    capturer = Capturer(loaded, {groups["double"].key: (groups["double"], 4)})
    most = 0
    enter = capturer.enter

    def counted(site, args, kwargs):
        nonlocal most
        number = enter(site, args, kwargs)
        most = max(most, len(capturer._copier._known))
        return number

    capturer.enter = counted
    (found,) = capturer.run(sites).values()
    assert len(found.calls) == 4
    assert most <= 5
