"""The process that runs the model with kernels in it (`python -m forge_tui.deploy.worker --in N --out N`).

A kernel may end this process or leave its device unusable; the client then starts another one. Which kernels stay is
decided outside (`gate`); here is only measured.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from forge_tui.core.errors import ModelError
from forge_tui.core.records import ModelSpec, Winner
from forge_tui.deploy import compare, measure
from forge_tui.deploy.messages import Check, Comparison, CompileResult, HostTimes, Prepared, Served
from forge_tui.deploy.patch import Deployable, Patch
from forge_tui.models.faults import explain
from forge_tui.models.load import LoadedModel, load_model


class Session:
    """One loaded model with its winners."""

    def __init__(self, message: dict[str, Any]) -> None:
        if message["threads"]:
            torch.set_num_threads(message["threads"])
        self._device = message["device"]
        self._seed = message["seed"]
        self._spec = msgspec.convert(message["spec"], ModelSpec)
        self._winners = [msgspec.convert(item, Winner) for item in message["winners"]]
        self._loaded: LoadedModel = load_model(self._spec, self._device, self._seed)
        self._sync = measure.synchroniser(self._loaded.device)
        self._kernels: dict[int, Deployable] = {}
        self._patches: dict[tuple[int, ...], Patch] = {}
        self._state: Patch | None = None
        try:
            self._base = compare.run_outputs(self._loaded, self._seed)
        except Exception as error:
            raise explain(error, self._spec, "The model's forward failed") from error
        self._tolerance = compare.find_tolerance(self._loaded, self._base, self._seed)

    def prepared(self) -> Prepared:
        """What is known of the original model."""
        times = [measure.timed_runs(self._loaded.weighted_runs, self._sync, 1) * 1e3 for _ in range(3)]
        return Prepared(model_ms=sorted(times)[1], tolerance=self._tolerance.text,
                        incomparable=compare.incomparable(self._base))  # fmt: skip

    def check(self, indices: Sequence[int]) -> Check:
        """Outputs and counts of one model call with these kernels in."""
        patch = self._patch(indices)
        self._enter(patch)
        patch.reset()
        try:
            outputs = compare.run_outputs(self._loaded, self._seed)
            self._sync()
        finally:
            self._enter(None)
        return Check(
            difference=compare.difference(outputs, self._base, self._tolerance),
            served=[_served(patch, self._winners[i].target.id) for i in indices],
        )

    def compare(self, first: Sequence[int], second: Sequence[int], budget_s: float) -> Comparison:
        """The model with one set of kernels over the model with another."""
        a, b = (self._patch(indices) if indices else None for indices in (first, second))
        try:
            return measure.compare(
                self._loaded.weighted_runs, lambda: self._enter(a), lambda: self._enter(b), self._sync, budget_s
            )
        finally:
            self._enter(None)

    def host(self, index: int) -> HostTimes:
        """Host times of one call as the model makes it."""
        patch = self._patch([index])
        guards = patch.guards(self._winners[index].target.id)
        kept = [guard.keep_next() for guard in guards]
        self._enter(patch)
        try:
            self._loaded.run()
        finally:
            self._enter(None)
        for guard, calls in zip(guards, kept, strict=True):
            if calls:
                args, kwargs = calls[0]
                return measure.host_times(
                    lambda: guard(*args, **kwargs), lambda: guard.original(*args, **kwargs), self._sync  # noqa: B023
                )  # fmt: skip
        return HostTimes()

    def compile(self) -> CompileResult:
        """Compile the original model with torch.compile and compare its outputs with eager's."""
        module = self._loaded.module
        module.compile()
        try:
            for _ in range(2):  # the second run finds what the first one specialised on
                outputs = compare.run_outputs(self._loaded, self._seed)
        except Exception as error:  # noqa: BLE001 - a model that torch.compile cannot take is an answer
            return CompileResult(comparison=None, failure=f"{type(error).__name__}: {_first_line(error)}")
        gap = compare.difference(outputs, self._base, self._tolerance)
        return CompileResult(comparison=None, failure="" if gap.within else f"It gives other results: {gap.why}.")

    def compiled(self, budget_s: float) -> CompileResult:
        """The compiled original over eager, in turns."""
        module = self._loaded.module
        compiled = module._compiled_call_impl  # noqa: SLF001 - the switch between the two states

        def use(implementation: Any) -> None:
            module._compiled_call_impl = implementation  # noqa: SLF001

        try:
            found = measure.compare(
                self._loaded.weighted_runs, lambda: use(compiled), lambda: use(None), self._sync, budget_s
            )
        finally:
            use(None)
        return CompileResult(comparison=found)

    def _enter(self, patch: Patch | None) -> None:
        if self._state is not patch:
            if self._state is not None:
                self._state.suspend()
            if patch is not None:
                patch.install()
            self._state = patch

    def _patch(self, indices: Sequence[int]) -> Patch:
        key = tuple(sorted(indices))
        patch = self._patches.get(key)
        if patch is None:
            loaded = self._loaded
            scopes = list(loaded.module.children()) if loaded.has_workload else []
            patch = Patch(loaded.module, [self._kernel(i) for i in key], own_modules=loaded.own_modules, scopes=scopes)
            self._patches[key] = patch
        return patch

    def _kernel(self, index: int) -> Deployable:
        if index not in self._kernels:
            from forge_tui.launch.kernel import load_kernel

            winner = self._winners[index]
            kernel = load_kernel(winner.built, winner.target.signature, self._device)
            self._kernels[index] = Deployable(winner.target, kernel)
        return self._kernels[index]


def _served(patch: Patch, target_id: str) -> Served:
    calls, reasons = patch.counts(target_id)
    return Served(calls=calls, fallbacks=sum(reasons.values()), reasons=reasons, fault=patch.fault(target_id))


def _first_line(error: Exception) -> str:
    """The first line of a message, with the second where the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:300]


class _Handlers:
    """The worker's operations by name."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def prepare(self, message: dict[str, Any]) -> dict[str, Any]:
        self._session = Session(message)
        return _reply(self._session.prepared())

    def check(self, message: dict[str, Any]) -> dict[str, Any]:
        return _reply(self._open().check(message["indices"]))

    def compare(self, message: dict[str, Any]) -> dict[str, Any]:
        return _reply(self._open().compare(message["first"], message["second"], message["budget_s"]))

    def host(self, message: dict[str, Any]) -> dict[str, Any]:
        return _reply(self._open().host(message["index"]))

    def compile(self, _: dict[str, Any]) -> dict[str, Any]:
        return _reply(self._open().compile())

    def compiled(self, message: dict[str, Any]) -> dict[str, Any]:
        return _reply(self._open().compiled(message["budget_s"]))

    def _open(self) -> Session:
        if self._session is None:
            raise ModelError("The model is not loaded.")
        return self._session


def _reply(record: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found


def main(argv: list[str]) -> None:
    """Answer requests until the engine goes."""
    from forge_tui.processes.wire import fds_from_argv, serve

    warnings.simplefilter("ignore")
    handlers = _Handlers()
    names = ("prepare", "check", "compare", "host", "compile", "compiled")
    serve({name: getattr(handlers, name) for name in names}, *fds_from_argv(argv))


if __name__ == "__main__":
    main(sys.argv)
