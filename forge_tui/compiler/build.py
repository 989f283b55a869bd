"""Source to one built file, under limits, cached by content: the `Compiler` of the engine."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forge_tui.compiler import command, diagnostics, fits, inspect, isolated, listing, private, subprocesses
from forge_tui.compiler.cache import BuildCache, Meta
from forge_tui.compiler.folder import private_folder, sweep
from forge_tui.compiler.toolchain import Gxx, Nvcc, Tool, find_tool
from forge_tui.contract import directives, header, lint, plan, pragmas
from forge_tui.contract.source import Source, read
from forge_tui.core.errors import ContractError, EnvironmentFault
from forge_tui.core.ports import Isolation
from forge_tui.core.records import Built, CompileFailure, Device, LaunchPlan, Target, Verdict
from forge_tui.processes import cuda_tools

#: changes when what is built from equal input changes
_FORMAT = "2"
_MAX_DISASSEMBLY = 64 * 2**20
#: below this, a compiler's word that the disk is full is believed (a source could print the same words)
_LITTLE_SPACE = 64 * 2**20
_GIB = 2**30
_REASON_LIMIT = 400


@dataclass(frozen=True, slots=True)
class _Job:
    """Everything that decides the bytes of a built file."""

    source: Source
    header: str
    tunables: Mapping[str, int]
    plan: LaunchPlan
    plans: Mapping[str, LaunchPlan]
    """At other sizes, by sibling."""
    key: str


@dataclass(slots=True)
class _Running:
    """A build that several callers may wait for."""

    task: asyncio.Task[Built | CompileFailure]
    waiters: int = 0


class CommandCompiler:
    """Compiles candidates with g++, nvcc or NVRTC for one device.

    At most `jobs` compilers run at a time, each within `timeout_s` seconds and `memory_bytes` of address space.
    """

    def __init__(
        self, device: Device, cache: Path, *, timeout_s: float = 60.0, memory_bytes: int = 4 * _GIB, jobs: int = 2
    ) -> None:
        self._device = device
        self._cache = BuildCache(cache)
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._slots = asyncio.Semaphore(max(1, jobs))
        self._running: dict[str, _Running] = {}
        self._tool: Tool | None = None
        self._confined = isolated.NONE
        self._tool_lock = asyncio.Lock()
        self._objdump = shutil.which("objdump")
        sweep()

    async def build(self, target: Target, source: str, tunables: dict[str, int]) -> Built | CompileFailure:
        """Compile a candidate, or take the built file from the cache; equal builds at one time become one.

        Raises:
            EnvironmentFault: there is no compiler, or no space to build in.
        """
        tool = await self._toolchain()
        try:
            job = self._prepare(target, source, tunables, tool)
        except ContractError as error:
            return CompileFailure(verdict=Verdict.REFUSED, reason=error.what)
        running = self._running.get(job.key)
        if running is None:
            task = asyncio.create_task(self._build(job, tool), name=f"build {job.key[:12]}")
            running = self._running[job.key] = _Running(task)
            task.add_done_callback(lambda _task: self._forget(job.key, running))
        return await self._join(running, job.key)

    def _forget(self, key: str, running: _Running | None) -> None:
        if self._running.get(key) is running:
            del self._running[key]

    async def _join(self, running: _Running, key: str) -> Built | CompileFailure:
        """Wait for a build; the last waiter to be cancelled takes the build along."""
        running.waiters += 1
        try:
            return await asyncio.shield(running.task)
        finally:
            running.waiters -= 1
            if not running.waiters and not running.task.done():
                self._forget(key, running)
                running.task.cancel()
                await asyncio.gather(running.task, return_exceptions=True)

    async def _toolchain(self) -> Tool:
        async with self._tool_lock:
            if self._tool is None:
                self._tool = await asyncio.to_thread(find_tool, self._device)
            return self._tool

    async def _confinement(self, tool: Tool) -> isolated.Confinement:
        async with self._tool_lock:
            self._confined = await isolated.confinement(tool, self._device.arch)
        return self._confined

    async def isolation(self) -> Isolation:
        """What keeps the compilers apart from the machine.

        Raises:
            EnvironmentFault: there is no compiler.
        """
        return (await self._confinement(await self._toolchain())).isolation

    async def machine_code(self, built: Built) -> str:
        """A built file's instructions in few words (see `listing`).

        Raises:
            EnvironmentFault: no disassembler is at hand, or no space for it.
        """
        tool = await self._toolchain()
        await self._confinement(tool)
        cuda = built.language == "cuda"
        program = cuda_tools.find("cuobjdump") if cuda else self._objdump or ""
        if not program:
            name = "cuobjdump (of the CUDA toolkit)" if cuda else "objdump (of binutils)"
            raise EnvironmentFault(f"{name} is not installed, so machine code cannot be shown.")
        argv = command.disassemble_cubin(program) if cuda else command.disassemble(program)
        try:
            async with self._slots, private_folder() as folder:
                await asyncio.to_thread(shutil.copyfile, built.path, folder / command.ARTIFACT[built.language])
                done = await self._run(argv, folder, time.monotonic() + self._timeout_s, keep_bytes=_MAX_DISASSEMBLY)
        except OSError as error:
            raise _disk_fault(error) from error
        # on the CPU loops are in functions of their own: those of threads, and static ones
        kernels = [launch.kernel for launch in built.plan.launches]
        found = await asyncio.to_thread(listing.brief, done.output, kernels)
        if not found:
            raise EnvironmentFault(f"{Path(program).name} showed no instructions.")
        return found

    def _prepare(
        self, target: Target, text: str, tunables: dict[str, int], tool: Tool
    ) -> _Job:
        device = self._device
        source = read(text)
        lint.check_source(source, device.language)
        chosen = directives.parse_source(source).chosen(tunables)
        launch_plan = plan.make(text, target, device, tunables)
        plans = plan.make_all(text, target, device, tunables)
        head = header.render(target, device)
        if device.language == "cuda" and not command.valid_arch(device.arch):
            raise EnvironmentFault(f"The architecture `{device.arch}` of {device.name} is not one of CUDA's.")
        described = [
            _FORMAT, type(tool).__name__, tool.version, device.arch, self._argv(tool, chosen, seed="")[1:], source.text,
            head, sorted(chosen.items()), *sorted(plans),
        ]
        key = hashlib.sha256(json.dumps(described).encode()).hexdigest()
        return _Job(source, head, chosen, launch_plan, plans, key)

    def _argv(
        self, tool: Tool, tunables: Mapping[str, int], seed: str
    ) -> list[str]:
        if isinstance(tool, Gxx):
            return command.cxx_compile(tool, tunables, seed)
        if isinstance(tool, Nvcc):
            return command.nvcc_compile(tool, self._device.arch, tunables, seed)
        return command.nvrtc_compile(tool, self._device.arch, tunables)

    async def _build(
        self, job: _Job, tool: Tool
    ) -> Built | CompileFailure:
        artifact = command.ARTIFACT[self._device.language]
        async with self._slots:
            kept = await asyncio.to_thread(self._cache.look_up, job.key, artifact)
            if kept is not None:
                path, meta = kept
                return self._built(path, meta, job, cached=True)
            await self._confinement(tool)
            started = time.monotonic()
            try:
                async with private_folder() as folder:
                    made = await self._compile(job, tool, folder)
                    seconds = time.monotonic() - started
                    if isinstance(made, CompileFailure):
                        return CompileFailure(
                            verdict=made.verdict, reason=made.reason, log=made.log, compile_s=seconds
                        )
                    data, log, resources = made
                    meta = Meta(
                        sha256=hashlib.sha256(data).hexdigest(), compile_s=seconds, log=log, resources=resources
                    )
                    path = await asyncio.to_thread(self._cache.store, job.key, artifact, data, meta)
            except OSError as error:
                raise _disk_fault(error) from error
            return self._built(path, meta, job, cached=False)

    def _built(self, path: Path, meta: Meta, job: _Job, *, cached: bool) -> Built | CompileFailure:
        every = (job.plan, *job.plans.values())
        refusal = next(filter(None, (fits.too_much(meta.resources, p, self._device) for p in every)), "")
        if refusal:
            return CompileFailure(verdict=Verdict.REFUSED, reason=refusal, log=meta.log, compile_s=meta.compile_s)
        return Built(
            path=str(path), sha256=meta.sha256, language=self._device.language, plan=job.plan, compile_s=meta.compile_s,
            cached=cached, log=meta.log, resources=meta.resources, plans=dict(job.plans),
        )  # fmt: skip

    async def _compile(
        self, job: _Job, tool: Tool, folder: Path
    ) -> tuple[bytes, str, dict[str, dict[str, int]]] | CompileFailure:
        """The built file's bytes, the compiler's messages and the resources of its kernels; or why there are none."""
        language = self._device.language
        _write(folder / command.SOURCE[language], pragmas.filled(job.source, job.tunables))
        _write(folder / command.HEADER, job.header)
        steps = [self._argv(tool, job.tunables, seed=f"0x{job.key[:15]}")]
        if isinstance(tool, Gxx):
            _write(folder / command.LINK_MAP, command.LINK_MAP_TEXT)
            steps.append(command.cxx_link(tool))
        deadline = time.monotonic() + self._timeout_s
        log = ""
        resources: dict[str, dict[str, int]] = {}
        for argv in steps:
            done = await self._run(argv, folder, deadline)
            resources |= diagnostics.resources(done.output)
            own = private.own_words(done.output, str(folder), self._confined.read)
            log = diagnostics.clean(f"{log}\n{own}", str(folder))
            failure = self._judge(done, log)
            if failure is not None:
                return failure
        path = folder / command.ARTIFACT[language]
        if not path.is_file():
            return CompileFailure(verdict=Verdict.COMPILE_ERROR, reason=diagnostics.reason(log), log=log)
        data = path.read_bytes()
        try:
            await self._inspect(job, folder, data, deadline)
        except ContractError as error:
            return CompileFailure(verdict=Verdict.REFUSED, reason=error.what, log=log)
        return data, log, resources

    async def _run(
        self, argv: list[str], folder: Path, deadline: float, keep_bytes: int = subprocesses.MAX_OUTPUT_BYTES
    ) -> subprocesses.Finished:
        return await subprocesses.run(
            argv, folder, timeout_s=max(0.1, deadline - time.monotonic()), memory_bytes=self._memory_bytes,
            keep_bytes=keep_bytes, confined=self._confined,
        )  # fmt: skip

    def _judge(self, done: subprocesses.Finished, log: str) -> CompileFailure | None:
        """What a finished command means; None where it did its work."""
        if done.timed_out or diagnostics.exceeded(log) == "time":
            return CompileFailure(
                verdict=Verdict.TIMED_OUT, reason=f"The compiler ran longer than {self._timeout_s:g} s.", log=log
            )
        if done.code == 0:
            return None
        if diagnostics.says_disk_full(log) and _disk_is_full():
            raise _disk_fault(OSError(errno.ENOSPC, "No space left on device"))
        if done.code in (command.NOT_STARTED, command.NOT_CONFINED):
            self._tool = None
            raise EnvironmentFault(f"The compiler could not be started: {diagnostics.reason(log)}.")
        fault = diagnostics.environment_fault(log, self._device.arch)
        if fault is not None:
            raise EnvironmentFault(*fault)
        limits: dict[str, str] = {
            "memory": f"The compiler needed more than {self._memory_bytes / _GIB:g} GiB of memory.",
            "file": f"The compiler wrote more than {subprocesses.MAX_FILE_BYTES // 2**20} MiB.",
        }
        exceeded = "memory" if done.code == -signal.SIGKILL else diagnostics.exceeded(log)
        reason = limits.get(exceeded) or diagnostics.reason(log)
        return CompileFailure(verdict=Verdict.COMPILE_ERROR, reason=reason[:_REASON_LIMIT], log=log)

    async def _inspect(self, job: _Job, folder: Path, data: bytes, deadline: float) -> None:
        if self._device.language == "cuda":
            await asyncio.to_thread(inspect.check_cubin, data, job.plan, job.source, job.header)
            return
        await asyncio.to_thread(inspect.check_cpu, data)
        if self._objdump is not None:
            argv = command.disassemble(self._objdump)
            done = await self._run(argv, folder, deadline, keep_bytes=_MAX_DISASSEMBLY)
            if len(done.output) >= _MAX_DISASSEMBLY:
                raise ContractError("The built kernel is too large to be inspected.")
            await asyncio.to_thread(inspect.check_instructions, done.output)


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def _disk_is_full() -> bool:
    return shutil.disk_usage(tempfile.gettempdir()).free < _LITTLE_SPACE


def _disk_fault(error: OSError) -> EnvironmentFault:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentFault(
            "The disk is full, so kernels cannot be built.", f"Free space in {tempfile.gettempdir()} and the workspace."
        )
    return EnvironmentFault(f"Kernels cannot be built: {error.strerror or error}.", "Look at the workspace's folder.")
