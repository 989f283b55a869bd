"""Which targets to search: those with the most to give, pure arithmetic over the profile."""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from statistics import median

import msgspec

from forge_tui.core.errors import UsageError
from forge_tui.core.profiles import Hotspot, Mode, Profile
from forge_tui.core.records import Target

#: headroom below this share of the model's device time is not worth a search
MIN_HEADROOM_SHARE = 0.003
#: what counts of the headroom of matrix work: vendor libraries run it, and seldom leave much of it to win
MATRIX_WEIGHT = 0.25
#: more matrix products or convolutions than this in one call are no single kernel
MAX_MATRIX_CALLS = 3
_MATRIX = re.compile(r"(mm|mv|matmul|linear|einsum|tensordot|scaled_dot_product_attention|conv\w*\d?d)$")
#: of the headroom of targets that were not measured inside the model at least this part counts: few rows are no law
_LEAST_PART = 0.1
#: two headrooms this close are the same one, seen through a wrapper
_SAME = 0.85


def choose(
    profile: Profile, *, names: Sequence[str] = (), max_targets: int = 12,
    at_hand: Callable[[Target], bool] = lambda _: False, mode: Mode | None = None,
) -> list[Target]:  # fmt: skip
    """The targets to search, best first; named ones always, in the same order.

    Targets are ranked by headroom, or, where the profile has it for `mode` (the one that the user deploys under), by
    what the whole model was measured to gain with the target at its floor: a kernel that hides behind the host's
    launches, or an operator that breaks the compiler's fusion, gains less than its headroom, perhaps nothing. All that
    follows then counts that gain in place of the headroom, so what gains about nothing is left out.

    A target that does matrix work counts only for the headroom that its inner targets leave to it (a decoder layer is
    not ranked by what its norms could save), and for a part of that; one with many matrix products inside is no single
    kernel and is left to those who name it. A target that only passes its tensors on to another one is the same thing
    twice: the one with more calls stands for both, the outer one if they have equally many. `at_hand` says of a target
    that somebody surely has a kernel for it: what is only ever called inside such ones is left to them. Other nested
    targets are both kept.

    Raises:
        UsageError: a name is no target.
    """
    stands_for = {} if names else _wrapped(profile)
    wrapped = stands_for.keys()
    gaining = _with_gains(profile, measured_gains(profile, mode), stands_for)
    worth = own_headroom(gaining, wrapped)
    # one kernel serves them all
    for target in profile.targets:
        worth[target.id] += sum(worth.get(sibling.id, 0.0) for sibling in target.siblings)
    served = {s.id for t in profile.targets for s in t.siblings} if not names else set()
    if names:
        chosen = _named(profile, names)
    else:
        enough = MIN_HEADROOM_SHARE * (profile.busy_ms or profile.model_ms)
        matrices = _matrix_calls(profile)
        chosen = [
            t for t in profile.targets
            if t.id not in served | wrapped and worth[t.id] >= enough and matrices[t.id] <= MAX_MATRIX_CALLS
        ]  # fmt: skip
    chosen.sort(key=lambda t: (-worth[t.id] * (MATRIX_WEIGHT if t.flops else 1.0), t.id))
    if names:
        return chosen
    inner = _only_inside(profile, {t.id for t in chosen if not t.flops and at_hand(t)})
    return [t for t in chosen if t.id not in inner][:max_targets]


def measured_gains(profile: Profile, mode: Mode | None) -> dict[str, float]:
    """Milliseconds that the model gains in this mode with one target at its floor, by target id, where measured.

    The gain of each row is relative to the model beside it; the model's time is the median over the mode's rows.
    """
    rows = [row for row in profile.what_ifs if row.mode == mode and not row.failure and row.ms is not None]
    model_ms = median([row.base_ms for row in rows if row.base_ms] or [0.0])
    return {
        row.target_ids[0]: model_ms * row.gain_ms / row.base_ms
        for row in rows if len(row.target_ids) == 1 and row.base_ms
    }  # fmt: skip


def _with_gains(profile: Profile, gains: Mapping[str, float], stands_for: Mapping[str, str]) -> Profile:
    """The profile with measured gains in place of headrooms, those of hotspots in proportion.

    A target that was not measured has the gain of the one that it stands for.
    """
    known = dict(gains)
    headroom = {t.id: t.headroom_ms for t in profile.targets}
    measured = sum(headroom.get(key, 0.0) for key in gains)
    # what was not measured is taken to hide as much of its headroom as the rest does
    part = min(1.0, max(_LEAST_PART, sum(gains.values()) / measured)) if measured > 0 else 1.0
    for dropped, kept in stands_for.items():
        if dropped in gains:
            known.setdefault(kept, gains[dropped])
    if not known:
        return profile
    if gains:
        known = {key: part * value for key, value in headroom.items()} | known
    scale = {t.id: known[t.id] / t.headroom_ms for t in profile.targets if t.id in known and t.headroom_ms > 0}
    targets = tuple(
        msgspec.structs.replace(t, headroom_ms=known[t.id]) if t.id in known else t for t in profile.targets
    )
    hotspots = tuple(
        msgspec.structs.replace(h, headroom_ms=h.headroom_ms * scale[h.target_id]) if h.target_id in scale else h
        for h in profile.hotspots
    )
    return msgspec.structs.replace(profile, targets=targets, hotspots=hotspots)


def _only_inside(profile: Profile, outer: AbstractSet[str]) -> set[str]:
    """Ids of targets whose every call lies inside a call of one of `outer`."""
    spots = {spot.id: spot for spot in profile.hotspots}

    def inside(spot: Hotspot) -> bool:
        while spot.parent is not None:
            spot = spots[spot.parent]
            if spot.target_id in outer:
                return True
        return False

    everywhere: dict[str, bool] = {}
    for spot in profile.hotspots:
        if spot.target_id is not None:
            everywhere[spot.target_id] = everywhere.get(spot.target_id, True) and inside(spot)
    return {target_id for target_id, always in everywhere.items() if always}


def own_headroom(profile: Profile, ignored: AbstractSet[str] = frozenset()) -> dict[str, float]:
    """Headroom in ms by target id; of targets with matrix work, without what their inner targets have."""

    def covered(spot: Hotspot, below: float) -> float:
        counts = spot.target_id is not None and spot.target_id not in ignored
        return max(spot.headroom_ms, below) if counts else below

    inner: dict[str, float] = defaultdict(float)
    for spot, below in _below(profile, covered):
        if spot.target_id is not None:
            inner[spot.target_id] += below
    return {t.id: max(0.0, t.headroom_ms - inner[t.id]) if t.flops else t.headroom_ms for t in profile.targets}


def _matrix_calls(profile: Profile) -> dict[str, float]:
    """Matrix products and convolutions in one call, by target id."""

    def count(spot: Hotspot, below: float) -> float:
        return below + (spot.calls if _is_matrix(spot) else 0)

    found: dict[str, float] = defaultdict(float)
    for spot, below in _below(profile, count):
        if spot.target_id is not None and spot.calls:
            found[spot.target_id] = max(found[spot.target_id], count(spot, below) / spot.calls)
    return found


def _is_matrix(spot: Hotspot) -> bool:
    return spot.kind == "torch" and _MATRIX.search(spot.name) is not None


def _below(profile: Profile, value: Callable[[Hotspot, float], float]) -> Iterator[tuple[Hotspot, float]]:
    """Every hotspot, children first, with the sum over its children; `value` of a hotspot and that sum is its own.

    No recursion: a model may call itself more deeply than Python's stack allows.
    """
    sums: dict[int, float] = defaultdict(float)
    for spot in reversed(profile.hotspots):  # parents come before their children
        below = sums.pop(spot.id, 0.0)
        yield spot, below
        if spot.parent is not None:
            sums[spot.parent] += value(spot, below)


def _wrapped(profile: Profile) -> dict[str, str]:
    """Ids of targets that another one stands for, with the id of that one."""
    children = _children(profile)
    by_id = {t.id: t for t in profile.targets}
    found: dict[str, str] = {}
    for spot in profile.hotspots:
        outer = by_id.get(spot.target_id or "")
        inside = children[spot.id]
        inner = by_id.get(inside[0].target_id or "") if len(inside) == 1 else None
        if outer is None or inner is None or inside[0].headroom_ms < _SAME * spot.headroom_ms:
            continue
        if _same_tensors(outer, inner):
            dropped, kept = (inner, outer) if inner.calls <= outer.calls else (outer, inner)
            found[dropped.id] = kept.id
    return {dropped: _last(kept, found) for dropped, kept in found.items()}


def _last(kept: str, found: Mapping[str, str]) -> str:
    """The end of a chain of wrappers."""
    seen = {kept}
    while kept in found and found[kept] not in seen:
        kept = found[kept]
        seen.add(kept)
    return kept


def _same_tensors(outer: Target, inner: Target) -> bool:
    """Whether the outputs are alike and the outer one has all inputs of the inner (a module may hold unread ones)."""
    outputs = [[o.spec for o in t.signature.outputs] for t in (outer, inner)]
    inputs = [Counter((i.spec.shape, i.spec.dtype, i.spec.strides) for i in t.signature.inputs) for t in (outer, inner)]
    return outputs[0] == outputs[1] and inputs[1] <= inputs[0]


def _children(profile: Profile) -> dict[int, list[Hotspot]]:
    children: dict[int, list[Hotspot]] = defaultdict(list)
    for spot in profile.hotspots:
        if spot.parent is not None:
            children[spot.parent].append(spot)
    return children


def _named(profile: Profile, names: Sequence[str]) -> list[Target]:
    by_name = {t.name: t for t in profile.targets}
    chosen: dict[str, Target] = {}
    for name in names:
        target = by_name.get(name)
        if target is None:
            reason = next((h.reason for h in profile.hotspots if h.name == name and h.reason), "")
            why = f"{name} is no target: {reason}." if reason else f"There is no target named {name!r}."
            close = difflib.get_close_matches(name, by_name, n=1)
            hint = f"Did you mean {close[0]}? " if close else ""
            listed = ", ".join(sorted(by_name)) or "none"
            raise UsageError(why, f"{hint}The targets are: {listed}.")
        target = next((t for t in profile.targets if t.siblings and t.called(target.id)), target)
        chosen[target.id] = target
    return list(chosen.values())
