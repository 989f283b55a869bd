"""The tree's rows against their definition, for any sequence of changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.tui.treemodel import TreeModel

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "open", "close", "toggle", "reveal", "close_all", "open_all"]), st.integers(0, 40)
    ),
    max_size=60,
)


def walk(model: TreeModel[int], roots: list[int]) -> list[int]:
    """The definition: open nodes walked from the roots."""
    out: list[int] = []
    for node in roots:
        out.append(node)
        if model.is_open(node):
            out += walk(model, list(model.children(node)))
    return out


def run(model: TreeModel[int], steps: list[tuple[str, int]]) -> list[int]:
    """Apply steps; the roots in order."""
    roots: list[int] = []
    for step, pick in steps:
        nodes = list(model.preorder())
        if step == "add" or not nodes:
            parent = nodes[pick % len(nodes)] if nodes and pick % 5 else None
            model.add(len(nodes), parent)
            if parent is None:
                roots.append(len(nodes))
        elif step in ("close_all", "open_all"):
            getattr(model, step)()
        else:
            getattr(model, step)(nodes[pick % len(nodes)])
    return roots


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_rows_are_the_walk(steps: list[tuple[str, int]]) -> None:
    """After any changes the spliced rows are what walking the open nodes gives, and every index is right."""
    model: TreeModel[int] = TreeModel()
    roots = run(model, steps)
    expected = walk(model, roots)
    assert model.rows == expected
    for node in range(model.size):
        at = expected.index(node) if node in expected else None
        assert model.index(node) == at
        assert model.is_visible(node) == (at is not None)


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_nearest_visible_is_on_the_way_up(steps: list[tuple[str, int]]) -> None:
    """For a hidden node the nearest visible one is its lowest ancestor that is a row."""
    model: TreeModel[int] = TreeModel()
    run(model, steps)
    for node in range(model.size):
        chain = [node, *model.ancestors(node)]
        assert model.nearest_visible(node) == next(each for each in chain if each in model.rows)


@given(STEPS, st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_reveal_makes_visible_and_closes_nothing(steps: list[tuple[str, int]], pick: int) -> None:
    """Revealing a node shows it and hides none that was shown."""
    model: TreeModel[int] = TreeModel()
    run(model, steps)
    if not model.size:
        return
    before = set(model.rows)
    model.reveal(pick % model.size)
    assert pick % model.size in model.rows
    assert before <= set(model.rows)


def test_a_chain_of_five_thousand_does_not_recurse() -> None:
    """Depth is no matter: a long chain opens, closes and is walked."""
    model: TreeModel[int] = TreeModel()
    for number in range(5000):
        model.add(number, number - 1 if number else None)
    model.open_all()
    assert model.rows == list(range(5000))
    model.close(2500)
    assert len(model) == 2501
    assert model.nearest_visible(4999) == 2500
    model.reveal(4999)
    assert model.rows == list(range(5000))


def test_an_unknown_parent_makes_a_root() -> None:
    """A node whose parent was never seen is shown at the top, not lost."""
    model: TreeModel[int] = TreeModel()
    assert model.add(7, 3)
    assert model.rows == [7]
    assert model.parent(7) is None
    assert not model.add(8, 7)
    assert model.add(7, None)
    assert model.size == 2
