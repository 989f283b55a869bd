"""A row of evaluations of every kind of kernel on one evaluator, and what it must not leave behind."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fault_sources import Fault

from forge_tui.compiler.build import CommandCompiler
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Built, CompileFailure, Target, Verdict
from forge_tui.evaluator.client import WorkerEvaluator
from forge_tui.processes.watch import children

_LOG_BYTES = 9 << 20
_SAMPLER = b"forge_tui.telemetry.sampler"


@dataclass
class Campaign:
    """What was run and what was found."""

    target: Target
    evaluator: WorkerEvaluator
    compiler: CommandCompiler
    build: Callable[[str], Built]
    """A source built without the compiler room's checks."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    used: list[tuple[int, int]] = field(default_factory=list)
    """Open descriptors and bytes of memory of this process, after every evaluation."""
    _number: int = 0

    async def run(self, faults: Sequence[Fault]) -> None:
        """Evaluate one after the other; every verdict is held against what is expected."""
        for fault in faults:
            self._number += 1
            started = time.monotonic()
            verdict, reason = await self._one(fault)
            self.seconds[fault.name] = self.seconds.get(fault.name, 0.0) + time.monotonic() - started
            self.counts[fault.name, verdict.value] += 1
            problem = fault.problem(verdict, reason)
            if problem:
                self.problems.append(f"evaluation {self._number}: {problem}")
            left = orphans(self.evaluator)
            if left:
                self.problems.append(f"evaluation {self._number}: {fault.name} left processes: {left}")
            self.used.append((len(list(Path("/proc/self/fd").iterdir())), _memory()))

    async def close(self, logs: Path) -> None:
        """End the evaluator; its folder must be gone and its logs short."""
        scratch = self.evaluator._scratch
        await self.evaluator.close()
        if scratch is not None and scratch.folder.exists():
            self.problems.append(f"{scratch.folder} left")
        self.problems += [f"{log} grew too large" for log in logs.rglob("*.log") if log.stat().st_size > _LOG_BYTES]
        left = orphans(self.evaluator, watched=False)
        if left:
            self.problems.append(f"the end left processes: {left}")

    async def _one(self, fault: Fault) -> tuple[Verdict, str]:
        # equal sources would come from the cache, and a cache says nothing of the compiler
        source = f"{fault.source}// {self._number}\n"
        built: Built | CompileFailure
        built = await self.compiler.build(self.target, source, {}) if fault.checked else self.build(fault.source)
        if isinstance(built, CompileFailure):
            return built.verdict, built.reason
        result = await self.evaluator.evaluate(self.target, built, self._number)
        return result.verdict, result.reason

    def growth(self) -> tuple[int, int]:
        """Descriptors and bytes that came on top between the first quarter's end and the end."""
        first, last = self.used[len(self.used) // 4], self.used[-1]
        return last[0] - first[0], last[1] - first[1]

    def table(self) -> str:
        """Verdicts by kernel, with how often and how long."""
        lines = [f"{'kernel':<24}{'times':>6}{'s each':>8}  verdicts"]
        for name in self.seconds:
            found = {verdict: n for (kernel, verdict), n in self.counts.items() if kernel == name}
            times = sum(found.values())
            said = ", ".join(f"{n} {verdict}" for verdict, n in sorted(found.items()))
            lines.append(f"{name:<24}{times:>6}{self.seconds[name] / times:>8.2f}  {said}")
        return "\n".join(lines)


def mixed(good: Sequence[Fault], bad: Sequence[Fault], count: int, seed: int) -> list[Fault]:
    """Every bad kernel about as often, in a random order, every third place a good or a plainly wrong one."""
    rng = random.Random(seed)
    found: list[Fault] = []
    pool: list[Fault] = []
    while len(found) < count:
        if len(found) % 3 == 2:
            found.append(rng.choice(good))
            continue
        if not pool:
            pool = list(bad)
            rng.shuffle(pool)
        found.append(pool.pop())
    return found


def orphans(evaluator: WorkerEvaluator, *, watched: bool = True) -> list[str]:
    """Descendants of this process that are no workers of the evaluator; `watched` while it is open."""
    known = {evaluator._judge.pid, evaluator._runner.pid}
    found, waiting = [], [os.getpid()]
    while waiting:
        parent = waiting.pop()
        for child in children(parent):
            waiting.append(child)
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{child}/cmdline").read_bytes()
                # the one that watches the GPU lives as long as the evaluator
                if child not in known and not (watched and _SAMPLER in command):
                    found.append(f"{child} {command[:80]!r}")
    return found


def files(place: Workspace) -> set[str]:
    """Files that a campaign could leave; what a workspace is meant to keep apart."""
    found = {str(path) for path in Path(tempfile.gettempdir()).iterdir()}
    found |= {str(path) for root in ("/tmp", "/dev/shm") for path in Path(root).glob("forge-fault-*")}
    meant = (place.artifacts, place.logs, place.root / "built", place.root / "cache")
    for path in place.root.rglob("*"):
        if not any(path == folder or folder in path.parents for folder in meant):
            found.add(str(path))
    return found


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
