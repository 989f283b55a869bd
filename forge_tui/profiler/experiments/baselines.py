"""Baselines: the ways to run a model, or one call of a target, that are there without a new kernel."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from forge_tui.core.profiles import Baseline
from forge_tui.core.records import Target
from forge_tui.models.load import LoadedModel, seed_everything
from forge_tui.models.reader import make_builder
from forge_tui.models.resolve import original
from forge_tui.profiler.experiments import standard
from forge_tui.profiler.experiments.agree import agreement, leaf_tensors
from forge_tui.profiler.experiments.in_turns import Runs, State, in_turns
from forge_tui.profiler.experiments.names import COMPILE_MODES, EAGER, GRAPH, row_name
from forge_tui.profiler.experiments.ways import (
    Compiler,
    captured,
    compiled_runs,
    compiler,
    eager_runs,
    fresh,
    graph_runs,
    stepping,
)
from forge_tui.profiler.passes import clock_for

Outputs = list[tuple[str, Tensor]]
#: memory written before every timed call of a target, so that its inputs come from memory; several times any L2
_FLUSH_BYTES = 512 << 20


class ModelBaselines:
    """The whole model and other ways to run it. What one of these ways raises passes through."""

    def __init__(self, loaded: LoadedModel, compile_: Callable[[str | None], Compiler] = compiler) -> None:
        self._loaded = loaded
        self._compile = compile_
        self._clock = clock_for(loaded.device)
        self._eager = eager_runs(loaded)
        self._base: Outputs | None = None
        self._repeatable = True

    def measure(self, way: str, settings: Sequence[str] = (), budget_s: float = 6.0) -> Baseline:
        """One way (a name of `names`) under standard settings, in turns with the model as it is."""
        name = row_name(way, settings)
        base = self._base_outputs()
        if way == EAGER and not settings:
            (ms,) = in_turns([State(self._eager)], self._clock, budget_s=budget_s)
            return Baseline(name=name, ms=ms, max_abs_error=agreement(base, base).max_abs_error)
        try:
            configured = standard.configure(self._loaded, settings)
        except standard.Inapplicable as reason:
            return Baseline(name=name, ms=None, failure=f"{reason}")
        started = time.perf_counter()
        with configured.switch():
            runs = self._runs(way, configured)
            for run, _ in runs:
                run()
                run()  # finds what the first one specialised on
            self._clock.settle()
            setup_s = time.perf_counter() - started
            outputs = _outputs(runs)
        found = agreement(outputs, base, tf32="tf32" in settings)
        error = found.max_abs_error if self._repeatable else None
        if found.why and self._repeatable:
            return Baseline(name=name, ms=None, failure=f"it gives other results: {found.why}", setup_s=setup_s,
                            max_abs_error=error)  # fmt: skip
        del outputs
        _, ms = in_turns([State(self._eager), State(runs, configured.switch)], self._clock, budget_s=budget_s)
        return Baseline(name=name, ms=ms, setup_s=0.0 if way == EAGER else setup_s, max_abs_error=error)

    def _runs(self, way: str, configured: standard.Configured) -> Runs:
        if way == GRAPH:
            return graph_runs(self._loaded, configured.phases)
        if way == EAGER:
            return eager_runs(self._loaded, configured.phases)
        mode = COMPILE_MODES[way]
        runs = compiled_runs(self._loaded, self._compile(mode), configured.phases)
        return [(stepping(run), weight) for run, weight in runs] if mode == "reduce-overhead" else runs

    def _base_outputs(self) -> Outputs:
        if self._base is None:
            self._base = _outputs(self._eager)
            # a model that draws random numbers, or goes on from call to call, has nothing to be compared with
            self._repeatable = not agreement(_outputs(self._eager, seed=1), self._base).why
        return self._base


def _outputs(runs: Runs, seed: int = 0) -> Outputs:
    found: Outputs = []
    for run, _ in runs:
        seed_everything(seed)
        found += leaf_tensors(run())
    return found


class TargetBaselines:
    """One target's call on captured inputs. What a way to run it raises passes through.

    `tensors` are the call's inputs in the order of the signature; those that the model holds itself (parameters,
    closure tensors) stay where they are. On CUDA every timed call finds a cold L2.

    Raises:
        ModelError: the model no longer has the callable.
    """

    def __init__(
        self, loaded: LoadedModel, target: Target, tensors: Sequence[Tensor],
        compile_: Callable[[str | None], Compiler] = compiler,
    ) -> None:  # fmt: skip
        self._loaded = loaded
        self._compile = compile_
        self._clock = clock_for(loaded.device)
        call = original(target, loaded)
        # the call was seen behind the module's own hooks
        self._call = call.forward if isinstance(call, torch.nn.Module) else call
        self._args, self._kwargs = make_builder(target.signature)(tensors)
        self._before = _flusher(loaded.device)
        self._base: Outputs | None = None

    def measure(self, way: str, budget_s: float = 2.0) -> Baseline:
        """One way (a name of `names`), in turns with the call as it is."""
        with torch.no_grad():
            return self._measure(way, budget_s)

    def _measure(self, way: str, budget_s: float) -> Baseline:
        def eager() -> Any:
            return self._call(*self._args, **self._kwargs)

        if self._base is None:
            self._base = _outputs([(eager, 1.0)])
        if way == EAGER:
            (ms,) = in_turns([State([(eager, 1.0)])], self._clock, budget_s=budget_s, before=self._before)
            return Baseline(name=way, ms=ms, max_abs_error=agreement(self._base, self._base).max_abs_error)
        started = time.perf_counter()
        with _forgotten():
            run = captured(eager, self._loaded.device) if way == GRAPH else self._compiled(COMPILE_MODES[way])
            run()
            run()
            self._clock.settle()
            setup_s = time.perf_counter() - started
            found = agreement(_outputs([(run, 1.0)]), self._base)
            if found.why:
                return Baseline(name=way, ms=None, failure=f"it gives other results: {found.why}", setup_s=setup_s,
                                max_abs_error=found.max_abs_error)  # fmt: skip
            _, ms = in_turns([State([(eager, 1.0)]), State([(run, 1.0)])], self._clock, budget_s=budget_s,
                             before=self._before)  # fmt: skip
        return Baseline(name=way, ms=ms, setup_s=setup_s, max_abs_error=found.max_abs_error)

    def _compiled(self, mode: str | None) -> Callable[[], Any]:
        compiled = self._compile(mode)(fresh(self._call))
        return lambda: compiled(*self._args, **self._kwargs)


@contextlib.contextmanager
def _forgotten() -> Iterator[None]:
    """What Dynamo compiled for other targets is no part of this one's time, and does not make it dynamic."""
    torch._dynamo.reset()  # noqa: SLF001 - torch.compiler.reset in newer versions
    try:
        yield
    finally:
        torch._dynamo.reset()  # noqa: SLF001


def _flusher(device: torch.device) -> Callable[[], None] | None:
    if device.type != "cuda":
        return None
    size = max(4 * int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)), _FLUSH_BYTES)
    free, _ = torch.cuda.mem_get_info(device)
    buffer = torch.empty(min(size, max(1, free // 4)), dtype=torch.uint8, device=device)

    def flush() -> None:
        buffer.zero_()

    return flush


