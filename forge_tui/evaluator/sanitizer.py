"""A candidate's file under compute-sanitizer: memcheck, racecheck, initcheck, synccheck.

Whether the tool works on a machine is tried once, on a kernel that writes out of bounds: a container without the
rights, another driver or a runtime that is not NVIDIA's makes it useless, which is said and no fault of the kernel.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forge_tui.evaluator import alone, sanitizer_log
from forge_tui.evaluator.job import Job
from forge_tui.processes import command, cuda_tools

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_ERRORS_FOUND = 86
_PROBE_S = 60.0
_TOOL_S = 150.0
_OPTIONS: dict[str, tuple[str, ...]] = {"racecheck": ("--racecheck-detect-level", "error")}
#: memory between allocations, so that one's end is never another's beginning; older versions lack it
_PADDING = ("--padding", "4096")
#: reports of these tools are not to be believed where copies are made beside the threads
_BLIND = ("racecheck", "initcheck")
_ASYNCHRONOUS = re.compile(
    r"cp\.(?:async|reduce)|mbarrier|wgmma|tcgen05|tensormap|cuda::(?:barrier|pipeline|ptx)|memcpy_async"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Sanitised:
    """What came of it: passes that found nothing, why others are missing, and what was found."""

    passed: tuple[str, ...] = ()
    missing: str = ""
    """One sentence."""
    found: str = ""
    """One or two sentences: the kernel is to be rejected for it."""
    log: str = ""


class ComputeSanitizer:
    """The sanitizer of one machine and device; finding out whether it works is done once."""

    def __init__(self, device_index: int, path: str | None = None, tool_s: float = _TOOL_S) -> None:
        self._index = device_index
        self.path = cuda_tools.find("compute-sanitizer") if path is None else path
        self._tool_s = tool_s
        self._extra: tuple[str, ...] = ()
        self._probing = asyncio.Lock()
        self._why_not: str | None = None

    async def why_not(self, folder: Path) -> str:
        """Why kernels cannot be sanitised here, as a sentence; empty where they can."""
        async with self._probing:
            if self._why_not is None:
                self._why_not = await self._probe(folder)
            return self._why_not

    async def run(self, job: Job, source: str, folder: Path, tools: Sequence[str] = TOOLS) -> Sanitised:
        """Run a job under every tool, up to the first that finds something."""
        why_not = await self.why_not(folder)
        if why_not:
            return Sanitised(missing=why_not)
        path = folder / "job.json"
        job.write(path)
        passed: list[str] = []
        missing: list[str] = []
        for tool in tools:
            # what a second set would find of races the first does too, at half of the time
            sets = 1 if tool == "racecheck" else len(job.input_bytes)
            log, done = await self._call(tool, folder, str(path), str(sets))
            report = log.found
            if report is not None:
                said = f"compute-sanitizer {tool}: {sanitizer_log.sentence(report, _buffers(done.stdout))}"
                if tool not in _BLIND or not _ASYNCHRONOUS.search(_COMMENT.sub(" ", source)):
                    return Sanitised(tuple(passed), found=said, log=_excerpt(folder, tool))
                missing.append(f"{tool} does not follow asynchronous copies, so its report is not held against it "
                               f"({said.rstrip('.')})")  # fmt: skip
            elif not done.timed_out and done.code == 0 and log.errors == 0:
                passed.append(tool)
            else:
                missing.append(f"{tool} {_failure(done, log, self._tool_s)}")
        text = f"{'; '.join(missing)}." if missing else ""
        return Sanitised(tuple(passed), missing=text[:1].upper() + text[1:])

    async def _probe(self, folder: Path) -> str:
        if not self.path:
            return "compute-sanitizer was not found: it comes with the CUDA toolkit."
        why = ""
        for extra in (_PADDING, ()):
            self._extra = extra
            try:
                log, done = await self._call("memcheck", folder, "--probe", str(self._index), limit_s=_PROBE_S)
            except OSError as error:
                return f"compute-sanitizer cannot be started: {error.strerror or error}."
            if log.found is not None and alone.PROBE_KERNEL in " ".join(log.found.details):
                return ""
            why = why or _failure(done, log, _PROBE_S)
        return f"compute-sanitizer does not work here: on a kernel that writes out of bounds it {why}."

    async def _call(
        self, tool: str, folder: Path, *arguments: str, limit_s: float | None = None
    ) -> tuple[sanitizer_log.Log, command.Finished]:
        path = folder / f"{tool}.log"
        path.unlink(missing_ok=True)
        extra = self._extra if tool == "memcheck" else _OPTIONS.get(tool, ())
        done = await command.run(
            [self.path, "--tool", tool, *extra, "--error-exitcode", str(_ERRORS_FOUND), "--print-limit", "5",
             "--show-backtrace", "no", "--log-file", str(path), sys.executable, "-m", alone.__name__, *arguments],
            timeout_s=limit_s or self._tool_s,
        )  # fmt: skip
        text = path.read_text(errors="replace") if path.is_file() else ""
        # what the tool says before it has a log goes to the terminal
        return sanitizer_log.parse(text or f"{done.stdout}\n{done.stderr}"), done


def _buffers(stdout: str) -> dict[str, int]:
    """The addresses of the last set that the program began."""
    lines = [line for line in stdout.splitlines() if line.startswith(alone.BUFFERS)]
    found: dict[str, int] = json.loads(lines[-1].removeprefix(alone.BUFFERS)) if lines else {}
    return found


def _failure(done: command.Finished, log: sanitizer_log.Log, limit_s: float) -> str:
    """How a run ended that says nothing of the kernel."""
    if done.timed_out:
        return f"did not end within {limit_s:.0f} s"
    said = [r.head for r in log.reports] + [line for line in done.stderr.splitlines() if line.strip()]
    # what went wrong first is rarely the last thing said
    first = next((line for line in said if re.search(r"error|fail|not |unable|denied", line, re.IGNORECASE)), "")
    text = (first or (said[-1] if said else "")).removeprefix("Error: ").strip().rstrip(".")
    if text:
        return f"failed ({text[:160]})"
    return "found nothing" if done.code == 0 else f"ended with code {done.code}"


def _excerpt(folder: Path, tool: str) -> str:
    return (folder / f"{tool}.log").read_text(errors="replace")[:4000]
