"""A CPU candidate built with AddressSanitizer and UndefinedBehaviorSanitizer, run alone on its inputs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from forge_tui.core.records import Built, Target
from forge_tui.evaluator.sanitizer import Sanitised
from forge_tui.processes.command import Finished

#: builds the program for a target, a source, its tunables and plan, in a folder, for so many sets; says why not
Build = Callable[[Target, str, Mapping[str, int], Built, Path, int], Awaitable[str]]
#: runs a command in a folder with an environment for so many seconds, apart from the machine
Run = Callable[[list[str], Path, dict[str, str], float], Awaitable[Finished]]
PASSES = ("address", "undefined")
_RUN_S = 120.0
#: exit codes of what starts programs: not confined, not found
_NOT_STARTED = (126, 127)
_OPTIONS = {
    # leaks are looked for with ptrace, which containers forbid, and a kernel cannot allocate
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=86:detect_stack_use_after_return=1:color=never",
    "UBSAN_OPTIONS": "print_stacktrace=0:exitcode=86:color=never",
}
_ASAN = re.compile(r"ERROR: AddressSanitizer: (\S+)")
_ACCESS = re.compile(r"^(READ|WRITE) of size (\d+)", re.MULTILINE)
_FRAME = re.compile(r"^\s+#\d+ 0x\w+ in (?P<name>\w+)[^\n]*?candidate\.cpp:(?P<line>\d+)", re.MULTILINE)
_REGION = re.compile(
    r"is located (\d+) bytes (to the right of|to the left of|after|before|inside of) (\d+)-byte region \[(0x[0-9a-f]+)"
)
_UBSAN = re.compile(r"candidate\.cpp:(\d+):\d+: runtime error: ([^\n]+)")
_WORDS = {"to the right of": "behind", "after": "behind", "to the left of": "before", "before": "before",
          "inside of": "inside"}  # fmt: skip


class CpuSanitizer:
    """Builds and runs the instrumented program; whether the compiler can is found out once."""

    def __init__(
        self, build: Build, why_not: Callable[[], Awaitable[str]], run: Run, program: str, threads: int
    ) -> None:
        self._build = build
        self._start = run
        self._ask = why_not
        self._program = program
        self._threads = threads
        self._asking = asyncio.Lock()
        self._why_not: str | None = None

    async def why_not(self) -> str:
        """Why kernels cannot be sanitised here, as a sentence; empty where they can."""
        async with self._asking:
            if self._why_not is None:
                self._why_not = await self._ask()
            return self._why_not

    async def run(
        self, target: Target, source: str, tunables: Mapping[str, int], built: Built, inputs: Path, sets: int,
        folder: Path,
    ) -> Sanitised:  # fmt: skip
        """Run a source on the sets of inputs in a file."""
        missing = await self.why_not() or await self._build(target, source, tunables, built, folder, sets)
        if missing:
            return Sanitised(missing=missing)
        env = _OPTIONS | ({"OMP_NUM_THREADS": str(self._threads)} if self._threads else {})
        try:
            done = await self._start([str(folder / self._program), str(inputs)], folder, env, _RUN_S)
        except OSError as error:
            return Sanitised(missing=f"The program with AddressSanitizer cannot be started: {error.strerror or error}.")
        found = sentence(done.stderr, done.stdout)
        if found:
            return Sanitised(found=found, log=done.stderr[:4000])
        if done.timed_out:
            return Sanitised(missing=f"The run with AddressSanitizer did not end within {_RUN_S:.0f} s.")
        if done.code or not done.stdout.endswith("done\n"):
            if done.code in _NOT_STARTED:
                why = done.stderr.strip().rpartition(": ")[2]
                return Sanitised(missing=f"The program with AddressSanitizer cannot be started: {why}.")
            said = (done.stderr.strip().splitlines() or done.stdout.strip().splitlines()[-1:] or [""])[0]
            return Sanitised(missing=f"The run with AddressSanitizer ended with code {done.code}"
                             f"{f' ({said[:160]})' if said else ''}.")  # fmt: skip
        return Sanitised(PASSES)


def sentence(stderr: str, stdout: str) -> str:
    """The first finding in words; empty where there is none. `stdout` names the buffers and their addresses."""
    wrong = _UBSAN.search(stderr)
    if wrong:
        said = re.sub(r" 0x[0-9a-f]+", "", wrong[2])
        return f"UndefinedBehaviorSanitizer: line {wrong[1]}: {said}."
    kind = _ASAN.search(stderr)
    if not kind:
        return ""
    access, frame, region = _ACCESS.search(stderr), _FRAME.search(stderr), _REGION.search(stderr)
    parts = [f"AddressSanitizer: {kind[1]}"]
    if access:
        parts.append(f", a {access[1].lower()} of {access[2]} bytes")
    if frame:
        name = "forge_launch" if frame["name"].startswith("forge_launch") else frame["name"]
        parts.append(f" in {name}, line {frame['line']}")
    if region:
        names = dict(line.split()[::-1] for line in stdout.splitlines() if re.fullmatch(r"\w+ 0x[0-9a-f]+", line))
        name = names.get(region[4], "an allocation")
        parts.append(f", {region[1]} bytes {_WORDS[region[2]]} {name} ({region[3]} bytes)")
    return "".join(parts) + "."
