"""What the search is told, and what it answers: configuration, steps, stops."""

from __future__ import annotations

import msgspec

from forge_tui.core.records import Edge, Record


class SearchConfig(Record, frozen=True, kw_only=True):
    """Every constant of the search. Values of kernels are natural logarithms of their speedups."""

    seed: int = 0
    proposers: tuple[str, ...] = ("templates",)
    """Names of proposers; `templates` is asked first for drafts, the others are models."""
    people: tuple[str, ...] = ()
    """Those of them behind whom a person sits: what waits for a reply holds back no evaluation, and no end."""
    max_evaluations: int = 60
    """Candidates over all targets, in flight ones included; failures of ours do not count."""
    model_ms: float = 0.0
    """Time of one model call, for texts; decisions use the targets' shares alone."""
    max_usd: float | None = None
    """Dollars of the session, for model calls and rent; what is in flight is held back from it. With 0 only what costs
    nothing is asked."""
    gpu_usd_per_hour: float = 0.0
    """Rent of the machine; an evaluation costs its part of it."""
    usd_per_percent: float = 5.0
    """What 1% of the model's time is worth: where the next dollar is expected to buy less, the search ends."""
    holds_usd: dict[str, float] = msgspec.field(default_factory=dict)
    """By proposer, the most that one call may cost before its price is known; 0 where nobody knows it. Who is not in
    it takes nothing."""
    min_gain: float = 0.001
    """Share of the model's time: a target that is expected to gain less is left alone."""

    explore: float = 0.40
    """Bonus of a node with few attempts: `explore / sqrt(1 + attempts)`, times the room of `room_power`."""
    explore_roots: float = 0.15
    """The same for a new draft beside the first one."""
    lone_root_spread: float = 0.20
    """How far drafts are assumed to lie apart while there is only one right one."""
    room_power: float = 1.0
    """Both bonuses grow with what a first kernel leaves to gain, to this power; 0: they do not."""
    least_room: float = 0.2
    most_room: float = 1.6
    """Bounds of that room, in units of value."""
    max_children: int = 8
    """Right children of one node."""
    freeze_after: int = 4
    """Attempts at a node without a child near it, after which other nodes come first."""
    freeze_margin: float = 0.02
    """How far below its parent a child may be and still be near it."""
    max_duplicates: int = 2
    """Duplicates that one proposer may make from one parent before it is asked no more there."""

    rewrite_after: int = 4
    """Attempts at a kernel before one in `rewrite_every` of them is to be written anew by another approach."""
    rewrite_every: int = 10
    stagnant_after: int = 6
    """Attempts without an improvement, most of them of one family, after which another one is asked for."""
    one_family: float = 0.8
    """The part that is most of them."""
    merge_every: int = 12
    """Attempts from one merge to the next."""
    merge_after: int = 12
    """Attempts without an improvement before one."""
    merge_within: float = 0.25
    """Two kernels of different families are merged if the second one's value is at most this far below the best."""
    max_transfers: int = 3
    """Kernels from elsewhere that a target tries; 0 for none."""
    transfer_margin: float = 0.05
    """How much better the kernel of another size must do there to be worth a try here."""

    repair_gate: float = 0.6
    """A repair is tried if its odds per dollar are at least this part of a fresh attempt's."""
    max_repairs: int = 3
    """Repairs in a row of one failure."""
    repair_window: int = 2
    """A failure is forgotten after so many newer attempts at its target."""

    tune_within: float = 0.4
    """A kernel is swept if its value is at most this far below the best one's."""
    max_tunes: int = 12
    """Settings tried for one source."""
    tune_after: int = 3
    """Attempts at a target before its settings are swept beside them."""
    tune_share: float = 1.0
    """Settings per further attempt, while there is something else to try."""

    in_flight_per_target: int = 2
    """Steps of one target at the same time; twice as many where only one target is open."""
    first_attempts: int = 1
    """What every worthwhile target gets before targets compete."""
    first_attempts_gain: float = 0.003
    """Share of the model's time that a perfect kernel must save for that."""
    explore_every: int = 8
    """Every n-th step goes to the open target with the fewest attempts."""
    floor_fraction: float = 0.90
    """A kernel that reaches this part of the floor's speed ends its target."""
    patience: int = 48
    """Attempts without an improvement that end a target whatever is expected."""
    beyond_floor: float = 0.40
    """What is thought to be left, in units of value, where a kernel beat what was taken for the floor."""
    fresh_rate: float = 0.11
    """Saving per attempt, as a part of the target's time, of a fresh target with everything to gain.

    This and the next five were fitted together to what simulated targets went on to save, on even seeds; they rank the
    targets, and say when to give one up.
    """
    room_fall: float = 1.75
    """Exponent with which it falls with the part of the target's time that a perfect kernel would still save."""
    fruitless_fall: float = 0.6
    """Exponent of `1 + attempts since the last improvement / decay_scale`."""
    age_fall: float = 0.92
    """Exponent of `1 + attempts / decay_scale`."""
    decay_scale: float = 8.0
    """Attempts over which the chance of an improvement falls."""
    behind_fall: float = 2.8
    """Exponent per unit of value by which the best kernel is slower than the reference."""
    stop_horizon: int = 15
    """Attempts over which a target must be expected to gain `min_gain`, or it is given up."""
    stop_after: int = 3
    """Attempts that every worthwhile target gets before it is given up."""
    compute_win_chance: float = 0.15
    """Chance that a compute-bound target, mostly a vendor library's, can be beaten; 1 once a right kernel came near."""
    compute_near: float = -0.26
    """The value from which a compute-bound target counts as beatable."""
    park_after: int = 6
    park_below: float = -0.7
    """A compute-bound target whose best kernel is still below this value after so many attempts gets no more."""
    improvement: float = 0.01
    """What counts as an improvement of a target."""


class Found(Record, frozen=True, kw_only=True):
    """A kernel that was right elsewhere."""

    source: str
    tunables: dict[str, int] = msgspec.field(default_factory=dict)
    family: str = ""
    origin: str
    """Where, in words: `session s-1, where it was 1.80x`."""


class Step(Record, frozen=True, kw_only=True):
    """One thing to do: ask a proposer for a kernel, or try a setting."""

    target_id: str
    edge: Edge
    parent: int | None
    """Node to hang the new one under; None for a root."""
    failed: int | None = None
    """For a repair: the node to mend."""
    proposer: str
    tunables: dict[str, int] = msgspec.field(default_factory=dict)
    """For edges `tune` and `transfer`: the setting to try, complete."""
    other: int | None = None
    """For a merge: the second kernel."""
    found: Found | None = None
    """For a transfer: what to try."""
    seed: int = 0
    """A function of the configuration's seed and of what was tried before at this target."""


class Stop(Record, frozen=True, kw_only=True):
    """The search is over; `reason` is a sentence for people."""

    reason: str


class Drop(Record, frozen=True, kw_only=True):
    """An attempt that ended without a source; what a resume needs to know of it."""

    step: Step
    after: int
    """Highest node id that the target had begun by then; -1 for none."""
    reason: str = ""
    cost_usd: float = 0.0
    """What its calls cost all the same."""
    infra: bool = False
    """Whether the fault was ours or a provider's: then it counts as no attempt, and only its dollars are kept."""
