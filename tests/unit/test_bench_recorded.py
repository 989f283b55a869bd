"""Recorded landscapes in the search benchmark: start, verdicts, truth and promises on a landscape made by hand."""

from __future__ import annotations

import math

import msgspec
import pytest
from benchmarks.search import policies, recorded, runs
from benchmarks.search.session import Curve

from forge_tui.cli.commands.sim import packaged
from forge_tui.core import landscapes
from forge_tui.core.landscapes import Point
from forge_tui.core.records import Edge, Node, Verdict
from forge_tui.search.player import broken
from forge_tui.search.recorded import TargetLandscape

#: candidate and baseline of both samples of a block: 2x, 1x, and 2x give or take 12%
TWICE, EQUAL = (50.0, 100.0) * 14, (100.0, 100.0) * 14
SPREAD = tuple(us for time in (44, 47, 49, 51, 53, 56) for us in (float(time), 100.0) * 2)


def made(points: list[tuple[int, int, Verdict, str, tuple[float, ...]]]) -> TargetLandscape:
    """Two sources, `// one` and `// two`, with the tunable A."""
    first = landscapes.read(packaged()["softmax-cpu"]).targets[0]
    sources = tuple(
        msgspec.structs.replace(first.sources[0], text=f"// {name}\n", family=name, tunables={"A": (1, 2)})
        for name in ("one", "two")
    )
    found = tuple(Point(source, (a,), verdict, code, (0.1, 0.1, 0.1), samples, "why" if not samples else "")
                  for source, a, verdict, code, samples in points)  # fmt: skip
    return TargetLandscape(msgspec.structs.replace(first, sources=sources, points=found, grid=len(found)))


LAND = made([
    (0, 1, Verdict.FASTER, "a", TWICE), (0, 2, Verdict.DUPLICATE, "a", ()),
    (1, 1, Verdict.INCONCLUSIVE, "b", EQUAL), (1, 2, Verdict.REJECTED, "c", ()),
])  # fmt: skip


def node(number: int, source: str, **tunables: int) -> Node:
    """A draft."""
    return Node(id=number, target_id=LAND.target.id, parent=None, edge=Edge.DRAFT, proposer="sim", source=source,
                language="cpp", tunables=tunables)  # fmt: skip


def test_a_plain_kernel_is_the_median_of_the_right_drafts() -> None:
    """The first source has half of the drafts, the second 27%: one 2x point there weighs more than two 1x ones here."""
    land = made([(0, 1, Verdict.FASTER, "a", TWICE), (1, 1, Verdict.INCONCLUSIVE, "b", EQUAL),
                 (1, 2, Verdict.INCONCLUSIVE, "c", EQUAL)])  # fmt: skip
    assert recorded.plain(land) == pytest.approx(math.log(2))
    land = made([(0, 1, Verdict.FASTER, "a", TWICE), (0, 2, Verdict.REJECTED, "d", ()),
                 (1, 1, Verdict.INCONCLUSIVE, "b", EQUAL), (1, 2, Verdict.INCONCLUSIVE, "c", EQUAL)])  # fmt: skip
    assert recorded.plain(land) == pytest.approx(0.0)
    with pytest.raises(ValueError, match="no right kernel"):
        recorded.plain(made([(0, 1, Verdict.REJECTED, "a", ())]))


def test_the_judge_answers_as_a_session_would() -> None:
    """Recorded verdicts and times; duplicates by source and by machine code; a mistake is that mistake."""
    space = recorded.Recorded("made", LAND, 1)
    assert (space.best_known, space.start) == (pytest.approx(math.log(2)), pytest.approx(math.log(2)))
    judge = space.judge()
    found = [judge.judge(one, 1.0) for one in (
        node(0, "// one\n"), node(1, "// one\n", A=2), node(2, "// one\n", A=1), node(3, "// two\n", A=2),
        node(4, broken("// one\n", Verdict.CRASHED, 0, 5)), node(5, broken("// one\n", Verdict.CRASHED, 0, 5)),
        node(6, "// three\n"), node(7, "// one\n", A=3), node(8, "// two\n"),
    )]  # fmt: skip
    assert [e.verdict for e in found] == [
        Verdict.FASTER, Verdict.DUPLICATE, Verdict.DUPLICATE, Verdict.REJECTED, Verdict.CRASHED, Verdict.DUPLICATE,
        Verdict.REFUSED, Verdict.REFUSED, Verdict.INCONCLUSIVE,
    ]  # fmt: skip
    assert found[0].speedup == pytest.approx(2.0)
    said = ["Compiles to the same code as node 0.", "The same source as node 0.", "why"]
    assert [e.reason for e in found[1:4]] == said
    assert space.truth(node(9, "// one\n", A=2)) == pytest.approx(math.log(2)), "its machine code is the first one's"


def test_times_follow_the_seed_and_are_the_same_for_every_policy() -> None:
    """Two runs of one pair see one timing of a kernel; over seeds there are several, all among the recorded ones."""
    land = made([(0, 1, Verdict.FASTER, "a", SPREAD)])

    def speedup(seed: int) -> float | None:
        space = recorded.Recorded("made", land, seed)
        one, two = (space.judge().judge(node(number, "// one\n"), 1.0) for number in (0, 5))
        assert one == two
        return one.speedup

    seen = {speedup(seed) for seed in range(12)}
    assert len(seen) > 1
    # a median of an even count may lie between two blocks
    assert all(s is not None and 100 / 56 <= s <= 100 / 44 for s in seen)
    assert speedup(3) == speedup(3)


def test_every_packaged_landscape_takes_part_on_odd_seeds() -> None:
    """Names of files, so many seeds each; the tuning seeds are others."""
    reported, tuned = recorded.pairs(3), recorded.pairs(3, odd=False)
    assert {name for name, _ in reported} == set(packaged())
    assert [seed for name, seed in reported if name == "softmax-cpu"] == [1, 3, 5]
    assert not set(reported) & set(tuned)


def test_worse_is_an_interval_above_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """By calls or by evaluations, at the end or on average; what may be chance is not worse."""
    monkeypatch.setattr(policies, "CALLS", 2)
    rows = (policies.OURS, policies.SWEPT, policies.EAGER, policies.UCT_SWEPT, recorded.UCT_OWN, *recorded.PLAIN)

    def outcome(name: str, **changed: tuple[list[float], list[float]]) -> runs.Outcome:
        one = object.__new__(runs.Outcome)
        one.name, one.start, one.best_known = name, 0.0, 1.0
        one.curves = {row: Curve([0.0, 0.5], [0.0, 0.5]) for row in rows}
        one.curves[policies.SWEPT] = Curve(*changed.get("ours", ([0.0, 0.8], [0.0, 0.8])))
        one.curves["random"] = Curve(*changed.get("random", ([0.0, 0.5], [0.0, 0.5])))
        return one

    def worse(outcomes: list[runs.Outcome]) -> dict[str, bool]:
        return {p.text: not p.kept for p in recorded.promises(outcomes)}

    better = [outcome("x") for _ in range(6)]
    assert not any(worse(better).values())
    # regret 0.2 against 0.5 at the second call: 60% less, and there at call 2
    assert [p.found for p in recorded.promises(better)][-2:] == ["call 2", "60%"]
    by_evaluation = [outcome("x", ours=([0.0, 0.8], [0.0, 0.1, 0.8])) for _ in range(6)]
    assert worse(by_evaluation)["recorded x: not worse than random"]
    early = [outcome("x", random=([0.7, 0.8], [0.7, 0.8])) for _ in range(6)]
    said, is_worse = recorded.compared(early, policies.SWEPT, "random")
    assert is_worse
    assert said[:2] == ["call 2 +0.000 [+0.000, +0.000]", "mean +0.350 [+0.350, +0.350]"]
    chance = [outcome("x", random=([0.0, end], [0.0, end])) for end in (0.2, 0.9, 0.7, 0.95, 0.3, 0.9)]
    assert not worse(chance)["recorded x: not worse than random"]
    assert any("worse than random" in line for line in recorded.stated(better))
