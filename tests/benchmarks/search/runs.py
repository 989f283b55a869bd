"""Runs of many pairs on all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from . import policies
from .session import Curve
from .spaces import Generated, Kind, Space

In = TypeVar("In")
Out = TypeVar("Out")


def spread(work: Callable[[In], Out], jobs: Sequence[In], *, workers: int | None = None) -> list[Out]:
    """The results in order of the jobs; one process with `workers` 1."""
    workers = min(workers or len(os.sched_getaffinity(0)), len(jobs))
    if workers <= 1:
        return [work(job) for job in jobs]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        return pool.map(work, jobs, chunksize=max(1, min(8, len(jobs) // (4 * workers))))


class Outcome:
    """The curves of every row on one space."""

    __slots__ = ("best_known", "curves", "name", "start")

    def __init__(self, space: Space, curves: dict[str, Curve]) -> None:
        self.name, self.start, self.best_known, self.curves = space.name, space.start, space.best_known, curves


def on_space(space: Space, seed: int, rows: Iterable[policies.Row], calls: int = policies.CALLS) -> Outcome:
    """All rows on one space with one seed; this is where recorded spaces come in."""
    return Outcome(space, {row.name: row(space, seed, calls).curve for row in rows})


def on_generated(pair: tuple[Kind, int]) -> Outcome:
    """All rows on a generated pair."""
    kind, seed = pair
    return on_space(Generated(kind, seed), seed, policies.ROWS.values())
