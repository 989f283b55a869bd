"""A session killed anywhere and resumed ends as if it had never been: `python tests/benchmarks/kill_points.py`.

Sessions on recorded landscapes, through the real engine, search, pipeline and store, several steps in flight. A point
is one kill of one session, or of its resumed rest: in this process by going on from a copy of the files as they were
after a commit, which is all that a kill leaves whenever it comes; and by SIGKILL of a real engine process. Then the
session is resumed, and everything in its store but clock times is compared with the uninterrupted one's: nodes with
ids, parents, edges, sources, settings, verdicts, samples and confirmations, attempts without a source, every model call
with its dollars, the reason of the stop, the deployment.

Some sessions keep books as a paid model does: a call is written down before it is made, some break off and are made
again, some are turned down. A kill may come while one is on its way; then its dollars are spent, so where the budget
does not end the session all else is equal, and where it does the dollars stay within it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from forge_tui.core import landscapes
from forge_tui.core.events import Kind
from forge_tui.core.paths import Workspace
from forge_tui.core.ports import Books, Confirmer, Proposer, Task
from forge_tui.core.records import (
    Built,
    Confirmation,
    Device,
    ModelSpec,
    Node,
    Proposal,
    RunOptions,
    Target,
    Verdict,
)
from forge_tui.engine.loop import Engine
from forge_tui.engine.sim import SimRooms
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store

FOLDER = Path(landscapes.__file__).parents[1] / "examples" / "landscapes"
#: no process has this id, so that a lease left behind counts as a dead engine's
NOBODY = 2**22 + 1
#: part of the points that are killed again while they are resumed, and part that are real engine processes
AGAIN, REAL = 0.3, 0.1


class Killed(Exception):
    """The engine is gone."""


@dataclass(frozen=True)
class Case:
    """One session that will be killed."""

    options: RunOptions
    careless: bool = False
    """Whether some replies hold no kernel, and some winners are not confirmed."""
    booked: bool = False
    """Whether the player's calls are in the books before they are made."""

    def rooms(self, options: RunOptions) -> SimRooms:
        """The rooms of an engine."""
        return (BookedRooms if self.booked else CarelessRooms if self.careless else SimRooms)(options)


class CarelessRooms(SimRooms):
    """Some replies of the player hold no kernel, and are paid for; three of four confirmations fail."""

    def proposer(self, name: str) -> Proposer:
        """See `SimRooms`."""
        made = super().proposer(name)
        return made if name == "templates" else _Careless(made)

    def confirmer(self, device: Device) -> Confirmer:
        """See `SimRooms`."""
        return _Doubtful(super().confirmer(device))


class _Careless:
    def __init__(self, inner: Proposer) -> None:
        self._inner = inner
        self.name = inner.name

    def can(self, task: Task) -> bool:
        return self._inner.can(task)

    async def propose(self, task: Task) -> Proposal:
        made = await self._inner.propose(task)
        if task.seed % 5:
            return made
        return msgspec.structs.replace(made, source=None, failure="The reply holds no kernel.")

    async def close(self) -> None:
        await self._inner.close()


class BookedRooms(CarelessRooms):
    """Careless, and every call of the player is written down before it is made."""

    def proposer(self, name: str) -> Proposer:
        """See `SimRooms`."""
        made = super().proposer(name)
        return made if name == "templates" else BookedPlayer(made)


class BookedPlayer:
    """Some calls break off at the price that was set aside, and are made again; some requests are turned down."""

    def __init__(self, inner: Proposer) -> None:
        self._inner = inner
        self.name = inner.name
        self._books: Books | None = None

    def keep_books(self, books: Books) -> None:
        """See `core.ports.Booked`."""
        self._books = books

    def can(self, task: Task) -> bool:
        """What the player can."""
        return self._inner.can(task)

    async def propose(self, task: Task) -> Proposal:
        """A function of the task, in one call or more."""
        assert self._books is not None
        made = await self._inner.propose(task)
        assert made.call is not None
        rng = random.Random(f"booked {task.target.id} {task.seed}")
        reserved_usd = (made.call.cost_usd or 0.0) * rng.uniform(1.0, 1.6)
        came = self._books.came(task, made.call.model)
        if came:
            # it came to the engine before this one
            number, call = came[-1]
            return msgspec.structs.replace(made, call=call, booked=number)
        for attempt in (1, 2, 3):
            asked = msgspec.structs.replace(made.call, reserved_usd=reserved_usd, attempt=attempt, seed=task.seed)
            number = self._books.open(task, asked)
            if number is None:
                return Proposal(source=None, infra=True, this_request=True, failure="The budget does not allow it.")
            # another step may be decided, or the engine killed
            await asyncio.sleep(0)
            luck = rng.random()
            if luck < 0.15 and attempt < 3:
                self._books.settle(number, asked.unanswered("broken", "It broke off."))
                continue
            if luck < 0.22:
                filtered = asked.unanswered("broken", "The reply was filtered.")
                self._books.settle(number, filtered)
                return Proposal(source=None, infra=True, this_request=True, failure="Filtered.", call=filtered,
                                booked=number)  # fmt: skip
            self._books.settle(number, asked)
            return msgspec.structs.replace(made, call=asked, booked=number)
        raise AssertionError("the last attempt returns")

    async def most_usd(self) -> float:
        """See `core.ports.Priced`."""
        return 0.9

    async def close(self) -> None:
        """Nothing is held open."""
        await self._inner.close()


class _Doubtful:
    def __init__(self, inner: Confirmer) -> None:
        self._inner = inner

    async def confirm(self, target: Target, built: Built, node: Node, seed: int) -> Confirmation:
        found = await self._inner.confirm(target, built, node, seed)
        if seed % 4 < 3:
            return msgspec.structs.replace(found, verdict=Verdict.INCONCLUSIVE, speedup=0.99, reason="It spans 1.")
        return found

    async def counters(self, target: Target, built: Built) -> str:
        return await self._inner.counters(target, built)

    async def close(self) -> None:
        await self._inner.close()


def both(path: Path) -> Path:
    """A landscape with the targets of every packaged CPU one, so that several targets compete."""
    parts = [landscapes.read(p) for p in sorted(FOLDER.glob("*-cpu.landscape"))]
    one = msgspec.structs.replace(
        parts[0], model="all of them", model_ms=sum(part.model_ms for part in parts),
        targets=tuple(target for part in parts for target in part.targets),
    )  # fmt: skip
    path.write_bytes(landscapes.encode(one))
    return path


def case(path: Path, seed: int, **changes: Any) -> RunOptions:
    """A search of a landscape file."""
    fields = {"model": ModelSpec(text=path.stem, path=str(path)), "device": f"sim:{path}", "workspace": "",
              "proposers": ("templates", "sim"), "max_evaluations": 40, "seed": seed}  # fmt: skip
    return RunOptions(**(fields | changes))


def cases(folder: Path, count: int, seed: int = 0) -> list[Case]:
    """Sessions over every packaged landscape and one of several targets, with and without a budget of dollars."""
    files = [*sorted(FOLDER.glob("*.landscape")), both(folder / "both.landscape")]
    found = []
    for i in range(count):
        changes: dict[str, Any] = {"max_usd": 3.0} if i % 4 == 3 else {}
        if i % 7 == 6:
            # ends by itself, with budget left that a resume could spend
            changes |= {"max_evaluations": 200, "usd_per_percent": 0.1}
        if i % 5 == 4:
            changes["proposers"] = ("sim",)
        found.append(Case(case(files[i % len(files)], 1000 * seed + i, **changes), careless=i % 2 == 1,
                          booked=i % 3 == 1))  # fmt: skip
    return found


# ---- one engine in this process


@contextlib.contextmanager
def committed(store: Store, after: Callable[[int], None]) -> Iterator[None]:
    """Call `after` with 1, 2, ... when a transaction has been committed."""
    inner, depth, count = store._connection.transaction, 0, 0

    @contextlib.contextmanager
    def transaction(*, durable: bool) -> Iterator[None]:
        nonlocal depth, count
        depth += 1
        try:
            with inner(durable=durable):
                yield
        finally:
            depth -= 1
        if not depth:
            count += 1
            after(count)

    store._connection.transaction = transaction  # type: ignore[method-assign]
    try:
        yield
    finally:
        store._connection.transaction = inner  # type: ignore[method-assign]


def engine(folder: Path, one: Case, session: str = "", *,
           after: Callable[[int], None] = lambda _: None) -> str:  # fmt: skip
    """Run a new session, or resume one, to its end or until `after` kills it; returns its id."""
    workspace = Workspace(folder)
    workspace.prepare()
    store, reader = Store.open(workspace), Reader.open(workspace)
    try:
        info = reader.session(session) if session else store.create_session(one.options)
        if info.state == "done":
            # there is nothing to go on with, and a resume is refused
            return info.id
        store.acquire(info.id, NOBODY)
        with committed(store, after):
            asyncio.run(Engine(store, reader, info, one.rooms(info.options)).run())
        return info.id
    finally:
        reader.close()
        store.close()


def copy(folder: Path, to: Path) -> None:
    """What a kill would leave now."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.lock", "*-shm", "*.sock"))


def outcome(folder: Path) -> dict[str, Any]:
    """Everything of the one session of a workspace that does not depend on the clock."""
    with contextlib.closing(Reader.open(Workspace(folder))) as reader:
        (info,) = reader.sessions()
        drops = [e.data for e in reader.events(info.id, limit=10**6) if e.kind == Kind.PROPOSAL_FAILED]
        deployment = reader.deployment(info.id)
        return {
            "nodes": [msgspec.to_builtins(reader.node(info.id, n.id)) for n in reader.nodes(info.id)],
            "drops": drops, "undone": reader.steps(info.id), "dollars": info.cost_usd,
            "calls": [(c.target_id, c.edge, c.node_id, msgspec.to_builtins(c.call)) for c in reader.llm_calls(info.id)],
            "state": info.state, "reason": info.stop_reason, "deployment": msgspec.to_builtins(deployment),
        }  # fmt: skip


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """What is not equal, in words."""
    said = []
    for name, value in wanted.items():
        if found[name] == value:
            continue
        if isinstance(value, list):
            place = next((i for i, (a, b) in enumerate(zip(found[name], value, strict=False)) if a != b),
                         min(len(found[name]), len(value)))  # fmt: skip
            said.append(f"{name} from place {place} on ({len(found[name])} against {len(value)})")
        else:
            said.append(f"{name}: {found[name]!r} against {value!r}"[:200])
    return said


def forgiven(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """An outcome without the calls that only a kill makes: those on their way, and tries that are made once more."""
    left, more = list(wanted["calls"]), []
    for row in found["calls"]:
        if row in left:
            left.remove(row)
        elif _only_killed(row, found, wanted):
            more.append(row)
        else:
            return found
    if left:
        return found
    spent = found["dollars"] - sum(row[3]["cost_usd"] for row in more)
    same = abs(spent - wanted["dollars"]) < 1e-9
    # tries of several steps may be alike, so nobody knows which of them was made again
    return found | {"calls": wanted["calls"], "dollars": wanted["dollars"] if same else spent}


def _only_killed(row: tuple[Any, ...], found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a call was lost on its way, or broke off more than once as its step was begun again."""
    if row[3]["state"] == "broken":
        return found["calls"].count(row) > wanted["calls"].count(row) > 0
    return bool(row[3]["state"] == "lost")


def unequal(place: Path, one: Case, wanted: dict[str, Any]) -> list[str]:
    """What a killed and resumed session has that it should not have."""
    found = outcome(place)
    most = one.options.max_usd
    if one.booked and most is not None:
        over = [f"dollars: {found['dollars']} of {most}"] if found["dollars"] > most + 1e-9 else []
        over += [f"state: {found['state']}"] if found["state"] != "done" else []
        if over or any(_only_killed(row, found, wanted) for row in found["calls"]):
            # what was lost is spent, and so there was less for the rest
            return over
        # a step that was killed after its first try and then refused has lost what that try cost
        found, wanted = _without_refused(found), _without_refused(wanted)
    return differences(forgiven(found, wanted) if one.booked else found, wanted)


def _without_refused(found: dict[str, Any]) -> dict[str, Any]:
    return found | {"drops": [d | {"drop": None} if d["needed_usd"] is not None else d for d in found["drops"]]}


# ---- kill points


@dataclass
class Tally:
    """What came of the points."""

    copies: int = 0
    again: int = 0
    real: int = 0
    landed: int = 0
    """Real engines that were still at work when the signal came."""
    nodes: list[int] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    """What a killed session was doing, and with how much in flight."""
    failures: list[str] = field(default_factory=list)
    paying: int = 0
    """Points at which a call was on its way."""


def in_process(one: Case, points: int, rng: random.Random, folder: Path, tally: Tally) -> dict[str, Any]:
    """Kill one session at so many of its commits; returns the uninterrupted outcome.

    Where there are books, a third of them are commits with a call on its way.
    """
    total, paying = 0, set[int]()

    def count(n: int) -> None:
        nonlocal total
        total = n
        if one.booked and calling(folder / "whole"):
            paying.add(n)

    engine(folder / "whole", one, after=count)
    wanted = outcome(folder / "whole")
    tally.nodes.append(len(wanted["nodes"]))
    chosen = set(rng.sample(sorted(paying), min(points // 3, len(paying))))
    rest = [n for n in range(1, total + 1) if n not in chosen]
    chosen |= set(rng.sample(rest, min(points - len(chosen), len(rest))))

    def keep(n: int) -> None:
        if n in chosen:
            copy(folder / "again", folder / f"at-{n}")

    session = engine(folder / "again", one, after=keep)
    if said := differences(outcome(folder / "again"), wanted):
        tally.failures.append(f"{one.options.model.text} seed {one.options.seed} is not repeatable: {'; '.join(said)}")
    for n in sorted(chosen):
        place = folder / f"at-{n}"
        if not place.exists():
            # the clock has brought one commit fewer this time
            continue
        tally.copies += 1
        tally.states[doing(place)] += 1
        tally.paying += calling(place)
        kills = [n]
        while rng.random() < AGAIN:
            place, more = _killed_again(place, session, one, rng)
            tally.again += 1
            kills.append(more)
        engine(place, one, session)
        if said := unequal(place, one, wanted):
            where = "+".join(map(str, kills))
            tally.failures.append(
                f"{one.options.model.text} seed {one.options.seed} at commit {where}: {'; '.join(said)}"
            )
        shutil.rmtree(place)
    return wanted


def _killed_again(place: Path, session: str, one: Case, rng: random.Random) -> tuple[Path, int]:
    at, left = rng.randrange(1, 40), place.with_name(f"{place.name}-on")

    def kill(n: int) -> None:
        if n == at:
            copy(place, left)
            raise Killed

    with contextlib.suppress(Exception):
        engine(place, one, session, after=kill)
    if not left.exists():
        # it ended before
        copy(place, left)
    return left, at


def calling(folder: Path) -> bool:
    """Whether a call is on its way."""
    with contextlib.closing(sqlite3.connect(Workspace(folder).database)) as raw:
        return raw.execute("SELECT 1 FROM llm_calls WHERE state = 'open' LIMIT 1").fetchone() is not None


def doing(folder: Path) -> str:
    """What the one session of a workspace was at, and with how much in flight."""
    with contextlib.closing(Reader.open(Workspace(folder))) as reader:
        (info,) = reader.sessions()
        if info.state != "searching":
            return str(info.state)
        flying = sum(n.evaluation is None for n in reader.nodes(info.id, sources=False))
        return f"searching, {flying} nodes and {len(reader.steps(info.id))} steps in flight"


def real(one: Case, points: int, rng: random.Random, folder: Path, wanted: dict[str, Any], tally: Tally) -> None:
    """Kill real engine processes at random moments, and let real ones resume."""
    length_s = 0.5
    for number in range(points):
        place = folder / f"real-{number}"
        request: dict[str, Any] = {"run": msgspec.to_builtins(one.options)}
        for attempt in range(50):
            process, session = _start(place, request)
            began = time.monotonic()
            # the second time and later it may end by itself
            pause = rng.uniform(0, length_s) if attempt == 0 or rng.random() < AGAIN else None
            try:
                process.wait(pause)
                length_s = max(0.05, min(length_s, time.monotonic() - began))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
            tally.landed += process.returncode == -signal.SIGKILL
            request = {"resume": session}
            if process.returncode == 0 or outcome(place)["state"] == "done":
                break
        tally.real += 1
        if said := differences(outcome(place), wanted):
            tally.failures.append(f"{one.options.model.text} seed {one.options.seed} SIGKILL: {'; '.join(said)}")
        shutil.rmtree(place)


def _start(place: Path, request: dict[str, Any]) -> tuple[subprocess.Popen[bytes], str]:
    """An engine process that has said it is at work, and its session."""
    read, write = os.pipe()
    command = [sys.executable, "-m", "forge_tui.engine", "--workspace", str(place), "--ready", str(write)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(write,), stdout=subprocess.DEVNULL)
    os.close(write)
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode())
    process.stdin.close()
    with os.fdopen(read) as ready:
        said = json.loads(ready.readline())
    assert said["ok"], said
    return process, said["session"]


def run(points: int, *, seed: int = 0, each: int = 10, real_share: float = REAL,
        say: Callable[[str], None] = print) -> Tally:  # fmt: skip
    """So many kill points over as many sessions as they need, `each` a session."""
    rng, tally = random.Random(seed), Tally()
    reals = round(points * real_share)
    rest = points - reals
    with tempfile.TemporaryDirectory() as root:
        number = -(-rest // each)
        for i, one in enumerate(cases(Path(root), number, seed)):
            folder = Path(root) / f"case-{i}"
            here = min(each, points - reals - tally.copies)
            wanted = in_process(one, here, rng, folder, tally)
            share = (i + 1) * reals // number - i * reals // number
            if share:
                # the real engine has the real player
                careful = Case(one.options)
                if careful != one:
                    engine(folder / "careful", careful)
                    wanted = outcome(folder / "careful")
                real(careful, share, rng, folder, wanted, tally)
            shutil.rmtree(folder)
            say(f"{one.options.model.text} seed {one.options.seed}: {tally.nodes[-1]} nodes; points so far "
                f"{tally.copies + tally.real}, unequal {len(tally.failures)}")  # fmt: skip
    return tally


def main() -> int:
    """1 if a resumed tree differs."""
    parser = argparse.ArgumentParser(prog="kill-points", description=__doc__)
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began = time.monotonic()
    tally = run(given.points, seed=given.seed)
    print(*tally.failures, sep="\n")
    print(f"{tally.copies} points at random commits, {tally.again} of them killed again while resumed; {tally.real} "
          f"sessions of real engine processes, {tally.landed} SIGKILLs; {tally.paying} points with a call on its "
          f"way; sessions of {min(tally.nodes)} to {max(tally.nodes)} nodes")  # fmt: skip
    print(*(f"  {count:4} killed while {state}" for state, count in sorted(tally.states.items())), sep="\n")
    kept = not tally.failures and tally.copies + tally.real >= given.points
    print(f"{'PASS' if kept else 'FAIL'}  every resumed session equals the uninterrupted one: "
          f"{len(tally.failures)} of {tally.copies + tally.real} differ; {time.monotonic() - began:.0f} s")  # fmt: skip
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
