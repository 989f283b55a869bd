"""Which targets to search: those with the most to give, pure arithmetic over the profile."""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from forge_tui.core.errors import UsageError
from forge_tui.core.profiles import Hotspot, Profile
from forge_tui.core.records import Target

#: headroom below this share of the model's time is not worth a search
MIN_HEADROOM_SHARE = 0.003
#: what counts of the headroom of matrix work: vendor libraries run it, and seldom leave much of it to win
MATRIX_WEIGHT = 0.25
#: more matrix products or convolutions than this in one call are no single kernel
MAX_MATRIX_CALLS = 3
_MATRIX = re.compile(r"(mm|mv|matmul|linear|einsum|tensordot|scaled_dot_product_attention|conv\w*\d?d)$")
#: two headrooms this close are the same one, seen through a wrapper
_SAME = 0.85


def choose(
    profile: Profile, *, names: Sequence[str] = (), max_targets: int = 12,
    at_hand: Callable[[Target], bool] = lambda _: False,
) -> list[Target]:  # fmt: skip
    """The targets to search, best first; named ones always, in the same order.

    Targets are ranked by headroom. One that does matrix work counts only for the headroom that its inner targets leave
    to it (a decoder layer is not ranked by what its norms could save), and for a part of that; one with many matrix
    products inside is no single kernel and is left to those who name it. A target that only passes its tensors on to
    another one is the same thing twice: the one with more calls stands for both, the outer one if they have equally
    many. `at_hand` says of a target that somebody surely has a kernel for it: what is only ever called inside such ones
    is left to them. Other nested targets are both kept.

    Raises:
        UsageError: a name is no target.
    """
    children = _children(profile)
    wrapped = set() if names else _wrapped(profile, children)
    worth = own_headroom(profile, children, wrapped)
    if names:
        chosen = _named(profile, names)
    else:
        enough = MIN_HEADROOM_SHARE * profile.model_ms
        matrices = _matrix_calls(profile, children)
        chosen = [
            t for t in profile.targets
            if t.id not in wrapped and worth[t.id] >= enough and matrices[t.id] <= MAX_MATRIX_CALLS
        ]  # fmt: skip
    chosen.sort(key=lambda t: (-worth[t.id] * (MATRIX_WEIGHT if t.flops else 1.0), t.id))
    if names:
        return chosen
    inner = _only_inside(profile, {t.id for t in chosen if not t.flops and at_hand(t)})
    return [t for t in chosen if t.id not in inner][:max_targets]


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


def own_headroom(
    profile: Profile, children: dict[int, list[Hotspot]], ignored: AbstractSet[str] = frozenset()
) -> dict[str, float]:
    """Headroom in ms by target id; of targets with matrix work, without what their inner targets have."""
    inner: dict[str, float] = defaultdict(float)
    for spot in profile.hotspots:
        if spot.target_id is not None:
            inner[spot.target_id] += sum(_covered(child, children, ignored) for child in children[spot.id])
    return {t.id: max(0.0, t.headroom_ms - inner[t.id]) if t.flops else t.headroom_ms for t in profile.targets}


def _covered(spot: Hotspot, children: dict[int, list[Hotspot]], ignored: AbstractSet[str]) -> float:
    """Headroom of the targets in a subtree, nested ones counted once."""
    below = sum(_covered(child, children, ignored) for child in children[spot.id])
    counts = spot.target_id is not None and spot.target_id not in ignored
    return max(spot.headroom_ms, below) if counts else below


def _matrix_calls(profile: Profile, children: dict[int, list[Hotspot]]) -> dict[str, float]:
    """Matrix products and convolutions in one call, by target id."""
    found: dict[str, float] = defaultdict(float)
    for spot in profile.hotspots:
        if spot.target_id is not None and spot.calls:
            inside = _count_matrix(spot, children) / spot.calls
            found[spot.target_id] = max(found[spot.target_id], inside)
    return found


def _count_matrix(spot: Hotspot, children: dict[int, list[Hotspot]]) -> int:
    own = spot.calls if spot.kind == "torch" and _MATRIX.search(spot.name) else 0
    return own + sum(_count_matrix(child, children) for child in children[spot.id])


def _wrapped(profile: Profile, children: dict[int, list[Hotspot]]) -> set[str]:
    """Ids of targets that another one stands for."""
    by_id = {t.id: t for t in profile.targets}
    found: set[str] = set()
    for spot in profile.hotspots:
        outer = by_id.get(spot.target_id or "")
        inside = children[spot.id]
        inner = by_id.get(inside[0].target_id or "") if len(inside) == 1 else None
        if outer is None or inner is None or inside[0].headroom_ms < _SAME * spot.headroom_ms:
            continue
        if _same_tensors(outer, inner):
            found.add(inner.id if inner.calls <= outer.calls else outer.id)
    return found


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
        chosen[target.id] = target
    return list(chosen.values())
