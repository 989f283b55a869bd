"""Which target deserves the next attempt: expected saving in the whole model, from headroom and from luck so far."""

from __future__ import annotations

import math

from forge_tui.core.records import Target
from forge_tui.search.config import SearchConfig
from forge_tui.search.tree import TargetTree

#: the value that a target without a right kernel is assumed to start from
UNKNOWN_START = -0.2


def ceiling(target: Target, baseline_us: float | None) -> float:
    """Highest value that a kernel can have: ln(reference over floor); 0 where nothing can be gained."""
    floor = target.floor_us
    if floor <= 0:
        floor = target.time_us - target.headroom_ms * 1000 / max(1, target.calls)
    reference = baseline_us or target.time_us
    if reference <= 0:
        return 0.0
    # a floor of nothing still leaves the launch
    return max(0.0, math.log(reference / max(floor, reference * 1e-3)))


def bonus_scale(target: Target, config: SearchConfig, value: float) -> float:
    """What the bonuses of the descent are multiplied with: what a first kernel of this value leaves to gain, damped.

    Where little can be gained, a bonus as wide as the whole range would only make the search wander.
    """
    room = min(config.most_room, max(config.least_room, ceiling(target, None) - value))
    return math.pow(room, config.room_power)


def saved_at(value: float) -> float:
    """Part of the target's time that remains with a kernel of this value; slower ones are not deployed."""
    return math.exp(-max(0.0, value))


class Outlook:
    """What is to be expected of one target, as its tree stands."""

    def __init__(self, tree: TargetTree, config: SearchConfig, price_usd: float = 0.0) -> None:
        """`price_usd` is what an attempt costs beside the machine."""
        _, self.fruitless = tree.improvements(config.improvement)
        self._config = config
        self._attempts = tree.tries
        self._share = tree.target.share
        self._best = tree.champion.value if tree.champion is not None else UNKNOWN_START
        self._ceiling = ceiling(tree.target, tree.baseline_us)
        if self._best > self._ceiling > 0:
            # a floor that was beaten is none, as where everything stays in a cache
            self._ceiling = self._best + config.beyond_floor
        self._beatable = 1.0
        self.doubtful = False
        """Whether it is mostly a vendor library's, with no kernel near it yet."""
        if tree.target.bound == "compute" and not (tree.champion and self._best >= config.compute_near):
            self._beatable, self.doubtful = config.compute_win_chance, True
        self._parked = (
            self.doubtful and tree.tries >= config.park_after and self._best < config.park_below
        )
        self.attempt_usd = price_usd + tree.candidate_s / 3600 * config.gpu_usd_per_hour
        """What one more attempt is expected to cost."""

    @property
    def rank(self) -> float:
        """Expected saving, share of the model's time, per dollar; per attempt where attempts cost nothing."""
        return self.rate / self.attempt_usd if self.attempt_usd else self.rate

    @property
    def open_share(self) -> float:
        """What a perfect kernel would still save, share of the model's time."""
        return max(0.0, self._share * (saved_at(self._best) - math.exp(-self._ceiling)))

    @property
    def rate(self) -> float:
        """Expected saving of one more attempt, share of the model's time.

        It falls with what is left to gain, with the attempts made, with those since the last improvement, and with how
        far the best kernel is behind the reference: what lies below 1x has to be caught up first.
        """
        config = self._config
        if self._share <= 0:
            return 0.0
        luck = math.pow(1 + self.fruitless / config.decay_scale, -config.fruitless_fall)
        age = math.pow(1 + self._attempts / config.decay_scale, -config.age_fall)
        behind = math.exp(-config.behind_fall * max(0.0, -self._best))
        left = math.pow(self.open_share / self._share, config.room_fall)
        return self._share * self._beatable * config.fresh_rate * left * luck * age * behind

    def closed(self) -> str:
        """Why this target deserves nothing more, in words; empty while it does."""
        config = self._config
        if self._best >= self._ceiling + math.log(config.floor_fraction):
            return "near the floor of this device"
        if self.open_share < config.min_gain:
            return f"less than {config.min_gain:.1%} of the model's time left to gain"
        if self._parked:
            slower = math.exp(-config.park_below)
            return f"{config.park_after} attempts and still {slower:.0f} times slower than the library's"
        rate = self.rate
        if self._attempts >= config.stop_after and rate * config.stop_horizon < config.min_gain:
            library = ", as vendors' libraries are hardly beaten" if self.doubtful else ""
            return (f"{config.stop_horizon} more attempts are expected to gain "
                    f"less than {config.min_gain:.1%} of the model's time{library}")  # fmt: skip
        if self._attempts >= config.stop_after and self.attempt_usd:
            asked = 0.01 / config.usd_per_percent
            if rate / self.attempt_usd < asked:
                return (f"expected gain of the next dollar {_percent(rate / self.attempt_usd)} of the model's time, "
                        f"below the {_percent(asked)} asked for")  # fmt: skip
        if self.fruitless >= config.patience:
            return f"{config.patience} attempts without an improvement"
        return ""


def _percent(share: float) -> str:
    """One figure that counts: `0.02%`."""
    return f"{100 * share:.1g}%" if share < 0.01 else f"{100 * share:.0f}%"
