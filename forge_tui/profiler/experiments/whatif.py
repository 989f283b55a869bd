"""What the whole model would gain if targets cost their floor: measured, in each mode that it may be deployed under."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from forge_tui.core.errors import ForgeError
from forge_tui.core.profiles import Mode, WhatIf
from forge_tui.core.records import Target
from forge_tui.models.load import LoadedModel, seed_everything
from forge_tui.profiler.experiments.in_turns import Runs, State, in_turns
from forge_tui.profiler.experiments.names import one_by_one
from forge_tui.profiler.experiments.replacing import StandIns
from forge_tui.profiler.experiments.rows import shortened
from forge_tui.profiler.experiments.standins import Unreplaceable
from forge_tui.profiler.experiments.ways import Compiler, compiled_runs, compiler, eager_runs, graph_runs
from forge_tui.profiler.passes import clock_for

#: so many variants of one model in one process pass Dynamo's own limit where the model breaks graphs
_RECOMPILES = 512


class WhatIfBench:
    """One model in one mode; it is as it was between calls.

    What the model raises, and what torch.compile or a graph capture raises about it, passes through.
    """

    def __init__(
        self, loaded: LoadedModel, mode: Mode, *, launch_us: float = 0.0, compile_: Compiler | None = None
    ) -> None:
        self._loaded = loaded
        self._mode = mode
        self._launch_us = launch_us
        self._compile = compile_ or compiler()
        self._clock = clock_for(loaded.device)
        self._base: Runs | None = None

    def measure(self, targets: Sequence[Target], budget_s: float = 4.0) -> WhatIf:
        """The model with these targets at their floor, in turns with the model as it is.

        Raises:
            ModelError: the model no longer has a target.
        """
        ids = tuple(t.id for t in targets)
        base = self._base_runs()
        if not targets:
            (base_ms,) = in_turns([State(base)], self._clock, budget_s=budget_s)
            return WhatIf(mode=self._mode, target_ids=(), ms=base_ms, base_ms=base_ms)
        try:
            stand_ins = StandIns(self._loaded, targets, launch_us=self._launch_us, compiled=self._mode == "compile")
        except Unreplaceable as error:
            return WhatIf(mode=self._mode, target_ids=ids, ms=None, base_ms=None, failure=f"{error}")
        with stand_ins.active(), _many_recompiles():
            runs = self._runs()
            calls = self._count(runs, stand_ins)
        failure = "" if calls else "none of its calls could be replaced in this mode"
        if self._mode == "compile" and self._count(base, stand_ins):
            failure = "torch.compile runs code for the replaced model where the model is as it was"
        if failure:
            return WhatIf(mode=self._mode, target_ids=ids, ms=None, base_ms=None, failure=failure)
        # replays hold their kernels; everything else looks the targets up at every call
        after = State(runs) if self._mode == "graph" else State(runs, stand_ins.active)
        with _many_recompiles():
            base_ms, ms = in_turns([State(base), after], self._clock, budget_s=budget_s)
        return WhatIf(mode=self._mode, target_ids=ids, ms=ms, base_ms=base_ms, calls=calls)

    def _base_runs(self) -> Runs:
        if self._base is None:
            # before anything is replaced: torch.compile makes its tables of torch's functions at its first use
            self._base = self._runs()
            for run, _ in self._base:
                run()
        return self._base

    def _runs(self) -> Runs:
        seed_everything(0)
        if self._mode == "compile":
            return compiled_runs(self._loaded, self._compile)
        if self._mode == "graph":
            return graph_runs(self._loaded)
        return eager_runs(self._loaded)

    def _count(self, runs: Runs, stand_ins: StandIns) -> float:
        """Replaced calls in one model call, weighted by phase."""
        if self._mode == "graph":  # a replay runs no Python: counted as the captured calls are made
            runs = eager_runs(self._loaded)
        total = 0.0
        for run, weight in runs:
            run()  # the first one compiles
            stand_ins.counter.calls = 0
            run()
            total += weight * stand_ins.counter.calls
        return total


def what_if(
    loaded: LoadedModel, targets: Sequence[Target], mode: Mode, *, launch_us: float = 0.0, budget_s: float = 4.0,
    compile_: Compiler | None = None,
) -> tuple[WhatIf, ...]:  # fmt: skip
    """One row for each target, and one for all of them together where there are several; failures are rows too."""
    bench = WhatIfBench(loaded, mode, launch_us=launch_us, compile_=compile_)
    rows: list[WhatIf] = []
    for chosen in one_by_one(targets):
        try:
            rows.append(bench.measure(chosen, budget_s))
        except ForgeError as error:
            rows.append(WhatIf(mode=mode, target_ids=tuple(t.id for t in chosen), ms=None, base_ms=None,
                               failure=error.what))  # fmt: skip
        except Exception as error:  # noqa: BLE001 - whatever the model, the compiler or the capture raises is the answer
            rows.append(WhatIf(mode=mode, target_ids=tuple(t.id for t in chosen), ms=None, base_ms=None,
                               failure=shortened(f"{type(error).__name__}: {error}")))  # fmt: skip
    return tuple(rows)


@contextlib.contextmanager
def _many_recompiles() -> Iterator[None]:
    """No limit on how often Dynamo compiles one piece of code (its names differ between versions of torch)."""
    config: Any = torch._dynamo.config  # noqa: SLF001
    names = ("recompile_limit", "accumulated_recompile_limit")
    if not hasattr(config, names[0]):
        names = ("cache_size_limit", "accumulated_cache_size_limit")
    before = {name: getattr(config, name) for name in names}
    try:
        for name, value in before.items():
            setattr(config, name, max(value, _RECOMPILES))
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)
