"""Names of input sets: small enough to cross processes, enough to make the same tensors on both sides."""

from __future__ import annotations

import hashlib
from enum import StrEnum

from forge_tui.core.records import Record

#: captured calls that are used
MOST_CALLS = 4
#: runs of the first set beyond the first: other poison, other pointers, twice more for races
EXTRA_RUNS = 4
#: runs on the inputs of the run before but for one element: for kernels that look whether anything changed
_PATCHED = 4


class Kind(StrEnum):
    """How the inputs of a set come about."""

    CAPTURED = "captured"
    #: drawn from the captured values of each tensor, disturbed; every parameter too
    FRESH = "fresh"
    #: normally distributed with the captured mean and deviation
    NORMAL = "normal"
    #: fresh, with masks drawn anew
    MASKS = "masks"
    CONSTANT_ROWS = "constant_rows"
    OUTLIER = "outlier"
    LARGE = "large"
    #: with a mean far larger than the deviation
    SHIFTED = "shifted"
    TINY = "tiny"
    NEGATIVE_ZERO = "negative_zero"
    #: most values zero
    SPARSE = "sparse"
    #: values many powers of two apart
    WIDE = "wide"
    #: the lowest and the highest captured integers at many places
    EXTREMES = "extremes"
    #: NaN and infinities at some places; only what every right kernel does with them is asked for
    NONFINITE = "nonfinite"
    #: every tensor drawn anew from a wider distribution
    SPREAD = "spread"
    #: integers and flags that fresh sets leave as captured (positions, offsets, constants) drawn anew as well
    INTEGERS = "integers"


#: sets used only where the others do not tell right from wrong
WIDER = (Kind.SPREAD, Kind.INTEGERS)
#: sets in most of which one value stands over and over
REPEATING = (Kind.CONSTANT_ROWS, Kind.SPARSE)
#: sets that a target may do without: the reference may not be finite on them
ADVERSARIAL = (
    Kind.MASKS, Kind.CONSTANT_ROWS, Kind.OUTLIER, Kind.LARGE, Kind.SHIFTED, Kind.TINY, Kind.NEGATIVE_ZERO, Kind.SPARSE,
    Kind.WIDE, Kind.EXTREMES, *WIDER, Kind.NONFINITE,
)  # fmt: skip

_WORDS = {
    Kind.CAPTURED: "the captured inputs of call {call}",
    Kind.FRESH: "fresh inputs",
    Kind.NORMAL: "fresh normally distributed inputs",
    Kind.MASKS: "fresh inputs with other masks",
    Kind.CONSTANT_ROWS: "inputs whose rows are constant",
    Kind.OUTLIER: "inputs with one large outlier",
    Kind.LARGE: "inputs 64 times as large",
    Kind.SHIFTED: "inputs far from zero",
    Kind.TINY: "inputs 1024 times as small",
    Kind.NEGATIVE_ZERO: "inputs with negative zeros",
    Kind.SPARSE: "inputs that are mostly zero",
    Kind.WIDE: "inputs many powers of two apart",
    Kind.EXTREMES: "the smallest and largest integers that were captured",
    Kind.NONFINITE: "inputs with NaN and infinities",
    Kind.SPREAD: "inputs of a wider distribution",
    Kind.INTEGERS: "inputs with other integers",
}


class InputSet(Record, frozen=True, kw_only=True):
    """One set of inputs: made from a captured call, a kind and a seed, the same in every process."""

    kind: Kind
    call: int = 0
    seed: int = 0
    patch: int = 0
    """Seed of a change that makes the set one that was never seen before: of one element, below 0 of about all of them;
    0 for none."""

    def words(self) -> str:
        """For sentences: `fresh inputs`."""
        return _WORDS[self.kind].format(call=self.call)

    @property
    def key(self) -> tuple[str, int, int, int]:
        """Equal for equal sets."""
        return (self.kind.value, self.call, self.seed, self.patch)


def draw(*parts: object) -> int:
    """A seed of 62 bits from anything that prints."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 2


def standard(calls: int, seed: int) -> list[InputSet]:
    """The sets that every candidate of a target meets: captured calls, at most `MOST_CALLS`, and adversarial ones."""
    captured = [InputSet(kind=Kind.CAPTURED, call=i) for i in range(min(calls, MOST_CALLS))]
    return captured + [InputSet(kind=kind, call=0, seed=draw(seed, kind.value)) for kind in ADVERSARIAL]


def fresh(calls: int, seed: int) -> list[InputSet]:
    """The sets that only this evaluation sees."""
    return [
        InputSet(kind=kind, call=index % max(calls, 1), seed=draw(seed, "evaluation", index))
        for index, kind in enumerate((Kind.FRESH, Kind.NORMAL, Kind.FRESH))
    ]


def patched(sets: list[InputSet], seed: int) -> list[InputSet]:
    """The sets with the first followed by copies of it in which one element differs."""
    copies = [
        InputSet(kind=sets[0].kind, call=sets[0].call, seed=sets[0].seed, patch=draw(seed, "patch", i) or 1)
        for i in range(_PATCHED)
    ]
    return [sets[0], *copies, *sets[1:]]
