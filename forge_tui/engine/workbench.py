"""Kernels that a model tries before it answers: the judge of the search, told in words, written down one by one."""

from __future__ import annotations

import time
from collections.abc import Callable

from forge_tui.contract import tune
from forge_tui.core.errors import ContractError, ForgeError
from forge_tui.core.ports import Task
from forge_tui.core.records import Built, CompileFailure, Device, Evaluation, ToolUse, Verdict
from forge_tui.engine.pipeline import Pipeline
from forge_tui.proposers import resources, tokens
from forge_tui.search.driver import Search
from forge_tui.store.writer import Store

#: tokens of an answer; of a compiler's errors
CAP, CAP_LOG = 900, 500
#: tools that need a verdict, and so one of the session's evaluations
_JUDGED = ("check_kernel", "time_kernel", "roofline")


class EngineWorkbench:
    """Compiles and evaluates what models want to try. Each evaluation is one of the session's."""

    def __init__(
        self, store: Store, session: str, search: Search, pipeline: Pipeline, device: Device, *,
        log: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._store = store
        self._session = session
        self._search = search
        self._pipeline = pipeline
        self._device = device
        self._log = log

    async def use(self, task: Task, call: int, tool: str, source: str) -> str:
        """See `core.ports.Workbench`."""
        began = time.monotonic()
        try:
            text, verdict = await self._answer(task, tool, source)
        except ForgeError as error:
            # ours, not the kernel's: the model is told no more than that, a person all of it
            self._log("warning", f"A tool of {task.target.name} could not be used: {error}")
            text, verdict = "This tool cannot be used now.", Verdict.INFRA
        text = tokens.cap(text, CAP)
        self._store.add_tool_use(self._session, ToolUse(
            call_id=call, target_id=task.target.id, tool=tool, source=source, verdict=str(verdict), answer=text,
            seconds=time.monotonic() - began,
        ))  # fmt: skip
        return text

    async def _answer(self, task: Task, tool: str, source: str) -> tuple[str, Verdict | str]:
        if tool in _JUDGED:
            return await self._judged(task, tool, source)
        try:
            tunables = tune.defaults(source)
        except ContractError as error:
            return f"Refused: {error.what}", Verdict.REFUSED
        built = await self._pipeline.build(task.target, source, tunables)
        if isinstance(built, CompileFailure):
            return _not_built(built.verdict, built.reason, built.log), built.verdict
        if tool == "read_machine_code":
            return await self._pipeline.machine_code(built), ""
        return self._compiled(built), ""

    async def _judged(self, task: Task, tool: str, source: str) -> tuple[str, Verdict | str]:
        if not self._search.try_aside():
            return "The session has no evaluations left. Reply with the kernel now.", ""
        evaluation = await self._pipeline.attempt(task.target, source, task.seed)
        if evaluation.verdict is Verdict.INFRA:
            self._search.count_aside(-1)
            self._log("warning", f"A kernel of {task.target.name} could not be tried: {evaluation.reason}")
            return "This tool cannot be used now.", Verdict.INFRA
        return judged(task, tool, evaluation), evaluation.verdict

    def _compiled(self, built: Built) -> str:
        lines = resources.of(built.resources, built.plan, self._device)
        return "It compiles." + "".join(f"\n{line}" for line in lines)


def judged(task: Task, tool: str, found: Evaluation) -> str:
    """A verdict for the tool that was asked."""
    verdict = found.verdict
    if not verdict.right:
        return _not_built(verdict, found.reason, found.log)
    if tool == "check_kernel":
        error = f" Its largest error is {found.max_abs_error:.3g}." if found.max_abs_error is not None else ""
        return f"Right on every input.{error}"
    if found.time_us is None:
        return f"Right on every input, and not timed: {found.reason}"
    return _times(found) if tool == "time_kernel" else _roofline(task, found)


def _not_built(verdict: Verdict, reason: str, log: str) -> str:
    said = f"{str(verdict).replace('_', ' ')}: {reason}"
    log = log.strip()
    return f"{said}\n{tokens.cap(log, CAP_LOG)}" if log and log not in reason else said


def _times(found: Evaluation) -> str:
    sides = found.timings.sides if found.timings else ()
    text = ", ".join(f"{side.name} {side.us:.4g} us" for side in sides) or \
        f"candidate {found.time_us:.4g} us, original {found.baseline_us or 0:.4g} us"  # fmt: skip
    text = f"Right on every input. {text}."
    if found.speedup is not None and found.speedup_ci is not None:
        low, high = found.speedup_ci
        text += f" {found.speedup:.3f}x the speed of the best of the others, between {low:.3f} and {high:.3f}."
    return text


def _roofline(task: Task, found: Evaluation) -> str:
    target, device = task.target, task.device
    assert found.time_us is not None
    seconds = found.time_us * 1e-6
    lines = [f"Right on every input, {found.time_us:.4g} us."]
    copies = device.ceilings.copy_gbps if device.ceilings is not None else 0.0
    lines.append(f"It must move {target.bytes_moved / 1e6:.4g} MB: {target.bytes_moved / seconds / 1e9:.4g} GB/s"
                 f"{_of(target.bytes_moved / seconds / 1e9, copies, 'GB/s')}.")  # fmt: skip
    if target.flops:
        lines.append(f"It must compute {target.flops / 1e9:.4g} GFLOP: {target.flops / seconds / 1e12:.4g} TFLOP/s.")
    if target.floor_us:
        lines.append(f"The floor is {target.floor_us:.4g} us ({target.bound} bound): it reaches "
                     f"{target.floor_us / found.time_us:.0%} of it.")  # fmt: skip
    return "\n".join(lines)


def _of(value: float, most: float, unit: str) -> str:
    return f", {value / most:.0%} of the {most:.4g} {unit} that a copy reaches here" if most else ""
