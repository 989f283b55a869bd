"""Which targets to search: those with the most to give, pure arithmetic over the profile."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Sequence

from forge_tui.core.errors import UsageError
from forge_tui.core.records import Hotspot, Profile, Target

#: headroom below this share of the model's time is not worth a search
MIN_HEADROOM_SHARE = 0.003
#: what counts of the headroom of matrix work: vendor libraries run it, and seldom leave much of it to win
MATRIX_WEIGHT = 0.25
#: two headrooms this close are the same one, seen through a wrapper
_SAME = 0.85


def choose(profile: Profile, *, names: Sequence[str] = (), max_targets: int = 6) -> list[Target]:
    """The targets to search, best first; named ones always, in the order of their headroom.

    Targets are ranked by headroom. One that does matrix work counts only for the headroom that its inner targets leave
    to it (a decoder layer is not ranked by what its norms could save), and for a part of that. A target that only passes its tensors on to
    another one with the same calls is the same thing twice; the outer one is kept. Other nested ones are both kept.

    Raises:
        UsageError: a name is no target.
    """
    if names:
        return rank(profile, _named(profile, names))
    enough = MIN_HEADROOM_SHARE * profile.model_ms
    worth = own_headroom(profile)
    kept = [t for t in profile.targets if t.headroom_ms >= enough and worth[t.id] >= enough]
    wrapped = _wrapped(profile, kept)
    return rank(profile, [t for t in kept if t.id not in wrapped])[:max_targets]


def rank(profile: Profile, targets: Sequence[Target]) -> list[Target]:
    """Targets by the headroom that is their own, best first, matrix work discounted; ties by id."""
    worth = own_headroom(profile)
    return sorted(targets, key=lambda t: (-worth[t.id] * (MATRIX_WEIGHT if t.flops else 1.0), t.id))


def own_headroom(profile: Profile) -> dict[str, float]:
    """Headroom in ms by target id; of targets with matrix work, without what their inner targets have."""
    children = _children(profile)
    inner: dict[str, float] = defaultdict(float)
    for spot in profile.hotspots:
        if spot.target_id is not None:
            inner[spot.target_id] += sum(_covered(child, children) for child in children[spot.id])
    return {
        t.id: max(0.0, t.headroom_ms - inner[t.id]) if t.flops else t.headroom_ms for t in profile.targets
    }


def _covered(spot: Hotspot, children: dict[int, list[Hotspot]]) -> float:
    """Headroom of the targets in a subtree, nested ones counted once."""
    below = sum(_covered(child, children) for child in children[spot.id])
    return max(spot.headroom_ms, below) if spot.target_id is not None else below


def _wrapped(profile: Profile, targets: Sequence[Target]) -> set[str]:
    """Ids of targets that another one stands for."""
    children = _children(profile)
    by_id = {t.id: t for t in targets}
    found: set[str] = set()
    for spot in profile.hotspots:
        outer = by_id.get(spot.target_id or "")
        inside = children[spot.id]
        inner = by_id.get(inside[0].target_id or "") if len(inside) == 1 else None
        if outer is None or inner is None or inside[0].headroom_ms < _SAME * spot.headroom_ms:
            continue
        if _specs(outer) == _specs(inner):
            # the inner one may have other callers beside this wrapper: then it is the one that covers more
            found.add(inner.id if inner.calls <= outer.calls else outer.id)
    return found


def _specs(target: Target) -> tuple[list[object], list[object]]:
    signature = target.signature
    tensors = sorted((i.spec.shape, i.spec.dtype, i.spec.strides) for i in signature.inputs)
    return list(tensors), [o.spec for o in signature.outputs]


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
