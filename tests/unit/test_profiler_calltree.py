"""Timed calls become a tree whose self times sum to the model's time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_tui.profiler.calltree import Call, Row, align, build_tree, common_top, self_times, totals_of, wildcard


@st.composite
def trees(draw):
    """Parents (each before its children) and total times, children within their parent."""
    count = draw(st.integers(1, 30))
    parents = [-1] + [draw(st.integers(0, i - 1)) for i in range(1, count)]
    own = [draw(st.floats(0.1, 100)) for _ in range(count)]
    totals = list(own)
    for i in range(count - 1, 0, -1):
        totals[parents[i]] += totals[i]
    return parents, totals


@given(tree=trees(), factor=st.floats(0.2, 1.0))
def test_self_times_sum_to_the_model(tree, factor):
    """Whatever the listener cost, self times sum to the unprofiled time, and totals to self plus children."""
    parents, totals = tree
    model_us = totals[0] * factor
    new, own, overhead = self_times(parents, totals, model_us)
    assert sum(own) == pytest.approx(model_us)
    assert new[0] == pytest.approx(model_us)
    assert overhead == pytest.approx(totals[0] / model_us)
    for i in range(len(parents)):
        inside = sum(t for t, p in zip(new, parents, strict=True) if p == i)
        assert new[i] == pytest.approx(own[i] + inside)
        assert own[i] >= 0


def test_listener_cost_comes_off_the_parents():
    """Ten children that each cost the parent 5 us of listening: the parent's own time is what is left."""
    parents = [-1] + [0] * 10
    _, own, _ = self_times(parents, [10 * 20 + 10 * 5 + 30.0] + [20.0] * 10, 230.0)
    assert own[0] == pytest.approx(30.0)
    assert own[1:] == pytest.approx([20.0] * 10)


def test_passes_are_aligned_by_median():
    """Passes of the same calls give the median of each call."""
    base = [Call("a", -1), Call("b", 0)]
    assert align(base, [(base, [t, t / 2]) for t in (10.0, 100.0, 20.0)]) == ([20.0, 10.0], True)


def test_passes_that_differ():
    """Calls are matched by callable and number; one that a pass lacks has the others' median, or nothing."""
    one = [Call("m", -1), Call("a", 0), Call("b", 0), Call("a", 0), Call("c", 0)]
    two = [Call("m", -1), Call("a", 0), Call("a", 0), Call("b", 0)]
    three = [Call("m", -1), Call("a", 0), Call("a", 0)]
    passes = [(two, [9.0, 1.0, 3.0, 2.0]), (three, [11.0, 5.0, 7.0])]
    assert align(one, passes) == ([10.0, 3.0, 2.0, 5.0, 0.0], False)


def test_totals_hold_all_below():
    """A total is the call's own value and those of its children's children."""
    assert totals_of([-1, 0, 1, 0], [1.0, 10.0, 100.0, 1000.0]) == [1111.0, 110.0, 100.0, 1000.0]


def test_agreement_of_two_passes():
    """Instances of a class are one callable; what only one pass ranks high is not agreed on."""
    calls = [Call("model", -1), *(Call(("module", "A", f"layers.{i}", "m:A"), 0) for i in range(3)),
             Call(("torch", "F.relu", "", ""), 0), Call(("torch", "F.gelu", "", ""), 0)]  # fmt: skip
    first = [0.0, 3.0, 3.0, 3.0, 8.0, 1.0]
    assert common_top([(calls, first), (calls, first)], 2) == 1.0
    assert common_top([(calls, first), (calls, [0.0, 3.0, 3.0, 3.0, 1.0, 8.0])], 2) == 0.5


def test_tree_groups_layers_and_keeps_signatures_apart():
    """Layers fall together under one node; calls of another signature have a node of their own."""
    calls = [
        Call("m", -1), Call("l0", 0), Call("n", 1, group="g1"), Call("l1", 0), Call("n", 3, group="g1"),
        Call("l2", 0), Call("n", 5, group="g2"),
    ]  # fmt: skip
    labels = [("model", "M", "")]
    for i in range(3):
        labels += [("module", "Layer", f"layers.{i}"), ("module", "Norm", f"layers.{i}.norm")]
    totals = [60.0, 10.0, 5.0, 10.0, 5.0, 30.0, 20.0]
    selfs = [10.0, 5.0, 5.0, 5.0, 5.0, 10.0, 20.0]
    rows = [Row(c, t, s, 2 * t, 3, {"k": (1, s)}) for c, t, s in zip(calls, totals, selfs, strict=True)]
    nodes = build_tree(rows, labels)
    assert [(n.name, n.path, n.calls, n.total_us, n.self_us, n.parent, n.group) for n in nodes] == [
        ("M", "", 1, 60.0, 10.0, None, None),
        ("Layer", "layers.*", 3, 50.0, 20.0, 0, None),
        ("Norm", "layers.*.norm", 1, 20.0, 20.0, 1, "g2"),
        ("Norm", "layers.*.norm", 2, 10.0, 10.0, 1, "g1"),
    ]  # fmt: skip
    assert [n.id for n in nodes] == [0, 1, 2, 3]
    assert [(n.host_us, n.launches, n.kernels) for n in nodes[1:3]] == [
        (100.0, 9, {"k": (3, 20.0)}), (40.0, 3, {"k": (1, 20.0)}),
    ]  # fmt: skip


def test_weights_count_calls_and_times():
    """A call of a phase of weight 128 counts 128 times."""
    rows = [Row(Call("m", -1), 9.0, 4.0, 9.0), Row(Call("n", 0), 5.0, 5.0, 6.0, 2, {"k": (2, 5.0)}, 128.0)]
    nodes = build_tree(rows, [("model", "M", ""), ("torch", "n", "")])
    found = nodes[1]
    assert (found.calls, found.total_us, found.host_us, found.launches) == (128, 640.0, 768.0, 256)
    assert found.kernels == {"k": (256, 640.0)}


def test_wildcard():
    """Only whole numbers between dots are wild."""
    assert wildcard("layers.3.mlp.0") == "layers.*.mlp.*"
    assert wildcard("0.conv1.x2") == "*.conv1.x2"
