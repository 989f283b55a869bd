"""Where the real rooms are wired behind the protocols; tests bring their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.paths import Workspace
from forge_tui.core.ports import Compiler, Confirmer, Evaluator, Proposer
from forge_tui.core.profiles import Mode, Profile
from forge_tui.core.records import Built, DeployDecision, Deployment, Device, ModelSpec, RunOptions, Target, Winner
from forge_tui.processes.quiet import Quiet

if TYPE_CHECKING:
    from forge_tui.evaluator.confirm import WinnerConfirmer
    from forge_tui.evaluator.cpu_sanitizer import CpuSanitizer
    from forge_tui.evaluator.sanitizer import ComputeSanitizer

Progress = Callable[[str, DeployDecision | None], None]


class Rooms(Protocol):
    """What the engine asks of the other rooms, for one session."""

    def check_tools(self) -> None:
        """Raise EnvironmentFault if no compiler for the session's device is at hand."""

    async def describe_device(self) -> Device:
        """The device as it is now, without its measured ceilings."""

    async def profile(self) -> Profile:
        """Profile the model on its inputs."""

    async def what_if(
        self, profile: Profile, target_ids: Sequence[str], modes: Sequence[Mode] = (), *,
        on_progress: Callable[[str], None],
    ) -> Profile:  # fmt: skip
        """The profile with what the model gains where these targets cost their floor, alone and together.

        Without `modes` in all of them.
        """

    def compiler(self, device: Device) -> Compiler:
        """A compiler for the device."""

    def evaluator(self, device: Device, quiet: Quiet) -> Evaluator:
        """An evaluator on the device, which times while `quiet` keeps compilers away."""

    def confirmer(self, device: Device) -> Confirmer:
        """Who tries winners once more."""

    def proposer(self, name: str) -> Proposer:
        """A proposer by name."""

    def at_hand(self, target: Target, device: Device) -> bool:
        """Whether somebody among the proposers surely has a kernel for a target."""

    def deploy(self, device: Device, winners: Sequence[Winner], on_progress: Progress) -> Awaitable[Deployment]:
        """Decide inside the model which winners stay."""


def _unheard(text: str) -> None:
    """For rooms that nobody listens to."""
    del text


@dataclass(slots=True)
class WorkerRooms:
    """The real rooms: workers, compilers, LiteLLM."""

    options: RunOptions
    workspace: Workspace
    session: str
    on_note: Callable[[str], None] = _unheard
    """Gets sentences of what the rooms wait for."""

    @property
    def _logs(self) -> Path:
        return self.workspace.logs / self.session

    @property
    def _spec(self) -> ModelSpec:
        return self.options.model

    def check_tools(self) -> None:
        """See `Rooms`."""
        from forge_tui.compiler import toolchain

        if not self.options.device.startswith("cuda"):
            toolchain.find_gxx()
            return
        try:
            toolchain.find_nvcc()
        except EnvironmentFault:
            toolchain.find_nvrtc()

    async def describe_device(self) -> Device:
        """See `Rooms`."""
        from forge_tui.profiler import client

        return await client.describe_device(
            self.options.device, threads=self.options.threads, log=self._logs / "profiler.log", timeout_s=120
        )

    async def profile(self) -> Profile:
        """See `Rooms`."""
        from forge_tui.profiler import client

        return await client.profile(
            self._spec, self.options.device, self.workspace, threads=self.options.threads, seed=self.options.seed,
            log=self._logs / "profiler.log", timeout_s=900, capture_bytes=self.options.capture_bytes,
        )  # fmt: skip

    async def baselines(
        self, profile: Profile, target_ids: Sequence[str], *, allow_tf32: bool, on_progress: Callable[[str], None]
    ) -> Profile:
        """The profile with the baselines of the model and of these targets."""
        from forge_tui.profiler.experiments import client as extras

        return await extras.baselines(
            self._spec, profile, self.workspace, device_name=self.options.device, threads=self.options.threads,
            seed=self.options.seed, log=self._logs / "baselines.log", target_ids=target_ids, allow_tf32=allow_tf32,
            on_progress=on_progress,
        )  # fmt: skip

    async def what_if(
        self, profile: Profile, target_ids: Sequence[str], modes: Sequence[Mode] = (), *,
        on_progress: Callable[[str], None],
    ) -> Profile:  # fmt: skip
        """See `Rooms`."""
        from forge_tui.profiler.experiments import client as extras

        return await extras.what_if(
            self._spec, profile, self.workspace, device_name=self.options.device, threads=self.options.threads,
            seed=self.options.seed, log=self._logs / "what-if.log", target_ids=target_ids, modes=modes,
            on_progress=on_progress,
        )  # fmt: skip

    def compiler(self, device: Device) -> Compiler:
        """See `Rooms`."""
        from forge_tui.compiler.build import CommandCompiler

        return CommandCompiler(device, self.workspace.builds, timeout_s=self.options.compile_timeout_s,
                               jobs=max(1, min(16, device.cores)))  # fmt: skip

    def evaluator(self, device: Device, quiet: Quiet) -> Evaluator:
        """See `Rooms`."""
        from forge_tui.evaluator.client import WorkerEvaluator

        return WorkerEvaluator(
            self._spec, device, self.workspace, threads=self.options.threads, seed=self.options.seed,
            log_dir=self._logs, timeout_s=self.options.evaluate_timeout_s, under=self.options.under,
            compile_baseline=self.options.compile_baseline, quiet=quiet, on_note=self.on_note,
        )  # fmt: skip

    def recorder(self, device: Device, quiet: Quiet) -> Evaluator:
        """See `engine.recording.RecordingRooms`."""
        from forge_tui.core.landscapes import BLOCKS
        from forge_tui.evaluator.client import WorkerEvaluator

        return WorkerEvaluator(
            self._spec, device, self.workspace, threads=self.options.threads, seed=self.options.seed,
            log_dir=self._logs, timeout_s=self.options.evaluate_timeout_s, quiet=quiet, on_note=self.on_note,
            blocks=BLOCKS,
        )  # fmt: skip

    def confirmer(self, device: Device) -> WinnerConfirmer:
        """See `Rooms`."""
        from forge_tui.evaluator.client import WorkerEvaluator
        from forge_tui.evaluator.confirm import WinnerConfirmer
        from forge_tui.evaluator.sets import draw

        evaluator = WorkerEvaluator(
            self._spec, device, self.workspace, threads=self.options.threads, seed=self.options.seed,
            log_dir=self._logs / "confirm", timeout_s=self.options.evaluate_timeout_s,
            draws=draw(self.options.seed, "confirmation"), under=self.options.under, on_note=self.on_note,
        )  # fmt: skip
        return WinnerConfirmer(evaluator, device, sanitizer(device))

    def proposer(self, name: str) -> Proposer:
        """See `Rooms`."""
        from forge_tui.engine import replays
        from forge_tui.proposers import registry
        from forge_tui.proposers.replay import PREFIX, ReplayProposer

        if name.startswith(PREFIX):
            return ReplayProposer(name, replays.load(name, self.workspace))
        return registry.make(name, self.options, self.session)

    def at_hand(self, target: Target, device: Device) -> bool:
        """See `Rooms`."""
        from forge_tui.proposers.templates.proposer import fits

        return "templates" in self.options.proposers and bool(fits(target, device))

    def deploy(self, device: Device, winners: Sequence[Winner], on_progress: Progress) -> Awaitable[Deployment]:
        """See `Rooms`."""
        from forge_tui.deploy import client

        return client.deploy(
            self._spec, device, self.workspace, winners, threads=self.options.threads, seed=self.options.seed,
            log=self._logs / "deploy.log", timeout_s=900, compile_baseline=self.options.compile_baseline,
            on_progress=on_progress,
        )  # fmt: skip


def sanitizer(device: Device) -> CpuSanitizer | ComputeSanitizer:
    """What winners of a device are run under."""
    if device.kind == "cuda":
        from forge_tui.evaluator.sanitizer import ComputeSanitizer

        return ComputeSanitizer(int(device.name.partition(":")[2] or 0))
    from forge_tui.compiler import sanitised
    from forge_tui.evaluator.cpu_sanitizer import CpuSanitizer

    async def build(
        target: Target, source: str, tunables: Mapping[str, int], built: Built, folder: Path, sets: int
    ) -> str:
        return await sanitised.build(device, target, source, tunables, built.plan, folder, sets)

    return CpuSanitizer(build, sanitised.why_not, sanitised.run_confined, sanitised.PROGRAM, device.threads)
