"""Plain and published ways to search one operator. Each runs until its budget ends it.

Randomness comes from the session's seed alone. `repairs` is how many times a failed reply is sent back.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from .session import Kernel, OutOfCalls, Session


def _rng(session: Session, name: str) -> random.Random:
    return random.Random(f"{name} {session.space.name} {session.seed}")


def _value(kernel: Kernel) -> float:
    assert kernel.value is not None
    return kernel.value


def _best(kernels: list[Kernel]) -> Kernel | None:
    return max(kernels, key=_value, default=None)


def random_parent(session: Session, *, repairs: int = 0) -> None:
    """A draft, or a change of a right kernel, each as likely as the other."""
    rng = _rng(session, "random")
    right: list[Kernel] = []
    while True:
        made = session.attempt(rng.choice([None, *right]), repairs)
        if made.value is not None:
            right.append(made)


def best_of_n(session: Session, *, repairs: int = 2) -> None:
    """Independent drafts."""
    while True:
        session.attempt(None, repairs)


def greedy(session: Session, *, repairs: int = 3, drafts: int = 1) -> None:
    """Right drafts first, then always a change of the best kernel."""
    right: list[Kernel] = []
    while True:
        made = session.attempt(None if len(right) < drafts else _best(right), repairs)
        if made.value is not None:
            right.append(made)


def beam(session: Session, *, width: int = 2, branch: int = 2, repairs: int = 3) -> None:
    """Rounds in which each of the best `width` kernels gets `branch` children."""
    held: list[Kernel] = []
    while len(held) < width:
        made = session.attempt(None, repairs)
        if made.value is not None:
            held.append(made)
    while True:
        made_now = [session.attempt(parent, repairs) for parent in held for _ in range(branch)]
        held = sorted([*held, *(k for k in made_now if k.value is not None)], key=_value, reverse=True)[:width]


def successive_halving(session: Session, *, lineages: int = 4, repairs: int = 3, drafts: int = 1) -> None:
    """Greedy lineages side by side; after each of log2(lineages) + 1 equal phases the worse half ends.

    It has to know its budget in advance.
    """
    alive: list[list[Kernel]] = [[] for _ in range(lineages)]
    phases = int(math.log2(lineages)) + 1
    for phase in range(phases):
        end = session.calls if phase == phases - 1 else round(session.calls * (phase + 1) / phases)
        while session.used < end:
            for line in alive:
                made = session.attempt(None if len(line) < drafts else _best(line), repairs)
                if made.value is not None:
                    line.append(made)
                if session.used >= end:
                    break
        alive.sort(key=lambda line: max(map(_value, line), default=-math.inf), reverse=True)
        alive = alive[: max(1, len(alive) // 2)]
    raise OutOfCalls


def weighted_resampling(
    session: Session, *, temperature: float = 0.1, drafts: int = 4, repairs: int = 2
) -> None:
    """As METR's kernel agent: some drafts, then parents drawn with weight exp(value / temperature)."""
    rng = _rng(session, "resampling")
    right: list[Kernel] = []
    attempts = 0
    while True:
        parent = None
        if attempts >= drafts and right:
            top = max(map(_value, right))
            parent = rng.choices(right, [math.exp((_value(k) - top) / temperature) for k in right])[0]
        made = session.attempt(parent, repairs)
        attempts += 1
        if made.value is not None:
            right.append(made)


Policy = Callable[..., None]


def play(policy: Policy, session: Session, **settings: float) -> Session:
    """Run a policy to the end of its budget."""
    try:
        policy(session, **settings)
    except OutOfCalls:
        return session
    raise AssertionError("a policy ends when its budget does")
