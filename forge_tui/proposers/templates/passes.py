"""What each walk along a row computes, and which values one walk keeps for the next; shared by both languages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from forge_tui.proposers.templates.expr import CType, Expr, loads, walk
from forge_tui.proposers.templates.index import Var
from forge_tui.proposers.templates.loops import Rows, Store

ELEMENT_BYTES: dict[CType, int] = {"f": 4, "d": 8, "i": 8, "b": 1}


@dataclass
class Pass:
    """One walk along a row. The last one has `stores`, the others `level`, the reductions that they end with."""

    loops: tuple[Var, ...]
    roots: tuple[Expr, ...]
    level: tuple[Expr, ...] = ()
    stores: tuple[Store, ...] = ()
    reads: dict[Expr, int] = field(default_factory=dict)
    """Kept values that this walk takes from a buffer, by buffer."""
    writes: dict[Expr, int] = field(default_factory=dict)
    """Values that this walk keeps."""


@dataclass(frozen=True)
class Passes:
    """All walks along a row, in order, and the buffers between them."""

    walks: tuple[Pass, ...]
    slots: tuple[CType, ...]
    """Type of every buffer; each holds one value per element of the row."""

    def row_bytes(self, size: int) -> int:
        """Bytes of all buffers for a row."""
        return sum(ELEMENT_BYTES[kind] for kind in self.slots) * size


def plan_passes(rows: Rows, keep: Callable[[Expr], bool] | None) -> Passes:
    """Cut the work on a row into walks; `keep` says which values are worth a buffer, None keeps nothing."""
    walks = [Pass(rows.inner, tuple(expr.args[0] for expr in level), level=level) for level in rows.levels]
    if rows.stores:
        walks.append(Pass(rows.final, tuple(store.value for store in rows.stores), stores=rows.stores))
    slots: list[CType] = []
    if keep is not None:
        slots = _keep(rows, walks, keep)
    return Passes(tuple(walks), tuple(slots))


def _keep(rows: Rows, walks: list[Pass], keep: Callable[[Expr], bool]) -> list[CType]:
    inner = set(rows.inner)
    made: dict[Expr, int] = {}
    last_read: dict[Expr, int] = {}
    reads: list[list[Expr]] = []
    for number, step in enumerate(walks):
        mine: list[Expr] = []
        if step.loops == rows.inner:
            for expr in walk(step.roots, stop=lambda item: item in made or not item.deps & inner):
                if expr in made:
                    mine.append(expr)
                    last_read[expr] = number
        reads.append(mine)
        if step.loops == rows.inner:
            for expr in walk(step.roots, stop=lambda item: item in made or not item.deps & inner):
                if expr not in made and expr.deps & inner and expr.kind not in ("const", "reduce") and keep(expr):
                    made[expr] = number
    return _buffers(walks, made, last_read, reads)


def _buffers(
    walks: list[Pass], made: dict[Expr, int], last_read: dict[Expr, int], reads: list[list[Expr]]
) -> list[CType]:
    slots: list[CType] = []
    free_after: list[int] = []
    slot_of: dict[Expr, int] = {}
    for expr in sorted(last_read, key=lambda item: (made[item], item.order)):
        first = made[expr]
        for number, kind in enumerate(slots):
            # a walk reads an element before it keeps the new one there, so the last reader's walk may write
            if kind == expr.ctype and free_after[number] <= first:
                slot_of[expr] = number
                break
        else:
            slots.append(expr.ctype)
            free_after.append(0)
            slot_of[expr] = len(slots) - 1
        free_after[slot_of[expr]] = last_read[expr]
        walks[first].writes[expr] = slot_of[expr]
    for number, mine in enumerate(reads):
        for expr in mine:
            walks[number].reads[expr] = slot_of[expr]
    return slots


def dear(inner: Sequence[Var]) -> Callable[[Expr], bool]:
    """Whether computing a value again costs more than a store and a load that hit the nearest cache."""
    inside = set(inner)

    def keep(expr: Expr) -> bool:
        if expr.kind != "op":
            return False
        below = walk([expr], stop=lambda item: not item.deps & inside or item.kind == "reduce")
        return sum(2 if item.kind == "load" else item.cost for item in below if item.deps & inside) >= 5

    return keep


def stride_one(rows: Rows, var: Var) -> int:
    """How many loads and stores step by one element with a variable."""
    every = [*rows.stores, *rows.row_stores]
    score = sum(2 for store in every if store.address.coefficient(var) == 1)
    roots = [store.value for store in every]
    return score + sum(2 for expr in loads(roots) if expr.index is not None and expr.index.coefficient(var) == 1)


def fastest_last(rows: Rows, loops: Sequence[Var]) -> tuple[Var, ...]:
    """Loops with the one that walks along memory innermost."""
    if not loops:
        return ()
    best = max(reversed(loops), key=lambda var: stride_one(rows, var))
    return (*(var for var in loops if var != best), best)


def lane_of(rows: Rows) -> Var | None:
    """The row variable along which memory lies, where the reduced elements lie across it."""
    inner = max((stride_one(rows, var) for var in (*rows.inner, *rows.final)), default=0)
    best = max(rows.rows, key=lambda var: stride_one(rows, var), default=None)
    if best is None or best.extent < 8:
        return None
    return best if stride_one(rows, best) > inner else None
